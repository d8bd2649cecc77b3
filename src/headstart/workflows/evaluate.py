"""Evaluating a finished run on data: a classifier or an ensemble, a language model, or a translator."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headstart.config import RunConfig
from headstart.data.datasets import Dataset, Example, SkippedRow, load_for_scoring
from headstart.data.documents import open_for_scoring, write_texts
from headstart.data.parallel import ParallelText, load_pairs_for_scoring, load_parallel
from headstart.data.text_io import hashes, is_contaminated
from headstart.data.token_cache import Corpus, default_cache, join, prepare
from headstart.errors import ConfigError, DataError, RunError, nearest
from headstart.evaluation.metrics import score
from headstart.evaluation.translation_metrics import compare_translations
from headstart.inference.classify import Classifier, load_ensemble, mean_probabilities, mean_thresholds
from headstart.inference.loaded_model import LoadedModel, load_model
from headstart.results import LanguageScore, Score, TaskScore, TranslationScore, TranslationTest
from headstart.training.runtime import start_runtime
from headstart.workflows.finetune_seq2seq import TranslationJob, TranslationTask, encode_pairs
from headstart.workflows.pretrain import PretrainJob

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
    return score_examples([Classifier(member, settings) for member in members], split, examples, skips, data)


def score_examples(
    ensemble: Sequence[Classifier], split: str, examples: Sequence[Example], skips: Sequence[SkippedRow], name: str
) -> Score:
    """The score of classifiers in memory on labelled texts; `name` is what error messages call these."""
    members = [member.loaded for member in ensemble]
    classes = members[0].info.classes
    if (task := members[0].task) not in ("single-label", "ordinal"):
        return _score_labels(ensemble, split, examples, len(skips))
    known = set(classes)
    unknown = next((example for example in examples if example.label not in known), None)
    if unknown is not None:
        raise DataError(
            f"{unknown.origin} has label {unknown.label!r}, which {members[0].name} was not trained on",
            hint=nearest(str(unknown.label), classes),
        )
    if task == "ordinal":
        return _score_labels(ensemble, split, examples, len(skips))
    dataset = Dataset(name=name, splits={split: list(examples)}, classes=classes)
    probabilities = mean_probabilities(ensemble, examples)
    was_seen = is_contaminated(dataset.hashes(split), np.concatenate([member.train_fingerprints for member in members]))
    found = score(np.array(dataset.targets(split)), probabilities, classes, was_seen, split)
    return replace(found, skipped=len(skips))


def _score_labels(ensemble: Sequence[Classifier], split: str, examples: Sequence[Example], skipped: int) -> TaskScore:
    """The score of several labels, numbers, ordered classes or tags."""
    from headstart.evaluation.task_scores import score_task

    members = [member.loaded for member in ensemble]
    known = np.concatenate([member.train_fingerprints for member in members])
    was_seen = is_contaminated(hashes(example.content for example in examples), known)
    labels, outputs = [str(example.label) for example in examples], mean_probabilities(ensemble, examples)
    thresholds, classes = mean_thresholds(members), members[0].info.classes
    found = score_task(members[0].task, labels, outputs, classes, was_seen, split, thresholds)
    return replace(found, skipped=skipped)


def _evaluate_language_model(
    loaded: LoadedModel, data: str, config: RunConfig, cache: Path | None = None
) -> LanguageScore:
    documents = open_for_scoring(data, config.data)
    corpus = prepare(documents, loaded.tokenizer, cache or default_cache())
    return _score_corpus(loaded, corpus, data, config)


def evaluate_texts(loaded: LoadedModel, texts: Sequence[str]) -> LanguageScore:
    """Evaluate a language model in memory on texts in memory, each a document."""
    with tempfile.TemporaryDirectory(prefix="headstart-") as folder:
        path = Path(folder) / "texts.jsonl"
        write_texts(path, texts)
        config = loaded.info.config.with_({"data": {"text_column": "text"}})
        return _evaluate_language_model(loaded, str(path), config, Path(folder) / "cache")


def _score_corpus(loaded: LoadedModel, corpus: Corpus, data: str, config: RunConfig) -> LanguageScore:
    runtime = start_runtime(config.training)
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
    text = _load_pairs(loaded, data, config)
    own, texts = _score_translator(loaded, text, config, beam)
    if against is None:
        return own
    other = load_model(against)
    if other.info.pair != loaded.info.pair:
        pairs = ["-".join(each.info.pair) or each.objective.name for each in (loaded, other)]
        raise RunError(
            f"{loaded.name} is a run for {pairs[0]} and {against} a run for {pairs[1]}",
            hint="compare runs for the same pair of languages",
        )
    config = other.info.config.with_(settings or {})
    theirs, other_texts = _score_translator(other, _load_pairs(other, data, config), config, beam)
    sides = (loaded.name, texts), (against, other_texts)
    references, language = text.targets(own.split), text.pair[1]
    tests = [compare_translations(*sides, references, language, measure=measure) for measure in TESTED]
    return TranslationComparison(own, replace(theirs, skipped=own.skipped), tests)


def evaluate_on_own_valid(loaded: LoadedModel) -> TranslationScore:
    """Score a translator on the validation split of its own training data."""
    config, (source, target) = loaded.info.config, loaded.info.pair
    text = load_parallel(loaded.info.inputs.data, (source, target), config.data)
    return _score_translator(loaded, replace(text, splits={"valid": text.splits["valid"]}), config)[0]


def _load_pairs(loaded: LoadedModel, data: str, config: RunConfig) -> ParallelText:
    source, target = loaded.info.pair
    split, examples, skips = load_pairs_for_scoring(data, (source, target), config.data)
    return ParallelText(data, (source, target), {split: examples}, skips)


def _score_translator(
    loaded: LoadedModel, text: ParallelText, config: RunConfig, beam: int | None = None
) -> tuple[TranslationScore, list[str]]:
    """The score on the only split of a text, and the translations."""
    ((split, pairs),) = text.splits.items()
    tokenizers, runtime = (loaded.tokenizer, loaded.source_tokenizer), start_runtime(config.training)
    rows = encode_pairs(pairs, tokenizers, config.training.max_length, config.data.truncation_side)
    task, model = TranslationTask(*tokenizers, text, {split: rows}), loaded.model().to(runtime.device)
    job = TranslationJob(loaded.info.config, runtime)
    found, texts = job.score(model, task, split, loaded.train_fingerprints, beam=beam or BEAM)
    return replace(found, skipped=len(text.skips)), texts
