"""Rows in batches: packed blocks, texts of like length, weighted mixtures; each a pure function of seed and epoch."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from headstart.batch import EncodedExample
from headstart.data.token_stream import TokenStream
from headstart.errors import DataError


class Loader(Protocol):
    """Rows in batches, epoch by epoch."""

    def count(self, epoch: int) -> int:
        """How many batches an epoch has."""
        ...

    def batches(self, epoch: int) -> Sequence[np.ndarray]:
        """The row numbers of each batch of an epoch, in order."""
        ...

    def fetch(self, numbers: np.ndarray, epoch: int) -> list[EncodedExample]:
        """The rows with these numbers, as that epoch has them."""
        ...


def generator(*key: int) -> np.random.Generator:
    """A random generator that is a function of the key alone: a seed, an epoch, a row, a purpose."""
    return np.random.Generator(np.random.PCG64(key))


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
        return int(generator(self.seed, epoch).integers(spare + 1)) if self.shuffled else 0

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
            generator(self.seed, epoch).shuffle(numbers)
        return Groups(numbers, self.rows_per_batch)

    def fetch(self, numbers: np.ndarray, epoch: int) -> list[EncodedExample]:
        """The blocks with these numbers."""
        offset, rows = self._offset(epoch), []
        for number in numbers:
            start = offset + int(number) * self.length
            stop = min(start + self.length + self.lookahead, len(self.stream))
            rows.append(EncodedExample(self.stream.slice(start, stop)))
        return rows


def sides(row: EncodedExample) -> tuple[int, ...]:
    """The lengths that a batch pads apart: of the text, and of its source where it has one."""
    return (len(row.tokens),) if row.source is None else (len(row.tokens), len(row.source))


class TextLoader:
    """Whole texts, those of like length together, as many as a token budget holds; sources count too.

    With `padding`, a batch also ends where it would hold more tokens of padding than that.
    """

    def __init__(
        self,
        rows: Sequence[EncodedExample],
        batch_tokens: int,
        batch_examples: int | None = None,
        seed: int = 0,
        shuffled: bool = True,
        padding: int | None = None,
    ):
        self.rows, self.batch_tokens, self.batch_examples = rows, batch_tokens, batch_examples or len(rows)
        self.padding = math.inf if padding is None else padding
        self.lengths = np.array([sides(row) for row in rows] or np.zeros((0, 1), int))  # (N, sides)
        self.seed, self.shuffled = seed, shuffled
        self.batches = lru_cache(maxsize=2)(self._batches)

    def count(self, epoch: int) -> int:
        """How many batches an epoch has."""
        return len(self.batches(epoch))

    def _cut(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Consecutive batches, each within the budget (or a single text that is over it)."""
        batches, start, longest, real = [], 0, [0] * self.lengths.shape[1], 0
        for at, own in enumerate(self.lengths[numbers].tolist()):
            grown = list(map(max, longest, own))
            size, real = sum(grown) * (at - start + 1), real + sum(own)
            if at > start and (
                size > self.batch_tokens or size - real > self.padding or at - start >= self.batch_examples
            ):
                batches.append(numbers[start:at])
                start, grown, real = at, own, sum(own)
            longest = grown
        return [*batches, numbers[start:]] if len(numbers) else []

    def _sorted(self, numbers: np.ndarray) -> np.ndarray:
        """By the longer side, and those alike by the shorter: both sides of a batch stay close."""
        lengths = self.lengths[numbers]
        return numbers[np.lexsort((lengths.min(axis=1), lengths.max(axis=1)))]

    def _batches(self, epoch: int) -> list[np.ndarray]:
        """Texts shuffled, sorted by length inside pools of many batches, cut, and the batches shuffled."""
        if not self.shuffled:
            return self._cut(self._sorted(np.arange(len(self.rows))))
        random = generator(self.seed, epoch)
        numbers = random.permutation(len(self.rows))
        mean = max(1.0, float(self.lengths.sum(axis=1).mean()))
        pool = 20 * max(1, min(self.batch_examples, int(self.batch_tokens / mean)))
        batches: list[np.ndarray] = []
        for at in range(0, len(numbers), pool):
            part = numbers[at : at + pool]
            batches += self._cut(self._sorted(part))
        return [batches[number] for number in random.permutation(len(batches))]

    def fetch(self, numbers: np.ndarray, epoch: int) -> list[EncodedExample]:
        """The texts with these numbers."""
        return [self.rows[number] for number in numbers]


def padding_share(loader: Loader, epoch: int = 0) -> float:
    """The share of computed positions that would be padding in an epoch."""
    computed = real = 0
    for numbers in loader.batches(epoch):
        lengths = np.array([sides(row) for row in loader.fetch(numbers, epoch)])  # (N, sides)
        computed += int(lengths.max(axis=0).sum()) * len(lengths)
        real += int(lengths.sum())
    return 1 - real / max(1, computed)


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
        return Groups(generator(self.seed, epoch, 1).permutation(numbers), self.rows_per_batch)

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
