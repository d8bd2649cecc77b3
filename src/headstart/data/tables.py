"""Tables as examples: .tsv, .csv and .jsonl files; every row becomes an `Example` or a `SkippedRow`."""

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from headstart.data.text_io import check_kind, open_text
from headstart.errors import DataError, nearest

FLAGS = ("--text-column", "--label-column")
LONGEST_RECORD = 2**28  # characters; a quote that is open for longer is an error
KNOWN_LABELS = 1000  # labels by which a row inside a quoted field is recognised
SURROGATE = re.compile("[\ud800-\udfff]")  # only JSON escapes can bring one in

QUOTING = 'write a quote inside a quoted field twice (""), or save the table as .jsonl'
CARRIAGE_RETURN = "convert it with tr '\\r' '\\n' < old > new"

JSON_TYPES = {dict: "an object", list: "a list", bool: "a truth value", type(None): "null", str: "a string"}

Row = tuple[int, list[Any] | str]


@dataclass(frozen=True, slots=True)
class Example:
    """A text, its label where it has one, and where it comes from ("reviews.tsv:17")."""

    text: str
    label: str | None = None
    origin: str = ""


@dataclass(frozen=True)
class SkippedRow:
    """A row that cannot be used, and why."""

    origin: str
    reason: str


def iterate_rows(path: Path, columns: Sequence[str], has_labels: bool = True) -> Iterator[Row]:
    """The number of the first line of each row, and its values in `columns` or the reason why it cannot be read.

    The first column is the text and the second, with `has_labels`, the label. A blank line is a row only in a table
    of one column.
    """
    if len(set(columns)) < len(columns):
        problem = f"text and label are both read from column {columns[0]!r}"
        raise DataError(problem, hint="give --text-column and --label-column different names")
    if check_kind(path) == ".jsonl":
        yield from _object_rows(path, columns)
        return
    records = _records(path)
    header = next(records, None)
    if header is None:
        return
    names = [name.strip() for name in header[1]]
    indices = find_columns(path, columns, names)
    labels: set[str] = set()
    for number, fields in records:
        if not fields and len(names) != 1:
            continue
        fields = fields or [""]
        if len(fields) != len(names):
            yield number, f"{len(fields)} field{'s' * (len(fields) != 1)} where the header has {len(names)}"
            continue
        if has_labels and len(columns) > 1 and isinstance(records, _QuotedRecords):
            if len(labels) < KNOWN_LABELS and (label := fields[indices[1]].strip()):
                labels.add(label)
            if any(records.holds_row(field, len(names), indices[1], labels) for field in fields):
                raise DataError(f"{path}:{number} opens a quote that seems to swallow the rows after it", hint=QUOTING)
        yield number, [fields[index] for index in indices]


def column_names(path: Path) -> list[str]:
    """The columns that a table's header, or the first object of a .jsonl file, names; none when the table is empty."""
    if check_kind(path) == ".jsonl":
        objects = (content for _, content in _objects(path) if isinstance(content, dict))
        return list(next(objects, {}))
    _, fields = next(_records(path), (0, []))
    return [name.strip() for name in fields]


def find_columns(path: Path, columns: Sequence[str], found: Sequence[str]) -> list[int]:
    """The indices of `columns` among those `found` in a file, or an error that offers the nearest name."""
    for index, name in enumerate(columns):
        flag = FLAGS[min(index, 1)]
        if name not in found:
            shortened = [other if len(other) <= 40 else other[:40] + "..." for other in found]
            shown = ", ".join(map(repr, shortened[:12])) + (", ..." if len(found) > 12 else "")
            hint = nearest(name, shortened) if len(found) <= 12 else "its first line names its columns"
            if any("\r" in other for other in found):
                hint = f"the lines end in CR alone: {CARRIAGE_RETURN}"
            raise DataError(f"{path} has no column {name!r}; it has {shown or 'none'}", hint=f"{hint} ({flag} NAME)")
        if found.count(name) > 1:
            problem = f"{path} has {found.count(name)} columns called {name!r}"
            raise DataError(problem, hint=f"rename all but one, or choose another with {flag}")
    return [found.index(name) for name in columns]


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The fields of each record, the header first; a blank line has none. Quotes count in a .csv file.

    In a .tsv file they count if every name in its header is quoted.
    """
    if check_kind(path) == ".csv":
        return _QuotedRecords(path, ",")
    _, line = next(open_text(path), (0, ""))
    header = [name.strip() for name in line.split("\t")]
    if all(len(name) > 1 and name[0] == name[-1] == '"' for name in header):
        return _QuotedRecords(path, "\t")
    return ((number, line.split("\t") if line else []) for number, line in open_text(path))


class _QuotedRecords(Iterator[tuple[int, list[str]]]):
    """The records of a quoted table, with the lines of the current one, by which errors name the line of a quote."""

    def __init__(self, path: Path, delimiter: str):
        csv.field_size_limit(2**31 - 1)
        self.path, self.delimiter = path, delimiter
        self.lines: list[str] = []
        self.start = self.size = 0
        self.reader = csv.reader(self._read_lines(), delimiter=delimiter, strict=True)

    def __next__(self) -> tuple[int, list[str]]:
        self.lines, self.size = [], 0
        try:
            fields = next(self.reader)
        except csv.Error as error:
            raise self._problem(str(error)) from None
        return self.start, fields

    def _read_lines(self) -> Iterator[str]:
        for number, line in open_text(self.path):
            self.start = number if not self.lines else self.start
            self.lines.append(line + "\n")
            self.size += len(line) + 1
            if self.size > LONGEST_RECORD:
                raise self._problem("unexpected end of data")
            yield self.lines[-1]

    def holds_row(self, field: str, width: int, label_index: int, labels: set[str]) -> bool:
        """Whether a line inside a field looks like a whole row with a known label."""
        rows = (line.split(self.delimiter) for line in field.split("\n")) if "\n" in field else ()
        return any(len(row) == width and row[label_index].strip() in labels for row in rows)

    def _problem(self, reason: str) -> DataError:
        last = self.start + len(self.lines) - 1
        if reason.startswith("new-line"):
            hint = f"if all lines end so, {CARRIAGE_RETURN}; else put quotes round the field"
            return DataError(f"{self.path}:{last} has a carriage return (CR) outside quotes", hint=hint)
        if reason.startswith("unexpected end"):
            text = "".join(self.lines)
            quote = re.search(rf'(?:\A|{self.delimiter})"[^"]*(?:""[^"]*)*\Z', text)
            line = self.start + (text[: quote.start()].count("\n") if quote else 0)
            return DataError(f"{self.path}:{line} opens a quote that is never closed", hint=QUOTING)
        problem = "has text after the closing quote of a field"
        return DataError(f"{self.path}:{last} {problem} (the row starts at line {self.start})", hint=QUOTING)


def _object_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    is_first = True
    for number, content in _objects(path):
        if not isinstance(content, dict):
            yield number, "the line holds no JSON object"
            continue
        if is_first:
            find_columns(path, columns, list(content))
            is_first = False
        absent = [name for name in columns if name not in content]
        yield number, f"no {absent[0]!r} in the object" if absent else [content[name] for name in columns]


def _objects(path: Path) -> Iterator[tuple[int, Any]]:
    """The JSON value of each line that is not blank."""
    for number, line in open_text(path):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            hint = 'a .jsonl file holds one object a line, such as {"text": "...", "label": "..."}'
            raise DataError(f"{path}:{number} is no JSON: {error}", hint=hint) from None
        yield number, content


def read_table(
    path: Path, text_column: str, label_column: str | None, strict: bool = False
) -> tuple[list[Example], list[SkippedRow]]:
    """The examples of a table and the rows left out; with `strict` the first such row is an error."""
    skips: list[SkippedRow] = []
    on_skip = refuse if strict else skips.append
    return list(iterate_table(path, text_column, label_column, on_skip)), skips


def iterate_table(
    path: Path, text_column: str, label_column: str | None, on_skip: Callable[[SkippedRow], None]
) -> Iterator[Example]:
    """The examples of a table, one at a time; a row that cannot be used goes to `on_skip`."""
    columns = [text_column] if label_column is None else [text_column, label_column]
    first_skip = ""
    is_usable = False
    for number, values in iterate_rows(path, columns):
        origin = f"{path.name}:{number}"
        example = values if isinstance(values, str) else _example(values, origin)
        if isinstance(example, Example):
            is_usable = True
            yield example
        else:
            first_skip = first_skip or f"{origin}: {example}"
            on_skip(SkippedRow(origin, example))
    if is_usable:
        return
    if first_skip:
        hint = "check that --text-column and --label-column name the right columns"
        raise DataError(f"no row of {path} can be used; the first, {first_skip}", hint=hint)
    raise _without_rows(path)


def iterate_texts(path: Path, text_column: str) -> Iterator[str]:
    """The text of each row of a table, empty ones too; an unreadable row is an error."""
    is_empty = True
    for number, values in iterate_rows(path, [text_column]):
        reason = values if isinstance(values, str) else text_fault(values[0])
        if reason:
            raise DataError(f"{path}:{number}: {reason}", hint="mend that row, or take it out")
        is_empty = False
        yield values[0]
    if is_empty:
        raise _without_rows(path)


def refuse(skip: SkippedRow) -> NoReturn:
    """Raise an error about a row that would be skipped."""
    raise DataError(f"{skip.origin}: {skip.reason}", hint="mend the row, or leave out --strict to skip such rows")


def _without_rows(path: Path) -> DataError:
    return DataError(f"{path} holds no rows", hint="a table has one row a text, below a header that names the columns")


def _example(values: list[Any], origin: str) -> Example | str:
    """The example in a row's text and label, or the reason why there is none."""
    text = values[0]
    fault = text_fault(text) or ("" if text.strip() else "the text is empty")
    if fault:
        return fault
    if len(values) == 1:
        return Example(text, None, origin)
    label = _label(values[1])
    if label is None:
        return f"the label is {_json_type(values[1])}, neither a word nor a number"
    if not label or SURROGATE.search(label):
        return "the label holds half a character (a lone surrogate)" if label else "the label is empty"
    return Example(text, label, origin)


def text_fault(text: Any) -> str:
    """Why a value cannot be a text, or ""."""
    if not isinstance(text, str):
        return f"the text is {_json_type(text)}, no string"
    if SURROGATE.search(text):
        return "the text holds half a character (a lone surrogate)"
    return "the text holds a NUL character" if "\0" in text else ""


def _label(value: Any) -> str | None:
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else str(value)
    return str(value).strip() if isinstance(value, str | int) else None


def _json_type(value: Any) -> str:
    return JSON_TYPES.get(type(value), "a number")
