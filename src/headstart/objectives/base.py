"""What every objective offers: the heads it needs, its batches and its losses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headstart.batch import Batch, EncodedExample, pad
from headstart.config import ModelConfig
from headstart.errors import ConfigError
from headstart.models.heads import language_head
from headstart.models.model import HeadSpec, Model
from headstart.objectives.cross_entropy import linear_cross_entropy

Reads = Literal["blocks", "pairs", "texts", "translations"]


class Vocabulary(Protocol):
    """What an objective needs to know of the tokenizer."""

    @property
    def size(self) -> int:
        """Tokens in the vocabulary."""
        ...

    @property
    def pad_id(self) -> int:
        """The padding token."""
        ...

    @property
    def mask_id(self) -> int | None:
        """The mask token, if the vocabulary has one."""
        ...

    @property
    def word_starts(self) -> np.ndarray:
        """Which tokens begin a word (V,)."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that do not represent text."""
        ...


@dataclass(frozen=True)
class Loss:
    """The summed loss of one head over a batch, the number of its labels, and how many predictions are correct."""

    total: Tensor
    count: int
    correct: Tensor
    weight: float = 1.0  # of the mean loss in the sum that is optimised


@dataclass(frozen=True)
class ObjectiveCost:
    """What one training step computes, as fractions of all positions."""

    label_fraction: float = 0.0  # positions at which the whole vocabulary is scored
    last_layer_fraction: float = 1.0  # positions that the last block computes
    passes: int = 1  # forward passes over a batch


@dataclass(frozen=True)
class Objective:
    """A training objective; the fields of a subclass are its settings."""

    name: ClassVar[str]
    architectures: ClassVar[tuple[str, ...]]  # that it can train; the first is the default
    reads: ClassVar[Reads]  # blocks of a corpus, its sentence pairs, labelled texts, or texts with translations
    lookahead: ClassVar[int] = 0  # tokens needed beyond the end of a block
    is_rowwise: ClassVar[bool] = False  # True = the labels of a row depend neither on other rows nor on chance

    def heads(self, body: ModelConfig, vocab_size: int, classes: int) -> dict[str, HeadSpec]:
        """The heads it needs on a model of this shape."""
        raise NotImplementedError

    def collate(self, rows: Sequence[EncodedExample], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """A batch of these rows, with labels."""
        raise NotImplementedError

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """The loss of each head."""
        raise NotImplementedError

    def cost(self, body: ModelConfig, length: int) -> ObjectiveCost:
        """What a step computes for texts of `length` tokens."""
        return ObjectiveCost()

    @property
    def teachers(self) -> tuple[Model, ...]:
        """Models that read every batch too, in distillation."""
        return ()

    def resolve_backbone(self, body: ModelConfig) -> ModelConfig:
        """The model settings with a known `architecture`, or an error when the objective cannot train it."""
        if body.architecture == "auto":
            return body.model_copy(update={"architecture": self.architectures[0]})
        if body.architecture not in self.architectures:
            raise ConfigError(
                f"{self.name} cannot train a {body.architecture} backbone",
                hint=f"set model.architecture={self.architectures[0]}, or choose another --objective",
            )
        return body


def segments_of(rows: Sequence[EncodedExample]) -> Tensor | None:
    """Which text of its pair each token belongs to (B, T); None when the rows are not pairs."""
    if any(row.segments is None for row in rows):
        return None
    return pad([row.segments for row in rows if row.segments is not None], 0)[0]


def language_model_loss(model: Model, hidden: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Loss:
    """The language-model head's cross-entropy of hidden states (N, D)."""
    head = language_head(model.heads)
    weight, bias = head.projection(model.backbone.table)
    total, correct = linear_cross_entropy(head.transformed(hidden), weight, bias, labels, label_smoothing)
    return Loss(total, labels.numel(), correct)


def class_loss(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Loss:
    """The cross-entropy of logits (N, C)."""
    loss = F.cross_entropy(logits.float(), labels, reduction="sum", label_smoothing=label_smoothing)
    return Loss(loss, labels.numel(), (logits.detach().argmax(dim=-1) == labels).sum())
