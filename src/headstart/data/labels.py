"""Labels: as their task writes them, as arrays, made into other classes (data.label_map), and one for each text.

A label is one string, so that tables, hashes and splits treat all tasks alike: "a|b" for several labels, a number as text,
tags with spaces between for the tokens of a text.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np

from headstart.config import TaskName
from headstart.data.text_io import SEPARATOR, Example, SkippedRow, as_number, text_hash
from headstart.errors import ConfigError, DataError

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")


def number_text(value: float) -> str:
    """A number as a label: without a fraction where it is whole."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def label_set(label: str) -> list[str]:
    """The labels in "a|b", sorted, each once."""
    return sorted({part.strip() for part in label.split(SEPARATOR)} - {""})


def with_task(examples: Iterable[Example], task: TaskName) -> tuple[list[Example], list[SkippedRow]]:
    """The examples with their labels as the task writes them, and the rows whose labels it cannot read."""
    if task in ("single-label", "token"):
        return list(examples), []
    found, skips = [], []
    for example in examples:
        label = str(example.label)
        if task == "multi-label":
            found.append(replace(example, label=SEPARATOR.join(label_set(label))))
        elif (value := as_number(label)) is not None:
            found.append(replace(example, label=number_text(value)))
        else:
            skips.append(SkippedRow(example.origin, f"the label {label!r} is no number"))
    if skips and not found:
        where = f"no label is a number; the first, {skips[0].origin}: {skips[0].reason}"
        raise DataError(f"{task} needs numbers as labels, and {where}", hint="check --label-column and --task")
    return found, skips


def class_names(task: TaskName, labels: Iterable[str], column: str) -> list[str]:
    """What a model predicts one output for: classes, labels or tags in order; the column's name for a number."""
    if task == "regression":
        return [column]
    if task == "ordinal":
        return sorted(set(labels), key=float)
    return sorted({name for label in labels for name in names_in(task, label)})


def names_in(task: TaskName, label: str) -> list[str]:
    """The classes that one text's label names; none of a number."""
    if task == "multi-label":
        return label_set(label)
    if task == "token":
        return label.split()
    return [] if task == "regression" else [label]


def label_array(task: TaskName, labels: Sequence[str], classes: Sequence[str]) -> np.ndarray:
    """The labels of texts: class indices (N,), 0 and 1 for each class (N, C), numbers (N,), or tag indices of all tokens.

    A name that is not among `classes` has the index -1, or no column.
    """
    index = {name: number for number, name in enumerate(classes)}
    if task == "regression":
        return np.array([float(label) for label in labels], dtype=np.float64)
    if task == "multi-label":
        found = np.zeros((len(labels), len(classes)), dtype=np.int64)
        for row, label in zip(found, labels, strict=True):
            row[[index[name] for name in label_set(label) if name in index]] = 1
        return found
    return np.array([index.get(name, -1) for label in labels for name in names_in(task, label)], dtype=np.int64)


def map_labels(examples: Sequence[Example], classes: Mapping[str, Sequence[str]], path: Path) -> list[Example]:
    """The examples with their class as label; those of no class are left out.

    Numbers are compared by value: 5 and 5.0 are the same. A table whose labels are all class names is not changed.
    """
    class_of = label_mapper(classes)
    labels = {str(example.label) for example in examples}
    if labels and labels <= set(classes) and not any(map(class_of, labels)):
        return list(examples)
    mapped = [replace(example, label=class_of(str(example.label))) for example in examples]
    found = [example for example in mapped if example.label is not None]
    if not found:
        problem = f"no row of {path} is of any class of data.label_map; the labels are "
        hint = "data.label_map names labels as they are written in the table"
        raise DataError(problem + ", ".join(map(repr, sorted(labels)[:10])), hint=hint)
    return found


def label_mapper(classes: Mapping[str, Sequence[str]]) -> Callable[[str], str | None]:
    """A function from a label to its class, or to None."""
    class_of: dict[str, str] = {}
    for name, labels in classes.items():
        for label in map(normalize_label, labels):
            if class_of.setdefault(label, name) != name:
                problem = f"data.label_map puts the label {label!r} into {class_of[label]!r} and {name!r}"
                raise ConfigError(problem, hint="give each label to one class")
    return lambda label: class_of.get(normalize_label(label))


def normalize_label(label: str) -> str:
    """A label in the form in which labels are compared: a number by its value, a word without the space around it."""
    word = label.strip()
    if not NUMBER.fullmatch(word):
        return word
    plain = format(Decimal(word), "f")  # `normalize` would round to 28 digits
    return (plain.rstrip("0").rstrip(".") if "." in plain else plain) if Decimal(word) else "0"


def deduplicate(examples: list[Example]) -> list[Example]:
    """Each text once, in the order of its hash; a text with two labels is left out."""
    first: dict[int, Example] = {}
    labels: defaultdict[int, set[str | None]] = defaultdict(set)
    for example in examples:
        hashed = text_hash(example.content)
        first.setdefault(hashed, example)
        labels[hashed].add(example.label)
    return [first[hashed] for hashed in sorted(first) if len(labels[hashed]) == 1]
