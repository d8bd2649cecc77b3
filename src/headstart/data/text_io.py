"""Texts in files: lines, tables of examples, and the hashes that identify texts.

Files are plain, .gz or .xz, in UTF-8 or UTF-16 with a byte-order mark. A line ends at LF or CRLF alone: a text may contain
any other Unicode line break.
"""

import codecs
import csv
import gzip
import hashlib
import io
import json
import lzma
import math
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from headstart.errors import DataError, nearest

TABLE_KINDS = (".tsv", ".csv", ".jsonl")
LABELLED_KINDS = (*TABLE_KINDS, ".conll")  # the last: tokens with their tags, one a line
KINDS = (*TABLE_KINDS, ".txt")
OPENERS: dict[str, Callable[[Path, str], Any]] = {".gz": gzip.open, ".xz": lzma.open}

ENDING = "give it the ending of what it is"
ICONV = "convert it: iconv -f {} -t UTF-8 old > new"
PACKED = {"\x1f\udc8b": ".gz", "\udcfd7zXZ": ".xz"}  # how packed files begin when they are decoded as text


def kind_of(path: Path, kinds: Sequence[str] = KINDS) -> str:
    """The ending that says how a file is read, compression aside; "" when it is none of `kinds`."""
    name = path.name.lower()
    for ending in OPENERS:
        name = name.removesuffix(ending)
    return next((kind for kind in kinds if name.endswith(kind)), "")


def check_kind(path: Path, kinds: Sequence[str] = TABLE_KINDS, hint: str = ENDING) -> str:
    """The file's kind, or an error if it is none of `kinds`."""
    kind = kind_of(path)
    if kind in kinds:
        return kind
    problem = f"{path} is no table" if kinds == TABLE_KINDS else f"{path} cannot be read"
    raise DataError(f"{problem}: its name ends in none of {', '.join(kinds)} (also with .gz or .xz)", hint=hint)


def missing(path: Path, built_in: Collection[str] = ()) -> DataError:
    """The error for a path that does not exist, offering the nearest `built_in` name or file in its folder."""
    try:
        beside = sorted(set(os.listdir(path.parent)) - {path.name})
    except (OSError, ValueError):
        beside = []
    near = get_close_matches(path.name, [*built_in, *beside], n=1, cutoff=0.5)
    hint = f"choose from {', '.join(built_in)}, or name a file or folder" if built_in else "check the path"
    hint = f"did you mean {str(path.parent / near[0])!r}?" if near else hint
    if built_in and path.parent == Path() and not kind_of(path):
        return DataError(f"{str(path)!r} is neither a built-in name nor a file or folder here", hint=hint)
    return DataError(f"no file at {path}", hint=hint)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an error of the operating system or a decompressor about `path` into a sentence with a hint."""
    try:
        yield
    except FileNotFoundError:
        raise missing(path) from None
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        problem = f"{path} is corrupt or no {path.suffix} file: {error}"
        raise DataError(problem, hint=f"copy or download it again, or {ENDING}") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder where a file is expected", hint="name a file inside it") from None
    except PermissionError:
        raise DataError(f"{path} may not be read", hint=f"allow it: chmod u+r {path}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}", hint="check the path and the disk") from None


def open_text(path: Path) -> Iterator[tuple[int, str]]:
    """Each line of a file with its number from 1, without its line end."""
    opener = OPENERS.get(path.suffix.lower(), open)
    with reading(path), opener(path, "rb") as handle:
        yield from decode_lines(handle, str(path))


def read_lines(path: Path) -> Iterator[str]:
    """Each line of a file as one text, empty lines too."""
    return (line for _, line in open_text(path))


def _keep_byte(error: UnicodeError) -> tuple[str, int]:
    """Decode a byte that is no text as half a character, which no text holds."""
    assert isinstance(error, UnicodeDecodeError)
    return chr(0xDC00 + error.object[error.start]), error.end


codecs.register_error("headstart.keep_byte", _keep_byte)


def decode_lines(handle: Any, name: str) -> Iterator[tuple[int, str]]:
    """Each line of a byte stream called `name` with its number from 1, without its line end."""
    handle = handle if hasattr(handle, "peek") else io.BufferedReader(handle)
    encoding = "utf-16" if handle.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    lines = io.TextIOWrapper(handle, encoding, errors="headstart.keep_byte", newline="\n")
    try:
        for number, line in enumerate(lines, start=1):
            if not line.isascii():
                _refuse_bytes(line, f"{name}:{number}", encoding)
            if "\0" in line:
                problem = f"{name}:{number} holds a NUL byte, so the file is binary or in another encoding"
                raise DataError(problem, hint="if it is text, " + ICONV.format("UTF-16"))
            yield number, line.removesuffix("\n").removesuffix("\r")
    finally:
        lines.detach()  # standard input stays open


def _refuse_bytes(line: str, where: str, encoding: str) -> None:
    try:
        line.encode()
    except UnicodeEncodeError as error:
        byte = f"byte 0x{ord(line[error.start]) - 0xDC00:02x} at character {error.start + 1} of the line"
        ending = next((ending for start, ending in PACKED.items() if line.startswith(start)), "")
        hint = f"if the file is compressed, let its name end in {ending}"
        hint = hint if ending else ICONV.format("WINDOWS-1252") + " (name the encoding that it was saved in)"
        raise DataError(f"{where} is not {encoding.removesuffix('-sig').upper()}: {byte}", hint=hint) from None


def one_line(text: str) -> str:
    """The text on one line: every line break that any reader may know is a space."""
    return " ".join(text.splitlines())


# --- Tables -----------------------------------------------------------------------------------------------------------

FLAGS = ("--text-column NAME", "--label-column NAME")
LONGEST_FIELD = 2**28  # characters; a quote that is open for longer is an error
SEPARATOR = "|"  # between the labels of a text
SURROGATE = re.compile("[\ud800-\udfff]")  # only JSON escapes can bring one in
QUOTING = 'write a quote inside a quoted field twice (""), or save the table as .jsonl'
CSV_ERRORS = {  # the start of the message of `csv` -> the problem and what to do
    "new-line": ("has a carriage return (CR) outside quotes", "put quotes round the field, or end all lines with LF"),
    "unexpected end": ("opens a quote that is never closed", QUOTING),
    "field larger": ("opens a quote that is never closed", QUOTING),
}
JSON_TYPES = {dict: "an object", list: "a list", bool: "a truth value", type(None): "null"}

Row = tuple[int, list[Any] | str]


@dataclass(frozen=True, slots=True)
class Example:
    """A text, its label where it has one, where it comes from ("reviews.tsv:17"), and the other text of a pair."""

    text: str
    label: str | None = None
    origin: str = ""
    pair: str | None = None

    @property
    def content(self) -> str:
        """What tells it from other examples: its text, or both texts of a pair."""
        return self.text if self.pair is None else f"{self.text}\x1f{self.pair}"


@dataclass(frozen=True)
class SkippedRow:
    """A row that cannot be used, and why."""

    origin: str
    reason: str


def iterate_rows(path: Path, columns: Sequence[str], flags: Sequence[str] = FLAGS) -> Iterator[Row]:
    """The number of the first line of each row, and its values in `columns` or the reason why it cannot be read.

    `flags` name the columns on the command line. A blank line is a row only in a table of one column.
    """
    if len(set(columns)) < len(columns):
        problem = f"text and label are both read from column {columns[0]!r}"
        raise DataError(problem, hint="give --text-column and --label-column different names")
    rows = _object_rows if check_kind(path) == ".jsonl" else _record_rows
    return rows(path, columns, flags)


def column_names(path: Path) -> list[str]:
    """The columns that a table's header, or the first object of a .jsonl file, names; none when the table is empty."""
    if check_kind(path) == ".jsonl":
        return list(next((content for _, content in _objects(path) if isinstance(content, dict)), {}))
    return [name.strip() for name in next(_records(path), (0, []))[1]]


def find_columns(path: Path, columns: Sequence[str], found: Sequence[str], flags: Sequence[str]) -> list[int]:
    """The indices of `columns` among those `found` in a file, or an error that offers the nearest name."""
    for index, name in enumerate(columns):
        flag = flags[min(index, len(flags) - 1)]
        if name not in found:
            names = [other[:40] for other in found]
            shown = ", ".join(map(repr, names[:12])) or "none"
            raise DataError(f"{path} has no column {name!r}; it has {shown}", hint=f"{nearest(name, names)} ({flag})")
        if found.count(name) > 1:
            problem = f"{path} has {found.count(name)} columns called {name!r}"
            raise DataError(problem, hint=f"rename all but one, or choose another with {flag}")
    return [found.index(name) for name in columns]


def _record_rows(path: Path, columns: Sequence[str], flags: Sequence[str]) -> Iterator[Row]:
    """The rows of a .tsv or .csv file; a row inside a quoted field is recognised by its label."""
    records = _records(path)
    _, header = next(records, (0, None))
    if header is None:
        return
    names = [name.strip() for name in header]
    indices = find_columns(path, columns, names, flags)
    label_index = indices[-1] if flags[-1] == FLAGS[1] and len(columns) == len(flags) else None
    delimiter = "," if kind_of(path) == ".csv" else "\t"
    labels: set[str] = set()
    for number, fields in records:
        if not fields and len(names) != 1:
            continue
        fields = fields or [""]
        if len(fields) != len(names):
            yield number, f"{len(fields)} field{'s' * (len(fields) != 1)} where the header has {len(names)}"
            continue
        if label_index is not None:
            labels.add(fields[label_index].strip())
            lines = [line.split(delimiter) for field in fields if "\n" in field for line in field.split("\n")]
            if any(len(line) == len(names) and line[label_index].strip() in labels - {""} for line in lines):
                raise DataError(f"{path}:{number} opens a quote that seems to swallow the rows after it", hint=QUOTING)
        yield number, [fields[index] for index in indices]


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The fields of each record, the header first; a blank line has none. Quotes count in a .csv file.

    In a .tsv file they count if every name in its header is quoted.
    """
    _, line = next(open_text(path), (0, ""))
    header = [name.strip() for name in line.split("\t")]
    if kind_of(path) == ".csv":
        return _quoted_records(path, ",")
    if all(len(name) > 1 and name[0] == name[-1] == '"' for name in header):
        return _quoted_records(path, "\t")
    return ((number, line.split("\t") if line else []) for number, line in open_text(path))


def _quoted_records(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader((line + "\n" for line in read_lines(path)), delimiter=delimiter, strict=True)
    start = 1
    try:
        for fields in reader:
            yield start, fields
            start = reader.line_num + 1
    except csv.Error as error:
        other = ("has text after the closing quote of a field", QUOTING)
        problem, hint = next((CSV_ERRORS[word] for word in CSV_ERRORS if str(error).startswith(word)), other)
        raise DataError(f"{path}:{start} {problem}", hint=hint) from None


def _object_rows(path: Path, columns: Sequence[str], flags: Sequence[str]) -> Iterator[Row]:
    is_first = True
    for number, content in _objects(path):
        if not isinstance(content, dict):
            yield number, "the line holds no JSON object"
            continue
        if is_first:
            find_columns(path, columns, list(content), flags)
            is_first = False
        absent = [name for name in columns if name not in content]
        yield number, f"no {absent[0]!r} in the object" if absent else [content[name] for name in columns]


def _objects(path: Path) -> Iterator[tuple[int, Any]]:
    """The JSON value of each line that is not blank."""
    for number, line in open_text(path):
        try:
            if line.strip():
                yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            hint = 'a .jsonl file holds one object a line, such as {"text": "...", "label": "..."}'
            raise DataError(f"{path}:{number} is no JSON: {error}", hint=hint) from None


def read_table(
    path: Path, text_column: str, label_column: str | None, strict: bool = False, has_label_sets: bool = False
) -> tuple[list[Example], list[SkippedRow]]:
    """The examples of a table and the rows left out; with `strict` the first such row is an error."""
    skips: list[SkippedRow] = []
    on_skip = refuse if strict else skips.append
    return list(iterate_table(path, text_column, label_column, on_skip, has_label_sets)), skips


def text_columns(text_column: str) -> list[str]:
    """The columns that hold the text: one, or two with a comma between."""
    names = [name.strip() for name in text_column.split(",")]
    if len(names) > 2:
        raise DataError(
            f"--text-column {text_column} names {len(names)} columns", hint="a pair has two: --text-column A,B"
        )
    return names


def iterate_table(
    path: Path,
    text_column: str,
    label_column: str | None,
    on_skip: Callable[[SkippedRow], None],
    has_label_sets: bool = False,
) -> Iterator[Example]:
    """The examples of a table, one at a time; a row that cannot be used goes to `on_skip`."""
    texts, first_skip, is_usable = text_columns(text_column), "", False
    columns = texts if label_column is None else [*texts, label_column]
    for number, values in iterate_rows(path, columns, [FLAGS[0]] * len(texts) + [FLAGS[1]]):
        origin = f"{path.name}:{number}"
        example = values if isinstance(values, str) else _example(values, origin, len(texts), has_label_sets)
        if isinstance(example, Example):
            is_usable = True
            yield example
        else:
            first_skip = first_skip or f"{origin}: {example}"
            on_skip(SkippedRow(origin, example))
    if first_skip and not is_usable:
        hint = "check that --text-column and --label-column name the right columns"
        raise DataError(f"no row of {path} can be used; the first, {first_skip}", hint=hint)
    if not is_usable:
        raise _without_rows(path)


def iterate_texts(path: Path, text_column: str) -> Iterator[str]:
    """The text of each row of a table, empty ones too; an unreadable row is an error."""
    return (text for text, *_ in iterate_text_rows(path, [text_column]))


def iterate_text_rows(path: Path, columns: Sequence[str]) -> Iterator[list[str]]:
    """The texts in `columns` of each row of a table, empty ones too; an unreadable row is an error."""
    is_empty = True
    for number, values in iterate_rows(path, columns, FLAGS[:1]):
        reason = values if isinstance(values, str) else next(filter(None, map(fault, values)), "")
        if isinstance(values, str) or reason:
            raise DataError(f"{path}:{number}: {reason}", hint="mend that row, or take it out")
        is_empty = False
        yield values
    if is_empty:
        raise _without_rows(path)


def refuse(skip: SkippedRow) -> NoReturn:
    """Raise an error about a row that would be skipped."""
    raise DataError(f"{skip.origin}: {skip.reason}", hint="mend the row, or leave out --strict to skip such rows")


def _without_rows(path: Path) -> DataError:
    return DataError(f"{path} holds no rows", hint="a table has one row a text, below a header that names the columns")


def _example(values: list[Any], origin: str, num_texts: int, has_label_sets: bool) -> Example | str:
    """The example in a row's texts and label, or the reason why there is none."""
    text, *others = values[:num_texts]
    for each in (text, *others):
        if reason := fault(each) or ("" if each.strip() else "the text is empty"):
            return reason
    label = None
    if len(values) > num_texts:
        value = values[-1]
        parts = [_label(each) for each in value] if has_label_sets and isinstance(value, list) else [_label(value)]
        if reason := next(filter(None, (fault(part, "label") for part in parts)), ""):
            return reason
        label = SEPARATOR.join(parts)
        if not label and not has_label_sets:
            return "the label is empty"
    return Example(text, label, origin, *others)


def _label(value: Any) -> Any:
    """A number or a word as text; another value as it is."""
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    is_plain = isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    return str(value).strip() if is_plain else value


def fault(value: Any, what: str = "text") -> str:
    """Why a value cannot be a text or a label, or ""."""
    if not isinstance(value, str):
        return f"the {what} is {JSON_TYPES.get(type(value), 'a number')}"
    if SURROGATE.search(value):
        return f"the {what} holds half a character (a lone surrogate)"
    return f"the {what} holds a NUL character" if "\0" in value else ""


def as_number(label: str) -> float | None:
    """The finite number that a label is, or None."""
    try:
        value = float(label)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in label else None


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
