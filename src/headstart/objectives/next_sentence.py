"""Next sentence prediction: alone, and summed with masked language modelling as in BERT."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from headstart.batch import Batch, EncodedExample, pad
from headstart.config import ModelConfig
from headstart.models.heads import at_label_positions
from headstart.models.model import HeadSpec, Model
from headstart.objectives.base import Loss, Objective, Reads, Vocabulary, class_loss, language_model_loss, segments_of
from headstart.objectives.masked_lm import MaskedLM

NEXT, RANDOM = 0, 1  # the classes of a pair


def pair_loss(model: Model, hidden: Tensor, batch: Batch) -> Loss:
    """The pair head's loss, from `hidden` (B, T, D)."""
    return class_loss(model.heads["pair"](hidden, batch, model.backbone), batch.labels["pair"])


def pair_labels(rows: Sequence[EncodedExample]) -> Tensor:
    """The class of each pair; a row that is not a pair has the class NEXT."""
    return torch.tensor([NEXT if row.label is None else min(row.label, RANDOM) for row in rows])


@dataclass(frozen=True)
class NextSentence(Objective):
    """Classify whether two texts are neighbours or were paired at random (Devlin et al., 2018)."""

    name: ClassVar[str] = "next-sentence"
    architectures: ClassVar[tuple[str, ...]] = ("bidirectional", "bi-lstm", "cnn")
    reads: ClassVar[Reads] = "pairs"
    is_rowwise: ClassVar[bool] = True
    nsp_unit: Literal["sentence", "line", "document"] = "sentence"

    def heads(self, body: ModelConfig, vocab_size: int, classes: int) -> dict[str, HeadSpec]:
        """One pair head."""
        return {"pair": HeadSpec("pair", 2)}

    def collate(self, rows: Sequence[EncodedExample], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """Pairs with their segments and classes."""
        tokens, mask = pad([row.tokens for row in rows], vocabulary.pad_id)
        labels = {"pair": pair_labels(rows)}
        return Batch(tokens, mask, labels, unpadded=bool(mask.all()), segments=segments_of(rows))

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """Cross-entropy over the two classes."""
        return {"pair": pair_loss(model, model.backbone(batch), batch)}


@dataclass(frozen=True)
class MaskedAndNextSentence(MaskedLM):
    """Both objectives of BERT on each pair; the loss is the sum of the two means."""

    name: ClassVar[str] = "masked-lm+next-sentence"
    reads: ClassVar[Reads] = "pairs"
    nsp_unit: Literal["sentence", "line", "document"] = "sentence"

    def heads(self, body: ModelConfig, vocab_size: int, classes: int) -> dict[str, HeadSpec]:
        """A language-model head and a pair head."""
        return {"lm": HeadSpec("lm", vocab_size), "pair": HeadSpec("pair", 2)}

    def collate(self, rows: Sequence[EncodedExample], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """Masked pairs with both kinds of labels."""
        batch = super().collate(rows, vocabulary, rng)
        batch.labels["pair"] = pair_labels(rows)
        return batch

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """Both losses, from one forward pass."""
        hidden = model.backbone(batch)
        return {
            "lm": language_model_loss(model, at_label_positions(hidden, batch), batch.labels["lm"]),
            "pair": pair_loss(model, hidden, batch),
        }
