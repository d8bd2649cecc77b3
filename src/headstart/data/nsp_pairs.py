"""Pairs of texts from a corpus: half follow each other, half were put together at random."""

from functools import lru_cache
from typing import Protocol

import numpy as np

from headstart.batch import EncodedExample
from headstart.data.token_stream import TokenStream
from headstart.errors import DataError


class Reader(Protocol):
    """What must be known of the tokenizer to find sentences among tokens."""

    first: int
    last: int

    def ends(self, unit: str) -> np.ndarray:
        """Which tokens end a unit."""
        ...


class PairLoader:
    """Every stretch of a corpus once an epoch, cut in two at a sentence's end.

    Whether the true second part stays is decided by the row's place in the epoch, so that halves are exact.
    `unit` says what a sentence is: a `sentence` by its last sign, a `line`, or a whole `document` among its
    neighbours.
    """

    def __init__(
        self,
        stream: TokenStream,
        unit: str,
        reader: Reader,
        length: int,
        batch_tokens: int,
        seed: int,
        shuffled: bool = True,
    ):
        self.stream, self.reader, self.room = stream, reader, length - 3
        self.rows_per_batch = max(1, batch_tokens // length)
        self.seed, self.shuffled = seed, shuffled
        starts, stops, owners = units_of(stream, unit, reader)
        self.starts, self.stops, self.owners = starts, stops, owners
        self.stretches = _stretches(stops - starts, owners, self.room)  # (N, 2) first and last unit
        if not len(self.stretches) or (unit != "document" and len(np.unique(owners)) < 2):
            raise DataError(
                f"no two {unit}s of this corpus stand one after the other in a document, or there is one document only",
                hint="set objective.nsp_unit=document, or give documents of several sentences (--document-separator paragraph)",
            )
        self._order = lru_cache(maxsize=2)(self._make_order)

    def _make_order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """EncodedExample numbers in the order of the epoch, and each row's place in it."""
        count = len(self.stretches)
        chance = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        order = chance.permutation(count) if self.shuffled else np.arange(count)
        return order, np.argsort(order)

    def count(self, epoch: int) -> int:
        """How many batches an epoch has."""
        return -(-len(self.stretches) // self.rows_per_batch)

    def batches(self, epoch: int) -> list[np.ndarray]:
        """Rows in groups."""
        order, _ = self._order(epoch)
        return [order[at : at + self.rows_per_batch] for at in range(0, len(order), self.rows_per_batch)]

    def fetch(self, numbers: np.ndarray, epoch: int) -> list[EncodedExample]:
        """The pairs with these numbers: first, A, last, B, last, with label 0 where B follows A and 1 where not."""
        _, places = self._order(epoch)
        return [self._row(int(number), epoch, int(places[number]) % 2) for number in numbers]

    def _row(self, number: int, epoch: int, label: int) -> EncodedExample:
        a, b = self.spans(number, epoch, label)
        one, two = self.stream.slice(*a), self.stream.slice(*b)
        keep = max(self.room // 2, self.room - len(two)) if len(one) + len(two) > self.room else len(one)
        one = one[-keep:]  # what stands next to B stays
        two = two[: self.room - len(one)]
        first, last = [self.reader.first], [self.reader.last]
        tokens = np.concatenate([first, one, last, two, last], dtype=np.int32)
        segments = np.concatenate([np.zeros(len(one) + 2, np.int8), np.ones(len(two) + 1, np.int8)])
        return EncodedExample(tokens, label, segments)

    def spans(self, number: int, epoch: int, label: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Where in the stream A and B of a row begin and end."""
        chance = np.random.Generator(np.random.PCG64([self.seed, epoch, number]))
        low, high = (int(unit) for unit in self.stretches[number])
        cut = int(chance.integers(low + 1, high + 1))  # the first unit of B
        a = (int(self.starts[low]), int(self.stops[cut - 1]))
        if label == 0:
            return a, (int(self.starts[cut]), int(self.stops[high]))
        other = self._elsewhere(int(self.owners[low]), cut, chance)
        end = other
        while (
            end + 1 < len(self.starts)
            and self.owners[end + 1] == self.owners[other]
            and end - other < high - cut
        ):
            end += 1
        return a, (int(self.starts[other]), int(self.stops[end]))

    def _elsewhere(self, owner: int, follows: int, chance: np.random.Generator) -> int:
        """A unit of another document; among whole documents, any but the one that follows."""
        is_alone = bool((self.owners == self.owners[0]).all())
        while True:
            other = int(chance.integers(len(self.starts)))
            if (is_alone and abs(other - follows) > 1) or (not is_alone and self.owners[other] != owner):
                return other


def units_of(stream: TokenStream, unit: str, reader: Reader) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each unit begins and ends in the stream, the marks of documents left out, and which document it is of."""
    ends = stream.document_ends()
    begins = np.concatenate([[0], ends[:-1]]) + 1  # after the first mark
    closes = ends - 1  # before the last mark
    if unit == "document":
        kept = closes > begins
        return begins[kept], closes[kept], np.zeros(int(kept.sum()), np.int64)
    is_end = reader.ends(unit)
    piece, breaks = 1 << 22, []
    for at in range(0, len(stream), piece):
        tokens = stream.slice(at, min(at + piece, len(stream)))
        breaks.append(np.flatnonzero(is_end[tokens]) + at + 1)
    borders = np.unique(np.concatenate([*breaks, begins, closes]))
    starts, stops = borders[:-1], borders[1:]
    owners = np.searchsorted(ends, starts, side="right")
    inside = (starts >= begins[np.minimum(owners, len(begins) - 1)]) & (
        stops <= closes[np.minimum(owners, len(closes) - 1)]
    )
    return starts[inside], stops[inside], owners[inside]


def _stretches(lengths: np.ndarray, owners: np.ndarray, room: int) -> np.ndarray:
    """Runs of at least two units of one document that fill about `room` tokens, as first and last unit."""
    found, start, size = [], 0, 0
    for unit in range(len(lengths)):
        if unit > start and owners[unit] != owners[start]:
            if unit - start >= 2:
                found.append((start, unit - 1))
            start, size = unit, 0
        size += int(lengths[unit])
        if size >= room and unit > start:
            found.append((start, unit))
            start, size = unit + 1, 0
    if len(lengths) - start >= 2:
        found.append((start, len(lengths) - 1))
    return np.array(found, np.int64).reshape(-1, 2)
