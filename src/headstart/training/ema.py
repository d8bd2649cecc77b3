"""Averages of the weights over training, used in place of the last step's (Izmailov et al., 2018)."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from headstart.config import TrainingConfig
from headstart.models.model import Model


class WeightAverage:
    """The average of a model's weights; empty until there is something to average.

    `ema` is updated after every step and looks back about `averaging_epochs` epochs. `last_epochs` is the mean of the
    weights at the ends of the last `averaging_epochs` epochs; before that the model's own weights are used.
    """

    def __init__(self, training: TrainingConfig):
        self.kind, self.epochs = training.weight_averaging, training.averaging_epochs
        self.tensors: dict[str, Tensor] = {}

    def update(
        self, model: Model, step: int, steps_in_epoch: int, is_epoch_end: bool, epochs_left: float, count: int
    ) -> int:
        """Add the weights after `step` to the average of `count` weights; returns the new count."""
        if self.kind == "ema":
            # The average is short at first, or it would retain the weights of before training.
            decay = min(1 - 1 / max(1.0, self.epochs * steps_in_epoch), (1 + step) / (10 + step))
            average = get_ema_multi_avg_fn(decay)
        elif self.kind == "last_epochs" and is_epoch_end and epochs_left < self.epochs - 1e-9:
            average = get_swa_multi_avg_fn()
        else:
            return count
        weights = model.state_dict()
        if self.tensors:
            average(list(self.tensors.values()), [weights[name] for name in self.tensors], count)
        else:
            self.tensors = {name: weight.detach().clone() for name, weight in weights.items()}
        return count + 1

    @contextmanager
    def applied_to(self, model: Model) -> Iterator[None]:
        """The model with averaged weights; its own are restored bit for bit."""
        if not self.tensors:
            yield
            return
        own = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
        model.load_state_dict(self.tensors)
        try:
            yield
        finally:
            model.load_state_dict(own)
