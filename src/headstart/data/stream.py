"""Tokens on disk as one long row that is read where it is asked for."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DOCUMENT = np.dtype(
    [("end", np.int64), ("hash", np.uint64), ("bytes", np.int64)]
)  # one of a shard's documents

# Shards of a stream that are mapped at once: the system allows a process so many maps, not one for each.
MOST_OPEN = 4096


@dataclass(frozen=True)
class Shard:
    """A stretch of tokens on disk: `<path>.documents.npy`, then `<path>.tokens.npy`, which says that it is whole."""

    path: Path  # without its endings
    tokens: int
    documents: int
    text_bytes: int

    @property
    def files(self) -> tuple[Path, Path]:
        """Its documents and its tokens."""
        return _shard_files(self.path)

    @classmethod
    def found(cls, path: Path) -> "Shard | None":
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
    """The tokens of many documents as one long row, read from disk where they are asked for."""

    def __init__(self, shards: Sequence[Shard]):
        self.shards = tuple(shards)
        self.starts = np.cumsum([0, *(shard.tokens for shard in self.shards)])
        self._ends = [int(start) for start in self.starts]  # quicker to look up than an array
        self.documents = sum(shard.documents for shard in self.shards)
        self.text_bytes = sum(shard.text_bytes for shard in self.shards)
        self._tokens = lru_cache(maxsize=MOST_OPEN)(self._open)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenStream, (self.shards,)

    def _open(self, at: int) -> NDArray[Any]:
        return np.load(self.shards[at].files[1], mmap_mode="r")

    def slice(self, start: int, stop: int) -> NDArray[np.int32]:
        """A copy of the tokens from `start` up to `stop`, as far as there are any."""
        start, stop = max(start, 0), min(stop, self._ends[-1])
        at = bisect_right(self._ends, start) - 1
        if start < stop <= self._ends[at + 1]:  # most blocks lie in one shard
            return np.array(self._tokens[at][start - self._ends[at] : stop - self._ends[at]], dtype=np.int32)
        pieces = [np.zeros(0, np.int32)]
        while start < stop:
            offset = int(self.starts[at])
            pieces.append(self._tokens(at)[start - offset : stop - offset].astype(np.int32))
            start, at = int(self.starts[at + 1]), at + 1
        return np.concatenate(pieces)

    def block(self, index: int, length: int) -> NDArray[np.int32]:
        """The block called `index` when the stream is cut into blocks of `length`; the last one may be short."""
        return self.slice(index * length, (index + 1) * length)

    def document_ends(self) -> NDArray[np.int64]:
        """Where each document ends in the stream."""
        ends = [
            start + self._documents(shard)["end"]
            for start, shard in zip(self.starts, self.shards, strict=False)
        ]
        return np.concatenate([np.zeros(0, np.int64), *ends])

    def hashes(self) -> NDArray[np.uint64]:
        """The `text_hash` of each document, in order."""
        return np.concatenate(
            [np.zeros(0, np.uint64), *(np.array(self._documents(shard)["hash"]) for shard in self.shards)]
        )

    @staticmethod
    def _documents(shard: Shard) -> NDArray[Any]:
        return np.load(shard.files[0], mmap_mode="r")


def join(streams: Iterable[TokenStream]) -> TokenStream:
    """Several streams of one tokenizer as one, in the order given."""
    return TokenStream([shard for stream in streams for shard in stream.shards])
