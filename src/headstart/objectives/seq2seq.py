"""Translate a text, asked for one token after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from headstart.batch import IGNORE, Batch, Row, marked_places, pad, rows_at
from headstart.config import ModelConfig
from headstart.errors import ConfigError
from headstart.models.heads import language_head
from headstart.models.model import HeadSpec, Model
from headstart.objectives.base import Loss, Objective, Reads, Vocabulary
from headstart.objectives.cross_entropy import divergence_in_pieces, token_loss


@dataclass(frozen=True)
class Seq2Seq(Objective):
    """Ask at every token of a translation for the one after it, the source being known (Vaswani et al., 2017).

    Smoothing is for learning alone: marks on validation are of the plain loss. `best` names the mark by which the
    best weights are chosen; with `loss` nothing is decoded while training. R-Drop reads each batch twice under other
    dropout, and `r_drop` weighs how far the two answers are apart (Liang et al., 2021).
    """

    name: ClassVar[str] = "translate"
    bodies: ClassVar[tuple[str, ...]] = ("encoder-decoder",)
    reads: ClassVar[Reads] = "translations"
    lookahead: ClassVar[int] = 1
    is_rowwise: ClassVar[bool] = True
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    metric_for_best_model: Literal["bleu", "loss"] = "bleu"
    r_drop_alpha: Annotated[float, Field(ge=0)] = 0.0

    @property
    def num_forward(self) -> int:
        """Two under R-Drop."""
        return 2 if self.r_drop_alpha else 1

    @property
    def loss_fraction(self) -> float:
        """Every position of the translation."""
        return 1.0

    def resolve_backbone(self, body: ModelConfig) -> ModelConfig:
        """The body settings with `kind` decided; a pooler, or R-Drop without dropout, would have nothing to do."""
        if self.r_drop_alpha and not (body.dropout or body.attention_dropout):
            raise ConfigError(
                "objective.r_drop_alpha compares two passes that differ by dropout, and there is no dropout",
                hint="set model.dropout=0.3, or leave objective.r_drop_alpha out",
            )
        if body.pooler:
            raise ConfigError("a translator has no use for a pooler", hint="set model.pooler=false")
        return super().resolve_backbone(body)

    def heads(self, body: ModelConfig, vocab_size: int, classes: int) -> dict[str, HeadSpec]:
        """One language-model head without bias; tied, it reads the table of the translations' side."""
        return {"lm": HeadSpec("lm", vocab_size, {"bias": False})}

    def collate(self, rows: Sequence[Row], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """Framed sources beside framed translations: all tokens but the last as input, all but the first as labels."""
        tokens, real = pad([row.tokens for row in rows], vocabulary.padding)
        sources = [row.source for row in rows if row.source is not None]
        assert len(sources) == len(rows), "a row to translate has a source"
        source, source_real = pad(sources, vocabulary.padding)
        labels = tokens[:, 1:].masked_fill(~real[:, 1:], IGNORE)
        is_full = bool(real.all())
        return Batch(
            tokens[:, :-1].contiguous(),
            real[:, 1:],  # the last token of a text is no input, so what is read ends one earlier
            {"lm": labels, "agreement": labels} if self.r_drop_alpha else {"lm": labels},
            is_full=is_full,
            source=source,
            source_real=source_real,
            marked=None if is_full else (labels.flatten() != IGNORE).nonzero()[:, 0],
        )

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """Cross-entropy at every token of the translations, all of them in one pass; under R-Drop of two passes in
        training, and how far they are apart.
        """
        hidden, labels, first = self._answer(model, batch)
        if not (self.r_drop_alpha and model.training):
            return {"lm": first}
        again, _, second = self._answer(model, batch)
        weight, bias = language_head(model.heads).projection(model.backbone.table)
        both = Loss((first.total + second.total) / 2, first.count, first.correct)
        apart = divergence_in_pieces(hidden, again, weight, bias)
        return {
            "lm": both,
            "agreement": Loss(apart, labels.numel(), second.correct, weight=self.r_drop_alpha),
        }

    def _answer(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor, Loss]:
        """One pass: the hidden states (N, D) of the tokens that are asked for, those tokens, and the marks."""
        hidden = model.backbone(batch).flatten(0, 1)  # (B * T, D)
        labels = batch.labels["lm"].flatten()  # (B * T,)
        if not batch.is_full:
            places = marked_places(batch, labels)
            hidden, labels = rows_at(hidden, places), labels[places]
        weight, bias = language_head(model.heads).projection(model.backbone.table)
        total, correct = token_loss(
            hidden, weight, bias, labels, self.label_smoothing if model.training else 0.0
        )
        return hidden, labels, Loss(total, labels.numel(), correct)
