"""ELECTRA: find the tokens that a small generator has replaced."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch.nn import functional as F

from headstart.batch import IGNORE, Batch, EncodedExample
from headstart.config import ModelConfig
from headstart.models.model import HeadSpec, Model
from headstart.objectives.base import Loss, Vocabulary, class_loss
from headstart.objectives.masked_lm import MaskedLM, token_kinds


@dataclass(frozen=True)
class Electra(MaskedLM):
    """Predict for every token whether the generator replaced it; both are trained together (Clark et al., 2020)."""

    name: ClassVar[str] = "replaced-token"
    architectures: ClassVar[tuple[str, ...]] = ("bidirectional", "bi-lstm", "cnn")
    mask_token_prob: Annotated[float, Field(ge=0, le=1)] = 1.0
    random_token_prob: Annotated[float, Field(ge=0, le=1)] = 0.0
    generator_size: Annotated[float, Field(gt=0, le=1)] = 0.5
    discriminator_weight: Annotated[float, Field(gt=0)] = 20.0

    def heads(self, body: ModelConfig, vocab_size: int, classes: int) -> dict[str, HeadSpec]:
        """The generator, and the head that classifies each token."""
        generator = HeadSpec("generator", vocab_size, {"share": self.generator_size})
        return {"generator": generator, "replaced": HeadSpec("replaced", 1)}

    def collate(self, rows: Sequence[EncodedExample], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """Masked tokens for the generator; the labels of "replaced" are the original tokens, special ones left out."""
        batch = super().collate(rows, vocabulary, rng)
        assert batch.label_positions is not None
        is_special, _ = token_kinds(vocabulary.size, vocabulary.special_ids)
        original = batch.tokens.flatten().index_put((batch.label_positions,), batch.labels["lm"])
        original = original.view_as(batch.tokens)
        original = original.masked_fill(~batch.attention_mask | is_special[original], IGNORE)
        labels = {"generator": batch.labels["lm"], "replaced": original}
        return replace(batch, labels=labels, sparse_labels=("generator",))

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """The generator's cross-entropy, and how well the discriminator finds its replacements."""
        assert batch.label_positions is not None
        targets, original = batch.labels["generator"], batch.labels["replaced"]
        logits = model.heads["generator"](batch.tokens, batch, model.backbone).float()  # (N, V)
        noise = -torch.empty_like(logits).exponential_().log()
        sampled = (logits.detach() + noise).argmax(dim=-1)  # (N,), from the generator's distribution
        tokens = batch.tokens.flatten().index_put((batch.label_positions,), sampled).view_as(batch.tokens)
        has_label = original != IGNORE
        hidden = model.backbone(replace(batch, tokens=tokens))
        predicted = model.heads["replaced"](hidden, batch, model.backbone).float()[has_label]
        is_replaced = (tokens != original)[has_label].float()
        total = F.binary_cross_entropy_with_logits(predicted, is_replaced, reduction="sum")
        correct = ((predicted > 0) == (is_replaced > 0)).sum()
        return {
            "generator": class_loss(logits, targets),
            "replaced": Loss(total, is_replaced.numel(), correct, self.discriminator_weight),
        }
