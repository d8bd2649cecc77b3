"""How weights change: the optimizer, its learning rate over a run, which layers are trained, and averages of weights."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from headstart.config import LrScheduleConfig, OptimizerConfig, TrainingConfig
from headstart.errors import pick
from headstart.models.model import Model

if TYPE_CHECKING:
    from headstart.training.trainer import SingleDevice


class Optimizers:
    """One or two torch optimizers that act as one; each group's learning rate is `lr_scale` times the run's."""

    def __init__(self, parts: list[torch.optim.Optimizer]):
        self.parts = parts
        for group in self.groups():
            group["lr_scale"] = group["lr"]

    def groups(self) -> list[dict[str, Any]]:
        """All parameter groups."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self, learning_rate: float) -> None:
        """Update the weights, and drop the gradients."""
        for group in self.groups():
            group["lr"] = learning_rate * group["lr_scale"]
        for part in self.parts:
            part.step()
            part.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """The state of the optimizers as tensors by name."""
        return {
            f"{number}.{index}.{key}": torch.as_tensor(value)
            for number, part in enumerate(self.parts)
            for index, state in part.state_dict()["state"].items()
            for key, value in state.items()
        }

    def weight_of(self, name: str) -> Tensor:
        """The weight that a named tensor of the state belongs to."""
        number, index, _ = name.split(".", 2)
        weights = [weight for group in self.parts[int(number)].param_groups for weight in group["params"]]
        output: Tensor = weights[int(index)]
        return output

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state that `tensors` returned."""
        states: list[dict[int, dict[str, Tensor]]] = [{} for _ in self.parts]
        for name, value in tensors.items():
            number, index, key = name.split(".", 2)
            states[int(number)].setdefault(int(index), {})[key] = value
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict({**part.state_dict(), "state": state})


def _layer_of(name: str, model: Model) -> int | None:
    """The layer of a weight, counted from the embedding; None for heads."""
    part, rest = name.split(".", 1)
    return model.backbone.layer_of(rest) if part == "backbone" else None


def make_optimizer(model: Model, config: OptimizerConfig, strategy: "SingleDevice | None" = None) -> Optimizers:
    """The optimizer of the settings; vectors have no weight decay. Under FSDP2 Muon needs the `strategy`.

    The learning rate falls by `layerwise_lr_decay` from the top block down; heads have `head_lr_multiplier`.
    """
    plain: dict[tuple[float, float], list[nn.Parameter]] = {}
    matrices: dict[float, list[nn.Parameter]] = {}
    top = model.backbone.depth
    for name, weight in model.named_parameters():
        layer = _layer_of(name, model)
        scale = config.head_lr_multiplier
        if layer is not None:
            scale = config.layerwise_lr_decay ** (top - min(layer, top))
        is_in_block = re.match(r"backbone\.(stack|encoder|decoder)\.blocks\.", name) is not None
        if config.name == "muon" and is_in_block and weight.ndim == 2:
            matrices.setdefault(scale, []).append(weight)
        else:
            decay = config.weight_decay if weight.ndim >= 2 else 0.0
            plain.setdefault((scale, decay), []).append(weight)
    rule = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    groups = [{"params": each, "lr": scale, "weight_decay": decay} for (scale, decay), each in plain.items()]
    parts: list[torch.optim.Optimizer] = [rule(groups, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)]
    if matrices:
        from headstart.training.muon import Muon

        muon = [{"params": each, "lr": scale} for scale, each in matrices.items()]
        parts.append(Muon(muon, momentum=config.momentum, weight_decay=config.weight_decay, strategy=strategy))
    return Optimizers(parts)


def set_trainable_layers(model: Model, freeze: bool, unfreeze_every: float | None, epoch: float) -> None:
    """Set which weights are trained: all, the heads, or the heads and the top blocks that are unfrozen by `epoch`."""
    top, lowest = model.backbone.depth, 0
    if unfreeze_every is not None:
        lowest = max(0, top + 1 - int(epoch / unfreeze_every))
    for name, weight in model.named_parameters():
        layer = _layer_of(name, model)
        weight.requires_grad_(layer is None or (not freeze and layer >= lowest))


# --- The learning rate over a run ---------------------------------------------------------------------------------------

# The factor after the warmup, by the fraction of the budget that is spent, the fraction of what is left after the warmup,
# and the multiple of the warmup (1 = it ends here).
SCHEDULES: dict[str, Callable[[LrScheduleConfig, float, float, float], float]] = {
    "constant": lambda config, progress, decayed, warmed: 1.0,
    "linear": lambda config, progress, decayed, warmed: 1 - (1 - config.min_lr_ratio) * decayed,
    "cosine": lambda config, progress, decayed, warmed: (
        config.min_lr_ratio + (1 - config.min_lr_ratio) * (0.5 * (1 + math.cos(math.pi * decayed)))
    ),
    # Constant, then linear decay over the last `decay_ratio` of the budget.
    "warmup-stable-decay": lambda config, progress, decayed, warmed: (
        config.min_lr_ratio + (1 - config.min_lr_ratio) * min(1.0, (1 - progress) / max(config.decay_ratio, 1e-12))
    ),
    # With the square root of the steps taken, whatever the budget (Vaswani et al., 2017).
    "inverse-square-root": lambda config, progress, decayed, warmed: 1 / math.sqrt(max(1.0, warmed)),
}
SCHEDULES["slanted-triangular"] = SCHEDULES["linear"]  # short warmup, long decay (Howard and Ruder, 2018)


def lr_factor(progress: float, config: LrScheduleConfig, step: int = 0) -> float:
    """The factor of the learning rate at `progress`, after `step` steps; it is above 0 at the first step."""
    progress = min(max(progress, 0.0), 1.0)
    if config.warmup_steps is None:
        warmup = config.warmup_ratio
        warmed = progress / warmup if warmup else math.inf
    else:  # steps as a fraction, at the pace so far
        warmup = min(1.0, progress * config.warmup_steps / max(1, step))
        warmed = (step + 1) / config.warmup_steps
    if warmed < 1:
        return max(warmed, 1e-3)
    decayed = min(1.0, max(0.0, (progress - warmup) / max(1 - warmup, 1e-12)))
    return max(0.0, pick(SCHEDULES, config.name, "schedule")(config, progress, decayed, warmed))


# --- Averages of weights ------------------------------------------------------------------------------------------------


class WeightAverage:
    """The average of a model's weights (Izmailov et al., 2018); empty until there is something to average.

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
        own = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
        model.load_state_dict(self.tensors)
        try:
            yield
        finally:
            model.load_state_dict(own)
