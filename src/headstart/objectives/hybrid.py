"""One body that reads both ways: sometimes asked for the next token, sometimes for hidden ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from headstart.batch import Batch, Row
from headstart.models.model import Model
from headstart.objectives.base import Alphabet, Loss
from headstart.objectives.causal_lm import CausalLM
from headstart.objectives.masked_lm import MaskedLM


@dataclass(frozen=True)
class CausalAndMasked(MaskedLM):
    """Ask each batch either question, `causal_share` of them the causal one (Charpentier and Samuel, 2024)."""

    name: ClassVar[str] = "causal+masked"
    bodies: ClassVar[tuple[str, ...]] = ("bidirectional",)
    causal_share: Annotated[float, Field(ge=0, le=1)] = 0.5

    @property
    def asked_share(self) -> float:
        """Every position of a causal batch, the hidden ones of a masked batch."""
        return self.causal_share + (1 - self.causal_share) * self.rate

    def collate(self, rows: Sequence[Row], alphabet: Alphabet, rng: torch.Generator) -> Batch:
        """A causal batch or a masked one, as chance has it; labels are named for the question."""
        if float(torch.rand((), generator=rng)) < self.causal_share:
            batch = CausalLM().collate(rows, alphabet, rng)
            return replace(batch, labels={"causal": batch.labels["lm"]}, is_causal=True)
        batch = super().collate(rows, alphabet, rng)
        return replace(batch, labels={"masked": batch.labels["lm"]}, at_asked=("masked",))

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """The loss of the question that was asked; both answer through one head."""
        if batch.is_causal:
            return {
                "causal": CausalLM().losses(model, replace(batch, labels={"lm": batch.labels["causal"]}))[
                    "lm"
                ]
            }
        return {"masked": super().losses(model, replace(batch, labels={"lm": batch.labels["masked"]}))["lm"]}
