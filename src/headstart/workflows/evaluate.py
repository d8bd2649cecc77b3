"""Evaluating a finished run on data: a classifier or an ensemble, a language model, or a translator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headstart.config import RunConfig
from headstart.data.datasets import Dataset, load_for_scoring
from headstart.data.documents import open_for_scoring
from headstart.data.parallel import ParallelText, load_pairs_for_scoring, load_parallel
from headstart.data.text_io import is_contaminated
from headstart.data.token_cache import join
from headstart.errors import ConfigError, DataError, RunError, nearest
from headstart.evaluation.metrics import score
from headstart.evaluation.translation_metrics import compare_translations
from headstart.inference.classify import Classifier, load_ensemble, mean_probabilities
from headstart.inference.loaded_model import LoadedModel, load_model
from headstart.results import LanguageScore, Score, TranslationScore, TranslationTest
from headstart.training.runtime import Runtime, start_runtime
from headstart.workflows.finetune_seq2seq import TranslationJob, TranslationTask, encode_pairs
from headstart.workflows.pretrain import PretrainJob, prepare_documents

BEAM = 5  # default width of the beam search that evaluates a translator
TESTED = ("bleu", "chrf")  # metrics of the significance tests between two translators


@dataclass(frozen=True)
class TranslationComparison:
    """Two translators on the same texts, and significance tests of their difference."""

    score: TranslationScore
    against: TranslationScore
    tests: list[TranslationTest]

    @property
    def skipped(self) -> int:
        """Rows that could not be used."""
        return self.score.skipped


def evaluate(
    run: str | Sequence[str],
    data: str,
    *,
    settings: Mapping[str, Any] | None = None,
    beam: int | None = None,
    against: str | None = None,
) -> Score | LanguageScore | TranslationScore | TranslationComparison:
    """Evaluate a run: a classifier on labelled DATA, a translator on pairs, a language model on a corpus.

    Several classifiers (a list, or names with commas between) are an ensemble: their probabilities are averaged.
    `beam` is the width of a translator's search, and `against` another translator to compare it with.
    """
    members = load_ensemble(run)
    first = members[0]
    config = first.info.config.with_(settings or {})
    if first.objective.reads == "translations":
        return evaluate_translator(first, data, config, beam=beam, against=against, settings=settings)
    if beam is not None or against is not None:
        raise ConfigError(
            f"{first.name} is not a translator", hint="--num-beams and --baseline go with a run for a --pair"
        )
    if first.objective.reads == "texts":
        return _evaluate_classifiers(members, data, config, settings or {})
    return _evaluate_language_model(first, data, config)


def evaluate_loaded(loaded: LoadedModel, data: str) -> Score | LanguageScore:
    """Evaluate a classifier or a language model in memory."""
    config = loaded.info.config
    if loaded.objective.reads == "texts":
        return _evaluate_classifiers([loaded], data, config, {})
    return _evaluate_language_model(loaded, data, config)


def _evaluate_classifiers(
    members: list[LoadedModel], data: str, config: RunConfig, settings: Mapping[str, Any]
) -> Score:
    split, examples, skips = load_for_scoring(data, config.data)
    classes = members[0].info.classes
    unknown = next((example for example in examples if example.label not in classes), None)
    if unknown is not None:
        raise DataError(
            f"{unknown.origin} has label {unknown.label!r}, which {members[0].name} was not trained on",
            hint=nearest(str(unknown.label), classes),
        )
    dataset = Dataset(name=data, splits={split: examples}, classes=classes)
    probabilities = mean_probabilities([Classifier(member, settings) for member in members], examples)
    was_seen = is_contaminated(dataset.hashes(split), np.concatenate([member.train_fingerprints for member in members]))
    found = score(np.array(dataset.targets(split)), probabilities, classes, was_seen, split)
    return replace(found, skipped=len(skips))


def _evaluate_language_model(loaded: LoadedModel, data: str, config: RunConfig) -> LanguageScore:
    runtime = start_runtime(config.training)
    corpus = prepare_documents(open_for_scoring(data, config.data), loaded.tokenizer, lambda event: None)
    stream = join([corpus.train, corpus.valid])
    if len(stream) <= loaded.objective.lookahead:
        raise DataError(f"{data} holds almost no text", hint="give more or longer documents")
    leaked = int(is_contaminated(corpus.hashes(), loaded.train_fingerprints).sum())
    model = loaded.model().to(runtime.device)
    found = PretrainJob(config, runtime).score(model, stream, loaded.tokenizer, leaked)
    return replace(found, skipped=sum(corpus.skips.values()))


def evaluate_translator(
    loaded: LoadedModel,
    data: str,
    config: RunConfig,
    *,
    beam: int | None = None,
    against: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> TranslationScore | TranslationComparison:
    """Score the test split of DATA, else its valid split; with `against`, compare with another run."""
    runtime = start_runtime(config.training)
    task = _load_task(loaded, data, config)
    own, texts = _score_task(loaded, task, runtime, beam or BEAM)
    if against is None:
        return own
    other = load_model(against)
    if other.info.pair != loaded.info.pair:
        pairs = ["-".join(each.info.pair) or each.objective.name for each in (loaded, other)]
        raise RunError(
            f"{loaded.name} is a run for {pairs[0]} and {against} a run for {pairs[1]}",
            hint="compare runs for the same pair of languages",
        )
    other_task = _load_task(other, data, other.info.config.with_(settings or {}))
    theirs, other_texts = _score_task(other, other_task, runtime, beam or BEAM)
    references, language = task.text.targets(_split(task)), task.text.pair[1]
    sides = (loaded.name, texts), (against, other_texts)
    tests = [compare_translations(*sides, references, language, measure=measure) for measure in TESTED]
    return TranslationComparison(own, replace(theirs, skipped=own.skipped), tests)


def evaluate_on_own_valid(loaded: LoadedModel) -> TranslationScore:
    """Score a translator on the validation split of its own training data."""
    config = loaded.info.config
    source, target = loaded.info.pair
    text = load_parallel(loaded.info.inputs.data, (source, target), config.data)
    task = _encode_split(loaded, replace(text, splits={"valid": text.splits["valid"]}), config)
    return _score_task(loaded, task, start_runtime(config.training), BEAM)[0]


def _load_task(loaded: LoadedModel, data: str, config: RunConfig) -> TranslationTask:
    source, target = loaded.info.pair
    split, examples, skips = load_pairs_for_scoring(data, (source, target), config.data)
    return _encode_split(loaded, ParallelText(data, (source, target), {split: examples}, skips), config)


def _encode_split(loaded: LoadedModel, text: ParallelText, config: RunConfig) -> TranslationTask:
    """The only split of a text as tokens."""
    tokenizers = loaded.tokenizer, loaded.source_tokenizer
    length, keep = config.training.max_length, config.data.truncation_side
    rows = {name: encode_pairs(pairs, tokenizers, length, keep) for name, pairs in text.splits.items()}
    return TranslationTask(*tokenizers, text, rows)


def _split(task: TranslationTask) -> str:
    return next(iter(task.rows))


def _score_task(
    loaded: LoadedModel, task: TranslationTask, runtime: Runtime, beam: int
) -> tuple[TranslationScore, list[str]]:
    model, split = loaded.model().to(runtime.device), _split(task)
    job = TranslationJob(loaded.info.config, runtime)
    found, texts = job.score(model, task, split, loaded.train_fingerprints, beam=beam)
    return replace(found, skipped=len(task.text.skips)), texts
