"""Labelled datasets: built-in names, tables and folders of tables; their splits, folds and subsets.

Texts are split by hash, the same on every machine: equal texts share a split, and the order of rows plays no part.
"""

import inspect
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from headstart.atomic_io import write_text
from headstart.config import DataConfig, TaskName
from headstart.data.built_in import SOURCES
from headstart.data.labels import class_names, label_array, label_set, map_labels, names_in, with_task
from headstart.data.text_io import (
    KINDS,
    LABELLED_KINDS,
    SEPARATOR,
    TABLE_KINDS,
    Hashes,
    as_number,
    check_kind,
    decode_lines,
    hashes,
    iterate_text_rows,
    iterate_texts,
    kind_of,
    missing,
    read_lines,
    read_table,
    reading,
    refuse,
    text_columns,
    text_hash,
)
from headstart.data.text_io import Example as Example
from headstart.data.text_io import SkippedRow as SkippedRow
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from headstart.batch import EncodedExample

T = TypeVar("T")

SPLITS = ("train", "valid", "test")
VALID_FRACTION = 0.1  # of a table without splits
ALIASES = {"val": "valid", "dev": "valid", "validation": "valid", **{name: name for name in SPLITS}}  # in file names

NO_LABEL = {"na", "n/a", "#n/a", "<na>", "nan", "null", "none", "-", "?"}  # what other programs write for no label
NUMERIC_SHARE = 0.95  # of the labels, from which they are measurements
MAX_NUMERIC_CLASSES = 10  # whole numbers that may be classes

Parts = dict[str, list[Example]]  # split -> its examples


class Splits(Generic[T]):
    """Rows by the name of their split, one of `SPLITS`."""

    splits: dict[str, list[T]]

    @property
    def train(self) -> list[T]:
        """The rows to learn from."""
        return self.splits["train"]

    @property
    def valid(self) -> list[T]:
        """The rows to tune on."""
        return self.splits.get("valid", [])

    @property
    def test(self) -> list[T]:
        """The rows to evaluate on; empty if the test split was not loaded."""
        return self.splits.get("test", [])


@dataclass(frozen=True)
class Dataset(Splits[Example]):
    """Labelled texts by split, the classes of train in order, the skipped rows, notes for the user, and the task."""

    name: str
    splits: Parts
    classes: list[str]
    skips: list[SkippedRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unlabelled: Sequence[Example] = ()
    task: TaskName = "single-label"

    @property
    def class_index(self) -> dict[str, int]:
        """Each label's index in `classes`."""
        return {label: index for index, label in enumerate(self.classes)}

    def texts(self, split: str) -> list[str]:
        """The texts of one split, in order."""
        return [example.text for example in self.splits.get(split, [])]

    def hashes(self, split: str) -> Hashes:
        """The hash of each text or pair of one split, in order."""
        return hashes(example.content for example in self.splits.get(split, []))

    def targets(self, split: str) -> list[int]:
        """The class index of each example of one split, in order."""
        index = self.class_index
        return [index[example.label] for example in self.splits.get(split, []) if example.label is not None]

    def target_array(self, split: str) -> np.ndarray:
        """The labels of one split as metrics read them: see `label_array`."""
        if self.task == "single-label":
            return np.array(self.targets(split))
        labels = [example.label for example in self.splits.get(split, []) if example.label is not None]
        return label_array(self.task, labels, self.classes)

    def balance(self, split: str) -> dict[str, int]:
        """How many examples of one split each class has, in the order of `classes`."""
        examples = self.splits.get(split, [])
        counts = Counter(name for example in examples for name in names_of(example, self.task))
        return {label: counts[label] for label in self.classes}


def load_dataset(data: str, config: DataConfig, *, with_test: bool = False) -> Dataset:
    """The labelled texts of a built-in name, a table, or a folder of tables called train, valid and test.

    The test split is loaded only `with_test`; without it, a single table adds its test part to train.
    """
    names = SPLITS if with_test else SPLITS[:2]
    skips: list[SkippedRow] = []
    name = data if data in SOURCES else Path(data).resolve().name.split(".")[0]
    config, notes = resolve_task(data, config)
    if data in SOURCES:
        splits, more = _split_source(data)
    elif os.path.isdir(data):
        splits, more = _load_folder(Path(data), config, names, skips)
    else:
        examples = _read(_existing_table(data), config, skips)
        _check_labels(examples, data, config.task)
        splits, more = split_by_hash(examples, names, config.task)
    splits = {split: splits[split] for split in names if split in splits}
    return _checked(name, data, splits, config, skips, [*notes, *more])


def _checked(
    name: str, where: str, splits: Parts, config: DataConfig, skips: list[SkippedRow], notes: list[str]
) -> Dataset:
    """The splits as a dataset, of which some texts are set aside for valid, and whose labels are all known from train."""
    task = task_of(config)
    if task == "single-label":
        classes = sorted({str(example.label) for example in splits["train"]})
    else:
        classes = class_names(task, [str(example.label) for example in splits["train"]], config.label_column)
    if not splits["valid"]:
        raise DataError(
            f"{where} has too few rows to set any aside for valid", hint="give two rows or more for each label"
        )
    known, unknown = set(classes), dict[str, Example]()
    for example in [example for part in splits.values() for example in part]:
        for label in names_of(example, task) - known:
            unknown.setdefault(label, example)
    if unknown and task in ("single-label", "ordinal"):
        label, example = next(iter(unknown.items()))
        raise DataError(
            f"{example.origin} of {where} has label {label!r}, which train has not", hint=nearest(label, classes)
        )
    if unknown:
        notes = [*notes, f"train has no {', '.join(sorted(unknown)[:5])}, so no model finds them in other splits"]
    return Dataset(name, splits, classes, skips, [*notes, *_label_notes(splits, classes, task)], task=task)


def task_of(config: DataConfig) -> TaskName:
    """The task of a run's settings; one class a text where they name none."""
    return "single-label" if config.task == "auto" else config.task


def resolve_task(data: str, config: DataConfig) -> tuple[DataConfig, list[str]]:
    """The settings with the task that the labels of DATA show, and a note that says so."""
    files = {} if data in SOURCES or not os.path.exists(data) else {"train": Path(data)}
    if os.path.isdir(data):
        files = split_files(Path(data))
    is_conll = "train" in files and kind_of(files["train"], LABELLED_KINDS) == ".conll"
    task: str = config.task
    if task != "auto" or "train" not in files:
        return config, []
    note = "task: token, a tag for each token of the .conll files"
    if is_conll:
        task = "token"
    else:
        rows, _ = read_table(files["train"], config.text_column, config.label_column, has_label_sets=True)
        rows = map_labels(rows, config.label_map, files["train"]) if config.label_map else rows
        task, note = infer_task([str(row.label) for row in rows if row.label], config.label_column)
    return config.model_copy(update={"task": task}), [note] * bool(note)


def infer_task(labels: Sequence[str], column: str) -> tuple[TaskName, str]:
    """The task that labels show, and a line that says so where labels may mean more than classes."""
    if any(SEPARATOR in label for label in labels):
        names = {name for label in labels for name in label_set(label)}
        note = f"`{SEPARATOR}` separates labels in column {column!r}"
        return "multi-label", f"task: multi-label, {len(names)} labels: {note} (--task single-label keeps them whole)"
    numbers = [value for label in labels if (value := as_number(label)) is not None]
    if not numbers or len(numbers) < NUMERIC_SHARE * len(labels):
        return "single-label", ""
    distinct = set(numbers)
    if len(distinct) > MAX_NUMERIC_CLASSES or not all(value.is_integer() for value in distinct):
        note = f"column {column!r} holds numbers from {min(distinct):g} to {max(distinct):g}"
        return "regression", f"task: regression: {note} (--task single-label or ordinal makes classes of them)"
    if len(distinct) < 3:
        return "single-label", ""
    note = f"the {len(distinct)} whole numbers in column {column!r} are classes without an order"
    return "single-label", f"task: single-label: {note} (--task ordinal or regression uses their order)"


def require_classes(dataset: Dataset, command: str) -> None:
    """Refuse a dataset for a command that works on one text with one class."""
    is_pair = any(example.pair is not None for example in dataset.train[:1])
    if dataset.task != "single-label" or is_pair:
        what = "pairs of texts" if is_pair else f"labels for the task {dataset.task}"
        raise ConfigError(
            f"headstart {command} works on one text with one class, and {dataset.name} holds {what}",
            hint="`headstart finetune` and `headstart evaluate` know this task; --task single-label makes classes of labels",
        )


def load_for_scoring(data: str, config: DataConfig) -> tuple[str, list[Example], list[SkippedRow]]:
    """What to evaluate a classifier on: the test split if there is one, else valid; a whole table ("all")."""
    skips: list[SkippedRow] = []
    if data in SOURCES:
        return "test", _split_source(data)[0]["test"], skips
    files = split_files(Path(data)) if os.path.isdir(data) else {"all": _existing_table(data)}
    for name in ("all", "test", "valid"):
        if name in files:
            return name, _read(files[name], config, skips), skips
    return "valid", _load_folder(Path(data), config, SPLITS[:2], skips)[0]["valid"], skips


def load_texts(path: str, config: DataConfig) -> Iterator[str]:
    """Texts to predict, empty ones too: lines of standard input ("-") or of a .txt file, or a table's text column."""
    if path == "-":
        return (line for _, line in decode_lines(sys.stdin.buffer, "standard input"))
    if os.path.exists(path) and not os.path.isdir(path):
        hint = "give the file the ending of what it is, or send lines to standard input: headstart predict RUN - < FILE"
        check_kind(Path(path), KINDS, hint)
    if kind_of(Path(path)) in TABLE_KINDS:
        return iterate_texts(Path(path), config.text_column)
    return read_lines(Path(path))


def load_unlabelled(path: str, config: DataConfig) -> Iterator[Example]:
    """Examples to predict: the texts of `load_texts`, the tokens of a .conll file, or pairs.

    The texts of a pair are in two columns of a table, or have a tab between them on a line.
    """
    columns = text_columns(config.text_column)
    if config.task == "token" and kind_of(Path(path), LABELLED_KINDS) == ".conll":
        from headstart.data.conll import read_conll

        yield from read_conll(Path(path), has_tags=False)[0]
    elif len(columns) == 1:
        texts = load_texts(path, config)
        yield from (Example(" ".join(text.split()) if config.task == "token" else text) for text in texts)
    elif kind_of(Path(path)) in TABLE_KINDS:
        yield from (Example(first, None, "", second) for first, second in iterate_text_rows(Path(path), columns))
    else:
        for number, line in enumerate(load_texts(path, config), 1):
            first, tab, second = line.partition("\t")
            if not tab:
                raise DataError(
                    f"{path}:{number} holds one text, and the model reads pairs", hint="put a tab between them"
                )
            yield Example(first, None, "", second)


def _read(path: Path, config: DataConfig, skips: list[SkippedRow]) -> list[Example]:
    task, strict = task_of(config), config.on_bad_row == "error"
    is_conll = kind_of(path, LABELLED_KINDS) == ".conll"
    if is_conll != (task == "token"):
        problem = f"{path} holds {'a tag for each token' if is_conll else 'no tags of tokens'}, and the task is {task}"
        raise DataError(problem, hint="the task token reads .conll files alone, and no other task does")
    if is_conll:
        from headstart.data.conll import read_conll

        examples, left_out = read_conll(path)
    else:
        has_sets = task == "multi-label"
        examples, left_out = read_table(path, config.text_column, config.label_column, strict, has_sets)
    if config.label_map:
        examples = map_labels(examples, config.label_map, path)
    if task != "single-label":
        examples, unread = with_task(examples, task)
        left_out = [*left_out, *unread]
    if left_out and strict:
        refuse(left_out[0])
    skips.extend(left_out)
    return examples


def _existing_table(data: str) -> Path:
    if not os.path.exists(data):
        raise missing(Path(data), SOURCES)
    return Path(data)


def _split_source(name: str) -> tuple[Parts, list[str]]:
    source = SOURCES[name]
    splits, notes = split_by_hash(source(), SPLITS)
    return splits, [" ".join((inspect.getdoc(source) or name).split()), *notes]


def split_files(folder: Path) -> dict[str, Path]:
    """The table of each split in a folder."""
    files: dict[str, Path] = {}
    with reading(folder):
        paths = sorted(folder.iterdir())
    for path in paths:
        split = ALIASES.get(path.name.lower().split(".")[0])
        if split and kind_of(path, LABELLED_KINDS):
            add_file(files, split, path, split)
    return files


def add_file(files: dict[str, Path], key: str, path: Path, what: str) -> None:
    """Add a file of a folder, which must be the only one for `what` it holds."""
    if key in files:
        problem = f"{path.parent} has two files for {what}: {files[key].name} and {path.name}"
        raise DataError(problem, hint="keep one of them")
    files[key] = path


def _load_folder(
    folder: Path, config: DataConfig, names: Sequence[str], skips: list[SkippedRow]
) -> tuple[Parts, list[str]]:
    files = split_files(folder)
    if "train" not in files:
        found = ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"
        hint = "name it train.tsv, train.csv or train.jsonl; files such as train.en and train.de need --pair en-de"
        raise DataError(f"{folder} has no table called train; it has {found}", hint=hint)
    splits = {name: _read(files[name], config, skips) for name in names if name in files}
    _check_labels(splits["train"], str(files["train"]), config.task)
    if "valid" in splits:
        return splits, []
    parts, notes = split_by_hash(splits["train"], SPLITS[:2], config.task)
    note = f"{folder.name} has no valid file: a tenth of train, chosen by hash, is used instead"
    return {**splits, **parts}, [note, *notes]


def names_of(example: Example, task: str) -> set[str]:
    """The classes that an example's label names."""
    label = str(example.label)
    if task in ("auto", "single-label", "ordinal"):
        return {label}
    return set(names_in(task, label))  # type: ignore[arg-type]


def _check_labels(examples: list[Example], where: str, task: str) -> None:
    """Refuse labels that cannot be classes."""
    labels = (
        set().union(*(names_of(example, task) for example in examples))
        if task == "token"
        else {str(example.label) for example in examples}
    )
    if len(labels) < 2:
        problem = f"{where} has one label alone: {next(iter(labels))!r}"
        raise DataError(problem, hint="a classifier needs two or more; check --label-column")
    if task in ("auto", "single-label", "ordinal") and len(labels) > 8 and 2 * len(labels) > len(examples):
        raise DataError(
            f"{where} has {len(labels):,} different labels in {len(examples):,} rows, which looks like no classes",
            hint="check that --text-column and --label-column are not swapped, and that labels are not measurements",
        )


def _label_notes(splits: Parts, classes: list[str], task: TaskName) -> list[str]:
    """Notes on classes that may mean a missing label (they stay classes), and on labels that are nearly equal."""
    counts = Counter(name for examples in splits.values() for example in examples for name in names_of(example, task))
    notes = [
        f"{label!r} is a class like the others, with {counts[label]:,} rows; if it means that the label is missing, "
        "empty those fields, and the rows are skipped"
        for label in classes
        if label.casefold() in NO_LABEL
    ]
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for label in classes:
        alike["".join(label.casefold().split())].append(repr(label))
    groups = [", ".join(group) for group in alike.values() if len(group) > 1]
    return notes + [f"labels that differ by case or space alone: {group}" for group in groups]


def write_tables(folder: Path, dataset: Dataset) -> None:
    """Write each split as a file that `load_dataset` reads back, in the same order."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, examples in dataset.splits.items():
        if dataset.task == "token":
            from headstart.data.conll import write_conll

            write_conll(folder / f"{name}.conll", examples)
        else:
            write_rows(folder / f"{name}.jsonl", examples)


def write_rows(path: Path, examples: Sequence[Example]) -> None:
    """Write examples as a table with the columns text, label and, of pairs, pair."""
    rows = [
        {"text": row.text, "label": row.label} | ({} if row.pair is None else {"pair": row.pair}) for row in examples
    ]
    write_text(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))


def make_dataset(
    name: str,
    train: Sequence[Example],
    valid: Sequence[Example] | None,
    skips: Sequence[SkippedRow] = (),
    *,
    task: TaskName = "single-label",
    valid_fraction: float = VALID_FRACTION,
) -> Dataset:
    """A dataset of examples in memory; without `valid`, a fraction of train is held out by hash, as from one table."""
    config = DataConfig(task=task)
    train, unread = with_task(train, task)
    _check_labels(train, name, task)
    notes: list[str] = []
    if valid is None:
        splits, notes = split_by_hash(train, SPLITS[:2], task, valid_fraction)
    else:
        splits = {"train": train, "valid": with_task(valid, task)[0]}
    return _checked(name, name, splits, config, [*skips, *unread], notes)


def split_of(hashed: int, valid_fraction: float = VALID_FRACTION) -> str:
    """The split that a `text_hash` falls into: 10 % valid, 10 % test, the rest train.

    Another fraction for valid takes from train, or gives to it, the texts that come next in the order of hashes.
    """
    if valid_fraction != VALID_FRACTION:
        place = (hashed % 10 + hashed // 10 % 10**6 / 10**6) / 10  # uniform in [0, 1), and the same order as below
        return "valid" if place < valid_fraction else "train"
    return {0: "valid", 1: "test"}.get(hashed % 10, "train")


def split_by_hash(
    examples: Sequence[Example],
    names: Sequence[str],
    task: str = "single-label",
    valid_fraction: float = VALID_FRACTION,
) -> tuple[dict[str, list[Example]], list[str]]:
    """Examples split by hash into `names` ("train" first; texts of other splits stay in train), and notes.

    If a split has no text of a class, the texts of lowest hash are moved: each class has a text in train, and in
    every other split if it has enough texts.
    """
    hashed = [text_hash(example.content) for example in examples]
    labels_of: defaultdict[int, set[str]] = defaultdict(set)
    for key, example in zip(hashed, examples, strict=True):
        labels_of[key] |= names_of(example, task)
    keys_of: defaultdict[str, list[int]] = defaultdict(list)
    for key in sorted(labels_of):
        for label in labels_of[key]:
            keys_of[label].append(key)
    split = {key: name if (name := split_of(key, valid_fraction)) in names else "train" for key in sorted(labels_of)}
    counts = Counter((name, label) for key, name in split.items() for label in labels_of[key])
    moved = 0
    for name, label in product(names, sorted(keys_of)):
        for key in () if counts[name, label] else keys_of[label]:
            own = split[key]
            is_spare = own == "train" and all(counts["train", other] > 1 for other in labels_of[key])
            if name == "train" or is_spare:
                counts.subtract((own, other) for other in labels_of[key])
                counts.update((name, other) for other in labels_of[key])
                split[key] = name
                moved += 1
                break
    splits: dict[str, list[Example]] = {name: [] for name in names}
    for key, example in zip(hashed, examples, strict=True):
        splits[split[key]].append(example)
    notes = []
    if moved:
        notes.append(f"texts moved between the splits by hash, so that each class is in each where it can be: {moved}")
    for name in names[1:]:
        absent = [label for label in sorted(keys_of) if not counts[name, label]]
        if absent and splits[name]:
            notes.append(f"too few rows for {name} to hold: {', '.join(absent[:10])}")
    return splits, notes


def encode_rows(
    tokenizer: Tokenizer,
    examples: Sequence[Example],
    classes: Sequence[str] | None,
    length: int,
    truncation_side: str,
    task: TaskName = "single-label",
) -> "list[EncodedExample]":
    """Examples as token ids with special tokens, and with their labels when `classes` are given.

    Of a pair both texts are encoded, with the last special token after each. A text with a tag for each token may
    become several rows.
    """
    from headstart.batch import EncodedExample  # needs torch, which takes long to load

    if task == "token":
        from headstart.data.token_windows import encode_tokens

        return encode_tokens(tokenizer, examples, classes, length)
    encoded = tokenizer.encode([example.text for example in examples])
    rows: list[tuple[np.ndarray, np.ndarray | None]]
    if any(example.pair is not None for example in examples):
        second = tokenizer.encode([example.pair or "" for example in examples])
        rows = [
            tokenizer.add_special_tokens_to_pair(*ids, length, truncation_side)
            for ids in zip(encoded, second, strict=True)
        ]
    else:
        rows = [(tokenizer.add_special_tokens(ids, length, truncation_side), None) for ids in encoded]
    labels = [example.label for example in examples]
    indices: list[int | None] = [None] * len(rows)
    targets: Sequence[np.ndarray | None] = indices  # type: ignore[assignment]
    if classes is not None and task in ("single-label", "ordinal"):
        index = {label: number for number, label in enumerate(classes)}
        indices = [None if label is None else index.get(label) for label in labels]
    elif classes is not None:
        targets = [None if label is None else label_array(task, [label], classes).reshape(-1) for label in labels]
    return [
        EncodedExample(tokens, label, segments, targets=target)
        for (tokens, segments), label, target in zip(rows, indices, targets, strict=True)
    ]
