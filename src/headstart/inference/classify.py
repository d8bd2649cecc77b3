"""Classifying texts with finished runs, one or an ensemble: probabilities, predictions and explanations."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from headstart.batch import EncodedExample
from headstart.config import DataConfig, parse
from headstart.convert.onnx import GRAPH, OnnxClassifier
from headstart.data.datasets import Example, encode_rows, load_texts, load_unlabelled
from headstart.data.labels import number_text
from headstart.data.text_io import SEPARATOR, text_columns
from headstart.errors import ConfigError, RunError, pick
from headstart.inference.loaded_model import LoadedModel, load_model, require_head
from headstart.training.evaluate import predict_probabilities
from headstart.training.runtime import start_runtime

CHUNK_TEXTS = 1024  # texts held in memory
ONNX_TOKENS = 1024  # in one forward pass, padding included

Predictions = Iterator[tuple[str, float, str]]  # label, its probability (NaN of a number), text


# --- Loading --------------------------------------------------------------------------------------------------------


def run_names(run: str | Sequence[str]) -> list[str]:
    """The names in `run`: one, a list of them, or several with commas between."""
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


def load_ensemble(run: str | Sequence[str]) -> list[LoadedModel]:
    """The runs that `run` names; several of them must be classifiers with the same classes."""
    members = [load_model(name) for name in run_names(run)]
    for each in members:
        require_head(each)
    first = members[0]
    for other in members if len(members) > 1 else []:
        if other.objective.reads != "texts":
            problem = f"{other.name} is not a classifier, and an ensemble consists of classifiers"
            raise RunError(problem, hint="give one such run at a time")
        if other.task != first.task:
            problem = f"{other.name} was trained for another task ({other.task}) than {first.name} ({first.task})"
            raise RunError(problem, hint="an ensemble needs runs that were fine-tuned on the same labels")
        if other.info.classes != first.info.classes:
            raise RunError(
                f"{other.name} has the classes {', '.join(other.info.classes[:5])}, and {first.name} "
                f"{', '.join(first.info.classes[:5])}",
                hint="an ensemble needs runs that were fine-tuned on the same labels",
            )
    return members


class Classifier:
    """A classifier in memory, on its device."""

    def __init__(self, loaded: LoadedModel, settings: Mapping[str, Any]):
        self.loaded, self.config = loaded, loaded.info.config.with_(settings)
        self.runtime = start_runtime(self.config.training)
        self.model = loaded.model().to(self.runtime.device)

    def probabilities(self, examples: Sequence[Example]) -> np.ndarray:
        """The probability of every class (N, C), of tokens one after the other; of a regression the number (N, 1)."""
        loaded = self.loaded
        check_pairs(loaded, examples)
        if loaded.tfidf is not None:
            return loaded.tfidf.predict_probabilities([example.text for example in examples])
        length, keep = self.config.training.max_length, self.config.data.truncation_side
        rows = encode_rows(loaded.tokenizer, examples, None, length, keep, loaded.task)
        return predict_probabilities(
            self.model, loaded.objective, rows, loaded.tokenizer, self.runtime, self.runtime.eval_batch_tokens
        )


def mean_probabilities(ensemble: Sequence[Classifier], examples: Sequence[Example]) -> np.ndarray:
    """The mean of the members' probabilities (N, C)."""
    found: np.ndarray = np.mean([member.probabilities(examples) for member in ensemble], axis=0)
    return found


def mean_thresholds(ensemble: Sequence[LoadedModel]) -> np.ndarray | None:
    """The thresholds of several labels (C,), the mean of those of the members."""
    tuned = [member.info.thresholds for member in ensemble if member.info.thresholds]
    return np.mean(tuned, axis=0) if tuned else None


def check_pairs(loaded: LoadedModel, examples: Sequence[Example]) -> None:
    """Refuse single texts where a model was trained on pairs, and pairs where it was not."""
    is_pair = any(each.pair is not None for each in examples)
    wants_pairs = len(text_columns(loaded.info.config.data.text_column)) > 1
    if examples and is_pair != wants_pairs:
        problem = f"{loaded.name} reads {'pairs of texts' if wants_pairs else 'one text at a time'}"
        raise RunError(problem, hint="--text-column A,B names the columns of a pair, --text-column A that of a text")


# --- Predicting -----------------------------------------------------------------------------------------------------


def predict(
    run: str | Sequence[str], path: str, *, engine: str = "torch", settings: Mapping[str, Any] | None = None
) -> Predictions:
    """Label, probability and text for every text of a file (or `-`, standard input), in order.

    Several runs (a list, or names with commas between) are an ensemble: their probabilities are averaged. With the
    engine `onnx`, `run` is a directory that `export` wrote.
    """
    return pick(ENGINES, engine, "engine")(run, path, settings or {})


def _predict_with_torch(run: str | Sequence[str], path: str, settings: Mapping[str, Any]) -> Predictions:
    for name in run_names(run):
        if (Path(name) / GRAPH).is_file() and not (Path(name) / "run.json").is_file():
            raise RunError(f"{name} is an ONNX export", hint="add --engine onnx")
    members = load_ensemble(run)
    first = members[0]
    if first.objective.reads == "translations":
        problem = f"{first.name} is a translator and has no classes"
        raise RunError(problem, hint=f"`headstart translate {first.name} {path}` translates it")
    if first.objective.reads != "texts":
        problem = f"{first.name} is a language model and has no classes"
        raise RunError(problem, hint=f"`headstart finetune {first.name} DATA --out RUN` first")
    examples = load_unlabelled(path, first.info.config.with_(settings).data)
    ensemble = [Classifier(member, settings) for member in members]
    if first.task == "single-label":
        classes = first.info.classes
        return _predict_texts(examples, classes, lambda chunk: mean_probabilities(ensemble, chunk))
    return _predict_task(examples, ensemble)


def _predict_with_onnx(run: str | Sequence[str], path: str, settings: Mapping[str, Any]) -> Predictions:
    names = run_names(run)
    if len(names) > 1:
        problem = "--engine onnx takes one exported graph at a time"
        raise RunError(problem, hint="an ensemble consists of runs: leave --engine out")
    model = OnnxClassifier.open(Path(names[0]))
    for section in settings:
        if section != "data":
            problem = f"{section}.* has no effect on an exported graph"
            raise ConfigError(problem, hint="set only data.* with --engine onnx")
    config = parse(DataConfig, {"truncation_side": model.truncation_side, **settings.get("data", {})})

    def probabilities(examples: Sequence[Example]) -> np.ndarray:
        rows = encode_rows(model.tokenizer, examples, None, model.max_length, config.truncation_side)
        return model.probabilities(rows, ONNX_TOKENS)

    return _predict_texts(map(Example, load_texts(path, config)), model.classes, probabilities)


ENGINES: dict[str, Callable[[str | Sequence[str], str, Mapping[str, Any]], Predictions]] = {
    "torch": _predict_with_torch,
    "onnx": _predict_with_onnx,
}


def _predict_texts(
    examples: Iterator[Example], classes: list[str], probabilities: Callable[[Sequence[Example]], np.ndarray]
) -> Predictions:
    while chunk := list(islice(examples, CHUNK_TEXTS)):
        for example, row in zip(chunk, probabilities(chunk), strict=True):
            best = int(row.argmax())
            yield classes[best], float(row[best]), shown_text(example)


def _predict_task(examples: Iterator[Example], ensemble: Sequence[Classifier]) -> Predictions:
    members = [member.loaded for member in ensemble]
    while chunk := list(islice(examples, CHUNK_TEXTS)):
        answers = answer(members, chunk, mean_probabilities(ensemble, chunk))
        for example, (label, probability) in zip(chunk, answers, strict=True):
            yield label, probability, shown_text(example)


def answer(
    members: Sequence[LoadedModel], examples: Sequence[Example], outputs: np.ndarray
) -> Iterator[tuple[str, float]]:
    """The label of each text and its probability, from what `mean_probabilities` returned for a task.

    Several labels have the probability that all decisions are right, tags the mean of theirs, and a number none (NaN).
    """
    task, classes = members[0].task, members[0].info.classes
    if task == "regression":
        yield from ((number_text(float(f"{value:.6g}")), math.nan) for value in outputs[:, 0])
    elif task == "multi-label":
        thresholds = mean_thresholds(members)
        chosen = outputs >= (0.5 if thresholds is None else thresholds)
        certainties = np.where(chosen, outputs, 1 - outputs).prod(axis=1)
        for row, certainty in zip(chosen, certainties, strict=True):
            yield SEPARATOR.join(classes[index] for index in np.flatnonzero(row)), float(certainty)
    else:
        lengths = [len(example.text.split(" ")) if task == "token" else 1 for example in examples]
        for rows in np.split(outputs, np.cumsum(lengths)[:-1]):
            yield " ".join(classes[index] for index in rows.argmax(axis=1)), float(rows.max(axis=1).mean())


def shown_text(example: Example) -> str:
    """A text, or the two of a pair with a sign between them."""
    return example.text if example.pair is None else f"{example.text} ||| {example.pair}"


# --- Explaining -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attribution:
    """What the log-odds of a label lose without each token of a row (its special tokens excepted).

    The parts add up to `whole` where every token counts by itself, as in a bag of words. Elsewhere the difference is
    due to interactions between tokens.
    """

    label: int
    parts: np.ndarray  # (T - 2,), in nats
    whole: float  # the log-odds less those of a text without tokens


def leave_one_out(
    row: EncodedExample, label: int, logits: Callable[[Sequence[EncodedExample]], np.ndarray]
) -> Attribution:
    """Each token's contribution to `label`, by leaving it out (Zeiler and Fergus, 2014; Li et al., 2016).

    `logits` gives the logit of every class (N, C) for rows.
    """
    tokens = row.tokens
    shorter = [EncodedExample(np.delete(tokens, position)) for position in range(1, len(tokens) - 1)]
    found = log_odds(logits([row, EncodedExample(tokens[[0, -1]]), *shorter]), label)
    return Attribution(label, found[0] - found[2:], float(found[0] - found[1]))


def log_odds(logits: np.ndarray, label: int) -> np.ndarray:
    """The log-odds of `label` against all other classes (N,), from logits (N, C)."""
    others = np.delete(logits.astype(np.float64), label, axis=1)
    found: np.ndarray = logits[:, label] - np.logaddexp.reduce(others, axis=1)
    return found
