"""Hide some tokens and ask for them back."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from headstart.batch import Batch, Row, pad
from headstart.config import BodyConfig
from headstart.errors import ConfigError
from headstart.models.heads import asked, language_head
from headstart.models.model import HeadSpec, Model
from headstart.objectives.base import Alphabet, Loss, Objective
from headstart.objectives.cross_entropy import token_loss


@lru_cache(maxsize=8)
def _kinds(size: int, special_ids: frozenset[int]) -> tuple[Tensor, Tensor]:
    """Which ids are special (V,), and the ids that are not."""
    is_special = torch.zeros(size, dtype=torch.bool)
    is_special[list(special_ids)] = True
    return is_special, (~is_special).nonzero()[:, 0]


@dataclass(frozen=True)
class MaskedLM(Objective):
    """Ask for tokens that were hidden, changed or left as they are (Devlin et al., 2018)."""

    name: ClassVar[str] = "masked-lm"
    bodies: ClassVar[tuple[str, ...]] = ("bidirectional",)
    reads: ClassVar[Literal["blocks", "texts"]] = "blocks"
    rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    hidden_share: Annotated[float, Field(ge=0, le=1)] = 0.8
    changed_share: Annotated[float, Field(ge=0, le=1)] = 0.1

    def __post_init__(self) -> None:
        if self.hidden_share + self.changed_share > 1:
            raise ConfigError(
                f"hidden_share {self.hidden_share} and changed_share {self.changed_share} add up to more than 1",
                hint="what is left of 1 is the share of chosen tokens left as they are: 0.8 and 0.1 leave 0.1",
            )

    def heads(self, body: BodyConfig, vocabulary: int, classes: int) -> dict[str, HeadSpec]:
        """One language-model head."""
        return {"lm": HeadSpec("lm", vocabulary)}

    def choose(self, tokens: Tensor, real: Tensor, alphabet: Alphabet, rng: torch.Generator) -> Tensor:
        """Positions to ask for, as indices into the flattened batch: `rate` of all that may be hidden, never none."""
        is_special, _ = _kinds(alphabet.size, alphabet.special_ids)
        may_hide = real & ~is_special[tokens]  # (B, T)
        count = int(may_hide.sum())
        lot = torch.rand(tokens.shape, generator=rng).masked_fill(~may_hide, 2.0).flatten()
        chosen = min(max(1, round(self.rate * count)), count)
        return lot.argsort()[:chosen].sort().values  # (N,)

    def collate(self, rows: Sequence[Row], alphabet: Alphabet, rng: torch.Generator) -> Batch:
        """The rows with some tokens hidden; labels are the tokens at the asked positions alone."""
        if alphabet.mask is None:
            raise ConfigError(
                "this tokenizer has no mask token, so masked-lm cannot hide anything",
                hint="use --objective causal-lm, or another --tokenizer",
            )
        tokens, real = pad([torch.from_numpy(row.tokens).long() for row in rows], alphabet.padding)
        places = self.choose(tokens, real, alphabet, rng)
        labels = tokens.flatten()[places]
        _, ordinary = _kinds(alphabet.size, alphabet.special_ids)
        others = ordinary[torch.randint(len(ordinary), labels.shape, generator=rng)]
        lot = torch.rand(labels.shape, generator=rng)
        shown = torch.where(lot < self.hidden_share, alphabet.mask, labels)
        shown = torch.where(
            (lot >= self.hidden_share) & (lot < self.hidden_share + self.changed_share), others, shown
        )
        tokens = tokens.flatten().index_put((places,), shown).view_as(tokens)
        return Batch(tokens, real, {"lm": labels}, asked=places, is_full=bool(real.all()))

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """Cross-entropy at the asked positions; the head computes nothing elsewhere."""
        hidden = asked(model.body(batch), batch)  # (N, D)
        labels = batch.labels["lm"]
        weight, bias = language_head(model.heads).projection(model.body.table)
        total, correct = token_loss(hidden, weight, bias, labels)
        return {"lm": Loss(total, labels.numel(), correct)}
