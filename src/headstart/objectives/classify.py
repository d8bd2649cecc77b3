"""Name the class of a text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from headstart.batch import Batch, Row, pad
from headstart.config import BodyConfig
from headstart.errors import ConfigError
from headstart.models.model import HeadSpec, Model
from headstart.objectives.base import Alphabet, Loss, Objective, Reads
from headstart.objectives.cross_entropy import divergence
from headstart.objectives.push import Chance, turned, worst_push


@dataclass(frozen=True)
class Classify(Objective):
    """Ask for the label of each text; `auto` pools what the body knows best: causal last, bidirectional mean.

    `r_drop` weighs how far two passes with different dropout are apart (Liang et al., 2021); `adversarial`, how far an
    answer turns when the text's vectors are pushed by `reach` of their length the way that turns it most (Miyato et al., 2017).
    """

    name: ClassVar[str] = "classify"
    bodies: ClassVar[tuple[str, ...]] = ("bidirectional", "causal", "bi-lstm", "cnn")
    reads: ClassVar[Reads] = "texts"
    asks_by_row: ClassVar[bool] = True
    pooling: Literal["auto", "last", "mean", "max", "mean+max", "first", "pooler"] = "auto"
    projection: Literal["auto", "linear", "dense"] = "auto"
    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    r_drop: Annotated[float, Field(ge=0)] = 0.0
    adversarial: Annotated[float, Field(ge=0)] = 0.0
    reach: Annotated[float, Field(gt=0)] = 0.005

    @property
    def passes(self) -> int:
        """One more under R-Drop, and two more to look for a push and to feel it."""
        return 1 + bool(self.r_drop) + 2 * bool(self.adversarial)

    @property
    def kept_passes(self) -> int:
        """The search for a push is over before the push is felt."""
        return self.passes - bool(self.adversarial)

    @property
    def needs_plain_body(self) -> bool:
        """A push is looked for in the body's own vectors, by passes that drop out the very same."""
        return bool(self.adversarial)

    def settle(self, body: BodyConfig) -> BodyConfig:
        """The body settings with `kind` decided; a pooling that the body lacks, or R-Drop without dropout, is refused."""
        if self.r_drop and not (body.dropout or body.attention_dropout or self.dropout):
            raise ConfigError(
                "objective.r_drop compares two passes that differ by dropout, and there is no dropout",
                hint="set body.dropout=0.1, or leave objective.r_drop out",
            )
        if self.pooling == "pooler" and not body.pooler:
            raise ConfigError(
                "this body has no pooler", hint="set objective.pooling=mean, or body.pooler=true"
            )
        return super().settle(body)

    def heads(self, body: BodyConfig, vocabulary: int, classes: int) -> dict[str, HeadSpec]:
        """One classification head, of the form that suits the body."""
        is_causal = body.kind == "causal"
        pooling = self.pooling if self.pooling != "auto" else ("last" if is_causal else "mean")
        projection = self.projection if self.projection != "auto" else ("linear" if is_causal else "dense")
        return {
            "class": HeadSpec(
                "class", classes, {"pooling": pooling, "projection": projection, "dropout": self.dropout}
            )
        }

    def finished_share(self, body: BodyConfig, length: int) -> float:
        """One position a text where the head reads no more."""
        return 1 / length if self.heads(body, 2, 2)["class"].settings["pooling"] in ("last", "first") else 1.0

    def collate(self, rows: Sequence[Row], alphabet: Alphabet, rng: torch.Generator) -> Batch:
        """Texts padded to the longest of them, with their classes where they are known."""
        tokens, real = pad([row.tokens for row in rows], alphabet.padding)
        known = [row.label for row in rows if row.label is not None]
        labels = {"class": torch.tensor(known)} if len(known) == len(rows) else {}
        for name, weight in (("agreement", self.r_drop), ("push", self.adversarial)):
            if weight and labels:
                labels[name] = labels["class"]
        return Batch(tokens, real, labels, is_full=bool(real.all()))

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """Cross-entropy over the classes; in training also how far further passes are from the first, where asked."""
        chance = Chance(batch.tokens.device) if self.adversarial and model.training else None
        scores, first = self._answer(model, batch)
        found = {"class": first}
        if self.r_drop and model.training:
            again, second = self._answer(model, batch)
            found["class"] = replace(first, total=(first.total + second.total) / 2)
            found["agreement"] = replace(second, total=divergence(scores, again), weight=self.r_drop)
        if chance is not None:
            shift = worst_push(model, batch, scores, self.reach, chance)
            with chance.again():  # what dropout would turn is not what the push turns
                pushed = model(replace(batch, shift=shift))["class"].float()  # (B, C)
            right = (pushed.argmax(dim=-1) == batch.labels["class"]).sum()
            found["push"] = Loss(turned(scores, pushed), first.count, right, weight=self.adversarial)
        return found

    def _answer(self, model: Model, batch: Batch) -> tuple[Tensor, Loss]:
        """One pass: the scores (B, C), and how they are marked."""
        scores, labels = model(batch)["class"].float(), batch.labels["class"]  # (B, C), (B,)
        total = F.cross_entropy(scores, labels, reduction="sum", label_smoothing=self.smoothing)
        return scores, Loss(total, labels.numel(), (scores.argmax(dim=-1) == labels).sum())
