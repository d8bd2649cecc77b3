"""Token classification: a tag for each token of a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from headstart.batch import IGNORE, Batch, EncodedExample, pad
from headstart.config import ModelConfig
from headstart.models.model import HeadSpec
from headstart.objectives.base import ObjectiveCost, Vocabulary
from headstart.objectives.classification import Classification


@dataclass(frozen=True)
class TokenClassification(Classification):
    """Predict the tag of each token at the first of its sub-tokens (Devlin et al., 2018)."""

    name: ClassVar[str] = "token-classification"
    head: ClassVar[str] = "token"

    def heads(self, body: ModelConfig, vocab_size: int, classes: int) -> dict[str, HeadSpec]:
        """One head that predicts at every label."""
        return {"class": HeadSpec(self.head, classes, {"dropout": self.head_dropout})}

    def cost(self, body: ModelConfig, length: int) -> ObjectiveCost:
        """R-Drop makes two passes."""
        return ObjectiveCost(passes=2 if self.r_drop_alpha else 1)

    def collate(self, rows: Sequence[EncodedExample], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """Texts padded to the longest of them, with the tags of their tokens and where these are."""
        tokens, mask = pad([row.tokens for row in rows], vocabulary.pad_id)
        tags = pad([tags_of(row) for row in rows], IGNORE)[0].flatten()
        positions = (tags != IGNORE).nonzero()[:, 0]
        names = ("class", "agreement") if self.r_drop_alpha else ("class",)
        labels = dict.fromkeys(names, tags[positions])
        return Batch(tokens, mask, labels, positions, unpadded=bool(mask.all()), sparse_labels=names)


def tags_of(row: EncodedExample) -> np.ndarray:
    """The tag of each sub-token (T,), IGNORE where it has none; a row with one class has it everywhere."""
    return np.full(len(row.tokens), row.label or 0) if row.targets is None else row.targets
