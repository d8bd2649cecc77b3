"""One batch: what passes from the loader through the model to the objective."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

IGNORE = -100  # the label of a position that is not marked


@dataclass(frozen=True)
class Row:
    """One text or block as tokens, with the index of its class if it has one."""

    tokens: np.ndarray
    label: int | None = None
    segments: np.ndarray | None = None  # 0 for the first text of a pair, 1 for the second
    source: np.ndarray | None = None  # the text that `tokens` translate


@dataclass(frozen=True)
class Batch:
    """What a model reads and is marked on; labels are keyed by the head they are for.

    `asked` names the positions that a token-level head must answer; None asks for all of them.
    """

    tokens: Tensor  # (B, T)
    real: Tensor  # (B, T), True = a real token
    labels: dict[str, Tensor] = field(default_factory=dict)  # {"lm": (B, T) or (N,)} or {"class": (B,)}
    asked: Tensor | None = None  # (N,) indices into the flattened (B * T) positions
    is_full: bool = False  # True = no padding anywhere, known without looking at the device
    segments: Tensor | None = None  # (B, T), which text of a pair a token is of
    is_causal: bool = False  # True = read by a body that sees ahead as if it did not
    source: Tensor | None = None  # (B, S), what an encoder reads while a decoder reads `tokens`
    source_real: Tensor | None = None  # (B, S), True = a real token
    at_asked: tuple[
        str, ...
    ] = ()  # the labels that stand at the asked positions; others have a row for each row
    is_idle: bool = False  # True = read only to keep step with other processes, and marked on nothing
    marked: Tensor | None = (
        None  # (N,) flat places of labels that are marked; None = not looked up beforehand
    )

    def _each(self, move: Callable[[Tensor], Tensor]) -> "Batch":
        """The same batch with every tensor moved."""
        moved: dict[str, Any] = {
            name: move(value) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved, labels={name: move(label) for name, label in self.labels.items()})

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> "Batch":
        """The same batch in page-locked memory, from which a GPU copies while it computes."""
        return self._each(Tensor.pin_memory)

    def rows(self, start: int, stop: int) -> "Batch":
        """The rows from `start` up to `stop`, asked the very same things."""
        asked, marked = self.asked, self.marked
        inside: Tensor | slice = slice(None)
        length = self.tokens.shape[1]
        if asked is not None:
            inside = (asked >= start * length) & (asked < stop * length)
            asked = asked[inside] - start * length
        if marked is not None:
            marked = marked[(marked >= start * length) & (marked < stop * length)] - start * length
        labels = {
            name: label[inside] if name in self.at_asked else label[start:stop]
            for name, label in self.labels.items()
        }
        return replace(
            self,
            tokens=self.tokens[start:stop],
            real=self.real[start:stop],
            labels=labels,
            asked=asked,
            marked=marked,
            segments=None if self.segments is None else self.segments[start:stop],
            source=None if self.source is None else self.source[start:stop],
            source_real=None if self.source_real is None else self.source_real[start:stop],
        )

    @property
    def size(self) -> int:
        """How many positions the model computes, padding included."""
        return self.tokens.numel() + (0 if self.source is None else self.source.numel())

    @cached_property
    def count(self) -> int:
        """How many real tokens the model reads."""
        read = int(self.real.sum())
        return read if self.source_real is None else read + int(self.source_real.sum())

    @cached_property
    def answers(self) -> dict[str, int]:
        """How many answers each head is marked on."""
        if self.is_idle:
            return dict.fromkeys(self.labels, 0)
        return {name: int((labels != IGNORE).sum()) for name, labels in self.labels.items()}


def pad(
    rows: Sequence[np.ndarray] | Sequence[Tensor], padding: int, multiple: int = 1
) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as one (B, T) tensor, and which positions are real."""
    arrays = [np.asarray(row) for row in rows]
    lengths = np.array([len(row) for row in arrays])
    longest = -(-max(int(lengths.max()), 1) // multiple) * multiple
    real = np.arange(longest)[None, :] < lengths[:, None]  # (B, T)
    tokens = np.full(real.shape, padding, dtype=np.int64)
    tokens[real] = np.concatenate(arrays)  # all at once: row by row, a GPU would wait for its batches
    return torch.from_numpy(tokens), torch.from_numpy(real)


def marked_places(batch: Batch, labels: Tensor) -> Tensor:
    """Where flat labels (B * T,) are marked; a GPU would have to be waited for if it was not looked up beforehand."""
    return (labels != IGNORE).nonzero()[:, 0] if batch.marked is None else batch.marked


def rows_at(hidden: Tensor, places: Tensor) -> Tensor:
    """The rows of (N, D) at different `places`; their gradients are put back the way that suits the device."""
    return hidden.index_select(0, places) if hidden.device.type == "cuda" else hidden[places]
