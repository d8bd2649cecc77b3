"""Hide some tokens and ask for them back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from headstart.batch import Batch, Row, pad
from headstart.config import ModelConfig
from headstart.errors import ConfigError
from headstart.models.heads import language_head
from headstart.models.model import HeadSpec, Model
from headstart.objectives.base import Loss, Objective, Reads, Vocabulary, segments_of
from headstart.objectives.causal_lm import CausalLM
from headstart.objectives.cross_entropy import token_loss
from headstart.objectives.masking import UNITS, token_kinds


@dataclass(frozen=True)
class MaskedLM(Objective):
    """Ask for tokens that were hidden, changed or left as they are (Devlin et al., 2018)."""

    name: ClassVar[str] = "masked-lm"
    bodies: ClassVar[tuple[str, ...]] = ("bidirectional", "bi-lstm", "cnn")
    reads: ClassVar[Reads] = "blocks"
    mask_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    mask_token_prob: Annotated[float, Field(ge=0, le=1)] = 0.8
    random_token_prob: Annotated[float, Field(ge=0, le=1)] = 0.1
    masking: Literal["token", "word", "span"] = "token"

    def __post_init__(self) -> None:
        if self.mask_token_prob + self.random_token_prob > 1:
            raise ConfigError(
                f"hidden_share {self.mask_token_prob} and changed_share {self.random_token_prob} add up to more than 1",
                hint="what is left of 1 is the share of chosen tokens left as they are: 0.8 and 0.1 leave 0.1",
            )

    @property
    def loss_fraction(self) -> float:
        """The hidden positions."""
        return self.mask_rate

    def last_layer_fraction(self, body: ModelConfig, length: int) -> float:
        """Those that are asked, where the language-model head is the only one."""
        return self.loss_fraction if list(self.heads(body, 2, 0)) == ["lm"] else 1.0

    def heads(self, body: ModelConfig, vocab_size: int, classes: int) -> dict[str, HeadSpec]:
        """One language-model head."""
        return {"lm": HeadSpec("lm", vocab_size)}

    def choose(self, tokens: Tensor, real: Tensor, vocabulary: Vocabulary, rng: torch.Generator) -> Tensor:
        """Positions to ask for, as indices into the flattened batch: `rate` of all that may be hidden, never none."""
        is_special, _ = token_kinds(vocabulary.size, vocabulary.special_ids)
        may_hide = (real & ~is_special[tokens]).flatten()  # (B * T,)
        count = int(may_hide.sum())
        chosen = min(max(1, round(self.mask_rate * count)), count)
        starts = torch.ones(1, dtype=torch.bool)
        if self.masking == "word":
            starts = torch.from_numpy(vocabulary.word_starts)[tokens].flatten()
        return UNITS[self.masking](may_hide, starts, chosen, rng)  # (N,)

    def hide(
        self, tokens: Tensor, real: Tensor, vocabulary: Vocabulary, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """The tokens with some of them hidden or changed, and the positions (N,) that were chosen."""
        if vocabulary.mask is None:
            raise ConfigError(
                f"this tokenizer has no mask token, so {self.name} cannot hide anything",
                hint="use --objective causal-lm, or another --tokenizer",
            )
        places = self.choose(tokens, real, vocabulary, rng)
        labels = tokens.flatten()[places]
        _, ordinary = token_kinds(vocabulary.size, vocabulary.special_ids)
        others = ordinary[torch.randint(len(ordinary), labels.shape, generator=rng)]
        lot = torch.rand(labels.shape, generator=rng)
        shown = torch.where(lot < self.mask_token_prob, vocabulary.mask, labels)
        shown = torch.where(
            (lot >= self.mask_token_prob) & (lot < self.mask_token_prob + self.random_token_prob),
            others,
            shown,
        )
        return tokens.flatten().index_put((places,), shown).view_as(tokens), places

    def collate(self, rows: Sequence[Row], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """The rows with some tokens hidden; labels are the tokens at the asked positions alone."""
        tokens, real = pad([row.tokens for row in rows], vocabulary.padding)
        hidden, places = self.hide(tokens, real, vocabulary, rng)
        labels = {"lm": tokens.flatten()[places]}
        segments = segments_of(rows, real)
        return Batch(hidden, real, labels, places, bool(real.all()), segments, at_asked=("lm",))

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """Cross-entropy at the asked positions; the head computes nothing elsewhere."""
        return {"lm": masked_loss(model, model.backbone(batch, batch.asked), batch.labels["lm"])}


def masked_loss(model: Model, hidden: Tensor, labels: Tensor) -> Loss:
    """The language-model head's loss of the vectors (N, D) at the asked positions."""
    head = language_head(model.heads)
    weight, bias = head.projection(model.backbone.table)
    total, correct = token_loss(head.transformed(hidden), weight, bias, labels)
    return Loss(total, labels.numel(), correct)


@dataclass(frozen=True)
class CausalAndMasked(MaskedLM):
    """Ask each batch either question, `causal_share` of them the causal one (Charpentier and Samuel, 2024)."""

    name: ClassVar[str] = "causal+masked"
    bodies: ClassVar[tuple[str, ...]] = ("bidirectional",)
    causal_fraction: Annotated[float, Field(ge=0, le=1)] = 0.5

    @property
    def loss_fraction(self) -> float:
        """Every position of a causal batch, the hidden ones of a masked batch."""
        return self.causal_fraction + (1 - self.causal_fraction) * self.mask_rate

    def collate(self, rows: Sequence[Row], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """A causal batch or a masked one, as chance has it; labels are named for the question."""
        if float(torch.rand((), generator=rng)) < self.causal_fraction:
            batch = CausalLM().collate(rows, vocabulary, rng)
            return replace(batch, labels={"causal": batch.labels["lm"]}, is_causal=True)
        batch = super().collate(rows, vocabulary, rng)
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
