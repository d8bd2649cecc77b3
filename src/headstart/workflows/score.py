"""Marking and using a finished run: evaluate and predict."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from headstart.batch import Row
from headstart.config import DataConfig, RunConfig, parse
from headstart.data.documents import open_for_scoring
from headstart.data.example import Dataset, Example
from headstart.data.sources import load_for_scoring, load_texts
from headstart.data.stream import join
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, DataError, RunError, nearest, pick
from headstart.interchange.onnx import GRAPH, OnnxClassifier
from headstart.results import LanguageScore, Score
from headstart.training.evaluate import predict_probabilities
from headstart.training.runtime import start_runtime
from headstart.workflows.finetune import MARK_TOKENS, Task, encode_rows, score_rows
from headstart.workflows.pretrain import prepare_documents, score_language
from headstart.workflows.run import Trained, load_trained, need_heads

PREDICTED_AT_ONCE = 1024  # texts held in memory


def evaluate(run: str, data: str, *, settings: Mapping[str, Any] | None = None) -> Score | LanguageScore:
    """Mark a run: a classifier on labelled DATA, a language model on a corpus."""
    trained = load_trained(run)
    need_heads(trained)
    config = trained.info.config.with_(settings or {})
    if trained.objective.reads == "texts":
        return _evaluate_classifier(trained, data, config)
    return _evaluate_language(trained, data, config)


def _evaluate_classifier(trained: Trained, data: str, config: RunConfig) -> Score:
    split, examples, skips = load_for_scoring(data, config.data)
    classes = trained.info.classes
    strange = next((example for example in examples if example.label not in classes), None)
    if strange is not None:
        raise DataError(
            f"{strange.origin} has label {strange.label!r}, which {trained.name} never learnt",
            hint=nearest(str(strange.label), classes),
        )
    dataset = Dataset(name=data, splits={split: examples}, classes=classes, skips=skips, notes=[])
    length, keep = config.training.length, config.data.keep
    task = Task(
        dataset, trained.tokenizer, {split: encode_rows(trained.tokenizer, examples, classes, length, keep)}
    )
    runtime = start_runtime(config.training)
    model = trained.model().to(runtime.device)
    marks = score_rows(model, trained.objective, task, split, config, runtime, trained.seen)
    return replace(marks, skipped=len(skips))


def _evaluate_language(trained: Trained, data: str, config: RunConfig) -> LanguageScore:
    runtime = start_runtime(config.training)
    corpus = prepare_documents(open_for_scoring(data, config.data), trained.tokenizer, lambda event: None)
    stream = join([corpus.train, corpus.valid])
    if len(stream) <= trained.objective.looks_past:
        raise DataError(f"{data} holds almost no text", hint="give more or longer documents")
    leaked = int(np.isin(corpus.hashes(), trained.seen).sum())
    model = trained.model().to(runtime.device)
    marks = score_language(model, trained.objective, stream, config, trained.tokenizer, runtime, leaked)
    return replace(marks, skipped=sum(corpus.skips.values()))


def predict(
    run: str, path: str, *, engine: str = "torch", settings: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, float, str]]:
    """Label, probability and text for every text of a file (or `-`, standard input), in order.

    With the engine `onnx`, `run` is a folder that `export` wrote.
    """
    return pick(ENGINES, engine, "engine")(run, path, settings or {})


def _with_torch(run: str, path: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, float, str]]:
    if (Path(run) / GRAPH).is_file() and not (Path(run) / "run.json").is_file():
        raise RunError(f"{run} is an ONNX export", hint="add --engine onnx")
    trained = load_trained(run)
    if trained.objective.reads != "texts":
        raise RunError(
            f"{run} is a language model and names no classes",
            hint=f"`headstart finetune {run} DATA --out RUN` first",
        )
    config = trained.info.config.with_(settings)
    texts = load_texts(path, config.data)
    runtime = start_runtime(config.training)
    model = trained.model().to(runtime.device)

    def answer(rows: list[Row]) -> np.ndarray:
        return predict_probabilities(model, trained.objective, rows, trained.tokenizer, runtime, MARK_TOKENS)

    length, keep = config.training.length, config.data.keep
    return _predict(texts, trained.tokenizer, length, keep, trained.info.classes, answer)


def _with_onnx(run: str, path: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, float, str]]:
    model = OnnxClassifier.open(Path(run))
    for section in settings:
        if section != "data":
            raise ConfigError(
                f"an exported graph has no settings of {section!r} any more", hint="only data.* counts here"
            )
    config: DataConfig = parse(DataConfig, {"keep": model.keep, **settings.get("data", {})})
    texts = load_texts(path, config)

    def answer(rows: list[Row]) -> np.ndarray:
        return model.probabilities(rows, MARK_TOKENS)

    return _predict(texts, model.tokenizer, model.length, config.keep, model.classes, answer)


ENGINES: dict[str, Callable[[str, str, Mapping[str, Any]], Iterator[tuple[str, float, str]]]] = {
    "torch": _with_torch,
    "onnx": _with_onnx,
}


def _predict(
    texts: Iterator[str],
    tokenizer: Tokenizer,
    length: int,
    keep: str,
    classes: list[str],
    answer: Callable[[list[Row]], np.ndarray],
) -> Iterator[tuple[str, float, str]]:
    while chunk := list(islice(texts, PREDICTED_AT_ONCE)):
        rows = encode_rows(tokenizer, [Example(text) for text in chunk], None, length, keep)
        for text, probabilities in zip(chunk, answer(rows), strict=True):
            best = int(probabilities.argmax())
            yield classes[best], float(probabilities[best]), text
