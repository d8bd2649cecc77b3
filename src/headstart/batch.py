"""One batch, from the loader through the model to the objective; and texts of similar length in batches."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

IGNORE = -100  # the label of a position without a loss


@dataclass(frozen=True)
class EncodedExample:
    """One text or block as tokens, with the index of its class if it has one."""

    tokens: np.ndarray
    label: int | None = None
    segments: np.ndarray | None = None  # 0 for the first text of a pair, 1 for the second
    source: np.ndarray | None = None  # the text that `tokens` translate
    targets: np.ndarray | None = None  # in place of a class: 0 or 1 for each class, a number, or a tag for each token


@dataclass(frozen=True)
class Batch:
    """What a model reads, and the labels of each head by its name.

    Labels are one for each row (B,), one for each token (B, T), or, for the heads in `sparse_labels`, one for each of the
    `label_positions` (N,).
    """

    tokens: Tensor  # (B, T)
    attention_mask: Tensor  # (B, T), True = a token, False = padding
    labels: dict[str, Tensor] = field(default_factory=dict)
    label_positions: Tensor | None = None  # (N,) indices into the flattened (B * T) positions; None = all
    unpadded: bool = False  # True = no padding anywhere, known without reading from the device
    segments: Tensor | None = None  # (B, T), which text of a pair a token belongs to
    is_causal: bool = False  # True = a bidirectional model reads it with a causal mask
    source: Tensor | None = None  # (B, S), what an encoder reads while a decoder reads `tokens`
    source_attention_mask: Tensor | None = None  # (B, S)
    sparse_labels: tuple[str, ...] = ()  # heads whose labels are those of `label_positions`
    is_dummy: bool = False  # True = read only to keep step with other processes; its labels do not count

    def _map(self, move: Callable[[Tensor], Tensor]) -> "Batch":
        """The same batch with every tensor moved."""
        moved: dict[str, Any] = {name: move(value) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **moved, labels={name: move(label) for name, label in self.labels.items()})

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """The same batch in page-locked memory, from which a GPU copies while it computes."""
        return self._map(Tensor.pin_memory)

    def rows(self, start: int, stop: int) -> "Batch":
        """The rows from `start` up to `stop`, with their labels."""
        length, positions = self.tokens.shape[1], self.label_positions
        inside: Tensor | slice = slice(None)
        if positions is not None:
            inside = (positions >= start * length) & (positions < stop * length)
            positions = positions[inside] - start * length

        def cut(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[start:stop]

        return replace(
            self,
            tokens=self.tokens[start:stop],
            attention_mask=self.attention_mask[start:stop],
            labels={
                name: label[inside] if name in self.sparse_labels else label[start:stop]
                for name, label in self.labels.items()
            },
            label_positions=positions,
            segments=cut(self.segments),
            source=cut(self.source),
            source_attention_mask=cut(self.source_attention_mask),
        )

    @property
    def num_positions(self) -> int:
        """How many positions the model computes, padding included."""
        return self.tokens.numel() + (0 if self.source is None else self.source.numel())

    @cached_property
    def num_tokens(self) -> int:
        """How many tokens the model reads, without padding."""
        masks = (self.attention_mask, self.source_attention_mask)
        return sum(int(mask.sum()) for mask in masks if mask is not None)

    @cached_property
    def label_counts(self) -> dict[str, int]:
        """How many labels each head has."""
        if self.is_dummy:
            return dict.fromkeys(self.labels, 0)
        return {name: int((labels != IGNORE).sum()) for name, labels in self.labels.items()}


def pad(rows: Sequence[np.ndarray] | Sequence[Tensor], padding: int, multiple: int = 1) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as one (B, T) tensor, and its attention mask."""
    arrays = [np.asarray(row) for row in rows]
    lengths = np.array([len(row) for row in arrays])
    longest = -(-max(int(lengths.max()), 1) // multiple) * multiple
    mask = np.arange(longest)[None, :] < lengths[:, None]  # (B, T)
    tokens = np.full(mask.shape, padding, dtype=np.int64)
    tokens[mask] = np.concatenate(arrays)  # all at once: row by row, a GPU would wait for its batches
    return torch.from_numpy(tokens), torch.from_numpy(mask)


def rows_at(hidden: Tensor, positions: Tensor) -> Tensor:
    """The rows of (N, D) at different `positions`; their gradients are put back the way that suits the device."""
    return hidden.index_select(0, positions) if hidden.device.type == "cuda" else hidden[positions]


def select_positions(hidden: Tensor, positions: Tensor | None) -> Tensor:
    """The vectors (N, D) at `positions` of the flattened (B * T) positions, or all of them (B, T, D)."""
    return hidden if positions is None else hidden.flatten(0, 1).index_select(0, positions)


# --- Loaders ----------------------------------------------------------------------------------------------------------


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
