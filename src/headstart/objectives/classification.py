"""Name the class of a text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from headstart.batch import Batch, Row, pad
from headstart.config import ModelConfig
from headstart.errors import ConfigError
from headstart.models.model import HeadSpec, Model
from headstart.objectives.base import Loss, Objective, Reads, Vocabulary
from headstart.objectives.cross_entropy import divergence

# Setting of a class head -> the setting of the objective that chooses it.
HEAD_SETTINGS = {"pooling": "pooling", "projection": "head_hidden_layer", "dropout": "head_dropout"}


@dataclass(frozen=True)
class Classification(Objective):
    """Ask for the label of each text; `auto` pools what the body knows best: causal last, bidirectional mean.

    `r_drop` weighs how far two passes with different dropout are apart (Liang et al., 2021).
    """

    name: ClassVar[str] = "classify"
    bodies: ClassVar[tuple[str, ...]] = ("bidirectional", "causal", "bi-lstm", "cnn")
    reads: ClassVar[Reads] = "texts"
    is_rowwise: ClassVar[bool] = True
    pooling: Literal["auto", "last", "mean", "max", "mean+max", "first", "pooler"] = "auto"
    head_hidden_layer: Literal["auto", "linear", "dense"] = "auto"
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    head_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    r_drop_alpha: Annotated[float, Field(ge=0)] = 0.0

    @property
    def num_forward(self) -> int:
        """Two under R-Drop."""
        return 1 + bool(self.r_drop_alpha)

    def resolve_backbone(self, body: ModelConfig) -> ModelConfig:
        """The body settings with `kind` decided; a pooling that the body lacks, or R-Drop without dropout, is refused."""
        if self.r_drop_alpha and not (body.dropout or body.attention_dropout or self.head_dropout):
            raise ConfigError(
                "objective.r_drop_alpha compares two passes that differ by dropout, and there is no dropout",
                hint="set model.dropout=0.1, or leave objective.r_drop_alpha out",
            )
        if self.pooling == "pooler" and not body.pooler:
            raise ConfigError(
                "this body has no pooler", hint="set objective.pooling=mean, or model.pooler=true"
            )
        return super().resolve_backbone(body)

    def heads(self, body: ModelConfig, vocab_size: int, classes: int) -> dict[str, HeadSpec]:
        """One classification head, of the form that suits the body."""
        is_causal = body.architecture == "causal"
        pooling = self.pooling if self.pooling != "auto" else ("last" if is_causal else "mean")
        projection = (
            self.head_hidden_layer
            if self.head_hidden_layer != "auto"
            else ("linear" if is_causal else "dense")
        )
        return {
            "class": HeadSpec(
                "class", classes, {"pooling": pooling, "projection": projection, "dropout": self.head_dropout}
            )
        }

    def last_layer_fraction(self, body: ModelConfig, length: int) -> float:
        """One position a text where the head reads no more."""
        return 1 / length if self.heads(body, 2, 2)["class"].settings["pooling"] in ("last", "first") else 1.0

    def collate(self, rows: Sequence[Row], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """Texts padded to the longest of them, with their classes where they are known."""
        tokens, real = pad([row.tokens for row in rows], vocabulary.padding)
        known = [row.label for row in rows if row.label is not None]
        labels = {"class": torch.tensor(known)} if len(known) == len(rows) else {}
        if self.r_drop_alpha and labels:
            labels["agreement"] = labels["class"]
        return Batch(tokens, real, labels, is_full=bool(real.all()))

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """Cross-entropy over the classes; under R-Drop in training also how far a second pass is from the first."""
        scores, first = self._answer(model, batch)
        found = {"class": first}
        if self.r_drop_alpha and model.training:
            again, second = self._answer(model, batch)
            found["class"] = replace(first, total=(first.total + second.total) / 2)
            found["agreement"] = replace(second, total=divergence(scores, again), weight=self.r_drop_alpha)
        return found

    def _answer(self, model: Model, batch: Batch) -> tuple[Tensor, Loss]:
        """One pass: the scores (B, C), and how they are marked."""
        scores, labels = model(batch)["class"].float(), batch.labels["class"]  # (B, C), (B,)
        total = F.cross_entropy(scores, labels, reduction="sum", label_smoothing=self.label_smoothing)
        return scores, Loss(total, labels.numel(), (scores.argmax(dim=-1) == labels).sum())
