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

from headstart.atomic_io import write_text
from headstart.config import DataConfig
from headstart.data.built_in import SOURCES
from headstart.data.labels import map_labels
from headstart.data.text_io import (
    KINDS,
    TABLE_KINDS,
    Hashes,
    check_kind,
    decode_lines,
    hashes,
    iterate_texts,
    kind_of,
    missing,
    read_lines,
    read_table,
    reading,
    text_hash,
)
from headstart.data.text_io import Example as Example
from headstart.data.text_io import SkippedRow as SkippedRow
from headstart.data.tokenizer import Tokenizer
from headstart.errors import DataError, nearest

if TYPE_CHECKING:
    from headstart.batch import EncodedExample

T = TypeVar("T")

SPLITS = ("train", "valid", "test")
VALID_FRACTION = 0.1  # of a table without splits
ALIASES = {"val": "valid", "dev": "valid", "validation": "valid", **{name: name for name in SPLITS}}  # in file names

NO_LABEL = {"na", "n/a", "#n/a", "<na>", "nan", "null", "none", "-", "?"}  # what other programs write for no label

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
    """Labelled texts by split, the classes of train in order, the skipped rows, and notes for the user."""

    name: str
    splits: Parts
    classes: list[str]
    skips: list[SkippedRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unlabelled: Sequence[Example] = ()

    @property
    def class_index(self) -> dict[str, int]:
        """Each label's index in `classes`."""
        return {label: index for index, label in enumerate(self.classes)}

    def texts(self, split: str) -> list[str]:
        """The texts of one split, in order."""
        return [example.text for example in self.splits.get(split, [])]

    def hashes(self, split: str) -> Hashes:
        """The hash of each text of one split, in order."""
        return hashes(self.texts(split))

    def targets(self, split: str) -> list[int]:
        """The class index of each example of one split, in order."""
        index = self.class_index
        return [index[example.label] for example in self.splits.get(split, []) if example.label is not None]

    def balance(self, split: str) -> dict[str, int]:
        """How many examples of one split each class has, in the order of `classes`."""
        counts = Counter(example.label for example in self.splits.get(split, []))
        return {label: counts[label] for label in self.classes}


def load_dataset(data: str, config: DataConfig, *, with_test: bool = False) -> Dataset:
    """The labelled texts of a built-in name, a table, or a folder of tables called train, valid and test.

    The test split is loaded only `with_test`; without it, a single table adds its test part to train.
    """
    names = SPLITS if with_test else SPLITS[:2]
    skips: list[SkippedRow] = []
    name = data if data in SOURCES else Path(data).resolve().name.split(".")[0]
    if data in SOURCES:
        splits, notes = _split_source(data)
    elif os.path.isdir(data):
        splits, notes = _load_folder(Path(data), config, names, skips)
    else:
        examples = _read(_existing_table(data), config, skips)
        _check_labels(examples, data)
        splits, notes = split_by_hash(examples, names)
    splits = {split: splits[split] for split in names if split in splits}
    return _checked(name, data, splits, skips, notes)


def _checked(name: str, where: str, splits: Parts, skips: list[SkippedRow], notes: Sequence[str]) -> Dataset:
    """The splits as a dataset, whose labels are all known from train and of which some are set aside for valid."""
    classes = sorted({str(example.label) for example in splits["train"]})
    if not splits["valid"]:
        problem = f"{where} has too few rows to set any aside for valid"
        raise DataError(problem, hint="give two rows or more for each label")
    unknown = next((example for part in splits.values() for example in part if example.label not in classes), None)
    if unknown:
        problem = f"{unknown.origin} of {where} has label {unknown.label!r}, which train has not"
        raise DataError(problem, hint=nearest(str(unknown.label), classes))
    return Dataset(name, splits, classes, skips, [*notes, *_label_notes(splits, classes)])


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


def _read(path: Path, config: DataConfig, skips: list[SkippedRow]) -> list[Example]:
    examples, left_out = read_table(path, config.text_column, config.label_column, config.on_bad_row == "error")
    skips.extend(left_out)
    return map_labels(examples, config.label_map, path) if config.label_map else examples


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
        if split and kind_of(path) in TABLE_KINDS:
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
    _check_labels(splits["train"], str(files["train"]))
    if "valid" in splits:
        return splits, []
    parts, notes = split_by_hash(splits["train"], SPLITS[:2])
    note = f"{folder.name} has no valid file: a tenth of train, chosen by hash, is used instead"
    return {**splits, **parts}, [note, *notes]


def _check_labels(examples: list[Example], where: str) -> None:
    """Refuse labels that cannot be classes."""
    labels = {str(example.label) for example in examples}
    if len(labels) < 2:
        problem = f"{where} has one label alone: {next(iter(labels))!r}"
        raise DataError(problem, hint="a classifier needs two or more; check --label-column")
    if len(labels) > 8 and 2 * len(labels) > len(examples):
        problem = f"{where} has {len(labels):,} different labels in {len(examples):,} rows, which looks like no classes"
        hint = "check that --text-column and --label-column are not swapped, and that labels are not measurements"
        raise DataError(problem, hint=hint)


def _label_notes(splits: Parts, classes: list[str]) -> list[str]:
    """Notes on classes that may mean a missing label (they stay classes), and on labels that are nearly equal."""
    counts = Counter(str(example.label) for examples in splits.values() for example in examples)
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
    """Write each split as a table that `load_dataset` reads back, in the same order."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, examples in dataset.splits.items():
        write_rows(folder / f"{name}.jsonl", examples)


def write_rows(path: Path, examples: Sequence[Example]) -> None:
    """Write examples as a table with the columns text and label."""
    rows = [json.dumps({"text": row.text, "label": row.label}, ensure_ascii=False) for row in examples]
    write_text(path, "".join(f"{row}\n" for row in rows))


def make_dataset(
    name: str,
    train: Sequence[Example],
    valid: Sequence[Example] | None,
    skips: Sequence[SkippedRow] = (),
    *,
    valid_fraction: float = VALID_FRACTION,
) -> Dataset:
    """A dataset of examples in memory; without `valid`, a fraction of train is held out by hash, as from one table."""
    _check_labels(list(train), name)
    notes: list[str] = []
    if valid is None:
        splits, notes = split_by_hash(train, SPLITS[:2], valid_fraction)
    else:
        splits = {"train": list(train), "valid": list(valid)}
    return _checked(name, name, splits, list(skips), notes)


def split_of(hashed: int, valid_fraction: float = VALID_FRACTION) -> str:
    """The split that a `text_hash` falls into: 10 % valid, 10 % test, the rest train.

    Another fraction for valid takes from train, or gives to it, the texts that come next in the order of hashes.
    """
    if valid_fraction != VALID_FRACTION:
        place = (hashed % 10 + hashed // 10 % 10**6 / 10**6) / 10  # uniform in [0, 1), and the same order as below
        return "valid" if place < valid_fraction else "train"
    return {0: "valid", 1: "test"}.get(hashed % 10, "train")


def split_by_hash(
    examples: Sequence[Example], names: Sequence[str], valid_fraction: float = VALID_FRACTION
) -> tuple[dict[str, list[Example]], list[str]]:
    """Examples split by hash into `names` ("train" first; texts of other splits stay in train), and notes.

    If a split has no text of a class, the texts of lowest hash are moved: each class has a text in train, and in
    every other split if it has enough texts.
    """
    hashed = [text_hash(example.text) for example in examples]
    labels_of: defaultdict[int, set[str]] = defaultdict(set)
    for key, example in zip(hashed, examples, strict=True):
        labels_of[key].add(str(example.label))
    classes = sorted(set().union(*labels_of.values()))
    split = {key: name if (name := split_of(key, valid_fraction)) in names else "train" for key in sorted(labels_of)}
    counts = Counter((name, label) for key, name in split.items() for label in labels_of[key])
    moved = 0
    for name, label in product(names, classes):
        for key, own in () if counts[name, label] else split.items():
            is_spare = own == "train" and all(counts["train", other] > 1 for other in labels_of[key])
            if label in labels_of[key] and (name == "train" or is_spare):
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
        absent = [label for label in classes if not counts[name, label]]
        if absent and splits[name]:
            notes.append(f"too few rows for {name} to hold: {', '.join(absent[:10])}")
    return splits, notes


def encode_rows(
    tokenizer: Tokenizer, examples: Sequence[Example], classes: Sequence[str] | None, length: int, truncation_side: str
) -> "list[EncodedExample]":
    """Examples as token ids with special tokens, and with class indices when `classes` are given."""
    from headstart.batch import EncodedExample  # needs torch, which takes long to load

    index = {label: number for number, label in enumerate(classes or [])}
    encoded = tokenizer.encode([example.text for example in examples])
    return [
        EncodedExample(
            tokenizer.add_special_tokens(ids, length, truncation_side),
            None if example.label is None else index.get(example.label),
        )
        for ids, example in zip(encoded, examples, strict=True)
    ]
