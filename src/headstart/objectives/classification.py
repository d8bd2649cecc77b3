"""Text classification, with R-Drop as an option."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from headstart.batch import Batch, EncodedExample, pad
from headstart.config import ModelConfig
from headstart.errors import ConfigError
from headstart.models.model import HeadSpec, Model
from headstart.objectives.base import (
    Loss,
    Objective,
    ObjectiveCost,
    Reads,
    Vocabulary,
    class_loss,
    segments_of,
    symmetric_kl,
)

Metric = Literal[
    "auto", "accuracy", "macro_f1", "micro_f1", "spearman", "rmse", "span_f1", "token_accuracy", "loss"
]  # of an evaluation during training
LOWER_IS_BETTER = ("loss", "rmse")

# Setting of a class head -> the setting of the objective that chooses it.
HEAD_SETTINGS = {"pooling": "pooling", "projection": "head_hidden_layer", "dropout": "head_dropout"}


@dataclass(frozen=True)
class Classification(Objective):
    """Predict the class of each text; pooling is `auto` = last token of a causal model, mean of a bidirectional one.

    Of a pair of texts `auto` is `pair`: the means u and v of both, |u - v| and u * v. `metric_for_best_model` selects the
    weights; `auto` is the metric that the training curve shows first.
    `r_drop_alpha` is the weight of the divergence between two passes with different dropout (Liang et al., 2021).
    """

    name: ClassVar[str] = "classify"
    architectures: ClassVar[tuple[str, ...]] = ("bidirectional", "causal", "bi-lstm", "cnn")
    reads: ClassVar[Reads] = "texts"
    is_rowwise: ClassVar[bool] = True
    head: ClassVar[str] = "class"  # a row of HEADS
    pooling: Literal["auto", "last", "mean", "max", "mean+max", "first", "pooler", "pair"] = "auto"
    head_hidden_layer: Literal["auto", "linear", "dense"] = "auto"
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    head_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    r_drop_alpha: Annotated[float, Field(ge=0)] = 0.0
    metric_for_best_model: Metric = "auto"

    def resolve_backbone(self, body: ModelConfig) -> ModelConfig:
        """The model settings with a known `architecture`; a missing pooler, or R-Drop without dropout, is an error."""
        if self.r_drop_alpha and not (body.dropout or body.attention_dropout or self.head_dropout):
            raise ConfigError(
                "objective.r_drop_alpha compares two passes that differ by dropout, and there is no dropout",
                hint="set model.dropout=0.1, or leave objective.r_drop_alpha out",
            )
        if self.pooling == "pooler" and not body.pooler:
            raise ConfigError("this backbone has no pooler", hint="set objective.pooling=mean, or model.pooler=true")
        return super().resolve_backbone(body)

    def heads(self, body: ModelConfig, vocab_size: int, classes: int) -> dict[str, HeadSpec]:
        """One classification head, of the form that suits the model."""
        is_causal = body.architecture == "causal"
        pooling = self.pooling if self.pooling != "auto" else ("last" if is_causal else "mean")
        projection = (
            self.head_hidden_layer if self.head_hidden_layer != "auto" else ("linear" if is_causal else "dense")
        )
        settings = {"pooling": pooling, "projection": projection, "dropout": self.head_dropout}
        return {"class": HeadSpec(self.head, classes, settings)}

    def cost(self, body: ModelConfig, length: int) -> ObjectiveCost:
        """The last block computes one position of a text if the head reads no more; R-Drop makes two passes."""
        pooling = self.heads(body, 2, 2)["class"].settings["pooling"]
        positions = 1 / length if pooling in ("last", "first") else 1.0
        return ObjectiveCost(last_layer_fraction=positions, passes=2 if self.r_drop_alpha else 1)

    def collate(self, rows: Sequence[EncodedExample], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """Texts padded to the longest of them, with their classes if all are known."""
        tokens, mask = pad([row.tokens for row in rows], vocabulary.pad_id)
        found = self.labels_of(rows)
        labels = {} if found is None else {"class": found}
        if self.r_drop_alpha and labels:
            labels["agreement"] = labels["class"]
        return Batch(tokens, mask, labels, unpadded=bool(mask.all()), segments=segments_of(rows))

    def labels_of(self, rows: Sequence[EncodedExample]) -> Tensor | None:
        """The class of each row (B,); None unless all are known."""
        classes = [row.label for row in rows if row.label is not None]
        return torch.tensor(classes) if len(classes) == len(rows) else None

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """Cross-entropy over the classes; under R-Drop in training also the divergence from a second pass."""
        logits, first = self.logits_and_loss(model, batch)
        losses = {"class": first}
        if self.r_drop_alpha and model.training:
            other_logits, second = self.logits_and_loss(model, batch)
            losses["class"] = replace(first, total=(first.total + second.total) / 2)
            losses["agreement"] = replace(second, total=self.divergence(logits, other_logits), weight=self.r_drop_alpha)
        return losses

    def logits_and_loss(self, model: Model, batch: Batch) -> tuple[Tensor, Loss]:
        """The logits (B, C) of one pass, and their loss."""
        logits = model(batch)["class"].float()
        return logits, self.criterion(logits, batch.labels["class"], model.heads["class"])

    def selection_value(self, values: Mapping[str, float]) -> float:
        """How good a model with these metrics is; of equal ones the lower loss is better."""
        metric = next(iter(values)) if self.metric_for_best_model == "auto" else self.metric_for_best_model
        if metric not in values:
            problem = f"objective.metric_for_best_model is {metric}, which {self.name} does not measure"
            raise ConfigError(problem, hint=f"choose from {', '.join(values)}")
        value = -values[metric] if metric in LOWER_IS_BETTER else values[metric]
        return (value if math.isfinite(value) else -1e9) - 1e-6 * min(values["loss"], 100.0)

    def criterion(self, logits: Tensor, labels: Tensor, head: nn.Module) -> Loss:
        """The loss of logits (B, C)."""
        return class_loss(logits, labels, self.label_smoothing)

    def divergence(self, first: Tensor, second: Tensor) -> Tensor:
        """How far the outputs of two passes are apart, summed over the rows."""
        return symmetric_kl(first, second)

    def activate(self, logits: Tensor) -> Tensor:
        """What the model predicts: the probability of each class (N, C)."""
        return logits.softmax(dim=-1)
