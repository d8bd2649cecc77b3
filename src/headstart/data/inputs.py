"""Texts and labels in memory: lists, arrays, Series, DataFrames and datasets as plain Python lists.

pandas, polars and datasets are recognised by their methods, so none of them is imported.
"""

from collections.abc import Iterable, Mapping, Sequence
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


def as_weights(weights: Any, count: int) -> np.ndarray:
    """Sample weights (N,): finite, none below 0, not all 0."""
    try:
        found = np.asarray(as_column(weights, "sample_weight"), dtype=np.float64)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputTypeError | InputValueError):
            raise
        raise InputTypeError("sample_weight holds something that is no number", hint="give one number a text") from None
    if found.shape != (count,):
        raise InputValueError(
            f"there are {count:,} texts and sample_weight has the shape {found.shape}", hint="give one weight a text"
        )
    if not np.isfinite(found).all() or (found < 0).any() or not found.any():
        raise InputValueError(
            "sample_weight holds a negative number, NaN or infinity, or only zeros",
            hint="weights are 0 or more, and some are above 0",
        )
    return found


def as_examples(
    texts: Sequence[str], labels: Sequence[str], name: str = "texts"
) -> tuple[list[Example], list[SkippedRow]]:
    """Texts with their labels as examples; blank texts are left out, as in tables."""
    examples, skips = [], []
    for index, (text, label) in enumerate(zip(texts, labels, strict=True)):
        origin = f"{name}[{index}]"
        if text.strip():
            examples.append(Example(text, label, origin))
        else:
            skips.append(SkippedRow(origin, "the text is empty"))
    return examples, skips


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
