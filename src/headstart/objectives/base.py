"""What every objective offers: the heads it needs, its batches and its losses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from headstart import fast
from headstart.batch import Batch, EncodedExample, pad
from headstart.config import ModelConfig, RunConfig
from headstart.constants import logits_per_chunk
from headstart.errors import ConfigError
from headstart.fast import linear_cross_entropy as chunked
from headstart.models.heads import language_head
from headstart.models.model import HeadSpec, Model

Reads = Literal["blocks", "pairs", "texts", "translations"]


class Vocabulary(Protocol):
    """What an objective needs to know of the tokenizer."""

    @property
    def size(self) -> int:
        """Tokens in the vocabulary."""

    @property
    def pad_id(self) -> int:
        """The padding token."""

    @property
    def mask_id(self) -> int | None:
        """The mask token, if the vocabulary has one."""

    @property
    def word_starts(self) -> np.ndarray:
        """Which tokens begin a word (V,)."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that do not represent text."""


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


def with_backbone(config: RunConfig, objective: Objective) -> RunConfig:
    """The settings with a kind of body that the objective can train."""
    return config.with_({"model": objective.resolve_backbone(config.model).model_dump()})


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of the logits `hidden @ weight.T + bias`, and the number of correct predictions.

    `hidden` is (N, D), `weight` (V, D), `labels` (N,). The fast path never has all logits in memory.
    """
    if fast.is_enabled() and chunked.is_worthwhile(hidden, weight):
        return chunked.linear_cross_entropy(hidden, weight, bias, labels, label_smoothing)
    logits = F.linear(hidden, weight, bias)
    loss = F.cross_entropy(logits.float(), labels, reduction="sum", label_smoothing=label_smoothing)
    return loss, (logits.detach().argmax(dim=-1) == labels).sum()


def symmetric_kl(first: Tensor, second: Tensor) -> Tensor:
    """The mean of both Kullback-Leibler divergences of logits (N, C), summed over N, as in R-Drop (Liang et al., 2021)."""
    one, other = first.log_softmax(dim=-1), second.log_softmax(dim=-1)
    return ((one.exp() - other.exp()) * (one - other)).sum() / 2


def linear_symmetric_kl(first: Tensor, second: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The symmetric divergence of the logits of two hidden states (N, D); the backward pass computes them again."""
    rows = max(1, logits_per_chunk(first.device.type) // (2 * weight.shape[0]))

    def chunk(one: Tensor, other: Tensor) -> Tensor:
        return symmetric_kl(F.linear(one, weight, bias).float(), F.linear(other, weight, bias).float())

    if first.shape[0] <= rows:
        return chunk(first, second)
    chunks = zip(first.split(rows), second.split(rows), strict=True)
    return torch.stack([checkpoint(chunk, *each, use_reentrant=False) for each in chunks]).sum()
