"""The Python interface: estimators that take texts and labels in memory and give arrays back.

clf = TextClassifier("en-tiny", epochs=3, seed=0).fit(texts, labels)
clf.predict_proba(texts)
"""

import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.exceptions import NotFittedError

from headstart.atomic_io import write_json, write_text
from headstart.config import Config, TaskName, merge
from headstart.data.built_in import SOURCES
from headstart.data.datasets import Example, make_dataset, write_rows
from headstart.data.documents import write_texts
from headstart.data.inputs import (
    as_contents,
    as_label_sets,
    as_labels,
    as_numbers,
    as_tags,
    as_texts,
    as_token_texts,
    label_name,
    label_names,
    with_labels,
)
from headstart.data.labels import number_text, with_task
from headstart.errors import ConfigError, InputTypeError, InputValueError, RunError, Stopped
from headstart.inference.classify import Classifier, answer, mean_thresholds
from headstart.inference.embed import TOKEN, Encoder, open_encoder
from headstart.inference.generate import Writer, generate, open_writer
from headstart.inference.loaded_model import LoadedModel, load_model
from headstart.inference.translate import Translator as OpenTranslator
from headstart.inference.translate import open_translator, translate
from headstart.results import Comparison, LanguageScore, Score, TaskScore
from headstart.training.callbacks import Evaluated, Event, Note, OnEvent, ProgressBar, Stage, call_all
from headstart.workflows.compare import ARMS
from headstart.workflows.compare import compare as compare_files
from headstart.workflows.evaluate import evaluate_texts, score_examples
from headstart.workflows.finetune import Finetuned, finetune
from headstart.workflows.pretrain import pretrain

if TYPE_CHECKING:
    import pandas

Settings = Config | Mapping[str, Mapping[str, Any]] | None
Callbacks = Sequence[Callable[[Event], None]] | None

LOGGER = logging.getLogger("headstart")
ESTIMATOR = "estimator.json"  # of a saved model: the estimator's parameters and the labels as they were given
DERIVED = ("_network", "_writer", "_open")  # of a loaded model, not pickled
SMALL_FILES = ("result.json", "report.html", "log.jsonl")  # of a run, which a saved model keeps
# A keyword of an estimator -> the setting that it sets.
KEYWORDS = {
    "epochs": "training.max_epochs",
    "steps": "training.max_steps",
    "minutes": "training.max_minutes",
    "tokens": "training.max_tokens",
    "learning_rate": "optimizer.learning_rate",
    "batch_size": "training.batch_size",
    "max_length": "training.max_length",
    "freeze_backbone": "training.freeze_backbone",
    "keep_winner": "training.keep_winner",
    "seed": "training.seed",
    "device": "training.device",
    "objective": "objective.name",
    "tokenizer": "tokenizer.type",
    "vocab_size": "tokenizer.vocab_size",
}


def settings_of(keywords: Mapping[str, Any], config: Settings) -> dict[str, Any]:
    """The settings that keywords and `config` give, nested by section; one that both give is an error."""
    given: dict[str, Any] = {}
    if isinstance(config, Config):
        given = config.given
    elif config is not None:
        if not isinstance(config, Mapping):
            raise InputTypeError(
                f"config is of type {type(config).__name__}",
                hint="give hs.Config(training={...}), or a dict of sections",
            )
        given = Config(**config).given
    named: dict[str, Any] = {}
    for keyword, value in keywords.items():
        if value is None:
            continue
        section, key = KEYWORDS[keyword].split(".")
        if key in given.get(section, {}) and given[section][key] != value:
            raise ConfigError(f"{keyword} and config's {section}.{key} are both given", hint="leave one of them out")
        named.setdefault(section, {})[key] = value
    return merge(given, named)


# --- Progress ---------------------------------------------------------------------------------------------------------


def log_event(event: Event) -> None:
    """Pass an event to the logger `headstart`."""
    if isinstance(event, Note):
        LOGGER.info("%s", event.text)
    elif isinstance(event, Stage):
        LOGGER.debug("%s", event.name)
    elif isinstance(event, Evaluated):
        values = ", ".join(f"{name} {value:.4g}" for name, value in event.values.items())
        LOGGER.info("epoch %.2f, step %d: %s", event.epoch, event.step, values)


def _shows_progress() -> bool:
    """Whether somebody looks at the output: a terminal, or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@contextmanager
def _listener(callbacks: Callbacks, verbose: bool | None) -> Iterator[OnEvent]:
    """What receives the events of a run: the logger, the callbacks and, where it is wanted, a progress bar."""
    shown = _shows_progress() if verbose is None else verbose
    with ProgressBar() if shown else nullcontext() as bar:
        yield call_all(log_event, *([] if bar is None else [bar]), *(callbacks or []))


@contextmanager
def _run_folder(out: str | Path | None) -> Iterator[Path]:
    """The folder of a run: `out`, or a temporary one that is removed afterwards."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="headstart-") as folder, torch.random.fork_rng():
        try:
            yield Path(folder) / "run"
        except Stopped:
            raise KeyboardInterrupt("training was stopped; give out= to keep what a stopped run has learnt") from None


# --- Models in memory -------------------------------------------------------------------------------------------------


class _PretrainedMixin:
    """What all interfaces to one trained model share: loading, saving and pickling."""

    model_: LoadedModel
    _files: dict[str, bytes]  # small files of the run, such as its report

    def _adopt(self, path: Path | str) -> None:
        """Take over the finished run or pretrained base at `path`."""
        self.model_ = load_model(str(path))
        folder = Path(path)
        self._files = {name: (folder / name).read_bytes() for name in SMALL_FILES if (folder / name).is_file()}
        self._forget()

    def _check_fitted(self) -> None:
        if "model_" not in self.__dict__:
            name = type(self).__name__
            raise NotFittedError(f"this {name} is not fitted; call fit, or {name}.from_pretrained")

    def _forget(self) -> None:
        """Drop what was derived from the model before."""
        for name in DERIVED:
            self.__dict__.pop(name, None)

    def save_pretrained(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Save the model as a run directory, which every command and `from_pretrained` read."""
        self._check_fitted()
        folder = Path(path)
        if folder.exists() and not folder.is_dir():
            raise RunError(f"{folder} is a file", hint="name a new folder")
        if folder.is_dir() and any(folder.iterdir()):
            if not overwrite:
                raise RunError(f"{folder} is not empty", hint="name a new folder, or give overwrite=True")
            if not (folder / "run.json").is_file():
                raise RunError(f"{folder} holds no saved model, so it is not replaced", hint="name a new folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            self._write(Path(temporary) / "model")
            if folder.exists():  # the old model stays until the new one is complete
                folder.rename(Path(temporary) / "old")
            (Path(temporary) / "model").rename(folder)

    def _write(self, folder: Path) -> None:
        folder.mkdir()
        self.model_.save(folder)
        for name, content in self._files.items():
            (folder / name).write_bytes(content)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name not in ("model_", *DERIVED)}
        if "model_" in self.__dict__:
            with tempfile.TemporaryDirectory(prefix="headstart-") as temporary:
                self._write(Path(temporary) / "model")
                stored = {item.name: item.read_bytes() for item in (Path(temporary) / "model").iterdir()}
            state["_stored"] = self.model_.name, stored
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        name, stored = state.pop("_stored", ("", None))
        self.__dict__.update(state)
        if stored is not None:
            with tempfile.TemporaryDirectory(prefix="headstart-") as temporary:
                for file, content in stored.items():
                    (Path(temporary) / file).write_bytes(content)
                self._adopt(temporary)
            self.model_ = replace(self.model_, name=name)


class _TextEstimator(_PretrainedMixin, BaseEstimator):  # type: ignore[misc]
    """What the estimators that learn from labelled texts share; a subclass names its task."""

    SETTINGS: ClassVar[tuple[str, ...]] = (
        "epochs", "steps", "minutes", "learning_rate", "batch_size", "max_length", "freeze_backbone", "seed", "device",
    )  # fmt: skip
    TASKS: ClassVar[tuple[str, ...]] = ()
    result_: Finetuned

    def __init__(
        self,
        base: str = "en-tiny",
        *,
        epochs: float | None = None,
        steps: int | None = None,
        minutes: float | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        max_length: int | None = None,
        freeze_backbone: bool | None = None,
        validation_fraction: float = 0.1,
        seed: int = 0,
        device: str | None = None,
        preset: str | None = None,
        config: Settings = None,
        callbacks: Callbacks = None,
        verbose: bool | None = None,
    ):
        self.base = base
        self.epochs = epochs
        self.steps = steps
        self.minutes = minutes
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_length = max_length
        self.freeze_backbone = freeze_backbone
        self.validation_fraction = validation_fraction
        self.seed = seed
        self.device = device
        self.preset = preset
        self.config = config
        self.callbacks = callbacks
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.string = False, True
        tags.non_deterministic = False
        return tags

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the parameters set, nested by section."""
        return settings_of({name: getattr(self, name) for name in self.SETTINGS}, self.config)

    @property
    def curve_(self) -> list[dict[str, float]]:
        """The validation metrics after each evaluation."""
        self._check_fitted()
        curve: list[dict[str, float]] = json.loads(self._files.get("result.json", b"{}")).get("curve", [])
        return curve

    def _finetune(
        self,
        task: TaskName,
        train: tuple[Sequence[Example], Sequence[str]],
        valid: tuple[Sequence[Example], Sequence[str]] | None,
        out: str | Path | None,
    ) -> None:
        """Fine-tune the base on texts and their labels, and keep the model in memory."""
        if not 0 < self.validation_fraction < 1:
            raise InputValueError(
                f"validation_fraction is {self.validation_fraction}", hint="give a number between 0 and 1, such as 0.1"
            )
        if not train[0]:
            raise InputValueError("there are no texts", hint="give two texts or more of each class")
        examples, skips = with_labels(*train)
        held_out = None
        if valid is not None:
            held_out, more = with_labels(*valid)
            skips += more
        for skip in skips[:1]:
            LOGGER.warning("%d texts are left out; the first is %s: %s", len(skips), skip.origin, skip.reason)
        fraction = self.validation_fraction
        dataset = make_dataset("texts", examples, held_out, skips, task=task, valid_fraction=fraction)
        with _run_folder(out) as folder, _listener(self.callbacks, self.verbose) as listen:
            result = finetune(self.base, dataset, folder, preset=self.preset, settings=self.settings, on_event=listen)
            assert isinstance(result, Finetuned)
            self._adopt(folder)
        self.result_ = result
        for warning in result.warnings:
            LOGGER.warning("%s", warning)

    @cached_property
    def _network(self) -> Classifier:
        self._check_fitted()
        device = getattr(self, "device", None)
        return Classifier(self.model_, {"training": {"device": device}} if device else {})

    def _score(self, examples: Sequence[Example], labels: Sequence[str]) -> Score:
        labelled, skips = with_labels(examples, labels)
        labelled = with_task(labelled, self.model_.task)[0]
        return score_examples([self._network], "all", labelled, skips, "texts")

    def _write(self, folder: Path) -> None:
        super()._write(folder)
        params = {name: value for name, value in self.get_params(deep=False).items() if _is_json(value)}
        write_json(folder / ESTIMATOR, {"estimator": type(self).__name__, "params": params, **self._labels()})

    def _labels(self) -> dict[str, Any]:
        """What a saved estimator remembers of the labels."""
        return {}

    @classmethod
    def from_pretrained(cls, name: str | Path, **params: Any) -> Self:
        """The estimator of a saved model, a run directory, or a pretrained base; `params` replace its parameters."""
        folder = Path(name)
        saved: dict[str, Any] = {}
        if (folder / ESTIMATOR).is_file():
            saved = _read_saved(folder / ESTIMATOR)
            if saved.get("estimator") != cls.__name__:
                raise RunError(
                    f"{folder} holds a {saved.get('estimator')}",
                    hint=f"load it with hs.{saved.get('estimator')}.from_pretrained",
                )
        known = cls().get_params(deep=False)
        estimator = cls(**{**{k: v for k, v in saved.get("params", {}).items() if k in known}, **params})
        estimator._adopt(name)
        loaded = estimator.model_
        if loaded.objective.reads != "texts" or loaded.task not in cls.TASKS:
            what = loaded.task if loaded.objective.reads == "texts" else loaded.objective.name
            raise RunError(
                f"{name} was trained for {what}, which is not what a {cls.__name__} does",
                hint=f"hs.{cls.__name__}({str(name)!r}).fit(...) fine-tunes it",
            )
        estimator._restore(saved)
        return estimator

    def _restore(self, saved: Mapping[str, Any]) -> None:
        """Set what `fit` would have set, from a saved estimator."""

    def _repr_html_(self) -> str:  # of a notebook, instead of scikit-learn's diagram
        return render_estimator(self)


def eval_pair(eval_set: Any) -> tuple[Any, Any]:
    """The texts and labels of an evaluation set."""
    if not isinstance(eval_set, tuple | list) or len(eval_set) != 2:
        raise InputTypeError("eval_set is not a pair", hint="give eval_set=(texts, labels)")
    return eval_set[0], eval_set[1]


def _read_saved(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}", hint="save the model again") from None
    if not isinstance(content, dict) or not isinstance(content.get("params"), dict):
        raise RunError(f"{path} does not describe an estimator", hint="save the model again")
    return content


def _is_json(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


class TextClassifier(ClassifierMixin, _TextEstimator):  # type: ignore[misc]
    """A pretrained base fine-tuned on labelled texts; a scikit-learn classifier.

    `base` is the name of a pretrained base, a run directory, or "scratch". With `ordinal`, classes are numbers in order.
    Without `epochs`, `steps` or `minutes` the budget follows the data. `config` holds any other setting. Texts are a list,
    a tuple, an array or a column of a table.
    """

    def __init__(
        self,
        base: str = "en-tiny",
        *,
        epochs: float | None = None,
        steps: int | None = None,
        minutes: float | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        max_length: int | None = None,
        freeze_backbone: bool | None = None,
        keep_winner: bool | None = None,
        ordinal: bool = False,
        validation_fraction: float = 0.1,
        seed: int = 0,
        device: str | None = None,
        preset: str | None = None,
        config: Settings = None,
        callbacks: Callbacks = None,
        verbose: bool | None = None,
    ):
        super().__init__(
            base, epochs=epochs, steps=steps, minutes=minutes, learning_rate=learning_rate, batch_size=batch_size,
            max_length=max_length, freeze_backbone=freeze_backbone, validation_fraction=validation_fraction, seed=seed,
            device=device, preset=preset, config=config, callbacks=callbacks, verbose=verbose,
        )  # fmt: skip
        self.keep_winner = keep_winner
        self.ordinal = ordinal

    SETTINGS = (*_TextEstimator.SETTINGS, "keep_winner")
    TASKS = ("single-label", "multi-label", "ordinal")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any, *, eval_set: tuple[Any, Any] | None = None, out: str | Path | None = None) -> Self:
        """Fine-tune on texts or pairs of texts `X` and labels `y`.

        `y` has one label for each text; or several: an indicator matrix (N, C), or a list of lists. `eval_set` is (texts,
        labels) to validate on; without it, `validation_fraction` of the texts is held out, by hash. `out` is a run
        directory that `resume` can continue; without it a temporary one is used.
        """
        examples = as_contents(X)
        classes, labels, task = self._read_labels(y, len(examples), "labels")
        valid = None
        if eval_set is not None:
            eval_texts, eval_labels = eval_pair(eval_set)
            eval_examples = as_contents(eval_texts, "eval_set texts")
            valid = eval_examples, self._read_labels(eval_labels, len(eval_examples), "eval_set labels")[1]
        self._finetune(task, (examples, labels), valid, out)
        self._set_classes(classes)
        return self

    def _read_labels(self, y: Any, count: int, name: str) -> tuple[list[Any], list[str], TaskName]:
        """The different labels, the label of each text as files write it, and the task."""
        sets = as_label_sets(y, count, name)
        if sets is not None:
            return sets[0], ["|".join(row) for row in sets[1]], "multi-label"
        given = as_labels(y, count, name)
        if not given:
            return [], [], "single-label"
        classes, names = label_names(given)
        if self.ordinal:
            if classes.dtype.kind in "US":
                raise InputTypeError("ordered classes are numbers, and labels are strings", hint="give 1, 2, 3, …")
            return list(classes), names, "ordinal"
        return list(classes), names, "single-label"

    def _set_classes(self, classes: Sequence[Any]) -> None:
        """Set `classes_`, and the model's output for each; a label that no text of train has keeps its column, at 0."""
        index = {name: column for column, name in enumerate(self.model_.info.classes)}
        self.classes_ = np.array(classes)
        self._columns = np.array([index.get(label_name(label), -1) for label in classes])

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class (N, C), in the order of `classes_`."""
        self._check_fitted()
        examples = as_contents(X)
        if not examples:
            return np.zeros((0, len(self.classes_)))
        found: np.ndarray = self._network.probabilities(examples)[:, self._columns]
        found[:, self._columns < 0] = 0.0
        return found

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each text (N,); of several labels, 0 and 1 for each class (N, C)."""
        found = self.predict_proba(X)
        if self.model_.task == "multi-label":
            thresholds = mean_thresholds([self.model_])
            return (found >= (0.5 if thresholds is None else thresholds[self._columns])).astype(int)
        predicted: np.ndarray = self.classes_[found.argmax(axis=1)]
        return predicted

    def evaluate(self, X: Any, y: Any) -> Score:
        """The full score on labelled texts: its metrics with the leak-free part, class by class."""
        self._check_fitted()
        examples = as_contents(X)
        return self._score(examples, self._read_labels(y, len(examples), "labels")[1])

    def _labels(self) -> dict[str, Any]:
        return {"classes": self.classes_.tolist()}

    def _restore(self, saved: Mapping[str, Any]) -> None:
        self._set_classes(saved.get("classes", self.model_.info.classes))


class TextRegressor(RegressorMixin, _TextEstimator):  # type: ignore[misc]
    """A pretrained base fine-tuned to predict a number of each text or pair of texts; a scikit-learn regressor.

    The parameters are those of `TextClassifier`.
    """

    TASKS = ("regression",)

    def fit(self, X: Any, y: Any, *, eval_set: tuple[Any, Any] | None = None, out: str | Path | None = None) -> Self:
        """Fine-tune on texts or pairs of texts `X` and numbers `y`; see `TextClassifier.fit`."""
        examples = as_contents(X)
        targets = [number_text(value) for value in as_numbers(y, len(examples)).tolist()]
        valid = None
        if eval_set is not None:
            eval_texts, eval_targets = eval_pair(eval_set)
            eval_examples = as_contents(eval_texts, "eval_set texts")
            numbers = as_numbers(eval_targets, len(eval_examples), "eval_set targets").tolist()
            valid = eval_examples, [number_text(value) for value in numbers]
        self._finetune("regression", (examples, targets), valid, out)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The number of each text (N,)."""
        self._check_fitted()
        examples = as_contents(X)
        found: np.ndarray = self._network.probabilities(examples)[:, 0] if examples else np.zeros(0)
        return found

    def evaluate(self, X: Any, y: Any) -> Score:
        """The full score on texts with their numbers: MAE, RMSE, R², correlations."""
        self._check_fitted()
        examples = as_contents(X)
        return self._score(examples, [number_text(value) for value in as_numbers(y, len(examples)).tolist()])


class TokenClassifier(_TextEstimator):
    """A pretrained base fine-tuned to tag the tokens of texts, as in named-entity recognition.

    Texts are lists of tokens. The parameters are those of `TextClassifier`.
    """

    TASKS = ("token",)

    def fit(self, X: Any, y: Any, *, eval_set: tuple[Any, Any] | None = None, out: str | Path | None = None) -> Self:
        """Fine-tune on lists of tokens `X` and lists of tags `y`; see `TextClassifier.fit`."""
        examples = as_token_texts(X)
        tags, valid = as_tags(y, examples), None
        if eval_set is not None:
            eval_texts, eval_tags = eval_pair(eval_set)
            eval_examples = as_token_texts(eval_texts, "eval_set texts")
            valid = eval_examples, as_tags(eval_tags, eval_examples, "eval_set tags")
        self._finetune("token", (examples, tags), valid, out)
        return self

    @property
    def classes_(self) -> np.ndarray:
        """The tags, in order."""
        self._check_fitted()
        return np.array(self.model_.info.classes)

    def predict(self, X: Any) -> list[list[str]]:
        """The tag of each token of each text."""
        self._check_fitted()
        examples = as_token_texts(X)
        if not examples:
            return []
        outputs = self._network.probabilities(examples)
        return [label.split(" ") for label, _ in answer([self.model_], examples, outputs)]

    def evaluate(self, X: Any, y: Any) -> Score:
        """The full score on tagged texts: F1 of spans and of each kind, accuracy of tokens."""
        self._check_fitted()
        examples = as_token_texts(X)
        return self._score(examples, as_tags(y, examples))

    def score(self, X: Any, y: Any) -> float:
        """The F1 of whole spans, as conlleval counts them."""
        found = self.evaluate(X, y)
        assert isinstance(found, TaskScore)
        return float(getattr(found, found.metric))


class LanguageModel(_PretrainedMixin):
    """A language model trained on raw text: a base to fine-tune, and a generator of text if it is causal."""

    result_: Any = None

    @classmethod
    def pretrain(
        cls,
        texts: Any,
        *,
        base: str | None = None,
        preset: str | None = None,
        objective: str | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        minutes: float | None = None,
        tokens: int | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        max_length: int | None = None,
        tokenizer: str | None = None,
        vocab_size: int | None = None,
        seed: int = 0,
        device: str | None = None,
        config: Settings = None,
        out: str | Path | None = None,
        callbacks: Callbacks = None,
        verbose: bool | None = None,
    ) -> Self:
        """Train on `texts`: strings in memory (one document each), or paths of files and names of built-in corpora.

        With a `base`, training continues from its weights. `out` is a run directory that `resume` can continue.
        """
        keywords = {name: value for name, value in locals().items() if name in KEYWORDS}
        settings = settings_of(keywords, config)
        model = cls()
        with _run_folder(out) as folder, _listener(callbacks, verbose) as listen:
            corpora = _corpora(texts, folder)
            result = pretrain(corpora, folder, base=base, preset=preset, settings=settings, on_event=listen)
            model._adopt(folder)
        model.result_ = result
        return model

    @classmethod
    def from_pretrained(cls, name: str | Path) -> Self:
        """The language model of a run directory or a pretrained base."""
        model = cls()
        model._adopt(name)
        if model.model_.objective.reads not in ("blocks", "pairs"):
            raise RunError(
                f"{name} is no language model: it was trained with {model.model_.objective.name}",
                hint="give a run of hs.LanguageModel.pretrain or `headstart pretrain`",
            )
        return model

    @cached_property
    def _writer(self) -> Writer:
        return open_writer(self.model_)

    def generate(
        self,
        prompt: str | Sequence[str],
        *,
        max_new_tokens: int = 100,
        num_return_sequences: int = 1,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        do_sample: bool = True,
        num_beams: int | None = None,
        seed: int = 0,
        return_full_text: bool = True,
    ) -> Any:
        """Continue a prompt, or each of several; one prompt gives a string, several give a list.

        With `num_return_sequences` above 1, each prompt gives a list of texts.
        """
        prompts = [prompt] if isinstance(prompt, str) else as_texts(prompt, "prompts")
        found = generate(
            self._writer, prompts, tokens=max_new_tokens, count=num_return_sequences, temperature=temperature,
            top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty,
            greedy=not do_sample and num_beams is None, beam=num_beams, seed=seed,
        )  # fmt: skip
        texts = [(each.prompt if return_full_text else "") + each.text for each in found]
        if num_return_sequences > 1:
            grouped = [texts[at : at + num_return_sequences] for at in range(0, len(texts), num_return_sequences)]
            return grouped[0] if isinstance(prompt, str) else grouped
        return texts[0] if isinstance(prompt, str) else texts

    def perplexity(self, texts: Any) -> float:
        """The perplexity over all texts together, each a document."""
        return self.evaluate(texts).perplexity

    def evaluate(self, texts: Any) -> LanguageScore:
        """The full score on texts: loss, perplexity, bits per byte and accuracy."""
        return evaluate_texts(self.model_, as_texts(texts))

    def __repr__(self) -> str:
        info = self.model_.info
        return f"LanguageModel({info.config.objective.name!r}, {info.config.model.num_layers} layers of {info.config.model.hidden_size})"


def _corpora(texts: Any, folder: Path) -> list[str]:
    """The names of corpora; texts in memory are written to a file beside the run directory."""
    if isinstance(texts, str | Path):
        texts = [texts]
    names = list(texts) if isinstance(texts, list | tuple) else None
    if names and all(isinstance(name, Path) or (isinstance(name, str) and _is_corpus(name)) for name in names):
        return [str(name) for name in names]
    found = as_texts(texts)
    if len(found) == 1 and len(found[0]) < 1024 and "\n" not in found[0] and " " not in found[0]:
        raise InputValueError(f"there is no file at {found[0]}", hint="give paths of files, or a list of texts")
    path = folder.with_name(f"{folder.name}-texts.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_texts(path, found)
    return [str(path)]


def _is_corpus(name: str) -> bool:
    if len(name) > 1024 or "\n" in name:
        return False
    return name in SOURCES or os.path.exists(name.split("=")[0])  # False for a name that is too long, too


class Translator(_PretrainedMixin):
    """A translation model."""

    @classmethod
    def from_pretrained(cls, name: str | Path) -> Self:
        """The translator of a run directory, or a shipped one such as "en-fr-captions"."""
        translator = cls()
        translator._adopt(name)
        translator._open = open_translator(translator.model_)  # refuses a run that does not translate
        return translator

    @cached_property
    def _open(self) -> OpenTranslator:
        return open_translator(self.model_)

    def translate(
        self,
        texts: Any,
        *,
        num_beams: int = 5,
        num_return_sequences: int = 1,
        length_penalty: float = 0.6,
        max_length: int | None = None,
    ) -> Any:
        """The translation of each text; with `num_return_sequences` above 1, a list of translations of each."""
        found = translate(
            self._open, as_texts(texts), beam=num_beams, n_best=num_return_sequences, length_penalty=length_penalty,
            max_length=max_length,
        )  # fmt: skip
        if num_return_sequences > 1:
            return [[candidate.text for candidate in each.candidates] for each in found]
        return [each.text for each in found]

    def __repr__(self) -> str:
        return f"Translator({self.model_.name!r}, {' -> '.join(self.model_.info.pair)})"


class Embedder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Vectors of texts from a base or a fine-tuned model; a scikit-learn transformer that has nothing to fit.

    `pooling` is mean, cls or last; with `normalize` vectors have the length 1.
    """

    def __init__(
        self,
        base: str = "en-tiny",
        *,
        pooling: str = "mean",
        max_length: int | None = None,
        normalize: bool = False,
        device: str | None = None,
    ):
        self.base = base
        self.pooling = pooling
        self.max_length = max_length
        self.normalize = normalize
        self.device = device

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.string, tags.requires_fit = False, True, False
        return tags

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Load the model; there is nothing to learn."""
        self._loaded()
        return self

    def transform(self, X: Any) -> np.ndarray:
        """The vector of each text (N, D)."""
        return self.encode(X)

    def encode(self, texts: Any) -> np.ndarray:
        """The vector of each text (N, D) in float32."""
        found = self._loaded().encode(as_texts(texts))
        if self.normalize:
            found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        return found

    def _loaded(self) -> Encoder:
        key = (self.base, self.pooling, self.max_length, self.device)
        if self.__dict__.get("_key") != key:
            if self.pooling == TOKEN:
                raise ConfigError("texts differ in their number of token vectors", hint="use `headstart embed`")
            settings = settings_of({"max_length": self.max_length, "device": self.device}, None)
            self._open, self._key = open_encoder(self.base, self.pooling, settings), key
        return self._open

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name not in ("_open", "_key")}


# --- Comparing --------------------------------------------------------------------------------------------------------


class ComparisonReport(Comparison):
    """A comparison with the ways to look at it."""

    def to_pandas(self) -> "pandas.DataFrame":
        """One row for each trained model: arm, kind, labels, seed and its scores."""
        import pandas

        rows = [
            {"arm": arm.name, "kind": arm.kind, "base": arm.base, "labels": arm.labels}
            | {name: getattr(each, name) for name in SEED_COLUMNS}
            for arm in self.arms
            for each in arm.results
        ]
        return pandas.DataFrame(rows)

    def save(self, path: str | Path) -> None:
        """Write the report as a self-contained HTML page."""
        from headstart.reports.comparison import render_comparison

        write_text(Path(path), render_comparison(self))

    def __repr__(self) -> str:
        from headstart.reports.comparison import headline

        return f"ComparisonReport({headline(self)!r})"

    def _repr_html_(self) -> str:
        from headstart.reports.comparison import render_comparison

        return frame(render_comparison(self), 900)


SEED_COLUMNS = ("seed", "accuracy", "macro_f1", "loss", "calibration_error", "leak_free_accuracy", "seconds")


def compare(
    texts: Any,
    labels: Any = None,
    *,
    bases: Sequence[str] | Mapping[str, Mapping[str, Any]] = (),
    out: str | Path | None = None,
    seeds: int = 3,
    first_seed: int = 0,
    train_sizes: Sequence[int] | None = None,
    folds: int | None = None,
    arms: Sequence[str] = ARMS,
    preset: str | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    device: str | None = None,
    config: Settings = None,
    target_accuracy: float | None = None,
    callbacks: Callbacks = None,
    verbose: bool | None = None,
) -> ComparisonReport:
    """Train every arm with every seed at every label budget, and report what differs beyond chance.

    `texts` and `labels` are in memory, or `texts` names a table, a folder or a built-in set and `labels` is left out.
    """
    settings = settings_of({"epochs": epochs, "steps": steps, "device": device}, config)
    with _run_folder(out) as folder, _listener(callbacks, verbose) as listen:
        data = texts
        if labels is None:
            if not isinstance(texts, str | Path):
                raise InputTypeError("labels are missing", hint="give compare(texts, labels), or the path of a table")
        else:
            given = as_contents(texts)
            names = label_names(as_labels(labels, len(given)))[1]
            examples = with_labels(given, names)[0]
            data = folder.with_name(f"{folder.name}-data.jsonl")
            data.parent.mkdir(parents=True, exist_ok=True)
            write_rows(data, examples)
        found = compare_files(
            str(data), bases, folder, seeds=seeds, first_seed=first_seed, labels=train_sizes, folds=folds, arms=arms,
            preset=preset, settings=settings, target_accuracy=target_accuracy, on_event=listen,
        )  # fmt: skip
    return ComparisonReport(**vars(found))


# --- Pages of notebooks -------------------------------------------------------------------------------------------------


def frame(page: str, height: int) -> str:
    """A whole page inside another, with its own styles."""
    return f'<iframe srcdoc="{escape(page)}" style="width:100%;height:{height}px;border:0"></iframe>'


def render_estimator(estimator: _TextEstimator) -> str:
    """What a notebook shows of an estimator: its parameters and, once it is fitted, its report with the curves."""
    report = estimator.__dict__.get("_files", {}).get("report.html")
    if report is None:
        return f"<pre>{escape(repr(estimator))}</pre>"
    return f"<pre>{escape(repr(estimator))}</pre>{frame(report.decode('utf-8'), 600)}"
