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
from headstart.data.example import hashes
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
class _Documents:
    """Some documents of a corpus, in order."""

    texts: list[str]
    hashed: NDArray[np.uint64]
    text_bytes: NDArray[np.int64]
    is_valid: NDArray[np.bool_]  # held out

    def chosen(self, which: NDArray[np.bool_]) -> "_Documents":
        """Those where `which` is True."""
        texts = [text for text, one in zip(self.texts, which, strict=True) if one]
        return _Documents(texts, self.hashed[which], self.text_bytes[which], self.is_valid[which])


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
        self.records: list[NDArray[Any]] = []

    def _path(self) -> Path:
        return self.folder / f"{self.part}-{len(self.shards):05d}"

    def passes_over(self, hashed: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of the next documents are in a finished shard."""
        known = self.known[self.seen : self.seen + len(hashed)]
        self.seen += len(hashed)
        if (known != hashed[: len(known)]).any():
            raise _DisagreesError
        return np.arange(len(hashed)) < len(known)

    def add(
        self,
        tokens: NDArray[np.int32],
        counts: NDArray[np.int64],
        hashed: NDArray[np.uint64],
        text_bytes: NDArray[np.int64],
    ) -> None:
        """Take in the tokens of the next documents, of which each has as many as `counts` says."""
        ends, done, at = np.cumsum(counts), 0, 0
        while at < len(counts):
            # up to the document with which the shard is full
            full = int(np.searchsorted(ends, done + SHARD_TOKENS - self.tokens)) + 1
            stop = min(full, len(counts))
            records = np.empty(stop - at, DOCUMENT)
            records["end"], records["hash"] = self.tokens + ends[at:stop] - done, hashed[at:stop]
            records["bytes"] = text_bytes[at:stop]
            self.rows.append(tokens[done : int(ends[stop - 1])].astype(self.dtype))
            self.records.append(records)
            self.tokens = int(records["end"][-1])
            done, at = int(ends[stop - 1]), stop
            if self.tokens >= SHARD_TOKENS:
                self.close()

    def close(self) -> None:
        """Write what is held as a shard, if anything is."""
        if not self.rows:
            return
        records = np.concatenate(self.records)
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

    def encode(batch: _Documents) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        return tokenizer.frame_joined(*tokenizer.encode_joined(batch.texts))

    def store(batch: _Documents, encoded: "Future[tuple[NDArray[np.int32], NDArray[np.int64]]]") -> None:
        tokens, counts = encoded.result()
        for part, one in series.items():
            own = batch.is_valid == (part == "valid")
            mine = tokens if own.all() else tokens[np.repeat(own, counts)]
            one.add(mine, counts[own], batch.hashed[own], batch.text_bytes[own])

    pending: tuple[_Documents, Any] | None = None
    with ThreadPoolExecutor(max_workers=1) as pool:
        for batch in _batches(documents):
            fresh = batch.chosen(~_passed_over(series, batch))
            encoded = pool.submit(encode, fresh)
            if pending:
                store(*pending)
            pending = fresh, encoded
            done += int(batch.text_bytes.sum()) + len(batch.texts)
            on_progress(min(done, total), total)
        if pending:
            store(*pending)
    for one in series.values():
        if one.seen < len(one.known):
            raise _DisagreesError
        one.close()
    on_progress(total, total)


def _passed_over(series: dict[str, _Series], batch: _Documents) -> NDArray[np.bool_]:
    """Which documents are on disk already."""
    found = np.zeros(len(batch.texts), bool)
    for part, one in series.items():
        own = batch.is_valid == (part == "valid")
        found[own] = one.passes_over(batch.hashed[own])
    return found


def _batches(documents: Documents) -> Iterator[_Documents]:
    """Documents in batches worth encoding together."""
    texts: list[str] = []
    characters = 0
    for text in documents:
        texts.append(text)
        characters += len(text)
        if characters >= BATCH_CHARACTERS:
            yield _gathered(texts)
            texts, characters = [], 0
    if texts:
        yield _gathered(texts)


def _gathered(texts: list[str]) -> _Documents:
    hashed = hashes(texts)
    sizes = np.fromiter((len(text.encode("utf-8")) for text in texts), np.int64, len(texts))
    return _Documents(texts, hashed, sizes, hashed // np.uint64(10) % np.uint64(HELD_OUT) == 0)
