"""Does the second text follow the first? Alone, and summed with masked language modelling as in BERT."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from headstart.batch import Batch, Row, pad
from headstart.config import ModelConfig
from headstart.models.heads import asked
from headstart.models.model import HeadSpec, Model
from headstart.objectives.base import Loss, Objective, Reads, Vocabulary, segments_of
from headstart.objectives.masked_lm import MaskedLM, masked_loss

FOLLOWS, RANDOM = 0, 1  # the classes of a pair


def pair_loss(model: Model, hidden: Tensor, batch: Batch) -> Loss:
    """The pair head's loss, from `hidden` (B, T, D)."""
    scores, labels = model.heads["pair"](hidden, batch, model.backbone).float(), batch.labels["pair"]
    total = F.cross_entropy(scores, labels, reduction="sum")
    return Loss(total, labels.numel(), (scores.argmax(dim=-1) == labels).sum())


def pair_labels(rows: Sequence[Row]) -> Tensor:
    """The class of each pair; rows that are no pairs count as texts that follow themselves."""
    return torch.tensor([FOLLOWS if row.label is None else min(row.label, RANDOM) for row in rows])


@dataclass(frozen=True)
class NextSentence(Objective):
    """Ask whether two texts stood one after the other or were put together at random (Devlin et al., 2018)."""

    name: ClassVar[str] = "next-sentence"
    bodies: ClassVar[tuple[str, ...]] = ("bidirectional", "bi-lstm", "cnn")
    reads: ClassVar[Reads] = "pairs"
    is_rowwise: ClassVar[bool] = True
    nsp_unit: Literal["sentence", "line", "document"] = "sentence"

    def heads(self, body: ModelConfig, vocab_size: int, classes: int) -> dict[str, HeadSpec]:
        """One pair head."""
        return {"pair": HeadSpec("pair", 2)}

    def collate(self, rows: Sequence[Row], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """Pairs with their segments, and whether the second follows the first."""
        tokens, real = pad([row.tokens for row in rows], vocabulary.padding)
        full = bool(real.all())
        return Batch(
            tokens, real, {"pair": pair_labels(rows)}, is_full=full, segments=segments_of(rows, real)
        )

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """Cross-entropy over the two classes."""
        return {"pair": pair_loss(model, model.backbone(batch), batch)}


@dataclass(frozen=True)
class MaskedAndNextSentence(MaskedLM):
    """Ask both of BERT's questions about each pair; the loss is the sum of the two means."""

    name: ClassVar[str] = "masked-lm+next-sentence"
    reads: ClassVar[Reads] = "pairs"
    nsp_unit: Literal["sentence", "line", "document"] = "sentence"

    def heads(self, body: ModelConfig, vocab_size: int, classes: int) -> dict[str, HeadSpec]:
        """A language-model head and a pair head."""
        return {"lm": HeadSpec("lm", vocab_size), "pair": HeadSpec("pair", 2)}

    def collate(self, rows: Sequence[Row], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """Masked pairs with both kinds of labels."""
        batch = super().collate(rows, vocabulary, rng)
        batch.labels["pair"] = pair_labels(rows)
        return batch

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """Both losses, from one reading."""
        hidden = model.backbone(batch)
        return {
            "lm": masked_loss(model, asked(hidden, batch), batch.labels["lm"]),
            "pair": pair_loss(model, hidden, batch),
        }
