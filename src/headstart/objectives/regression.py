"""Regression: a number for each text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.batch import EncodedExample
from headstart.config import ModelConfig
from headstart.errors import ConfigError
from headstart.models.heads import RegressionHead
from headstart.objectives.base import Loss
from headstart.objectives.classification import Classification

CLOSE = 0.5  # standard deviations, within which the training log counts a prediction as correct


@dataclass(frozen=True)
class Regression(Classification):
    """Predict a number: mean squared error, in standard deviations of the training labels."""

    name: ClassVar[str] = "regression"
    head: ClassVar[str] = "regression"

    def resolve_backbone(self, body: ModelConfig) -> ModelConfig:
        """The model settings with a known `architecture`; label smoothing is for classes."""
        if self.label_smoothing:
            raise ConfigError("objective.label_smoothing is for classes, and regression has none", hint="leave it out")
        return super().resolve_backbone(body)

    def labels_of(self, rows: Sequence[EncodedExample]) -> Tensor | None:
        """The number of each row (B,)."""
        targets = [row.targets for row in rows if row.targets is not None]
        return (
            torch.from_numpy(np.concatenate(targets)).float() if len(targets) == len(rows) else super().labels_of(rows)
        )

    def criterion(self, logits: Tensor, labels: Tensor, head: nn.Module) -> Loss:
        """The squared error of predictions (B, 1)."""
        assert isinstance(head, RegressionHead)
        found, truth = head.standardized(logits)[:, 0], head.standardized(labels[:, None].float())[:, 0]
        correct = ((found.detach() - truth).abs() < CLOSE).sum()
        return Loss(F.mse_loss(found, truth, reduction="sum"), labels.numel(), correct)

    def divergence(self, first: Tensor, second: Tensor) -> Tensor:
        """The squared difference of two predictions, summed."""
        return F.mse_loss(first, second, reduction="sum") / 2

    def activate(self, logits: Tensor) -> Tensor:
        """The predicted numbers (N, 1)."""
        return logits
