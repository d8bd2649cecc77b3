"""Translation: predict each token of a translation from the source and the tokens before it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from headstart.batch import Batch, EncodedExample, pad
from headstart.config import ModelConfig
from headstart.errors import ConfigError
from headstart.models.heads import language_head
from headstart.models.model import HeadSpec, Model
from headstart.objectives.base import (
    Loss,
    Objective,
    ObjectiveCost,
    Reads,
    Vocabulary,
    linear_cross_entropy,
    linear_symmetric_kl,
)
from headstart.objectives.causal_lm import next_token_batch, vectors_with_labels


@dataclass(frozen=True)
class Seq2Seq(Objective):
    """Cross-entropy of a translation given its source (Vaswani et al., 2017).

    Labels are smoothed in training only. `metric_for_best_model` names the metric that selects the best weights; with `loss` nothing is
    decoded during training. R-Drop makes two passes with different dropout, and `r_drop_alpha` is the weight of their
    divergence (Liang et al., 2021).
    """

    name: ClassVar[str] = "translate"
    architectures: ClassVar[tuple[str, ...]] = ("encoder-decoder",)
    reads: ClassVar[Reads] = "translations"
    lookahead: ClassVar[int] = 1
    is_rowwise: ClassVar[bool] = True
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    metric_for_best_model: Literal["bleu", "loss"] = "bleu"
    r_drop_alpha: Annotated[float, Field(ge=0)] = 0.0

    def cost(self, body: ModelConfig, length: int) -> ObjectiveCost:
        """Every position of the translation has a label; R-Drop makes two passes."""
        return ObjectiveCost(label_fraction=1.0, passes=2 if self.r_drop_alpha else 1)

    def resolve_backbone(self, body: ModelConfig) -> ModelConfig:
        """The model settings with a known `architecture`; a pooler, or R-Drop without dropout, is an error."""
        if self.r_drop_alpha and not (body.dropout or body.attention_dropout):
            raise ConfigError(
                "objective.r_drop_alpha compares two passes that differ by dropout, and there is no dropout",
                hint="set model.dropout=0.3, or leave objective.r_drop_alpha out",
            )
        if body.pooler:
            raise ConfigError("a translator has no use for a pooler", hint="set model.pooler=false")
        return super().resolve_backbone(body)

    def heads(self, body: ModelConfig, vocab_size: int, classes: int) -> dict[str, HeadSpec]:
        """One language-model head without bias; a tied one reads the embedding table of the target side."""
        return {"lm": HeadSpec("lm", vocab_size, {"bias": False})}

    def collate(self, rows: Sequence[EncodedExample], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """Sources and translations; the labels are the next tokens of the translations."""
        batch = next_token_batch(rows, vocabulary.pad_id)
        if self.r_drop_alpha:
            batch.labels["agreement"] = batch.labels["lm"]
        sources = [row.source for row in rows if row.source is not None]
        assert len(sources) == len(rows), "a row to translate has a source"
        source, mask = pad(sources, vocabulary.pad_id)
        sparse = tuple(batch.labels) if batch.sparse_labels else ()
        return replace(batch, source=source, source_attention_mask=mask, sparse_labels=sparse)

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """Cross-entropy at every token of the translations; under R-Drop in training also the divergence of two passes."""
        output = language_head(model.heads).projection(model.backbone.table)
        label_smoothing = self.label_smoothing if model.training else 0.0

        def forward() -> tuple[Tensor, Loss]:
            hidden, labels = vectors_with_labels(model, batch)
            total, correct = linear_cross_entropy(hidden, *output, labels, label_smoothing)
            return hidden, Loss(total, labels.numel(), correct)

        hidden, first = forward()
        if not (self.r_drop_alpha and model.training):
            return {"lm": first}
        other_hidden, second = forward()
        kl = linear_symmetric_kl(hidden, other_hidden, *output)
        return {
            "lm": replace(first, total=(first.total + second.total) / 2),
            "agreement": replace(second, total=kl, weight=self.r_drop_alpha),
        }
