"""Predict the next token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from headstart.batch import IGNORE, Batch, Row, marked_places, pad, rows_at
from headstart.config import ModelConfig
from headstart.models.heads import language_head
from headstart.models.model import HeadSpec, Model
from headstart.objectives.base import Loss, Objective, Reads, Vocabulary
from headstart.objectives.cross_entropy import token_loss


@dataclass(frozen=True)
class CausalLM(Objective):
    """Ask at every token for the one after it."""

    name: ClassVar[str] = "causal-lm"
    bodies: ClassVar[tuple[str, ...]] = ("causal",)
    reads: ClassVar[Reads] = "blocks"
    lookahead: ClassVar[int] = 1
    is_rowwise: ClassVar[bool] = True
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @property
    def loss_fraction(self) -> float:
        """Every position."""
        return 1.0

    def heads(self, body: ModelConfig, vocab_size: int, classes: int) -> dict[str, HeadSpec]:
        """One language-model head."""
        return {"lm": HeadSpec("lm", vocab_size)}

    def collate(self, rows: Sequence[Row], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """All tokens of a row but its last as input, all but the first as labels."""
        tokens, real = pad([row.tokens for row in rows], vocabulary.padding)
        labels = tokens[:, 1:].masked_fill(~real[:, 1:], IGNORE)
        is_full = bool(real.all())
        marked = None if is_full else (labels.flatten() != IGNORE).nonzero()[:, 0]
        return Batch(tokens[:, :-1], real[:, 1:], {"lm": labels}, is_full=is_full, marked=marked)

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """Cross-entropy at every marked position."""
        hidden = model.backbone(batch)  # (B, T, D)
        labels = batch.labels["lm"].flatten()  # (B * T,)
        hidden = hidden.flatten(0, 1)
        if not batch.is_full:
            places = marked_places(batch, labels)
            hidden, labels = rows_at(hidden, places), labels[places]
        head = language_head(model.heads)
        weight, bias = head.projection(model.backbone.table)
        hidden = head.transformed(hidden)
        total, correct = token_loss(
            hidden, weight, bias, labels, self.label_smoothing if model.training else 0.0
        )
        return {"lm": Loss(total, labels.numel(), correct)}
