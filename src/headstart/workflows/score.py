"""Marking and using a finished run: evaluate and predict."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from headstart.config import RunConfig
from headstart.data.documents import open_for_scoring
from headstart.data.example import Dataset, Example
from headstart.data.sources import load_for_scoring, load_texts
from headstart.data.stream import join
from headstart.errors import DataError, RunError, nearest
from headstart.results import LanguageScore, Score
from headstart.training.evaluate import predict_probabilities
from headstart.training.runtime import start_runtime
from headstart.workflows.finetune import MARK_TOKENS, Task, encode_rows, score_rows
from headstart.workflows.prepare import prepare_documents
from headstart.workflows.pretrain import score_language
from headstart.workflows.run import Trained, load_trained

PREDICTED_AT_ONCE = 1024  # texts held in memory


def evaluate(run: str, data: str, *, settings: Mapping[str, Any] | None = None) -> Score | LanguageScore:
    """Mark a run: a classifier on labelled DATA, a language model on a corpus."""
    trained = load_trained(run)
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
    run: str, path: str, *, settings: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, float, str]]:
    """Label, probability and text for every text of a file (or `-`, standard input), in order."""
    trained = load_trained(run)
    if trained.objective.reads != "texts":
        raise RunError(
            f"{run} is a language model and names no classes",
            hint=f"`headstart finetune {run} DATA --out RUN` first",
        )
    config = trained.info.config.with_(settings or {})
    texts = load_texts(path, config.data)
    return _predict(trained, config, texts)


def _predict(trained: Trained, config: RunConfig, texts: Iterator[str]) -> Iterator[tuple[str, float, str]]:
    runtime = start_runtime(config.training)
    model = trained.model().to(runtime.device)
    length, keep = config.training.length, config.data.keep
    while chunk := list(islice(texts, PREDICTED_AT_ONCE)):
        rows = encode_rows(trained.tokenizer, [Example(text) for text in chunk], None, length, keep)
        found = predict_probabilities(model, trained.objective, rows, trained.tokenizer, runtime, MARK_TOKENS)
        for text, probabilities in zip(chunk, found, strict=True):
            best = int(probabilities.argmax())
            yield trained.info.classes[best], float(probabilities[best]), text
