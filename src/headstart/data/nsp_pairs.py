"""Pairs of texts for next-sentence prediction: half follow each other, half were put together at random."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from headstart.batch import EncodedExample
from headstart.data.samplers import Groups, generator
from headstart.data.token_stream import TokenStream
from headstart.data.tokenizer import Tokenizer
from headstart.errors import DataError

Span = tuple[int, int]  # of the stream: first token, the one after the last


class PairLoader:
    """Every stretch of a corpus once an epoch, cut in two at the end of a sentence.

    Whether the true second part stays is decided by the row's position in the epoch, so that the halves are exact.
    `unit` says what a sentence is: a `sentence` by its last sign, a `line`, or a whole `document` among its
    neighbours.
    """

    def __init__(
        self,
        stream: TokenStream,
        unit: str,
        tokenizer: Tokenizer,
        length: int,
        batch_tokens: int,
        seed: int,
        shuffled: bool = True,
    ):
        self.stream, self.tokenizer, self.room = stream, tokenizer, length - 3
        self.rows_per_batch = max(1, batch_tokens // length)
        self.seed, self.shuffled = seed, shuffled
        self.starts, self.stops, self.owners = units_of(stream, unit, tokenizer)
        self.stretches = _stretches(self.stops - self.starts, self.owners, self.room)  # (N, 2)
        self.is_one_document = bool((self.owners == self.owners[:1]).all())
        if not len(self.stretches) or (unit != "document" and self.is_one_document):
            raise DataError(
                f"no two {unit}s of this corpus follow each other in a document, or there is one document only",
                hint="set objective.nsp_unit=document, or give documents of several sentences (--document-separator paragraph)",
            )
        self._order = lru_cache(maxsize=2)(self._make_order)

    def _make_order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers in the order of the epoch, and each row's position in it."""
        count = len(self.stretches)
        order = generator(self.seed, epoch).permutation(count) if self.shuffled else np.arange(count)
        return order, np.argsort(order)

    def count(self, epoch: int) -> int:
        """How many batches an epoch has."""
        return len(self.batches(epoch))

    def batches(self, epoch: int) -> Sequence[np.ndarray]:
        """The row numbers of each batch of an epoch, in order."""
        return Groups(self._order(epoch)[0], self.rows_per_batch)

    def fetch(self, numbers: np.ndarray, epoch: int) -> list[EncodedExample]:
        """The pairs with these numbers: first, A, last, B, last, with label 0 where B follows A and 1 where not."""
        _, positions = self._order(epoch)
        return [self._pair(int(number), epoch, int(positions[number]) % 2) for number in numbers]

    def _pair(self, number: int, epoch: int, label: int) -> EncodedExample:
        a, b = self.spans(number, epoch, label)
        one, two = self.stream.slice(*a), self.stream.slice(*b)
        size = max(self.room // 2, self.room - len(two)) if len(one) + len(two) > self.room else len(one)
        one = one[-size:]  # the part next to B
        two = two[: self.room - len(one)]
        first, last = [self.tokenizer.bos_id], [self.tokenizer.eos_id]
        tokens = np.concatenate([first, one, last, two, last], dtype=np.int32)
        segments = np.concatenate([np.zeros(len(one) + 2, np.int8), np.ones(len(two) + 1, np.int8)])
        return EncodedExample(tokens, label, segments)

    def spans(self, number: int, epoch: int, label: int) -> tuple[Span, Span]:
        """Where in the stream A and B of a row begin and end."""
        random = generator(self.seed, epoch, number)
        low, high = (int(unit) for unit in self.stretches[number])
        second = int(random.integers(low + 1, high + 1))  # the first unit of B
        a = (int(self.starts[low]), int(self.stops[second - 1]))
        if label == 0:
            return a, (int(self.starts[second]), int(self.stops[high]))
        start = self._unit_elsewhere(int(self.owners[low]), second, random)
        end, longest = start, min(start + high - second, len(self.starts) - 1)
        while end < longest and self.owners[end + 1] == self.owners[start]:
            end += 1
        return a, (int(self.starts[start]), int(self.stops[end]))

    def _unit_elsewhere(self, owner: int, follows: int, random: np.random.Generator) -> int:
        """A unit of another document; among whole documents, any but the one that follows."""
        while True:
            other = int(random.integers(len(self.starts)))
            if abs(other - follows) > 1 if self.is_one_document else self.owners[other] != owner:
                return other


def units_of(stream: TokenStream, unit: str, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each unit begins and ends in the stream, without special tokens, and which document it is of."""
    ends = stream.document_ends()
    begins = np.concatenate([[0], ends[:-1]]) + 1  # after the first special token
    closes = ends - 1  # before the last one
    if unit == "document":
        is_full = closes > begins
        return begins[is_full], closes[is_full], np.zeros(int(is_full.sum()), np.int64)
    is_end = tokenizer.ends(unit)
    piece, breaks = 1 << 22, []
    for at in range(0, len(stream), piece):
        tokens = stream.slice(at, min(at + piece, len(stream)))
        breaks.append(np.flatnonzero(is_end[tokens]) + at + 1)
    borders = np.unique(np.concatenate([*breaks, begins, closes]))
    starts, stops = borders[:-1], borders[1:]
    owners = np.searchsorted(ends, starts, side="right")
    own = np.minimum(owners, len(begins) - 1)
    inside = (starts >= begins[own]) & (stops <= closes[own])
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
