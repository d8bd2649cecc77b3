"""Texts in files: lines, tables of examples, and the hashes that identify texts.

Files are plain, .gz or .xz, in UTF-8 or UTF-16 with a byte-order mark. A line ends at LF or CRLF alone: a text may contain
any other Unicode line break.
"""

import codecs
import csv
import gzip
import hashlib
import json
import lzma
import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import IO, Any, NoReturn
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from headstart.errors import DataError, nearest

TABLE_KINDS = (".tsv", ".csv", ".jsonl")
KINDS = (*TABLE_KINDS, ".txt")

OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": lambda stored: gzip.GzipFile(fileobj=stored),
    ".xz": lzma.LZMAFile,
}

CORRUPT = (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)

ENDING = "give it the ending of what it is"
ICONV = "convert it: iconv -f {} -t UTF-8 old > new"

READ_ERRORS: tuple[tuple[Any, str, str], ...] = (  # exceptions, message, hint; the first that fits
    (CORRUPT, "{path} is corrupt or no {path.suffix} file: {reason}", "copy or download it again, or " + ENDING),
    (IsADirectoryError, "{path} is a folder where a file is expected", "name a file inside it"),
    (PermissionError, "{path} may not be read", "allow it: chmod u+r {path}"),
    ((OSError, ValueError), "{path} cannot be read: {reason}", "check the path and the disk"),
)


def kind_of(path: Path) -> str:
    """The ending that says how a file is read, compression aside; "" when it is none of `KINDS`."""
    name = path.name.lower()
    for ending in OPENERS:
        name = name.removesuffix(ending)
    return next((kind for kind in KINDS if name.endswith(kind)), "")


def check_kind(path: Path, kinds: Sequence[str] = TABLE_KINDS, hint: str = ENDING) -> str:
    """The file's kind, or an error if it is none of `kinds`."""
    kind = kind_of(path)
    if kind in kinds:
        return kind
    problem = f"{path} is no table" if kinds == TABLE_KINDS else f"{path} cannot be read"
    raise DataError(f"{problem}: its name ends in none of {', '.join(kinds)} (also with .gz or .xz)", hint=hint)


@contextmanager
def opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """A file as stored and as decompressed; errors of either are a sentence with a hint."""
    with reading(path), open(path, "rb") as stored, decompressed(stored, path.suffix) as content:
        yield stored, content


def decompressed(stored: IO[bytes], suffix: str) -> IO[bytes]:
    """The content of an open file whose name ends in `suffix`, decompressed where that says so."""
    opener = OPENERS.get(suffix.lower())
    return opener(stored) if opener else stored


def open_text(path: Path) -> Iterator[tuple[int, str]]:
    """Each line of a file with its number from 1, without its line end."""
    with opened(path) as (_, content):
        yield from decode_lines(content, str(path))


def read_lines(path: Path) -> Iterator[str]:
    """Each line of a file as one text, empty lines too."""
    return (line for _, line in open_text(path))


def decode_lines(handle: IO[bytes], name: str) -> Iterator[tuple[int, str]]:
    """Each line of a byte stream called `name` with its number from 1, without its line end."""
    encoding, lines = _encoding_and_lines(handle)
    for number, raw in enumerate(lines, start=1):
        try:
            line = raw.decode(encoding)
        except UnicodeDecodeError as error:
            where = f"byte 0x{raw[error.start]:02x} at byte {error.start + 1} of the line"
            problem = f"{name}:{number} is not {encoding.upper()}: {where}"
            raise DataError(problem, hint=_encoding_hint(raw, number)) from None
        if "\0" in line:
            problem = f"{name}:{number} holds a NUL byte, so the file is binary or in another encoding"
            raise DataError(problem, hint="if it is text, " + ICONV.format("UTF-16"))
        yield number, line.removesuffix("\n").removesuffix("\r")


def _encoding_and_lines(handle: IO[bytes]) -> tuple[str, Iterator[bytes]]:
    first = handle.readline()
    if first.startswith(codecs.BOM_UTF16_LE):
        return "utf-16-le", _utf16_lines(handle, first[2:], b"\n\0")
    if first.startswith(codecs.BOM_UTF16_BE):
        return "utf-16-be", _utf16_lines(handle, first[2:], b"\0\n")
    first = first.removeprefix(codecs.BOM_UTF8)
    return "utf-8", chain([first] if first else [], handle)


def _utf16_lines(handle: IO[bytes], first: bytes, newline: bytes) -> Iterator[bytes]:
    """Lines of UTF-16: a newline byte ends one only as half of an aligned newline character."""
    line = bytearray()
    for piece in chain([first], iter(handle.readline, b"")):
        line += piece
        if len(line) % 2:
            line += handle.read(1)
        if line.endswith(newline):
            yield bytes(line)
            line.clear()
    if line:
        yield bytes(line)


def _encoding_hint(raw: bytes, number: int) -> str:
    if number == 1 and raw.startswith((b"\x1f\x8b", b"\xfd7zXZ")):
        return "the file is compressed: let its name end in " + (".gz" if raw.startswith(b"\x1f") else ".xz")
    return ICONV.format("WINDOWS-1252") + " (name the encoding that it was saved in)"


def one_line(text: str) -> str:
    """The text on one line: every line break that any reader may know is a space."""
    return " ".join(text.splitlines())


def missing(path: Path) -> DataError:
    """The error for a path that does not exist, offering the nearest name in its folder."""
    others = [name for name in names_beside(path) if name != path.name]
    near = get_close_matches(path.name, others, n=1, cutoff=0.5)
    hint = f"did you mean {str(path.parent / near[0])!r}?" if near else "check the path"
    return DataError(f"no file at {path}", hint=hint)


def names_beside(path: Path) -> list[str]:
    """The names in the folder of `path`, or none when that cannot be listed."""
    try:
        return sorted(os.listdir(path.parent))
    except (OSError, ValueError):
        return []


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an error of the operating system or a decompressor about `path` into a sentence with a hint."""
    try:
        yield
    except FileNotFoundError:
        raise missing(path) from None
    except (*CORRUPT, OSError, ValueError) as error:
        problem, hint = next((problem, hint) for kinds, problem, hint in READ_ERRORS if isinstance(error, kinds))
        reason = str(error) or type(error).__name__
        raise DataError(problem.format(path=path, reason=reason), hint=hint.format(path=path)) from None


# --- Tables -----------------------------------------------------------------------------------------------------------

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


# --- Hashes of texts --------------------------------------------------------------------------------------------------

PACKED_BITS = 30  # of each hash: about one text in 1,000 is then taken for one of a million
LOW = np.uint64(64 - PACKED_BITS)
HALF = np.uint64(32)
# Random bytes do not repeat, so the contexts of LZMA (lc, lp, pb) only cost space.
PACKING = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 0, "pb": 0}]

Hashes = NDArray[np.uint64]


def text_hash(text: str) -> int:
    """A stable unsigned 64-bit hash of a text that ignores white space and Unicode composition."""
    normal = " ".join(normalize("NFC", text).split()).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(normal, digest_size=8).digest(), "big")


def hashes(texts: Iterable[str]) -> Hashes:
    """The `text_hash` of each text."""
    return np.fromiter(map(text_hash, texts), np.uint64)


def is_contaminated(hashes: Hashes, train_fingerprints: Hashes) -> NDArray[np.bool_]:
    """Which of the hashes are among those of the training texts, whole or packed."""
    return np.isin(hashes, train_fingerprints) | np.isin(hashes >> LOW << LOW, train_fingerprints)


def pack_fingerprints(hashes: Hashes) -> bytes:
    """The first bits of each hash, as gaps between neighbours, byte by byte of the gaps, compressed."""
    halves = np.unique((hashes >> LOW << LOW >> HALF).astype(np.uint32))
    gaps = np.diff(halves, prepend=np.uint32(0)).astype("<u4")
    planes = gaps.view(np.uint8).reshape(-1, 4).T  # (4, N): the high bytes, mostly zero, are consecutive
    return lzma.compress(planes.tobytes(), filters=PACKING)


def unpack_fingerprints(content: bytes) -> Hashes:
    """The hashes that `pack_fingerprints` packed; the bits that it dropped are zero."""
    planes = np.frombuffer(lzma.decompress(content), np.uint8).reshape(4, -1)
    gaps = np.ascontiguousarray(planes.T).view("<u4").ravel()
    return np.cumsum(gaps, dtype=np.uint64) << HALF >> LOW << LOW
