"""Raw corpora as streams of documents: a file, a folder of files or a built-in name, read in constant memory."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from headstart.atomic_io import content_hash, file_hash
from headstart.config import DataConfig
from headstart.data.dataset import ALIASES, Skip
from headstart.data.datasets import SOURCES, load_dataset
from headstart.data.tables import iterate_rows, iterate_table
from headstart.data.text_io import (
    KINDS,
    OPENERS,
    decompressed,
    kind_of,
    missing,
    names_beside,
    open_text,
    reading,
)
from headstart.errors import DataError, nearest

LOOKED_AT = 1_000_000  # characters by which "auto" decides
FEWEST_RUNS = 5  # "auto": fewer runs of lines than this show no habit
LONGEST_RUN = 12  # "auto": mean lines of a paragraph at most
MULTIPLE = 0.25  # "auto": share of the runs that must hold more than one line
LONGEST_DOCUMENT = 1_000_000  # characters after which a paragraph is cut at a line end

OnSkip = Callable[[Skip], None]


class Part(Protocol):
    """One piece of a corpus."""

    @property
    def size(self) -> int:
        """Bytes as stored."""
        ...

    @property
    def expected(self) -> int:
        """Bytes of text to expect, about."""
        ...

    def texts(self, on_skip: OnSkip) -> Iterator[str]:
        """Its documents in order; what cannot be used goes to `on_skip`."""
        ...

    def mark(self) -> Any:
        """What decides its documents, for the fingerprint."""
        ...


@dataclass(frozen=True)
class _File:
    path: Path

    def mark(self) -> Any:
        return [kind_of(self.path), file_hash(self.path)]

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @cached_property
    def expected(self) -> int:
        """The size, times what the first part of a compressed file swells by."""
        if self.path.suffix.lower() not in OPENERS:
            return self.size
        with (
            reading(self.path),
            open(self.path, "rb") as stored,
            decompressed(stored, self.path.suffix) as handle,
        ):
            read = len(handle.read(LOOKED_AT))
            return self.size * read // max(stored.tell(), 1)


@dataclass(frozen=True)
class _TextFile(_File):
    separator: str  # line or paragraph

    def texts(self, on_skip: OnSkip) -> Iterator[str]:
        lines = (line for _, line in open_text(self.path))
        return (
            _paragraphs(lines) if self.separator == "paragraph" else (line for line in lines if line.strip())
        )

    def mark(self) -> Any:
        return [*super().mark(), self.separator]


@dataclass(frozen=True)
class _Table(_File):
    column: str

    def texts(self, on_skip: OnSkip) -> Iterator[str]:
        return (example.text for example in iterate_table(self.path, self.column, None, on_skip))

    def mark(self) -> Any:
        return [*super().mark(), self.column]


@dataclass(frozen=True)
class _Texts:
    name: str
    content: list[str]

    def texts(self, on_skip: OnSkip) -> Iterator[str]:
        return iter(self.content)

    def mark(self) -> Any:
        return [self.name, content_hash(self.content)]

    @cached_property
    def size(self) -> int:
        return sum(len(text.encode("utf-8")) for text in self.content)

    @property
    def expected(self) -> int:
        return self.size


@dataclass
class Documents:
    """A corpus as a stream of documents that can be read again; what was left out is counted in `skips`."""

    name: str
    parts: list[Part]
    notes: list[str] = field(default_factory=list)
    strict: bool = False
    skips: dict[str, int] = field(default_factory=dict)  # reason -> rows, of the last reading

    def __iter__(self) -> Iterator[str]:
        counts = Counter[str]()
        self.skips = counts

        def skip(row: Skip) -> None:
            if self.strict:
                raise DataError(
                    f"{row.origin}: {row.reason}",
                    hint="mend the row, or leave out --strict to skip such rows",
                )
            counts[row.reason] += 1

        return chain.from_iterable(part.texts(skip) for part in self.parts)

    @cached_property
    def fingerprint(self) -> str:
        """The hash of all that decides the documents: the content of the files and how they are read."""
        return content_hash([part.mark() for part in self.parts])

    @cached_property
    def expected_bytes(self) -> int:
        """Bytes of text to expect, exact for files that are not compressed."""
        return sum(part.expected for part in self.parts)


def open_for_scoring(corpus: str, config: DataConfig) -> Documents:
    """The documents to judge a language model on: a built-in's or a folder's test part, else valid, else all."""
    path = Path(corpus)
    if corpus in SOURCES:
        dataset = load_dataset(corpus, DataConfig(), with_test=True)
        return Documents(corpus, [_Texts(corpus, dataset.texts("test"))], ["the test split is read"])
    if path.is_dir():
        for split in ("test", "valid"):
            names = [name for name, meant in ALIASES.items() if meant == split]
            held = [
                file for file in sorted(path.iterdir()) if kind_of(file) and file.name.split(".")[0] in names
            ]
            if held:
                notes = [f"only {', '.join(file.name for file in held)} is read"]
                return Documents(split, [_part(file, config, notes) for file in held], notes, config.strict)
    return open_documents(corpus, config)


def open_documents(corpus: str, config: DataConfig) -> Documents:
    """The documents of a built-in name (its train split), a .txt file, a table, or a folder of those."""
    path = Path(corpus)
    if corpus in SOURCES:
        dataset = load_dataset(corpus, DataConfig())
        return Documents(corpus, [_Texts(corpus, dataset.texts("train"))], ["only the train split is read"])
    with reading(path):
        is_folder, exists = path.is_dir(), path.exists()
    if not exists:
        raise _absent(path, corpus)
    notes: list[str] = []
    if is_folder:
        parts = _folder_parts(path, config, notes)
    elif kind_of(path):
        parts = [_part(path, config, notes)]
    else:
        raise DataError(
            f"{path} ends in none of {', '.join(KINDS)} (also with .gz or .xz)",
            hint="give the file the ending of what it is",
        )
    return Documents(path.resolve().name.split(".")[0], parts, notes, config.strict)


def _absent(path: Path, corpus: str) -> DataError:
    if path.name != corpus or kind_of(path):
        return missing(path)
    usable = [name for name in names_beside(path) if not name.startswith(".")]
    usable = [name for name in usable if kind_of(Path(name)) or Path(name).is_dir()]
    return DataError(
        f"{corpus!r} is neither a built-in corpus nor a file or folder here",
        hint=nearest(corpus, [*SOURCES, *usable]),
    )


def _part(path: Path, config: DataConfig, notes: list[str]) -> Part:
    if kind_of(path) != ".txt":
        next(
            iterate_rows(path, [config.text_column]), None
        )  # a missing column is told before any work is done
        return _Table(path, config.text_column)
    separator: str = config.documents
    if separator == "auto":
        separator = separator_of(line for _, line in open_text(path))
        what = {"line": "each line", "paragraph": "each paragraph between blank lines"}[separator]
        notes.append(
            f"{path.name}: {what} is a document (data.documents={separator}, chosen by its beginning)"
        )
    return _TextFile(path, separator)


def _folder_parts(folder: Path, config: DataConfig, notes: list[str]) -> list[Part]:
    """Every readable file of a folder, but none that is held out or has no text column."""
    parts: list[Part] = []
    with reading(folder):
        paths = sorted(path for path in folder.rglob("*") if path.is_file() and kind_of(path))
    for path in paths:
        place = path.relative_to(folder)
        if any(name.startswith(".") for name in place.parts):
            continue
        reason = _reason_to_leave(path, place, config)
        if reason:
            notes.append(f"{place} is left out: {reason}")
        else:
            parts.append(_part(path, config, notes))
    if not parts:
        found = (
            "; ".join(notes[:5]) or f"no file there ends in one of {', '.join(KINDS)} (also with .gz or .xz)"
        )
        raise DataError(f"{folder} holds no text to read: {found}", hint="put .txt files or tables into it")
    return parts


def _reason_to_leave(path: Path, place: Path, config: DataConfig) -> str:
    names = [name.lower().split(".")[0] for name in place.parts]
    if any(ALIASES.get(name, "train") != "train" for name in names):
        return "its name says that it is for validation or test"
    if path.name == "dict.txt" and any(path.parent.glob("*.model")):
        return "it is a tokenizer's dictionary"
    if kind_of(path) != ".txt":
        next(iterate_rows(path, []), None)  # a file that cannot be read at all is an error
        try:
            next(iterate_rows(path, [config.text_column]), None)
        except DataError as error:
            return str(error)
    return ""


def separator_of(lines: Iterable[str]) -> str:
    """Whether documents are parted by line ends or by blank lines, judged by the beginning of a file.

    "paragraph" when blank lines are a habit (five runs of lines or more, of twelve lines or fewer in the mean)
    and the runs are more than single lines (a quarter of them); stray blank lines leave it at "line".
    """
    runs, length, seen = [], 0, 0
    for line in lines:
        seen += len(line) + 1
        if line.strip():
            length += 1
        elif length:
            runs.append(length)
            length = 0
        if seen > LOOKED_AT:
            break
    if length:
        runs.append(length)
    is_habit = len(runs) >= FEWEST_RUNS and sum(runs) <= LONGEST_RUN * len(runs)
    return "paragraph" if is_habit and sum(run > 1 for run in runs) >= MULTIPLE * len(runs) else "line"


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    held: list[str] = []
    size = 0
    for line in lines:
        if line.strip():
            held.append(line)
            size += len(line)
        if held and (not line.strip() or size > LONGEST_DOCUMENT):
            yield "\n".join(held)
            held, size = [], 0
    if held:
        yield "\n".join(held)
