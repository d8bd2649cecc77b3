"""Tables as examples: .tsv, .csv and .jsonl files, each also as .gz or .xz.

Every row becomes an `Example` or a counted `Skip`; none vanishes.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from headstart.data.example import Example, Skip
from headstart.data.lines import open_text, read_lines
from headstart.data.records import Row, column_names, iterate_rows
from headstart.data.relabel import value_of
from headstart.errors import DataError, nearest

__all__ = ["iterate_table", "iterate_texts", "open_text", "read_lines", "read_table", "refuse", "text_fault"]

Where = Mapping[str, Sequence[str]]  # what a row's columns must hold, one of the values each

SHOWN = 10  # values that a message names

HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # only JSON escapes can bring one in


def read_table(
    path: Path, text_column: str, label_column: str | None, strict: bool = False, where: Where | None = None
) -> tuple[list[Example], list[Skip]]:
    """The examples of a table and the rows left out; with `strict` the first such row is an error."""
    skips: list[Skip] = []
    on_skip = refuse if strict else skips.append
    examples = list(iterate_table(path, text_column, label_column, on_skip, where, skips.append))
    return examples, skips


def iterate_table(
    path: Path,
    text_column: str,
    label_column: str | None,
    on_skip: Callable[[Skip], None],
    where: Where | None = None,
    on_other: Callable[[Skip], None] = lambda skip: None,
) -> Iterator[Example]:
    """The examples of a table, one at a time; a row that cannot be used goes to `on_skip`.

    Rows that `where` does not ask for go to `on_other`.
    """
    columns = [text_column] if label_column is None else [text_column, label_column]
    first_skip: Skip | None = None
    kept = 0
    for number, values in _asked_for(path, columns, where or {}, on_other):
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


def _asked_for(
    path: Path, columns: list[str], where: Where, on_other: Callable[[Skip], None]
) -> Iterator[Row]:
    """The rows whose columns hold what `where` asks for, and those that cannot be read."""
    wanted = {name: set(map(value_of, values)) for name, values in where.items()}
    read = [*columns, *(name for name in wanted if name not in columns)]
    names = column_names(path) if wanted else []
    absent = next((name for name in wanted if names and name not in names), None)
    if absent is not None:
        raise DataError(
            f"{path} has no column {absent!r}, which data.where asks", hint=nearest(absent, names)
        )
    others: set[str] = set()
    found = not wanted
    for number, values in iterate_rows(path, read, has_labels=len(columns) > 1):
        if not isinstance(values, str):
            held = dict(zip(read, values, strict=True))
            missed = [
                value for name in wanted if (value := value_of(_label(held[name]) or "")) not in wanted[name]
            ]
            if missed:
                others.update(missed[: SHOWN - len(others)])
                on_other(Skip(f"{path.name}:{number}", "data.where asks for other rows"))
                continue
            found = True
            values = values[: len(columns)]
        yield number, values
    if not found and others:
        shown = ", ".join(repr(value[:40]) for value in sorted(others))
        raise DataError(
            f"no row of {path} holds what data.where asks for; there are {shown}"
            + (", ..." if len(others) == SHOWN else ""),
            hint="data.where names columns, and for each the values that a row may have; --set 'data.where={}' reads all",
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
