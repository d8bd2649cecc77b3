"""Files as decoded, numbered lines: plain, .gz or .xz, UTF-8 or UTF-16 with a byte-order mark.

A line ends at LF or CRLF alone: a text may contain any other Unicode line break.
"""

import codecs
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import IO, Any

from headstart.errors import DataError

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
