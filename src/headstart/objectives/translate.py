"""Translate a text, asked for one token after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from headstart.batch import IGNORE, Batch, Row, marked_places, pad, rows_at
from headstart.config import BodyConfig
from headstart.errors import ConfigError
from headstart.models.heads import language_head
from headstart.models.model import HeadSpec, Model
from headstart.objectives.base import Alphabet, Loss, Objective, Reads
from headstart.objectives.cross_entropy import token_loss


@dataclass(frozen=True)
class Translate(Objective):
    """Ask at every token of a translation for the one after it, the source being known (Vaswani et al., 2017).

    Smoothing is for learning alone: marks on validation are of the plain loss. `best` names the mark by which the
    best weights are chosen; with `loss` nothing is decoded while training.
    """

    name: ClassVar[str] = "translate"
    bodies: ClassVar[tuple[str, ...]] = ("encoder-decoder",)
    reads: ClassVar[Reads] = "translations"
    looks_past: ClassVar[int] = 1
    asks_by_row: ClassVar[bool] = True
    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    best: Literal["bleu", "loss"] = "bleu"

    @property
    def asked_share(self) -> float:
        """Every position of the translation."""
        return 1.0

    def settle(self, body: BodyConfig) -> BodyConfig:
        """The body settings with `kind` decided; a pooler would have nothing to do."""
        if body.pooler:
            raise ConfigError("a translator has no use for a pooler", hint="set body.pooler=false")
        return super().settle(body)

    def heads(self, body: BodyConfig, vocabulary: int, classes: int) -> dict[str, HeadSpec]:
        """One language-model head without bias; tied, it reads the table of the translations' side."""
        return {"lm": HeadSpec("lm", vocabulary, {"bias": False})}

    def collate(self, rows: Sequence[Row], alphabet: Alphabet, rng: torch.Generator) -> Batch:
        """Framed sources beside framed translations: all tokens but the last as input, all but the first as labels."""
        tokens, real = pad([row.tokens for row in rows], alphabet.padding)
        sources = [row.source for row in rows if row.source is not None]
        assert len(sources) == len(rows), "a row to translate has a source"
        source, source_real = pad(sources, alphabet.padding)
        labels = tokens[:, 1:].masked_fill(~real[:, 1:], IGNORE)
        is_full = bool(real.all())
        return Batch(
            tokens[:, :-1].contiguous(),
            real[:, 1:],  # the last token of a text is no input, so what is read ends one earlier
            {"lm": labels},
            is_full=is_full,
            source=source,
            source_real=source_real,
            marked=None if is_full else (labels.flatten() != IGNORE).nonzero()[:, 0],
        )

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """Cross-entropy at every token of the translations, all of them in one pass."""
        hidden = model.body(batch).flatten(0, 1)  # (B * T, D)
        labels = batch.labels["lm"].flatten()  # (B * T,)
        if not batch.is_full:
            places = marked_places(batch, labels)
            hidden, labels = rows_at(hidden, places), labels[places]
        weight, bias = language_head(model.heads).projection(model.body.table)
        total, correct = token_loss(hidden, weight, bias, labels, self.smoothing if model.training else 0.0)
        return {"lm": Loss(total, labels.numel(), correct)}
