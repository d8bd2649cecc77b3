"""Tables as examples: .tsv, .csv and .jsonl files, each also as .gz or .xz.

Every row becomes an `Example` or a counted `Skip`; none vanishes.
"""

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from headstart.data.dataset import Example, Skip
from headstart.data.text_io import TABLE_KINDS, kind_of, open_text
from headstart.errors import DataError, nearest

FLAGS = ("--text-column", "--label-column")
LONGEST_RECORD = 2**28  # characters; a quote open for longer is a stray one
KNOWN_LABELS = 1000  # labels remembered to recognise a row inside a quoted field

Row = tuple[int, list[Any] | str]

QUOTING = 'write a quote inside a quoted field twice (""), or save the table as .jsonl'


def iterate_rows(path: Path, columns: Sequence[str], has_labels: bool = True) -> Iterator[Row]:
    """The values in `columns` of each row, or the reason why that row has none, with its first line's number.

    The first column is the text and the second, where it `has_labels`, the label. Blank lines are no rows, unless the
    table has one column.
    """
    if len(set(columns)) < len(columns):
        raise DataError(
            f"text and label are both read from column {columns[0]!r}",
            hint="give --text-column and --label-column different names",
        )
    yield from _reader(path)(path, columns, has_labels)


def column_names(path: Path) -> list[str]:
    """The columns that a table's header, or the first object of a .jsonl file, names; none when the table is empty."""
    reader = _reader(path)
    if reader is _read_objects:
        objects = (_parsed(path, number, line) for number, line in open_text(path) if line.strip())
        return list(next((content for content in objects if isinstance(content, dict)), {}))
    _, line = next(open_text(path), (0, ""))
    if reader is _read_tabs and not _is_quoted(header := _tab_header(line)):
        return header if line else []
    _, fields = next(_Records(path, "\t" if reader is _read_tabs else ","), (0, []))
    return [name.strip() for name in fields]


def _reader(path: Path) -> "Reader":
    reader = READERS.get(kind_of(path))
    if reader is None:
        raise DataError(
            f"{path} is no table: its name ends in none of {', '.join(TABLE_KINDS)} (also with .gz or .xz)",
            hint="give the file the ending of what it is",
        )
    return reader


def find_columns(path: Path, columns: Sequence[str], found: Sequence[str]) -> list[int]:
    """The places of `columns` among those `found` in a file, or an error that offers the nearest name."""
    for index, name in enumerate(columns):
        flag = FLAGS[min(index, 1)]
        if name not in found:
            shown = ", ".join(repr(_shortened(other)) for other in found[:12]) + (
                ", ..." if len(found) > 12 else ""
            )
            hint = (
                nearest(name, map(_shortened, found))
                if len(found) <= 12
                else "its first line names its columns"
            )
            if any("\r" in other for other in found):
                hint = "the lines end in CR alone: convert it with tr '\\r' '\\n' < old > new"
            raise DataError(
                f"{path} has no column {name!r}; it has {shown or 'none'}", hint=f"{hint} ({flag} NAME)"
            )
        if found.count(name) > 1:
            raise DataError(
                f"{path} has {found.count(name)} columns called {name!r}",
                hint=f"rename all but one, or choose another with {flag}",
            )
    return [found.index(name) for name in columns]


def _shortened(text: str, length: int = 40) -> str:
    return text if len(text) <= length else text[:length] + "..."


def _chosen(fields: list[str], places: list[int], width: int) -> list[Any] | str:
    if len(fields) != width:
        return f"{len(fields)} field{'s' if len(fields) != 1 else ''} where the header has {width}"
    return [fields[place] for place in places]


def _tab_header(line: str) -> list[str]:
    return [name.strip() for name in line.split("\t")]


def _is_quoted(header: list[str]) -> bool:
    return all(len(name) > 1 and name[0] == name[-1] == '"' for name in header)


def _read_tabs(path: Path, columns: Sequence[str], has_labels: bool) -> Iterator[Row]:
    lines = open_text(path)
    first = next(lines, None)
    if first is None:
        return
    header = _tab_header(first[1])
    if _is_quoted(header):
        yield from _read_quoted(path, columns, "\t", has_labels)
        return
    places = find_columns(path, columns, header)
    for number, line in lines:
        if line or len(header) == 1:
            yield number, _chosen(line.split("\t"), places, len(header))


def _read_commas(path: Path, columns: Sequence[str], has_labels: bool) -> Iterator[Row]:
    return _read_quoted(path, columns, ",", has_labels)


def _read_quoted(path: Path, columns: Sequence[str], delimiter: str, has_labels: bool) -> Iterator[Row]:
    records = _Records(path, delimiter)
    first = next(records, None)
    if first is None:
        return
    header = [name.strip() for name in first[1]]
    places = find_columns(path, columns, header)
    seen: set[str] = set()
    for number, fields in records:
        if not fields and len(header) != 1:
            continue
        values = _chosen(fields or [""], places, len(header))
        if has_labels and len(places) > 1 and not isinstance(values, str):
            if len(seen) < KNOWN_LABELS and values[1].strip():
                seen.add(values[1].strip())
            if any(
                "\n" in field and _holds_row(field, delimiter, len(header), places[1], seen)
                for field in fields
            ):
                raise DataError(
                    f"{path}:{number} opens a quote that seems to swallow the rows after it", hint=QUOTING
                )
        yield number, values


def _holds_row(field: str, delimiter: str, width: int, place: int, labels: set[str]) -> bool:
    """Whether a line inside a field looks like a whole row with a known label."""
    rows = (line.split(delimiter) for line in field.split("\n"))
    return any(len(row) == width and row[place].strip() in labels for row in rows)


class _Records(Iterator[tuple[int, list[str]]]):
    """The records of a quoted table; remembers the lines of the one under way, to say where a quote opened."""

    def __init__(self, path: Path, delimiter: str):
        csv.field_size_limit(2**31 - 1)
        self.path, self.delimiter = path, delimiter
        self.held: list[str] = []
        self.start = self.size = 0
        self.reader = csv.reader(self._lines(), delimiter=delimiter, strict=True)

    def __next__(self) -> tuple[int, list[str]]:
        self.held, self.size = [], 0
        try:
            fields = next(self.reader)
        except csv.Error as error:
            raise self._problem(str(error)) from None
        return self.start, fields

    def _lines(self) -> Iterator[str]:
        for number, line in open_text(self.path):
            self.start = number if not self.held else self.start
            self.held.append(line + "\n")
            self.size += len(line) + 1
            if self.size > LONGEST_RECORD:
                raise self._problem("unexpected end of data")
            yield self.held[-1]

    def _problem(self, reason: str) -> DataError:
        last = self.start + len(self.held) - 1
        if reason.startswith("new-line"):
            return DataError(
                f"{self.path}:{last} has a carriage return (CR) outside quotes",
                hint="if all lines end so, convert it with tr '\\r' '\\n' < old > new; else put quotes round the field",
            )
        if reason.startswith("unexpected end"):
            return DataError(
                f"{self.path}:{self._open_quote()} opens a quote that is never closed", hint=QUOTING
            )
        return DataError(
            f"{self.path}:{last} has text behind the quote that closes a field of the row begun at line {self.start}",
            hint=QUOTING,
        )

    def _open_quote(self) -> int:
        text = "".join(self.held)
        opened = re.search(rf'(?:\A|{self.delimiter})"[^"]*(?:""[^"]*)*\Z', text)
        return self.start + (text[: opened.start()].count("\n") if opened else 0)


def _read_objects(path: Path, columns: Sequence[str], has_labels: bool) -> Iterator[Row]:
    is_checked = False
    for number, line in open_text(path):
        if not line.strip():
            continue
        content = _parsed(path, number, line)
        if not isinstance(content, dict):
            yield number, "the line holds no JSON object"
            continue
        if not is_checked:
            find_columns(path, columns, list(content))
            is_checked = True
        absent = [name for name in columns if name not in content]
        yield number, f"no {absent[0]!r} in the object" if absent else [content[name] for name in columns]


def _parsed(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}:{number} is no JSON: {error}",
            hint='a .jsonl file holds one object a line, such as {"text": "...", "label": "..."}',
        ) from None


Reader = Callable[[Path, Sequence[str], bool], Iterator[Row]]
READERS: dict[str, Reader] = {
    ".tsv": _read_tabs,
    ".csv": _read_commas,
    ".jsonl": _read_objects,
}


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
