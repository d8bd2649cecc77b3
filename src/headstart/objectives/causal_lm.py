"""Causal language modelling: predict the next token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from headstart.batch import Batch, EncodedExample, pad
from headstart.config import ModelConfig
from headstart.models.heads import at_label_positions
from headstart.models.model import HeadSpec, Model
from headstart.objectives.base import Loss, Objective, ObjectiveCost, Reads, Vocabulary, language_model_loss


def next_token_batch(rows: Sequence[EncodedExample], padding: int, name: str = "lm") -> Batch:
    """All tokens of a row but its last as input, all but the first as labels of the head called `name`."""
    tokens, mask = pad([row.tokens for row in rows], padding)
    inputs, labels, mask = tokens[:, :-1].contiguous(), tokens[:, 1:], mask[:, 1:]
    if mask.all():
        return Batch(inputs, mask, {name: labels}, unpadded=True)
    positions = mask.flatten().nonzero()[:, 0]
    return Batch(inputs, mask, {name: labels.flatten()[positions]}, positions, sparse_labels=(name,))


def vectors_with_labels(model: Model, batch: Batch, name: str = "lm") -> tuple[Tensor, Tensor]:
    """The backbone's vectors (N, D) at the positions that have a label of the head called `name`, and the labels (N,)."""
    hidden = at_label_positions(model.backbone(batch), batch)  # (B, T, D) or (N, D)
    return hidden.flatten(0, -2), batch.labels[name].flatten()


@dataclass(frozen=True)
class CausalLM(Objective):
    """Predict each token from those before it."""

    name: ClassVar[str] = "causal-lm"
    architectures: ClassVar[tuple[str, ...]] = ("causal",)
    reads: ClassVar[Reads] = "blocks"
    lookahead: ClassVar[int] = 1
    is_rowwise: ClassVar[bool] = True
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def cost(self, body: ModelConfig, length: int) -> ObjectiveCost:
        """Every position has a label."""
        return ObjectiveCost(label_fraction=1.0)

    def heads(self, body: ModelConfig, vocab_size: int, classes: int) -> dict[str, HeadSpec]:
        """One language-model head."""
        return {"lm": HeadSpec("lm", vocab_size)}

    def collate(self, rows: Sequence[EncodedExample], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """Inputs, and the tokens after them as labels."""
        return next_token_batch(rows, vocabulary.pad_id)

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """Cross-entropy at every position."""
        hidden, labels = vectors_with_labels(model, batch)
        return {"lm": language_model_loss(model, hidden, labels, self.label_smoothing if model.training else 0.0)}
