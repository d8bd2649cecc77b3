"""Multi-label classification: any number of labels for a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.batch import EncodedExample
from headstart.objectives.base import Loss
from headstart.objectives.classification import Classification


@dataclass(frozen=True)
class MultiLabel(Classification):
    """Predict for each label whether a text has it: binary cross-entropy, the mean over labels and texts."""

    name: ClassVar[str] = "multi-label"

    def labels_of(self, rows: Sequence[EncodedExample]) -> Tensor | None:
        """0 or 1 for each label (B, C); without these, the index of each row's only label (B,)."""
        targets = [row.targets for row in rows if row.targets is not None]
        return torch.from_numpy(np.stack(targets)).float() if len(targets) == len(rows) else super().labels_of(rows)

    def criterion(self, logits: Tensor, labels: Tensor, head: nn.Module) -> Loss:
        """The binary cross-entropy of logits (B, C); a decision is correct on the right side of 0."""
        truth = F.one_hot(labels.long(), logits.shape[1]).float() if labels.ndim == 1 else labels
        smoothed = truth * (1 - self.label_smoothing) + self.label_smoothing / 2
        share = labels.numel() / logits.numel()  # of a decision in the count
        loss = F.binary_cross_entropy_with_logits(logits, smoothed, reduction="sum") * share
        correct = ((logits.detach() > 0) == (truth > 0.5)).sum() * share
        return Loss(loss, labels.numel(), correct)

    def divergence(self, first: Tensor, second: Tensor) -> Tensor:
        """The symmetric Kullback-Leibler divergence of the decisions, summed."""
        return ((first.sigmoid() - second.sigmoid()) * (first - second)).sum() / 2

    def activate(self, logits: Tensor) -> Tensor:
        """The probability of each label (N, C)."""
        return logits.sigmoid()
