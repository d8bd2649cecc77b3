"""Masked language modelling of tokens, whole words or spans, and its hybrid with causal language modelling."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

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
    language_model_loss,
    segments_of,
)
from headstart.objectives.causal_lm import next_token_batch, vectors_with_labels

SPAN_END = 0.2  # probability that a span ends after each token (Joshi et al., 2019)
LONGEST_SPAN = 10


@lru_cache(maxsize=8)
def token_kinds(size: int, special_ids: frozenset[int]) -> tuple[Tensor, Tensor]:
    """Which ids are special (V,), and the ids that are not."""
    is_special = torch.zeros(size, dtype=torch.bool)
    is_special[list(special_ids)] = True
    return is_special, (~is_special).nonzero()[:, 0]


def lowest(values: Tensor, count: int) -> Tensor:
    """The indices of the `count` lowest of (N,) values in ascending order; of equal values the first. Without sorting."""
    if count == 0:
        return torch.zeros(0, dtype=torch.long)
    array = values.numpy()
    threshold = np.partition(array, count - 1)[count - 1]
    is_low = array <= threshold
    surplus = int(np.count_nonzero(is_low)) - count
    if surplus:
        is_low[np.flatnonzero(array == threshold)[-surplus:]] = False
    return torch.from_numpy(np.flatnonzero(is_low))


def choose_tokens(may_hide: Tensor, starts: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """`count` positions, each equally likely."""
    lot = torch.rand(may_hide.shape, generator=rng).masked_fill(~may_hide, 2.0)
    return lowest(lot, count)


def choose_words(may_hide: Tensor, starts: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Positions of whole words, drawn at random until `count` is reached; `starts` begin a word, and the last is cut."""
    starts = starts | ~may_hide | torch.cat((torch.ones(1, dtype=torch.bool), ~may_hide[:-1]))
    groups = starts.long().cumsum(0) - 1
    number = int(groups.max()) + 1
    order = torch.rand(number, generator=rng)[groups].masked_fill(~may_hide, 2.0)
    return lowest(order, count)


def choose_spans(may_hide: Tensor, starts: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Positions of spans of geometric length."""
    ends = torch.rand(may_hide.shape, generator=rng) < SPAN_END
    ends[LONGEST_SPAN - 1 :: LONGEST_SPAN] = True
    return choose_words(may_hide, torch.cat((torch.ones(1, dtype=torch.bool), ends[:-1])), count, rng)


MASKING: dict[str, Callable[[Tensor, Tensor, int, torch.Generator], Tensor]] = {
    "token": choose_tokens,
    "word": choose_words,
    "span": choose_spans,
}


@dataclass(frozen=True)
class MaskedLM(Objective):
    """Predict tokens that were masked, replaced or left as they are (Devlin et al., 2018)."""

    name: ClassVar[str] = "masked-lm"
    architectures: ClassVar[tuple[str, ...]] = ("bidirectional", "bi-lstm", "cnn")
    reads: ClassVar[Reads] = "blocks"
    mask_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    mask_token_prob: Annotated[float, Field(ge=0, le=1)] = 0.8
    random_token_prob: Annotated[float, Field(ge=0, le=1)] = 0.1
    masking: Literal["token", "word", "span"] = "token"

    def __post_init__(self) -> None:
        if self.mask_token_prob + self.random_token_prob > 1:
            raise ConfigError(
                f"mask_token_prob {self.mask_token_prob} and random_token_prob {self.random_token_prob} add up to more than 1",
                hint="the rest of the chosen tokens is not changed: 0.8 and 0.1 leave 0.1",
            )

    def cost(self, body: ModelConfig, length: int) -> ObjectiveCost:
        """Hidden positions have a label; where no other head reads the text, the last block computes those alone."""
        has_one_head = list(self.heads(body, 2, 0)) == ["lm"]
        return ObjectiveCost(self.mask_rate, self.mask_rate if has_one_head else 1.0)

    def heads(self, body: ModelConfig, vocab_size: int, classes: int) -> dict[str, HeadSpec]:
        """One language-model head."""
        return {"lm": HeadSpec("lm", vocab_size)}

    def choose(self, tokens: Tensor, mask: Tensor, vocabulary: Vocabulary, rng: torch.Generator) -> Tensor:
        """Positions to predict (N,), indices into the flattened batch: `mask_rate` of all that may be masked, at least one."""
        is_special, _ = token_kinds(vocabulary.size, vocabulary.special_ids)
        may_hide = (mask & ~is_special[tokens]).flatten()  # (B * T,)
        available = int(may_hide.sum())
        count = min(max(1, round(self.mask_rate * available)), available)
        starts = torch.ones(1, dtype=torch.bool)
        if self.masking == "word":
            starts = torch.from_numpy(vocabulary.word_starts)[tokens].flatten()
        return MASKING[self.masking](may_hide, starts, count, rng)

    def hide(self, tokens: Tensor, mask: Tensor, vocabulary: Vocabulary, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """The tokens with some of them masked or replaced, and the positions (N,) that were chosen."""
        if vocabulary.mask_id is None:
            raise ConfigError(
                f"this tokenizer has no mask token, so {self.name} cannot hide anything",
                hint="use --objective causal-lm, or another --tokenizer",
            )
        positions = self.choose(tokens, mask, vocabulary, rng)
        labels = tokens.flatten()[positions]
        _, ordinary = token_kinds(vocabulary.size, vocabulary.special_ids)
        others = ordinary[torch.randint(len(ordinary), labels.shape, generator=rng)]
        lot = torch.rand(labels.shape, generator=rng)
        shown = torch.where(lot < self.mask_token_prob, vocabulary.mask_id, labels)
        is_replaced = (lot >= self.mask_token_prob) & (lot < self.mask_token_prob + self.random_token_prob)
        shown = torch.where(is_replaced, others, shown)
        return tokens.flatten().index_put((positions,), shown).view_as(tokens), positions

    def collate(self, rows: Sequence[EncodedExample], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """The rows with some tokens hidden; labels are the tokens at those positions."""
        tokens, mask = pad([row.tokens for row in rows], vocabulary.pad_id)
        hidden, positions = self.hide(tokens, mask, vocabulary, rng)
        labels = {"lm": tokens.flatten()[positions]}
        unpadded = bool(mask.all())
        return Batch(hidden, mask, labels, positions, unpadded, segments_of(rows), sparse_labels=("lm",))

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """Cross-entropy at the hidden positions; the head computes nothing elsewhere."""
        hidden = model.backbone(batch, batch.label_positions)  # (N, D)
        return {"lm": language_model_loss(model, hidden, batch.labels["lm"])}


@dataclass(frozen=True)
class CausalAndMasked(MaskedLM):
    """Masked language modelling with a fraction of causal batches (Charpentier and Samuel, 2024)."""

    name: ClassVar[str] = "causal+masked"
    architectures: ClassVar[tuple[str, ...]] = ("bidirectional",)
    causal_fraction: Annotated[float, Field(ge=0, le=1)] = 0.5

    def cost(self, body: ModelConfig, length: int) -> ObjectiveCost:
        """Every position of a causal batch, the hidden ones of a masked batch."""
        fraction = self.causal_fraction + (1 - self.causal_fraction) * self.mask_rate
        return ObjectiveCost(fraction, fraction)

    def collate(self, rows: Sequence[EncodedExample], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """A causal batch or a masked one, drawn at random; the name of its labels says which."""
        if float(torch.rand((), generator=rng)) < self.causal_fraction:
            return replace(next_token_batch(rows, vocabulary.pad_id, "causal"), is_causal=True)
        batch = super().collate(rows, vocabulary, rng)
        return replace(batch, labels={"masked": batch.labels["lm"]}, sparse_labels=("masked",))

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """The loss of either kind of batch; both use one head."""
        if batch.is_causal:
            return {"causal": language_model_loss(model, *vectors_with_labels(model, batch, "causal"))}
        return {"masked": super().losses(model, replace(batch, labels={"lm": batch.labels["masked"]}))["lm"]}
