"""Tables as examples: .tsv, .csv and .jsonl files, each also as .gz or .xz.

Every row becomes an `Example` or a counted `Skip`; none vanishes.
"""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from headstart.data.example import Example, Skip
from headstart.data.lines import open_text, read_lines
from headstart.data.records import iterate_rows
from headstart.errors import DataError

__all__ = ["iterate_table", "iterate_texts", "open_text", "read_lines", "read_table", "refuse", "text_fault"]

HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # only JSON escapes can bring one in


def read_table(
    path: Path, text_column: str, label_column: str | None, strict: bool = False
) -> tuple[list[Example], list[Skip]]:
    """The examples of a table and the rows left out; with `strict` the first such row is an error."""
    skips: list[Skip] = []
    on_skip = refuse if strict else skips.append
    examples = list(iterate_table(path, text_column, label_column, on_skip))
    return examples, skips


def iterate_table(
    path: Path,
    text_column: str,
    label_column: str | None,
    on_skip: Callable[[Skip], None],
) -> Iterator[Example]:
    """The examples of a table, one at a time; a row that cannot be used goes to `on_skip`."""
    columns = [text_column] if label_column is None else [text_column, label_column]
    first_skip: Skip | None = None
    kept = 0
    for number, values in iterate_rows(path, columns):
        origin = f"{path.name}:{number}"
        example = values if isinstance(values, str) else _example(values, origin)
        if isinstance(example, str):
            skip = Skip(origin, example)
            first_skip = first_skip or skip
            on_skip(skip)
        else:
            kept += 1
            yield example
    if first_skip and not kept:
        raise DataError(
            f"no row of {path} can be used; the first, {first_skip.origin}: {first_skip.reason}",
            hint="check that --text-column and --label-column name the right columns",
        )
    if not kept:
        raise _without_rows(path)


def iterate_texts(path: Path, text_column: str) -> Iterator[str]:
    """The text of each row of a table, empty ones too, so that answers line up; an unreadable row is an error."""
    is_empty = True
    for number, values in iterate_rows(path, [text_column]):
        reason = values if isinstance(values, str) else text_fault(values[0])
        if reason:
            raise DataError(f"{path}:{number}: {reason}", hint="mend that row, or take it out")
        is_empty = False
        yield values[0]
    if is_empty:
        raise _without_rows(path)


def refuse(skip: Skip) -> NoReturn:
    """Make an error of a row that would be skipped."""
    raise DataError(
        f"{skip.origin}: {skip.reason}", hint="mend the row, or leave out --strict to skip such rows"
    )


def _without_rows(path: Path) -> DataError:
    return DataError(
        f"{path} holds no rows", hint="a table has one row a text, below a header that names the columns"
    )


def _example(values: list[Any], origin: str) -> Example | str:
    """The example in a row's text and label, or the reason why there is none."""
    text = values[0]
    fault = text_fault(text)
    if fault:
        return fault
    if not text.strip():
        return "the text is empty"
    if len(values) == 1:
        return Example(text, None, origin)
    label = _label(values[1])
    if label is None:
        return f"the label is {_sort_of(values[1])}, neither a word nor a number"
    if not label or HALF_CHARACTER.search(label):
        return "the label is empty" if not label else "the label holds half a character (a lone surrogate)"
    return Example(text, label, origin)


def text_fault(text: Any) -> str:
    """Why a value cannot be a text, or ""."""
    if not isinstance(text, str):
        return f"the text is {_sort_of(text)}, no string"
    if HALF_CHARACTER.search(text):
        return "the text holds half a character (a lone surrogate)"
    return "the text holds a NUL character" if "\0" in text else ""


def _label(value: Any) -> str | None:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else str(value)
    return str(value) if isinstance(value, int) else None


def _sort_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", bool: "a truth value", type(None): "null", str: "a string"}
    return names.get(type(value), "a number")
