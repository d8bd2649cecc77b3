"""Tokens on disk as one long sequence, read by position."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DOCUMENT = np.dtype([("end", np.int64), ("hash", np.uint64), ("bytes", np.int64)])  # a record of a shard
NO_RECORDS = np.zeros(0, DOCUMENT)

# Shards of a stream that are mapped at once: the system limits the maps of a process.
MOST_OPEN = 4096


@dataclass(frozen=True)
class Shard:
    """Tokens on disk: `<path>.documents.npy`, then `<path>.tokens.npy`, which shows that the shard is whole."""

    path: Path  # without its endings
    tokens: int
    documents: int
    text_bytes: int

    @property
    def files(self) -> tuple[Path, Path]:
        """Its documents and its tokens."""
        return _shard_files(self.path)

    def records(self) -> NDArray[Any]:
        """What is known of each document."""
        return np.load(self.files[0], mmap_mode="r")

    @classmethod
    def find(cls, path: Path) -> "Shard | None":
        """The shard at `path`, or None when it is missing, torn or not as long as its documents say."""
        try:
            documents, tokens = (np.load(file, mmap_mode="r") for file in _shard_files(path))
            sizes = [file.stat().st_size for file in _shard_files(path)]
        except (OSError, ValueError, EOFError):
            return None
        is_whole = (
            documents.dtype == DOCUMENT
            and len(documents) > 0
            and int(documents["end"][-1]) == len(tokens)
            and [array.offset + array.nbytes for array in (documents, tokens)] == sizes
        )
        return cls(path, len(tokens), len(documents), int(documents["bytes"].sum())) if is_whole else None


def _shard_files(path: Path) -> tuple[Path, Path]:
    return path.with_name(f"{path.name}.documents.npy"), path.with_name(f"{path.name}.tokens.npy")


class TokenStream:
    """The tokens of many documents as one long sequence, read from disk by position.

    `excluded` are the numbers of documents that are passed over, as if they were not there.
    """

    def __init__(self, shards: Sequence[Shard], excluded: Iterable[int] = ()):
        self.shards = tuple(shards)
        self.excluded = np.unique(np.fromiter(excluded, np.int64))
        self.pieces = _pieces(self.shards, self.excluded)  # (N, 3) shard, start, stop
        self.starts = np.concatenate([[0], np.cumsum(self.pieces[:, 2] - self.pieces[:, 1])])
        self._ends = [int(start) for start in self.starts]  # quicker to look up than an array
        self.documents = sum(shard.documents for shard in self.shards) - len(self.excluded)
        self.text_bytes = sum(shard.text_bytes for shard in self.shards)
        if len(self.excluded):
            self.text_bytes -= int(self._records()["bytes"][self.excluded].sum())
        self._tokens = lru_cache(maxsize=MOST_OPEN)(self._open)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenStream, (self.shards, self.excluded.tolist())

    def _open(self, at: int) -> NDArray[Any]:
        return np.load(self.shards[at].files[1], mmap_mode="r")

    def slice(self, start: int, stop: int) -> NDArray[np.int32]:
        """A copy of the tokens from `start` up to `stop`, as far as there are any."""
        start, stop = max(start, 0), min(stop, self._ends[-1])
        at = bisect_right(self._ends, start) - 1
        if start < stop <= self._ends[at + 1]:  # most blocks lie in one piece
            return self._read(at, start, stop)
        found = [np.zeros(0, np.int32)]
        while start < stop:
            found.append(self._read(at, start, min(stop, self._ends[at + 1])))
            start, at = int(self.starts[at + 1]), at + 1
        return np.concatenate(found)

    def _read(self, at: int, start: int, stop: int) -> NDArray[np.int32]:
        shard, first, _ = self.pieces[at].tolist()
        skip = first - self._ends[at]
        return np.array(self._tokens(shard)[start + skip : stop + skip], dtype=np.int32)

    def document_ends(self) -> NDArray[np.int64]:
        """Where each document ends in the stream."""
        lengths = [np.diff(shard.records()["end"], prepend=0) for shard in self.shards]
        return np.cumsum(np.delete(np.concatenate([np.zeros(0, np.int64), *lengths]), self.excluded))

    def hashes(self) -> NDArray[np.uint64]:
        """The `text_hash` of each document, in order."""
        return np.delete(self._records()["hash"], self.excluded)

    def _records(self) -> NDArray[Any]:
        """What is known of each document, the excluded ones too."""
        return np.concatenate([NO_RECORDS, *(shard.records() for shard in self.shards)])


def _pieces(shards: Sequence[Shard], excluded: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ranges of the shards that are read: shard, first token, the one after the last."""
    if not len(excluded):
        return np.array([(at, 0, shard.tokens) for at, shard in enumerate(shards)], np.int64).reshape(-1, 3)
    found, first = [np.zeros((0, 3), np.int64)], 0
    for at, shard in enumerate(shards):
        borders = np.concatenate([[0], shard.records()["end"]])
        is_read = np.ones(shard.documents + 2, bool)
        is_read[[0, -1]] = False  # so that the shard's ends are changes too
        own = excluded[(excluded >= first) & (excluded < first + shard.documents)] - first
        is_read[own + 1] = False
        changes = borders[np.flatnonzero(np.diff(is_read))].reshape(-1, 2)  # (N, 2) start, stop
        found.append(np.insert(changes, 0, at, axis=1))
        first += shard.documents
    return np.concatenate(found)


def join(streams: Iterable[TokenStream]) -> TokenStream:
    """Several streams of one tokenizer as one, in the order given."""
    shards: list[Shard] = []
    excluded: list[int] = []
    for stream in streams:
        first = sum(shard.documents for shard in shards)
        excluded += (first + stream.excluded).tolist()
        shards += stream.shards
    return TokenStream(shards, excluded)


def exclude_documents(
    streams: Sequence[TokenStream], hashes: NDArray[np.uint64], deduplicate: bool
) -> list[TokenStream]:
    """The streams without documents that have one of the `hashes`; `deduplicate` also drops all but the first of each."""
    assert not any(len(stream.excluded) for stream in streams)
    own = np.concatenate([np.zeros(0, np.uint64), *(stream.hashes() for stream in streams)])
    is_read = ~np.isin(own, hashes)
    if deduplicate:
        is_first = np.zeros(len(own), bool)
        is_first[np.unique(own, return_index=True)[1]] = True
        is_read &= is_first
    parts = np.split(is_read, np.cumsum([stream.documents for stream in streams])[:-1])
    return [
        stream if part.all() else TokenStream(stream.shards, np.flatnonzero(~part).tolist())
        for stream, part in zip(streams, parts, strict=True)
    ]
