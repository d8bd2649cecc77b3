"""Labels of a table made into other classes: stars into good and bad."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from headstart.data.example import Example
from headstart.errors import ConfigError, DataError


def classed(examples: Sequence[Example], classes: Mapping[str, Sequence[str]], path: Path) -> list[Example]:
    """The examples under the classes that their labels belong to; those of no class are left out.

    Labels that are numbers are known by their value: 5 and 5.0 are the same.
    """
    meant: dict[str, str] = {}
    for name, labels in classes.items():
        for label in map(_value, labels):
            if meant.setdefault(label, name) != name:
                raise ConfigError(
                    f"data.classes puts the label {label!r} into {meant[label]!r} and {name!r}",
                    hint="give each label to one class",
                )
    found = [
        replace(example, label=meant[_value(str(example.label))])
        for example in examples
        if _value(str(example.label)) in meant
    ]
    if not found:
        there = ", ".join(sorted({repr(example.label) for example in examples})[:10])
        raise DataError(
            f"no row of {path} is of any class of data.classes; the labels are {there}",
            hint="data.classes names labels as they stand in the table",
        )
    return found


def _value(label: str) -> str:
    try:
        return f"{float(label):g}"
    except ValueError:
        return label.strip()
