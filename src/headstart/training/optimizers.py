"""How weights change: the optimizer, its learning rate over a run, which layers are trained, and averages of weights."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
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

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients of one iteration of Muon
ITERATIONS = 5


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


# --- Muon ------------------------------------------------------------------------------------------------------------


def orthogonalized(matrices: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrix to each of (N, rows, columns), roughly, by Newton-Schulz iterations."""
    x = matrices.to(torch.bfloat16 if matrices.device.type == "cuda" else torch.float32)
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    output: Tensor = (x.mT if is_tall else x).to(matrices.dtype)
    return output


def split_joint(matrix: Tensor) -> list[Tensor]:
    """A joint projection (query, key and value, say) as views of its square parts; another matrix as it is."""
    rows, columns = matrix.shape
    is_joint = rows % columns == 0 and rows // columns in (2, 3)
    return list(matrix.split(columns, dim=0)) if is_joint else [matrix]


def _step_size(learning_rate: float, shape: Sequence[int]) -> float:
    """The factor that makes steps about as large as AdamW's, so that one learning rate serves both (Liu et al., 2025)."""
    found: float = learning_rate * 0.2 * max(shape) ** 0.5
    return found


class Muon(torch.optim.Optimizer):
    """Muon in float32 on a CPU; matrices of one shape are updated together, and joint projections are split.

    torch.optim.Muon always computes in bfloat16, which on a CPU takes longer than the training step itself, and treats a
    joint query-key-value matrix as one. Under FSDP2, `strategy` gathers matrices.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        strategy: "SingleDevice | None" = None,
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.strategy = strategy

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            # Sharded matrices are updated one at a time, so that one alone is in memory as a whole.
            for chunk in [weights] if self.strategy is None else [[weight] for weight in weights]:
                if chunk:
                    self._update(chunk, group["lr"], group["momentum"], group["weight_decay"])

    def _update(self, weights: list[nn.Parameter], learning_rate: float, momentum: float, weight_decay: float) -> None:
        grads = [weight.grad for weight in weights if weight.grad is not None]
        for weight in weights:
            if "momentum" not in self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        momenta = [self.state[weight]["momentum"] for weight in weights]
        torch._foreach_lerp_(momenta, grads, 1 - momentum)
        updates = torch._foreach_lerp(grads, momenta, momentum)  # Nesterov's momentum
        torch._foreach_mul_(list[Tensor](weights), 1 - learning_rate * weight_decay)
        if self.strategy is None:
            self._apply_by_shape(weights, updates, learning_rate)
            return
        for weight, update in zip(weights, updates, strict=True):
            parts = torch.stack(split_joint(self.strategy.matrix(update)))
            change = orthogonalized(parts).flatten(0, 1) * _step_size(learning_rate, parts.shape[1:])
            weight.sub_(self.strategy.part(change, weight))

    @staticmethod
    def _apply_by_shape(weights: list[nn.Parameter], updates: Sequence[Tensor], learning_rate: float) -> None:
        """Subtract the orthogonalised updates, those of one shape together."""
        by_shape: dict[tuple[int, ...], tuple[list[Tensor], list[Tensor]]] = {}
        for weight, update in zip(weights, updates, strict=True):
            for part, change in zip(split_joint(weight), split_joint(update), strict=True):
                parts, changes = by_shape.setdefault(tuple(part.shape), ([], []))
                parts.append(part)
                changes.append(change)
        for shape, (parts, changes) in by_shape.items():
            orthogonal = orthogonalized(torch.stack(changes))
            if orthogonal.device.type == "cuda":
                orthogonal = orthogonal.contiguous()  # the layout of the weights, so that one kernel serves all
            torch._foreach_sub_(parts, orthogonal.unbind(0), alpha=_step_size(learning_rate, shape))
