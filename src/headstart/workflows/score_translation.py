"""Marks of a translator: its loss on translations that are given, and its own ones against references."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headstart.batch import Row
from headstart.config import RunConfig
from headstart.data.dataset import hashes
from headstart.data.decontamination import seen_before
from headstart.data.parallel import ParallelText, load_pairs_for_scoring, load_parallel
from headstart.data.samplers import TextLoader
from headstart.data.tokenizer import Tokenizer
from headstart.errors import RunError
from headstart.evaluation.translation_metrics import MEASURES, compare_translations, score_translations
from headstart.generation.beam import Beam
from headstart.inference.loaded_model import LoadedModel, load_model
from headstart.models.model import Model
from headstart.objectives.base import Objective
from headstart.results import TranslationScore, TranslationTest
from headstart.training.evaluate import loss_sums
from headstart.training.runtime import Runtime, start_runtime
from headstart.workflows.decoding import at_once, write_translations
from headstart.workflows.translation_task import TranslationTask, encode_pairs

BEAM = 5  # hypotheses kept at once when a finished translator is marked
TESTED = ("bleu", "chrf")  # measures by which two translators are set against each other


@dataclass(frozen=True)
class TranslationDuel:
    """Two translators on the same texts, and what can be said of their difference."""

    score: TranslationScore
    against: TranslationScore
    tests: list[TranslationTest]

    @property
    def skipped(self) -> int:
        """Rows that could not be used."""
        return self.score.skipped


def evaluate_translator(
    trained: LoadedModel,
    data: str,
    config: RunConfig,
    *,
    beam: int | None = None,
    against: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> TranslationScore | TranslationDuel:
    """Marks on the test split of DATA, else on its valid split; with `against`, beside those of another run."""
    runtime = start_runtime(config.training)
    task, skipped = _scored_task(trained, data, config)
    found, written = _mark(trained, task, runtime, beam or BEAM, skipped)
    if against is None:
        return found
    other = load_model(against)
    if other.info.pair != trained.info.pair:
        ways = ["-".join(each.info.pair) or each.objective.name for each in (trained, other)]
        raise RunError(
            f"{trained.name} is a run for {ways[0]} and {against} one for {ways[1]}",
            hint="set runs for one pair of languages against each other",
        )
    own = other.info.config.with_(settings or {})
    theirs, other_written = _mark(other, _scored_task(other, data, own)[0], runtime, beam or BEAM, skipped)
    sides = (trained.name, written), (against, other_written)
    references, language = task.text.targets(_split(task)), task.text.pair[1]
    tests = [compare_translations(*sides, references, language, measure=measure) for measure in TESTED]
    return TranslationDuel(found, theirs, tests)


def mark_own_valid(trained: LoadedModel) -> TranslationScore:
    """Marks on the validation part of the pairs that a translator was made of."""
    config = trained.info.config
    source, target = trained.info.pair
    text = load_parallel(trained.info.inputs["data"], (source, target), config.data)
    tokenizers = trained.tokenizer, trained.source_tokenizer
    rows = encode_pairs(text.splits["valid"], tokenizers, config.training.length, config.data.keep)
    task = TranslationTask(text, *tokenizers, {"valid": rows})
    return _mark(trained, task, start_runtime(config.training), BEAM, len(text.skips))[0]


def _scored_task(trained: LoadedModel, data: str, config: RunConfig) -> tuple[TranslationTask, int]:
    source, target = trained.info.pair
    split, examples, skips = load_pairs_for_scoring(data, (source, target), config.data)
    tokenizers = trained.tokenizer, trained.source_tokenizer
    rows = encode_pairs(examples, tokenizers, config.training.length, config.data.keep)
    text = ParallelText(data, (source, target), {split: examples}, skips)
    return TranslationTask(text, *tokenizers, {split: rows}), len(skips)


def _split(task: TranslationTask) -> str:
    return next(iter(task.rows))


def _mark(
    trained: LoadedModel, task: TranslationTask, runtime: Runtime, beam: int, skipped: int
) -> tuple[TranslationScore, list[str]]:
    model = trained.model().to(runtime.device)
    found, written = mark_translations(
        model, trained.objective, task, _split(task), runtime, trained.train_fingerprints, beam=beam
    )
    return replace(found, skipped=skipped), written


def mark_losses(
    model: Model, objective: Objective, rows: Sequence[Row], vocabulary: Tokenizer, runtime: Runtime
) -> tuple[float, float]:
    """The loss (nats a token, without smoothing) and the share of right tokens, each with the true ones before it."""
    loader = TextLoader(rows, at_once(runtime), shuffled=False)
    total, count, correct = loss_sums(model, objective, loader, vocabulary, runtime)["lm"]
    return total / max(1, count), correct / max(1, count)


def mark_translations(
    model: Model,
    objective: Objective,
    task: TranslationTask,
    split: str,
    runtime: Runtime,
    seen: np.ndarray,
    *,
    beam: int = 1,
    measures: Sequence[str] = tuple(MEASURES),
) -> tuple[TranslationScore, list[str]]:
    """All marks on one split, with their leak-free twin, and the translations; greedy with a beam of 1."""
    rows, language = task.rows[split], task.text.pair[1]
    loss, accuracy = mark_losses(model, objective, rows, task.tokenizer, runtime)
    search = None if beam == 1 else Beam(width=beam)
    written = write_translations(model, task.sources(split), task.tokenizer, runtime, search)
    texts = [task.tokenizer.decode(each.tokens) for each in written]
    references = task.text.targets(split)
    cut = sum(each.is_cut for each in written)
    found = score_translations(
        texts, references, language, measures=measures, hypotheses_cut=cut, split=split
    )
    unseen = np.flatnonzero(~seen_before(hashes(task.text.sources(split)), seen))
    fair = None
    if len(unseen):
        sides = [texts[place] for place in unseen], [references[place] for place in unseen]
        fair = score_translations(*sides, language, measures=("bleu",)).bleu
    marked = replace(
        found,
        loss=loss,
        perplexity=math.exp(min(loss, 50)),
        accuracy=accuracy,
        beam=beam,
        leaked=len(rows) - len(unseen),
        leak_free_bleu=fair,
        leak_free_count=len(unseen),
    )
    return marked, texts
