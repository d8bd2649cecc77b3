"""Texts and labels in memory: lists, arrays, Series, DataFrames and datasets as plain Python lists.

pandas, polars and datasets are recognised by their methods, so none of them is imported.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headstart.data.text_io import SURROGATE, Example, SkippedRow
from headstart.errors import InputTypeError, InputValueError

EXAMPLES = "a list of strings, a numpy array, or a column of a table"


def as_column(values: Any, name: str) -> list[Any]:
    """One column of any kind as a list; `name` is what error messages call it."""
    if isinstance(values, str | bytes):
        raise InputTypeError(
            f"{name} must be {EXAMPLES}, not one string", hint="write [text]" if name == "texts" else f"write [{name}]"
        )
    if isinstance(values, Mapping) or values is None or not isinstance(values, Iterable):
        raise InputTypeError(f"{name} is {_kind(values)}", hint=f"give {EXAMPLES}")
    columns = getattr(values, "columns", None)
    columns = getattr(values, "column_names", None) if columns is None else columns
    if columns is not None:  # a DataFrame or a datasets.Dataset
        names = [str(column) for column in columns]
        if len(names) != 1:
            shown = ", ".join(repr(column) for column in names[:8])
            raise InputValueError(
                f"{name} is a table of {len(names)} columns: {shown}",
                hint=f"choose one, as in table[{names[0]!r}]" if names else "give one column",
            )
        table: Any = values
        values = table[next(iter(columns))]
    elif isinstance(values, np.ndarray) and values.ndim != 1:
        if values.ndim != 2 or values.shape[1] != 1:
            raise InputValueError(
                f"{name} is an array of shape {values.shape}", hint="give a 1-dimensional array of strings"
            )
        values = values[:, 0]
    for method in ("to_list", "tolist"):  # of pandas and polars; of numpy
        if hasattr(values, method):
            return list(getattr(values, method)())
    return list(values)


def as_texts(texts: Any, name: str = "texts") -> list[str]:
    """Texts as a list of strings; an empty list and empty strings are allowed."""
    found = as_column(texts, name)
    for index, text in enumerate(found):
        if not isinstance(text, str):
            problem = (
                f"{name}[{index}] is missing ({text!r})" if is_missing(text) else f"{name}[{index}] is {_kind(text)}"
            )
            kind = InputValueError if is_missing(text) else InputTypeError
            raise kind(problem, hint="every text is a string; leave out rows without a text, or write ''")
        if "\0" in text or SURROGATE.search(text):
            fault = "a NUL character" if "\0" in text else "half a character (a lone surrogate)"
            raise InputValueError(
                f"{name}[{index}] holds {fault}", hint="decode its bytes with errors='replace', and remove NULs"
            )
    return found


def as_labels(labels: Any, count: int, name: str = "labels") -> list[Any]:
    """Labels as a list of `count` strings, integers, floats or truth values."""
    found = as_column(labels, name)
    if len(found) != count:
        raise InputValueError(f"there are {count:,} texts and {len(found):,} {name}", hint="give one label a text")
    for index, label in enumerate(found):
        if is_missing(label) or label == "":
            raise InputValueError(
                f"{name}[{index}] is missing ({label!r})", hint="leave out the rows that have no label"
            )
        if not isinstance(label, str | int | float | np.generic):
            raise InputTypeError(f"{name}[{index}] is {_kind(label)}", hint="a label is a word or a number")
    return found


def as_contents(texts: Any, name: str = "texts") -> list[Example]:
    """Texts, or pairs of texts (two-tuples, or a table of two columns), as examples without labels."""
    columns = _two_columns(texts)
    if columns is None:
        rows = texts if isinstance(texts, list | tuple) else None
        if not rows or not all(isinstance(row, tuple) and len(row) == 2 for row in rows):
            return [Example(text, None, f"{name}[{index}]") for index, text in enumerate(as_texts(texts, name))]
        columns = [row[0] for row in rows], [row[1] for row in rows]
    first, second = as_texts(columns[0], f"first {name}"), as_texts(columns[1], f"second {name}")
    return [
        Example(text, None, f"{name}[{index}]", pair)
        for index, (text, pair) in enumerate(zip(first, second, strict=True))
    ]


def _two_columns(texts: Any) -> tuple[Any, Any] | None:
    """The columns of a table or an array of two; None for anything else."""
    if isinstance(texts, np.ndarray):
        return (texts[:, 0], texts[:, 1]) if texts.ndim == 2 and texts.shape[1] == 2 else None
    columns = getattr(texts, "columns", None)
    columns = getattr(texts, "column_names", None) if columns is None else columns
    names = [] if columns is None else list(columns)
    return (texts[names[0]], texts[names[1]]) if len(names) == 2 else None


def as_token_texts(texts: Any, name: str = "texts") -> list[Example]:
    """Lists of tokens as examples whose text has one space between tokens."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise InputTypeError(f"{name} is {_kind(texts)}", hint="give a list of lists of tokens")
    found = []
    for index, tokens in enumerate(texts):
        if isinstance(tokens, str):
            raise InputTypeError(f"{name}[{index}] is one string", hint="give its tokens as a list: text.split()")
        words = as_texts(tokens, f"{name}[{index}]")
        if (wrong := next((word for word in words if word.split() != [word]), None)) is not None:
            raise InputValueError(
                f"{name}[{index}] has the token {wrong!r}", hint="a token is not empty and has no white space"
            )
        if not words:
            raise InputValueError(f"{name}[{index}] has no token", hint="leave out empty texts")
        found.append(Example(" ".join(words), None, f"{name}[{index}]"))
    return found


def as_tags(tags: Any, examples: Sequence[Example], name: str = "tags") -> list[str]:
    """The tags of each text's tokens as one string."""
    found = as_token_texts(tags, name)
    if len(found) != len(examples):
        raise InputValueError(
            f"there are {len(examples):,} texts and {len(found):,} lists of {name}", hint="give one a text"
        )
    for index, (tag, example) in enumerate(zip(found, examples, strict=True)):
        if tag.text.count(" ") != example.text.count(" "):
            raise InputValueError(f"{name}[{index}] and its text differ in length", hint="give one tag a token")
    return [tag.text for tag in found]


def as_label_sets(labels: Any, count: int, name: str = "labels") -> tuple[list[Any], list[list[str]]] | None:
    """The labels and those of each text, from an indicator matrix or a list of lists; None for one label a text."""
    names: list[Any] | None = None
    if getattr(labels, "columns", None) is not None and len(labels.columns) > 1:
        names, labels = list(labels.columns), labels.to_numpy()
    if isinstance(labels, np.ndarray) and labels.ndim == 2 and labels.shape[1] > 1:
        if not np.isin(labels, (0, 1)).all():
            raise InputValueError(f"{name} is a matrix of other values than 0 and 1", hint="give one column a label")
        names = list(range(labels.shape[1])) if names is None else names
        sets = [[label_name(names[column]) for column in np.flatnonzero(row)] for row in labels]
    else:
        rows = labels.tolist() if hasattr(labels, "tolist") else labels
        if not isinstance(rows, list | tuple) or not rows or isinstance(rows[0], str):
            return None
        if not all(isinstance(row, list | tuple | set | frozenset) for row in rows):
            return None
        sets = [[label_name(label) for label in as_labels(list(row), len(row), name)] for row in rows]
        names = sorted({label for row in rows for label in row})
    if len(sets) != count:
        raise InputValueError(f"there are {count:,} texts and {len(sets):,} rows of {name}", hint="give one row a text")
    if wrong := next((label for row in sets for label in row if "|" in label), None):
        raise InputValueError(f"the label {wrong!r} holds a |", hint="rename it: | separates labels in files")
    return names, sets


def as_numbers(values: Any, count: int, name: str = "targets") -> np.ndarray:
    """Targets of a regression (N,), finite."""
    found = as_labels(values, count, name)
    try:
        array = np.array([float(value) for value in found])
    except ValueError as error:
        raise InputValueError(f"{name} holds something that is no number: {error}", hint="give numbers") from None
    if not np.isfinite(array).all():
        raise InputValueError(f"{name} holds NaN or infinity", hint="leave those rows out")
    return array


def with_labels(examples: Sequence[Example], labels: Sequence[str]) -> tuple[list[Example], list[SkippedRow]]:
    """Examples with their labels; blank texts are left out, as in tables."""
    found, skips = [], []
    for example, label in zip(examples, labels, strict=True):
        if example.content.strip():
            found.append(replace(example, label=label))
        else:
            skips.append(SkippedRow(example.origin, "the text is empty"))
    return found, skips


def label_names(labels: Sequence[Any]) -> tuple[np.ndarray, list[str]]:
    """The different labels in sorted order, and each label as its string in files."""
    wrong = next((label for label in labels if isinstance(label, str) != isinstance(labels[0], str)), None)
    if wrong is not None:
        raise InputTypeError(
            f"labels mix strings and numbers: {labels[0]!r} and {wrong!r}",
            hint="convert them: [str(label) for label in labels]",
        )
    array = np.asarray(labels)
    if array.dtype.kind == "f" and not (array == np.round(array)).all():
        raise InputValueError("labels are continuous numbers, not classes", hint="hs.TextRegressor predicts numbers")
    return np.unique(array), [label_name(label) for label in labels]


def label_name(label: Any) -> str:
    """A label as files write it: 1, 1.0 and np.int64(1) are all "1"."""
    value = label.item() if isinstance(label, np.generic) else label
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def is_missing(value: Any) -> bool:
    """Whether a value means that there is none: None, NaN, or the missing value of pandas."""
    return value is None or value != value or type(value).__name__ in ("NAType", "NaTType")


def _kind(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
