"""Labels of a table: made into other classes (data.label_map), and one for each text."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from headstart.data.text_io import Example, text_hash
from headstart.errors import ConfigError, DataError

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")


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
        hashed = text_hash(example.text)
        first.setdefault(hashed, example)
        labels[hashed].add(example.label)
    return [first[hashed] for hashed in sorted(first) if len(labels[hashed]) == 1]
