"""Find the tokens that a small generator has replaced."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch.nn import functional as F

from headstart.batch import IGNORE, Batch, Row
from headstart.config import ModelConfig
from headstart.models.model import HeadSpec, Model
from headstart.objectives.base import Loss, Vocabulary
from headstart.objectives.masked_lm import MaskedLM
from headstart.objectives.masking import token_kinds


@dataclass(frozen=True)
class Electra(MaskedLM):
    """Ask of every token whether a generator put it there; the generator learns beside (Clark et al., 2020)."""

    name: ClassVar[str] = "replaced-token"
    bodies: ClassVar[tuple[str, ...]] = ("bidirectional", "bi-lstm", "cnn")
    mask_token_prob: Annotated[float, Field(ge=0, le=1)] = 1.0
    random_token_prob: Annotated[float, Field(ge=0, le=1)] = 0.0
    generator_size: Annotated[float, Field(gt=0, le=1)] = 0.5
    discriminator_weight: Annotated[float, Field(gt=0)] = 20.0

    def heads(self, body: ModelConfig, vocab_size: int, classes: int) -> dict[str, HeadSpec]:
        """The generator, and the head that judges each token."""
        generator = HeadSpec("generator", vocab_size, {"share": self.generator_size})
        return {"generator": generator, "replaced": HeadSpec("replaced", 1)}

    def collate(self, rows: Sequence[Row], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """Masked tokens for the generator; the label of every ordinary token is the token that stood there."""
        batch = super().collate(rows, vocabulary, rng)
        assert batch.asked is not None
        is_special, _ = token_kinds(vocabulary.size, vocabulary.special_ids)
        original = batch.tokens.flatten().index_put((batch.asked,), batch.labels["lm"]).view_as(batch.tokens)
        judged = original.masked_fill(~batch.real | is_special[original], IGNORE)
        labels = {"generator": batch.labels["lm"], "replaced": judged}
        return replace(batch, labels=labels, at_asked=("generator",))

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """The generator's cross-entropy, and how well its replacements are told from what stood there."""
        assert batch.asked is not None
        wanted, original = batch.labels["generator"], batch.labels["replaced"]
        scores = model.heads["generator"](batch.tokens, batch, model.backbone).float()  # (N, V)
        guessing = Loss(
            F.cross_entropy(scores, wanted, reduction="sum"),
            wanted.numel(),
            (scores.argmax(-1) == wanted).sum(),
        )
        noise = -torch.empty_like(scores).exponential_().log()
        drawn = (scores.detach() + noise).argmax(dim=-1)  # (N,) a draw from the generator's own belief
        tokens = batch.tokens.flatten().index_put((batch.asked,), drawn).view_as(batch.tokens)
        judged = original != IGNORE
        answers = model.heads["replaced"](
            model.backbone(replace(batch, tokens=tokens)), batch, model.backbone
        ).float()[judged]
        truth = (tokens != original)[judged].float()
        total = F.binary_cross_entropy_with_logits(answers, truth, reduction="sum")
        finding = Loss(
            total, truth.numel(), ((answers > 0) == (truth > 0)).sum(), weight=self.discriminator_weight
        )
        return {"generator": guessing, "replaced": finding}
