"""Weights averaged over training: judged and kept in place of the last step's (Izmailov et al., 2018)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from headstart.config import TrainingConfig
from headstart.models.model import Model


class WeightAverage:
    """The average of a model's weights; empty until there is something to average.

    `ema` moves towards the weights after every step and forgets what lies `average_epochs` epochs back. `last` is the
    mean of the weights at the ends of the last `average_epochs` epochs; until then the weights stand for themselves.
    """

    def __init__(self, training: TrainingConfig):
        self.kind, self.epochs = training.weight_averaging, training.averaging_epochs
        self.tensors: dict[str, Tensor] = {}

    @torch.no_grad()
    def take(
        self, model: Model, step: int, steps_in_epoch: int, is_epoch_end: bool, epochs_left: float, taken: int
    ) -> int:
        """Take the weights after `step` into the average; how many were taken with them, `taken` before."""
        if self.kind == "ema":
            # Early on the average is short, or it would hold on to weights that know nothing.
            decay = min(1 - 1 / max(1.0, self.epochs * steps_in_epoch), (1 + step) / (10 + step))
            self._move(model, 1 - decay)
            return taken + 1
        if self.kind == "last_epochs" and is_epoch_end and epochs_left < self.epochs - 1e-9:
            self._move(model, 1 / (taken + 1))
            return taken + 1
        return taken

    def _move(self, model: Model, share: float) -> None:
        """Make the weights `share` of the average."""
        for name, weight in model.state_dict().items():
            if name not in self.tensors:
                self.tensors[name] = weight.detach().clone()
            else:
                self.tensors[name].lerp_(weight, share)

    @contextmanager
    def shown(self, model: Model) -> Iterator[None]:
        """The average stands in the model; what stood there comes back bit for bit."""
        if not self.tensors:
            yield
            return
        own = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
        model.load_state_dict(self.tensors)
        try:
            yield
        finally:
            model.load_state_dict(own)
