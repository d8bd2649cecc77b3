"""Raw corpora as streams of documents, read in constant memory, and weighted mixtures of corpora."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from headstart.atomic_io import content_hash, file_hash, write_text
from headstart.config import DataConfig
from headstart.data.built_in import SOURCES
from headstart.data.datasets import ALIASES, SkippedRow, load_dataset
from headstart.data.text_io import (
    KINDS,
    OPENERS,
    check_kind,
    iterate_rows,
    iterate_table,
    kind_of,
    missing,
    read_lines,
    reading,
    refuse,
)
from headstart.errors import ConfigError, DataError

SAMPLE_CHARACTERS = 1_000_000  # that data.document_separator=auto reads
MIN_RUNS = 5  # "auto": runs of lines between blank lines, for paragraphs
MAX_MEAN_LINES = 12  # "auto": lines of a paragraph
MULTILINE_SHARE = 0.25  # "auto": share of the runs that have more than one line
LONGEST_DOCUMENT = 1_000_000  # characters after which a paragraph is cut at a line end
COMPRESSION = 3  # the usual ratio for text

OnSkip = Callable[[SkippedRow], None]


@dataclass(frozen=True)
class _Part:
    """A text file or table, or the texts of a built-in dataset."""

    read: Callable[[OnSkip], Iterable[str]]
    identity: Callable[[], list[str]]  # all that decides its documents, for the fingerprint
    expected_bytes: int


@dataclass
class Documents:
    """A corpus as a stream of documents that can be read again; `skips` counts the rows that cannot be used."""

    name: str
    parts: Sequence[_Part]
    notes: list[str] = field(default_factory=list)
    strict: bool = False
    skips: dict[str, int] = field(default_factory=dict)  # reason -> rows, of the last reading

    def __iter__(self) -> Iterator[str]:
        self.skips = counts = Counter[str]()
        on_skip = refuse if self.strict else lambda row: counts.update([row.reason])
        return chain.from_iterable(part.read(on_skip) for part in self.parts)

    @cached_property
    def fingerprint(self) -> str:
        """The hash of all that decides the documents: the content of the files and how they are read."""
        return content_hash([part.identity() for part in self.parts])

    @cached_property
    def expected_bytes(self) -> int:
        """Bytes of text to expect, exact for files that are not compressed."""
        return sum(part.expected_bytes for part in self.parts)


def _built_in(name: str, split: str) -> Documents:
    texts = load_dataset(name, DataConfig(), with_test=split == "test").texts(split)
    size = sum(len(text.encode("utf-8")) for text in texts)
    part = _Part(lambda on_skip: texts, lambda: [name, content_hash(texts)], size)
    return Documents(name, [part], [f"only the {split} split is read"])


def write_texts(path: Path, texts: Iterable[str]) -> None:
    """Write texts as a table that `open_documents` reads, each a document."""
    write_text(path, "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts))


def open_documents(corpus: str, config: DataConfig) -> Documents:
    """The documents of a built-in name (its train split), a .txt file, a table, or a folder of those."""
    if corpus in SOURCES:
        return _built_in(corpus, "train")
    path = Path(corpus)
    with reading(path):
        is_folder, exists = path.is_dir(), path.exists()
    if not exists:
        raise missing(path, SOURCES)
    notes: list[str] = []
    parts = _folder_parts(path, config, notes) if is_folder else [_open_file(path, config, notes)]
    return Documents(path.resolve().name.split(".")[0], parts, notes, config.on_bad_row == "error")


def open_for_scoring(corpus: str, config: DataConfig) -> Documents:
    """The documents to evaluate a language model on: a built-in's or a folder's test part, else valid, else all."""
    path = Path(corpus)
    if corpus in SOURCES:
        return _built_in(corpus, "test")
    readable = [file for file in sorted(path.iterdir()) if kind_of(file)] if path.is_dir() else []
    for split in ("test", "valid"):
        files = [file for file in readable if ALIASES.get(file.name.split(".")[0]) == split]
        if files:
            notes = [f"only {', '.join(file.name for file in files)} is read"]
            parts = [_open_file(file, config, notes) for file in files]
            return Documents(split, parts, notes, config.on_bad_row == "error")
    return open_documents(corpus, config)


def _open_file(path: Path, config: DataConfig, notes: list[str]) -> _Part:
    """A table, or a text file and its document separator (line or paragraph)."""
    option: str = config.text_column
    if check_kind(path, KINDS) != ".txt":
        next(iterate_rows(path, [option]), None)  # a missing column is an error before any work is done

        def read(on_skip: OnSkip) -> Iterable[str]:
            return (example.text for example in iterate_table(path, option, None, on_skip))
    else:
        option = config.document_separator
        if option == "auto":
            option = separator_of(read_lines(path))
            unit = {"line": "each line", "paragraph": "each paragraph between blank lines"}[option]
            setting = f"data.document_separator={option}, chosen by its beginning"
            notes.append(f"{path.name}: {unit} is a document ({setting})")

        def read(on_skip: OnSkip) -> Iterable[str]:
            lines = read_lines(path)
            return _paragraphs(lines) if option == "paragraph" else (line for line in lines if line.strip())

    size = path.stat().st_size * (COMPRESSION if path.suffix.lower() in OPENERS else 1)
    return _Part(read, lambda: [kind_of(path), file_hash(path), option], size)


def _folder_parts(folder: Path, config: DataConfig, notes: list[str]) -> list[_Part]:
    """Every readable file of a folder that is not held out and has a text column."""
    parts = []
    with reading(folder):
        paths = sorted(path for path in folder.rglob("*") if path.is_file() and kind_of(path))
    for path in paths:
        inner = path.relative_to(folder)
        if any(name.startswith(".") for name in inner.parts):
            continue
        if reason := _reason_to_leave_out(path, inner, config):
            notes.append(f"{inner} is left out: {reason}")
        else:
            parts.append(_open_file(path, config, notes))
    if not parts:
        found = "; ".join(notes[:5]) or f"no file there ends in one of {', '.join(KINDS)} (also with .gz or .xz)"
        raise DataError(f"{folder} holds no text to read: {found}", hint="put .txt files or tables into it")
    return parts


def _reason_to_leave_out(path: Path, inner: Path, config: DataConfig) -> str:
    names = [name.lower().split(".")[0] for name in inner.parts]
    if any(ALIASES.get(name, "train") != "train" for name in names):
        return "its name says that it is for validation or test"
    if path.name == "dict.txt" and any(path.parent.glob("*.model")):
        return "it is a tokenizer's dictionary"
    if kind_of(path) != ".txt":
        next(iterate_rows(path, []), None)  # a file that cannot be read at all is an error
        try:
            next(iterate_rows(path, [config.text_column]), None)
        except DataError as error:
            return error.problem
    return ""


def separator_of(lines: Iterable[str]) -> str:
    """Whether line ends or blank lines separate documents ("line" or "paragraph"), by the beginning of a file.

    It is "paragraph" if blank lines are frequent and a quarter of the runs between them have several lines.
    """
    runs, seen = [0], 0  # lines between blank lines
    for line in lines:
        seen += len(line) + 1
        if line.strip():
            runs[-1] += 1
        elif runs[-1]:
            runs.append(0)
        if seen > SAMPLE_CHARACTERS:
            break
    runs = list(filter(None, runs))
    is_frequent = len(runs) >= MIN_RUNS and sum(runs) <= MAX_MEAN_LINES * len(runs)
    return "paragraph" if is_frequent and sum(run > 1 for run in runs) >= MULTILINE_SHARE * len(runs) else "line"


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    current: list[str] = []
    size = 0
    for line in chain(lines, [""]):
        if line.strip():
            current.append(line)
            size += len(line)
        if current and (not line.strip() or size > LONGEST_DOCUMENT):
            yield "\n".join(current)
            current, size = [], 0


@dataclass(frozen=True)
class MixtureComponent:
    """A corpus, and how many times its text is read for each pass over one of weight 1."""

    corpus: str
    weight: float = 1.0
    text_column: str = ""  # of a table; empty = as the settings say
    documents: str = ""  # what separates documents in a .txt file; empty = as the settings say

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight > 0):
            problem = f"the weight of {self.corpus} is {self.weight:g}, and must be above 0"
            raise ConfigError(problem, hint="2 reads a text twice as often as the others, 0.5 half as often")

    def open(self, config: DataConfig) -> Documents:
        """Its documents."""
        own = {"text_column": self.text_column, "document_separator": self.documents}
        own = {name: value for name, value in own.items() if value}
        return open_documents(self.corpus, config.model_copy(update=own))

    def absolute(self) -> "MixtureComponent":
        """The same with an absolute path, so that a resume finds it from any folder."""
        is_path = self.corpus not in SOURCES and Path(self.corpus).exists()
        return replace(self, corpus=str(Path(self.corpus).resolve())) if is_path else self

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


Corpora = Sequence[str | MixtureComponent] | Mapping[str, float]


def parse_mixture(corpora: Corpora) -> list[MixtureComponent]:
    """A mixture from names, "NAME=WEIGHT", names with their weights, or components."""
    if isinstance(corpora, str):
        raise ConfigError("corpora is one string, and should be a list", hint=f"write [{corpora!r}]")
    if isinstance(corpora, Mapping):
        return [MixtureComponent(corpus, _weight(corpus, weight)) for corpus, weight in corpora.items()]
    return [each if isinstance(each, MixtureComponent) else _parse_component(each) for each in corpora]


def _parse_component(word: str) -> MixtureComponent:
    """The weight is what comes after the last "="; a name that exists may itself hold one."""
    corpus, sign, weight = word.rpartition("=")
    if not sign or _exists(word):
        return MixtureComponent(word)
    try:
        return MixtureComponent(corpus, float(weight))
    except ValueError:
        return MixtureComponent(corpus, _weight(corpus, weight)) if _exists(corpus) else MixtureComponent(word)


def _exists(corpus: str) -> bool:
    return corpus in SOURCES or Path(corpus).exists()


def _weight(corpus: str, weight: Any) -> float:
    try:
        return float(weight)
    except (TypeError, ValueError):
        raise ConfigError(
            f"the weight of {corpus} is {weight!r}, which is no number",
            hint="write CORPUS=WEIGHT, such as reviews.txt=3 or novels.txt=0.5",
        ) from None
