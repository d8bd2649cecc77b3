"""Marking and using finished runs, one or several together: evaluate and predict."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headstart.config import DataConfig, RunConfig, parse
from headstart.convert.onnx import GRAPH, OnnxClassifier
from headstart.data.dataset import Dataset, Example
from headstart.data.datasets import load_for_scoring, load_texts
from headstart.data.decontamination import seen_before
from headstart.data.documents import open_for_scoring
from headstart.data.token_stream import join
from headstart.errors import ConfigError, DataError, RunError, nearest, pick
from headstart.evaluation.metrics import score
from headstart.inference.loaded_model import LoadedModel, load_model, require_head
from headstart.results import LanguageScore, Score, TranslationScore
from headstart.training.evaluate import predict_probabilities
from headstart.training.runtime import start_runtime
from headstart.workflows.labelled import encode_rows
from headstart.workflows.prepare import prepare_documents
from headstart.workflows.pretrain import score_language

if TYPE_CHECKING:
    from headstart.workflows.score_translation import TranslationDuel

PREDICTED_AT_ONCE = 1024  # texts held in memory
ONNX_TOKENS = 1024  # read together, padding included


def evaluate(
    run: str | Sequence[str],
    data: str,
    *,
    settings: Mapping[str, Any] | None = None,
    beam: int | None = None,
    against: str | None = None,
) -> "Score | LanguageScore | TranslationScore | TranslationDuel":
    """Mark a run: a classifier on labelled DATA, a translator on pairs, a language model on a corpus.

    Several classifiers (a list, or names with commas between) are marked as one: their probabilities are averaged.
    `beam` is the width of a translator's search, and `against` another translator to set beside it.
    """
    trained = load_ensemble(run)
    first = trained[0]
    config = first.info.config.with_(settings or {})
    if first.objective.reads == "translations":
        from headstart.workflows.score_translation import evaluate_translator

        return evaluate_translator(first, data, config, beam=beam, against=against, settings=settings)
    if beam is not None or against is not None:
        raise ConfigError(
            f"{first.name} is no translator", hint="--beam and --against go with a run for a --pair"
        )
    if first.objective.reads == "texts":
        return _evaluate_classifiers(trained, data, config, settings or {})
    return _evaluate_language(first, data, config)


def evaluate_trained(trained: LoadedModel, data: str) -> Score | LanguageScore:
    """The marks of a classifier or a language model that is in memory."""
    config = trained.info.config
    if trained.objective.reads == "texts":
        return _evaluate_classifiers([trained], data, config, {})
    return _evaluate_language(trained, data, config)


def load_ensemble(run: str | Sequence[str]) -> list[LoadedModel]:
    """The runs that `run` names; several of them must be classifiers that name the same classes."""
    names = run_names(run)
    trained = [load_model(name) for name in names]
    for each in trained:
        require_head(each)
    first = trained[0]
    for other in trained if len(trained) > 1 else []:
        if other.objective.reads != "texts":
            raise RunError(
                f"{other.name} is no classifier, and an ensemble is of classifiers",
                hint="give one such run at a time",
            )
        if other.info.classes != first.info.classes:
            raise RunError(
                f"{other.name} names the classes {', '.join(other.info.classes[:5])}, and {first.name} "
                f"{', '.join(first.info.classes[:5])}",
                hint="an ensemble needs runs that were fine-tuned on the same labels",
            )
    return trained


def run_names(run: str | Sequence[str]) -> list[str]:
    """The runs that are named: one, a list of them, or several with commas between."""
    if isinstance(run, str):
        names = [run] if "," not in run or Path(run).exists() else [name.strip() for name in run.split(",")]
    else:
        names = list(run)
    if "" in names or not names:
        raise RunError(f"{run!r} names no run before or after a comma", hint="write RUN1,RUN2")
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise RunError(f"{twice} is given twice", hint="name each run of an ensemble once")
    return names


class Voter:
    """A classifier that is ready to answer."""

    def __init__(self, trained: LoadedModel, settings: Mapping[str, Any]):
        self.trained, self.config = trained, trained.info.config.with_(settings)
        self.runtime = start_runtime(self.config.training)
        self.model = trained.model().to(self.runtime.device)

    def probabilities(self, examples: Sequence[Example]) -> np.ndarray:
        """The probability of every class (N, C)."""
        if self.trained.tfidf is not None:
            return self.trained.tfidf.predict_probabilities([example.text for example in examples])
        trained, length, keep = self.trained, self.config.training.length, self.config.data.keep
        rows = encode_rows(trained.tokenizer, examples, None, length, keep)
        return predict_probabilities(
            self.model,
            trained.objective,
            rows,
            trained.tokenizer,
            self.runtime,
            self.runtime.eval_batch_tokens,
        )


def vote(voters: Sequence[Voter], examples: Sequence[Example]) -> np.ndarray:
    """The mean of the voters' probabilities (N, C)."""
    return np.mean([voter.probabilities(examples) for voter in voters], axis=0)


def _evaluate_classifiers(
    trained: list[LoadedModel], data: str, config: RunConfig, settings: Mapping[str, Any]
) -> Score:
    split, examples, skips = load_for_scoring(data, config.data)
    classes = trained[0].info.classes
    strange = next((example for example in examples if example.label not in classes), None)
    if strange is not None:
        raise DataError(
            f"{strange.origin} has label {strange.label!r}, which {trained[0].name} never learnt",
            hint=nearest(str(strange.label), classes),
        )
    dataset = Dataset(name=data, splits={split: examples}, classes=classes)
    found = vote([Voter(own, settings) for own in trained], examples)
    seen = np.concatenate([own.train_fingerprints for own in trained])
    was_seen = seen_before(dataset.hashes(split), seen)
    marks = score(np.array(dataset.targets(split)), found, classes, was_seen, split)
    return replace(marks, skipped=len(skips))


def _evaluate_language(trained: LoadedModel, data: str, config: RunConfig) -> LanguageScore:
    runtime = start_runtime(config.training)
    corpus = prepare_documents(open_for_scoring(data, config.data), trained.tokenizer, lambda event: None)
    stream = join([corpus.train, corpus.valid])
    if len(stream) <= trained.objective.lookahead:
        raise DataError(f"{data} holds almost no text", hint="give more or longer documents")
    leaked = int(seen_before(corpus.hashes(), trained.train_fingerprints).sum())
    model = trained.model().to(runtime.device)
    marks = score_language(model, trained.objective, stream, config, trained.tokenizer, runtime, leaked)
    return replace(marks, skipped=sum(corpus.skips.values()))


def predict(
    run: str | Sequence[str], path: str, *, engine: str = "torch", settings: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, float, str]]:
    """Label, probability and text for every text of a file (or `-`, standard input), in order.

    Several runs (a list, or names with commas between) answer together: their probabilities are averaged. With the
    engine `onnx`, `run` is a folder that `export` wrote.
    """
    return pick(ENGINES, engine, "engine")(run, path, settings or {})


def _with_torch(
    run: str | Sequence[str], path: str, settings: Mapping[str, Any]
) -> Iterator[tuple[str, float, str]]:
    for name in run_names(run):
        if (Path(name) / GRAPH).is_file() and not (Path(name) / "run.json").is_file():
            raise RunError(f"{name} is an ONNX export", hint="add --engine onnx")
    trained = load_ensemble(run)
    first = trained[0]
    if first.objective.reads == "translations":
        raise RunError(
            f"{first.name} is a translator and names no classes",
            hint=f"`headstart translate {first.name} {path}` translates it",
        )
    if first.objective.reads != "texts":
        raise RunError(
            f"{first.name} is a language model and names no classes",
            hint=f"`headstart finetune {first.name} DATA --out RUN` first",
        )
    texts = load_texts(path, first.info.config.with_(settings).data)
    voters = [Voter(own, settings) for own in trained]
    return _predict(texts, first.info.classes, lambda examples: vote(voters, examples))


def _with_onnx(
    run: str | Sequence[str], path: str, settings: Mapping[str, Any]
) -> Iterator[tuple[str, float, str]]:
    names = run_names(run)
    if len(names) > 1:
        raise RunError(
            "one exported graph answers at a time", hint="an ensemble is of runs: leave --engine out"
        )
    model = OnnxClassifier.open(Path(names[0]))
    for section in settings:
        if section != "data":
            raise ConfigError(
                f"an exported graph has no settings of {section!r} any more", hint="only data.* counts here"
            )
    config = parse(DataConfig, {"keep": model.truncation_side, **settings.get("data", {})})

    def answer(examples: Sequence[Example]) -> np.ndarray:
        rows = encode_rows(model.tokenizer, examples, None, model.max_length, config.keep)
        return model.probabilities(rows, ONNX_TOKENS)

    return _predict(load_texts(path, config), model.classes, answer)


ENGINES: dict[str, Callable[..., Iterator[tuple[str, float, str]]]] = {
    "torch": _with_torch,
    "onnx": _with_onnx,
}


def _predict(
    texts: Iterator[str], classes: list[str], answer: Callable[[Sequence[Example]], np.ndarray]
) -> Iterator[tuple[str, float, str]]:
    while chunk := list(islice(texts, PREDICTED_AT_ONCE)):
        for text, probabilities in zip(chunk, answer([Example(text) for text in chunk]), strict=True):
            best = int(probabilities.argmax())
            yield classes[best], float(probabilities[best]), text
