"""Files as decoded, numbered lines: plain, .gz or .xz, UTF-8 or UTF-16 with a byte-order mark.

A line ends at LF or CRLF and nowhere else: a text may hold any other Unicode line break.
"""

import codecs
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
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

ICONV = "convert it: iconv -f {} -t UTF-8 old > new"


def kind_of(path: Path) -> str:
    """The ending that says how a file is read, compression aside; "" when it is none of `KINDS`."""
    name = path.name.lower()
    for ending in OPENERS:
        name = name.removesuffix(ending)
    return next((kind for kind in KINDS if name.endswith(kind)), "")


def open_text(path: Path) -> Iterator[tuple[int, str]]:
    """Each line of a file with its number from 1, without its line end."""
    with reading(path), open(path, "rb") as stored, decompressed(stored, path.suffix) as handle:
        yield from decode_lines(handle, str(path))


def decompressed(stored: IO[bytes], suffix: str) -> IO[bytes]:
    """The content of an open file whose name ends in `suffix`, decompressed where that says so."""
    opener = OPENERS.get(suffix.lower())
    return opener(stored) if opener else stored


def read_lines(path: Path) -> Iterator[str]:
    """Each line of a file as one text; empty lines are kept, so that answers line up with the file."""
    return (line for _, line in open_text(path))


def decode_lines(handle: IO[bytes], name: str) -> Iterator[tuple[int, str]]:
    """Each line of a byte stream called `name` with its number from 1, without its line end."""
    encoding, lines = _encoding_and_lines(handle)
    for number, raw in enumerate(lines, start=1):
        try:
            line = raw.decode(encoding)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}:{number} is not {encoding.upper()}: byte 0x{raw[error.start]:02x} at byte {error.start + 1} of the line",
                hint=_encoding_hint(raw, number),
            ) from None
        if "\0" in line:
            raise DataError(
                f"{name}:{number} holds a NUL byte, so the file is binary or in another encoding",
                hint="if it is text, " + ICONV.format("UTF-16"),
            )
        yield number, line.removesuffix("\n").removesuffix("\r")


def one_line(text: str) -> str:
    """The text with every line break that any reader may know as a space, so that it stays on one line."""
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
    """Turn what the operating system or a decompressor says of `path` into a sentence with a hint."""
    try:
        yield
    except CORRUPT as error:
        reason = str(error) or type(error).__name__
        raise DataError(
            f"{path} is corrupt or no {path.suffix} file: {reason}",
            hint="copy or download it again, or give it the ending of what it is",
        ) from None
    except FileNotFoundError:
        raise missing(path) from None
    except IsADirectoryError:
        raise DataError(
            f"{path} is a folder where a file is expected", hint="name a file inside it"
        ) from None
    except PermissionError:
        raise DataError(f"{path} may not be read", hint=f"allow it: chmod u+r {path}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}", hint="check the path and the disk") from None


def _encoding_and_lines(handle: IO[bytes]) -> tuple[str, Iterator[bytes]]:
    first = handle.readline()
    for mark, encoding in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if first.startswith(mark):
            return encoding, _wide_lines(handle, first.removeprefix(mark), encoding == "utf-16-le")
    return "utf-8", _narrow_lines(handle, first.removeprefix(codecs.BOM_UTF8))


def _narrow_lines(handle: IO[bytes], first: bytes) -> Iterator[bytes]:
    if first:
        yield first
    yield from handle


def _wide_lines(handle: IO[bytes], first: bytes, is_little: bool) -> Iterator[bytes]:
    """Lines of UTF-16: a newline byte ends one only as half of an aligned newline character."""
    line = bytearray()
    piece = first
    while piece:
        line += piece
        if is_little and piece.endswith(b"\n") and len(line) % 2:
            line += handle.read(1)
            ends = line.endswith(b"\0")
        else:
            ends = not is_little and len(line) % 2 == 0 and line.endswith(b"\0\n")
        if ends:
            yield bytes(line)
            line.clear()
        piece = handle.readline()
    if line:
        yield bytes(line)


def _encoding_hint(raw: bytes, number: int) -> str:
    if number == 1 and raw.startswith((b"\x1f\x8b", b"\xfd7zXZ")):
        return "the file is compressed: let its name end in " + (".gz" if raw.startswith(b"\x1f") else ".xz")
    return ICONV.format("WINDOWS-1252") + " (name the encoding that it was saved in)"
