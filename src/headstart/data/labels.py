"""Labels of a table made into other classes: stars into good and bad."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from headstart.data.example import Example
from headstart.errors import ConfigError, DataError

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")


def classed(examples: Sequence[Example], classes: Mapping[str, Sequence[str]], path: Path) -> list[Example]:
    """The examples under the classes that their labels belong to; those of no class are left out.

    Labels that are numbers are known by their value: 5 and 5.0 are the same. A table whose labels are all names of
    these classes is taken as it is.
    """
    class_of = class_finder(classes)
    there = {str(example.label) for example in examples}
    if there and there <= set(classes) and not any(map(class_of, there)):
        return list(examples)
    placed = ((example, class_of(str(example.label))) for example in examples)
    found = [replace(example, label=label) for example, label in placed if label is not None]
    if not found:
        labels = ", ".join(repr(label) for label in sorted(there)[:10])
        raise DataError(
            f"no row of {path} is of any class of data.classes; the labels are {labels}",
            hint="data.classes names labels as they stand in the table",
        )
    return found


def class_finder(classes: Mapping[str, Sequence[str]]) -> Callable[[str], str | None]:
    """A function that gives the class of a label, or None for a label of no class."""
    meant: dict[str, str] = {}
    for name, labels in classes.items():
        for label in map(value_of, labels):
            if meant.setdefault(label, name) != name:
                raise ConfigError(
                    f"data.classes puts the label {label!r} into {meant[label]!r} and {name!r}",
                    hint="give each label to one class",
                )
    return lambda label: meant.get(value_of(label))


def value_of(label: str) -> str:
    """A label as it is compared: a number by its value, to the last digit, a word without the space around it."""
    word = label.strip()
    if not NUMBER.fullmatch(word):
        return word
    value = Decimal(word)
    plain = format(value, "f")  # without `normalize`, which keeps 28 digits
    return (plain.rstrip("0").rstrip(".") if "." in plain else plain) if value else "0"
