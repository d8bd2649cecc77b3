"""Optimisers: which weights change, how fast, and by which rule."""

import re
from typing import Any

import torch
from torch import Tensor, nn

from headstart.config import OptimizerConfig
from headstart.models.model import Model
from headstart.training.muon import Holder, Muon


class Optimizers:
    """One or two torch optimisers that act as one; each group's rate is a share of the run's."""

    def __init__(self, parts: list[torch.optim.Optimizer]):
        self.parts = parts
        for group in self.groups():
            group["share"] = group["lr"]

    def groups(self) -> list[dict[str, Any]]:
        """All parameter groups."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self, rate: float) -> None:
        """Change the weights at learning rate `rate`, and forget the gradients."""
        for group in self.groups():
            group["lr"] = rate * group["share"]
        for part in self.parts:
            part.step()
            part.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """The memory of the optimisers as named tensors."""
        found = {}
        for number, part in enumerate(self.parts):
            for index, state in part.state_dict()["state"].items():
                for key, value in state.items():
                    found[f"{number}.{index}.{key}"] = (
                        value if isinstance(value, Tensor) else torch.tensor(value)
                    )
        return found

    def weight_of(self, name: str) -> Tensor:
        """The weight that a named tensor of the memory belongs to."""
        owner, index, _ = name.split(".", 2)
        weights = [weight for group in self.parts[int(owner)].param_groups for weight in group["params"]]
        return weights[int(index)]

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take up the memory that `tensors` gave."""
        for number, part in enumerate(self.parts):
            content = part.state_dict()
            state: dict[int, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                owner, index, key = name.split(".", 2)
                if int(owner) == number:
                    state.setdefault(int(index), {})[key] = value
            content["state"] = state
            part.load_state_dict(content)


def _share(name: str, model: Model, config: OptimizerConfig) -> float:
    """A weight's rate as a share of the top block's: less below, `head_scale` for heads."""
    if not name.startswith("backbone."):
        return config.head_lr_multiplier
    top = model.backbone.depth
    depth = min(model.backbone.layer_of(name.removeprefix("backbone.")), top)
    return config.layerwise_lr_decay ** (top - depth)


def _is_matrix_of_block(name: str, weight: nn.Parameter) -> bool:
    return re.match(r"backbone\.(stack|encoder|decoder)\.blocks\.", name) is not None and weight.ndim == 2


def make_optimizer(model: Model, config: OptimizerConfig, holder: Holder | None = None) -> Optimizers:
    """Groups of alike weights under the optimiser that the settings name; vectors are never decayed.

    A `holder` says that the model's weights are parts of matrices.
    """
    plain: dict[tuple[float, float], list[nn.Parameter]] = {}
    matrices: dict[float, list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        share = _share(name, model, config)
        if config.name == "muon" and _is_matrix_of_block(name, weight):
            matrices.setdefault(share, []).append(weight)
        else:
            decay = config.weight_decay if weight.ndim >= 2 else 0.0
            plain.setdefault((share, decay), []).append(weight)
    rule = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    groups = [{"params": held, "lr": share, "weight_decay": decay} for (share, decay), held in plain.items()]
    parts: list[torch.optim.Optimizer] = [
        rule(groups, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)
    ]
    if matrices:
        muon = [{"params": held, "lr": share} for share, held in matrices.items()]
        parts.append(Muon(muon, weight_decay=config.weight_decay, momentum=config.momentum, holder=holder))
    return Optimizers(parts)


def set_trainable_layers(model: Model, freeze: bool, unfreeze_every: float | None, epoch: float) -> None:
    """Say which weights learn: all, heads alone, or heads and as many top blocks as `epoch` has thawed."""
    top = model.backbone.depth
    lowest = 0
    if freeze:
        lowest = top + 2
    elif unfreeze_every is not None:
        lowest = max(0, top + 1 - int(epoch / unfreeze_every))
    for name, weight in model.named_parameters():
        depth = (
            model.backbone.layer_of(name.removeprefix("backbone."))
            if name.startswith("backbone.")
            else top + 2
        )
        weight.requires_grad_(depth >= lowest)
