"""Encoded texts, their batches of similar length as a pure function of seed and epoch, and the protocol of loaders."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from headstart.batch import EncodedExample
from headstart.data.text_io import Example
from headstart.data.tokenizer import Tokenizer


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
        random = np.random.default_rng((self.seed, epoch))
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


def encode_rows(
    tokenizer: Tokenizer, examples: Sequence[Example], classes: Sequence[str] | None, length: int, truncation_side: str
) -> list[EncodedExample]:
    """Examples as token ids with special tokens, and with class indices when `classes` are given."""
    index = {label: number for number, label in enumerate(classes or [])}
    encoded = tokenizer.encode([example.text for example in examples])
    return [
        EncodedExample(
            tokenizer.add_special_tokens(ids, length, truncation_side),
            None if example.label is None else index.get(example.label),
        )
        for ids, example in zip(encoded, examples, strict=True)
    ]
