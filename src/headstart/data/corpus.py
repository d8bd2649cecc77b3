"""A corpus tokenised once into memory-mapped shards, so that the next run starts at once and memory stays small.

A shard's files are renamed into place whole, and their content follows from the corpus and the tokenizer alone: a
killed preparation goes on where it stopped, and two at once write the same bytes.
"""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.data.documents import Documents
from headstart.data.example import text_hash
from headstart.data.stream import DOCUMENT, Shard, TokenStream, join
from headstart.data.tokenizer import Tokenizer
from headstart.errors import DataError, RunError
from headstart.files import content_hash, file_hash, write_json, write_with

__all__ = ["Corpus", "TokenStream", "default_cache", "join", "part_of", "prepare"]

FORMAT = 1
INDEX = "index.json"
PARTS = ("train", "valid")
SHARD_TOKENS = 4_000_000  # a shard is closed by the document that reaches this
BATCH_CHARACTERS = 2_000_000  # text encoded at a time
HELD_OUT = 200  # one document in this many is held out

OnProgress = Callable[[int, int], None]


def default_cache() -> Path:
    """Where prepared corpora are kept: $HEADSTART_CACHE, else the user's cache folder."""
    chosen = os.environ.get("HEADSTART_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(chosen) if chosen else (Path(base) if base else Path.home() / ".cache") / "headstart"


def part_of(hashed: int) -> str:
    """The part that a document's hash puts it in for ever; blind to the last digit, by which datasets are split."""
    return "valid" if hashed // 10 % HELD_OUT == 0 else "train"


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus: tokens to learn from, tokens held out, and an account of what was left out."""

    name: str
    folder: Path
    train: TokenStream
    valid: TokenStream
    notes: list[str] = field(default_factory=list)
    skips: dict[str, int] = field(default_factory=dict)

    @property
    def documents(self) -> dict[str, int]:
        """How many documents each part has."""
        return {"train": self.train.documents, "valid": self.valid.documents}

    def hashes(self) -> NDArray[np.uint64]:
        """The `text_hash` of each document to learn from."""
        return self.train.hashes()

    def verify(self) -> None:
        """Raise unless every file on disk is, byte for byte, what was prepared."""
        for entry in json.loads((self.folder / INDEX).read_text("utf-8"))["shards"]:
            for name, checksum in entry["checksums"].items():
                if file_hash(self.folder / name) != checksum:
                    raise DataError(
                        f"{self.folder / name} has changed since it was prepared",
                        hint=f"delete {self.folder}; it is prepared again from the corpus",
                    )


def prepare(
    documents: Documents,
    tokenizer: Tokenizer,
    cache: Path,
    on_progress: OnProgress = lambda done, total: None,
) -> Corpus:
    """The corpus tokenised under `cache`, from disk when it has been prepared before.

    `on_progress` hears of bytes of text done, and expected.
    """
    key = content_hash([FORMAT, SHARD_TOKENS, HELD_OUT, documents.fingerprint, tokenizer.fingerprint])
    folder = cache / key[:32]
    corpus = _opened(folder, documents)
    if corpus is not None and documents.strict and corpus.skips:
        for _ in documents:  # finds the row that was skipped when strictness was not asked for, and names it
            pass
    if corpus is None:
        try:
            _build(folder, documents, tokenizer, on_progress)
        except RunError as error:
            raise RunError(
                str(error), hint="free some space there, or set HEADSTART_CACHE to another folder"
            ) from error
        corpus = _opened(folder, documents)
        assert corpus is not None, folder
    return corpus


def _opened(folder: Path, documents: Documents) -> Corpus | None:
    """The finished corpus in `folder`, or None unless every file in its index has its size."""
    try:
        index = json.loads((folder / INDEX).read_text("utf-8"))
        sizes = {name: size for entry in index["shards"] for name, size in entry["sizes"].items()}
        if any((folder / name).stat().st_size != size for name, size in sizes.items()):
            return None
        train, valid = (
            TokenStream([_shard(folder, entry) for entry in index["shards"] if entry["part"] == part])
            for part in PARTS
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Corpus(documents.name, folder, train, valid, list(documents.notes), index["skips"])


def _shard(folder: Path, entry: dict[str, Any]) -> Shard:
    return Shard(folder / entry["name"], entry["tokens"], entry["documents"], entry["text_bytes"])


@dataclass(frozen=True)
class _Document:
    text: str
    hashed: int
    text_bytes: int

    @property
    def part(self) -> str:
        return part_of(self.hashed)


class _DisagreesError(Exception):
    """Shards on disk hold other documents than the corpus."""


class _Series:
    """The shards of one part as they are written; documents of shards found whole on disk are passed over."""

    def __init__(self, folder: Path, part: str, size: int):
        self.folder, self.part = folder, part
        self.dtype = np.uint16 if size <= 2**16 else np.uint32
        self.shards: list[Shard] = []
        while shard := Shard.found(self._path()):
            self.shards.append(shard)
        self.known = TokenStream(self.shards).hashes()
        self.seen = self.tokens = 0
        self.rows: list[NDArray[Any]] = []
        self.records: list[tuple[int, int, int]] = []

    def _path(self) -> Path:
        return self.folder / f"{self.part}-{len(self.shards):05d}"

    def passes_over(self, document: _Document) -> bool:
        """Whether the next document is in a finished shard."""
        place, self.seen = self.seen, self.seen + 1
        if place < len(self.known) and int(self.known[place]) != document.hashed:
            raise _DisagreesError
        return place < len(self.known)

    def add(self, document: _Document, row: NDArray[np.int32]) -> None:
        """Take in the tokens of the next document."""
        self.tokens += len(row)
        self.rows.append(row.astype(self.dtype))
        self.records.append((self.tokens, document.hashed, document.text_bytes))
        if self.tokens >= SHARD_TOKENS:
            self.close()

    def close(self) -> None:
        """Write what is held as a shard, if anything is."""
        if not self.rows:
            return
        records = np.array(self.records, dtype=DOCUMENT)
        shard = Shard(self._path(), self.tokens, len(records), int(records["bytes"].sum()))
        for path, array in zip(shard.files, (records, np.concatenate(self.rows)), strict=True):
            write_with(path, partial(_save, array))
        self.shards.append(shard)
        self.rows, self.records, self.tokens = [], [], 0


def _save(array: NDArray[Any], path: Path) -> None:
    with open(path, "wb") as handle:
        np.save(handle, array)


def _build(folder: Path, documents: Documents, tokenizer: Tokenizer, on_progress: OnProgress) -> None:
    """Write the missing shards and the index."""
    series = {part: _Series(folder, part, tokenizer.size) for part in PARTS}
    try:
        _fill(series, documents, tokenizer, on_progress)
    except _DisagreesError:
        for path in (path for part in PARTS for shard in series[part].shards for path in shard.files):
            path.unlink(missing_ok=True)
        return _build(folder, documents, tokenizer, on_progress)
    entries = [_entry(shard, part) for part in PARTS for shard in series[part].shards]
    if not entries:
        raise DataError(f"{documents.name} holds no documents", hint="check that its files are not empty")
    write_json(
        folder / INDEX,
        {"format": FORMAT, "name": documents.name, "skips": dict(documents.skips), "shards": entries},
    )


def _entry(shard: Shard, part: str) -> dict[str, Any]:
    return {
        "name": shard.path.name,
        "part": part,
        "tokens": shard.tokens,
        "documents": shard.documents,
        "text_bytes": shard.text_bytes,
        "sizes": {path.name: path.stat().st_size for path in shard.files},
        "checksums": {path.name: file_hash(path) for path in shard.files},
    }


def _fill(
    series: dict[str, _Series], documents: Documents, tokenizer: Tokenizer, on_progress: OnProgress
) -> None:
    """Stream the documents into their series; one batch is read while another is encoded."""
    done, total = 0, documents.expected_bytes

    def store(batch: list[_Document], encoded: "Future[list[NDArray[np.int32]]]") -> None:
        for document, ids in zip(batch, encoded.result(), strict=True):
            series[document.part].add(document, tokenizer.frame(ids, len(ids) + 2))

    pending: tuple[list[_Document], Any] | None = None
    with ThreadPoolExecutor(max_workers=1) as pool:
        for batch in _batches(documents):
            fresh = [document for document in batch if not series[document.part].passes_over(document)]
            encoded = pool.submit(tokenizer.encode, [document.text for document in fresh])
            if pending:
                store(*pending)
            pending = fresh, encoded
            done += sum(document.text_bytes + 1 for document in batch)
            on_progress(min(done, total), total)
        if pending:
            store(*pending)
    for one in series.values():
        if one.seen < len(one.known):
            raise _DisagreesError
        one.close()
    on_progress(total, total)


def _batches(documents: Documents) -> Iterator[list[_Document]]:
    """Documents in batches worth encoding together."""
    batch: list[_Document] = []
    characters = 0
    for text in documents:
        batch.append(_Document(text, text_hash(text), len(text.encode("utf-8"))))
        characters += len(text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
