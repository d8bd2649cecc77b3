"""Batches of a pretraining corpus: packed blocks, next-sentence pairs, weighted mixtures of corpora.

Each is a pure function of seed and epoch.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from headstart.batch import EncodedExample, Loader
from headstart.data.token_cache import TokenStream
from headstart.data.tokenizer import Tokenizer
from headstart.errors import DataError

Span = tuple[int, int]  # of the stream: first token, the one after the last


class Groups(Sequence[np.ndarray]):
    """Numbers cut into groups of `size` on access: a large corpus has too many to list."""

    def __init__(self, numbers: np.ndarray, size: int):
        self.numbers, self.size = numbers, size

    def __len__(self) -> int:
        return -(-len(self.numbers) // self.size)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        number = range(len(self))[at]
        return self.numbers[number * self.size : (number + 1) * self.size]


class BlockLoader:
    """Packed blocks of a token stream, with no padding but in a block cut short by the end of the stream.

    Each epoch starts its blocks at another offset, so that a text is not always cut at the same place.
    """

    def __init__(
        self, stream: TokenStream, length: int, batch_tokens: int, seed: int, lookahead: int = 0, shuffled: bool = True
    ):
        self.stream, self.length, self.lookahead = stream, length, lookahead
        self.rows_per_batch = max(1, batch_tokens // length)
        self.seed, self.shuffled = seed, shuffled

    def _offset(self, epoch: int) -> int:
        spare = (len(self.stream) - self.lookahead) % self.length if len(self.stream) > self.length else 0
        return int(np.random.default_rng((self.seed, epoch)).integers(spare + 1)) if self.shuffled else 0

    def count(self, epoch: int) -> int:
        """How many batches an epoch has."""
        return -(-self._blocks() // self.rows_per_batch)

    def _blocks(self) -> int:
        usable = len(self.stream) - self.lookahead
        if self.shuffled:
            return max(usable // self.length, min(1, usable))
        return -(-max(usable, 0) // self.length)

    def batches(self, epoch: int) -> Sequence[np.ndarray]:
        """Shuffled blocks, grouped; in order when not shuffled, then including the short one at the end."""
        blocks = self._blocks()
        numbers = np.arange(blocks, dtype=np.int32 if blocks < 2**31 else np.int64)
        if self.shuffled:
            np.random.default_rng((self.seed, epoch)).shuffle(numbers)
        return Groups(numbers, self.rows_per_batch)

    def fetch(self, numbers: np.ndarray, epoch: int) -> list[EncodedExample]:
        """The blocks with these numbers."""
        offset, rows = self._offset(epoch), []
        for number in numbers:
            start = offset + int(number) * self.length
            stop = min(start + self.length + self.lookahead, len(self.stream))
            rows.append(EncodedExample(self.stream.slice(start, stop)))
        return rows


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
        order = np.random.default_rng((self.seed, epoch)).permutation(count) if self.shuffled else np.arange(count)
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
        random = np.random.default_rng((self.seed, epoch, number))
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


class MixedLoader:
    """Rows of several loaders in one order; an epoch is one pass over a loader of weight 1.

    Each loader's passes are laid end to end, and an epoch takes the next `weight` passes of them. So a fraction
    leaves nothing out: what one epoch does not reach, the next one reads.
    """

    def __init__(self, loaders: Sequence[Loader], weights: Sequence[float], rows_per_batch: int, seed: int):
        self.loaders, self.rows_per_batch, self.seed = list(loaders), rows_per_batch, seed
        self.sizes = [sum(len(batch) for batch in loader.batches(0)) for loader in loaders]  # rows of a pass
        # A weight as it is written: 0.1 is a tenth, though its binary neighbour is not.
        self.paces = [Fraction(repr(float(w))) * size for w, size in zip(weights, self.sizes, strict=True)]
        if not any(int(pace) for pace in self.paces):
            raise DataError("with these weights an epoch holds no row", hint="give larger weights")

    def _span(self, number: int, epoch: int) -> tuple[int, int]:
        """Where in its endless passes the epoch begins and ends for one loader."""
        pace = self.paces[number]
        return int(epoch * pace), int((epoch + 1) * pace)

    def count(self, epoch: int) -> int:
        """How many batches an epoch has."""
        rows = sum(stop - start for start, stop in (self._span(n, epoch) for n in range(len(self.loaders))))
        return -(-rows // self.rows_per_batch)

    def batches(self, epoch: int) -> Sequence[np.ndarray]:
        """Rows of all loaders, shuffled together and grouped."""
        numbers = np.concatenate([self._rows(number, epoch) for number in range(len(self.loaders))])
        return Groups(np.random.default_rng((self.seed, epoch, 1)).permutation(numbers), self.rows_per_batch)

    def _rows(self, number: int, epoch: int) -> np.ndarray:
        """The epoch's rows of one loader; a row's number gives its loader, its pass and its number there."""
        size, (start, stop) = self.sizes[number], self._span(number, epoch)
        found = [np.zeros(0, np.int64)]
        for step in range(start // size, -(-stop // size)) if size else ():
            order = np.concatenate(self.loaders[number].batches(step)).astype(np.int64)
            own = order[max(start - step * size, 0) : stop - step * size]
            found.append((step * size + own) * len(self.loaders) + number)
        return np.concatenate(found)

    def fetch(self, numbers: np.ndarray, epoch: int) -> list[EncodedExample]:
        """The rows with these numbers."""
        positions, owners = np.divmod(numbers, len(self.loaders))
        steps, own = np.divmod(positions, np.array(self.sizes)[owners])
        rows: dict[int, EncodedExample] = {}
        for owner, step in sorted(set(zip(owners.tolist(), steps.tolist(), strict=True))):
            at = np.flatnonzero((owners == owner) & (steps == step))
            rows.update(zip(at.tolist(), self.loaders[owner].fetch(own[at], step), strict=True))
        return [rows[at] for at in range(len(numbers))]
