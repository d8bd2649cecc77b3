"""A backbone with task heads: how it is built, and how it takes over the weights of a base."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from headstart.batch import Batch
from headstart.config import ModelConfig
from headstart.errors import pick
from headstart.models import BACKBONES, HEADS
from headstart.models.backbones import Backbone
from headstart.models.heads import ClassHead
from headstart.results import TransferReport


@dataclass(frozen=True)
class HeadSpec:
    """Which head to build: a row of HEADS, its size, its settings."""

    kind: str
    size: int
    settings: dict[str, Any] = field(default_factory=dict)


class Model(nn.Module):
    """A backbone and the task heads on top of it."""

    backbone: Backbone

    def __init__(self, backbone: Backbone, heads: dict[str, nn.Module]):
        super().__init__()
        self.backbone, self.heads = backbone, nn.ModuleDict(heads)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The logits of every head, by its name."""
        head = next(iter(self.heads.values()), None)
        is_alone = len(self.heads) == 1
        positions = head.positions(batch.attention_mask) if is_alone and isinstance(head, ClassHead) else None
        hidden = self.backbone(batch, positions)  # (B, T, D), or (B, D) if pooling reads one position of each text
        return {name: head(hidden, batch, self.backbone) for name, head in self.heads.items()}


def build_heads(config: ModelConfig, specs: Mapping[str, HeadSpec]) -> dict[str, nn.Module]:
    """New heads for a backbone of this shape."""
    return {name: pick(HEADS, spec.kind, "head")(config, spec.size, **spec.settings) for name, spec in specs.items()}


def build_model(config: ModelConfig, vocab_size: int, specs: Mapping[str, HeadSpec]) -> Model:
    """A model with random weights, which depend on torch's seed."""
    backbone = pick(BACKBONES, config.architecture, "body")(config, vocab_size)
    return Model(backbone, build_heads(config, specs))


def transfer(
    base: Mapping[str, Tensor], model: Model, with_base_heads: bool = False, reset_layers: int = 0
) -> TransferReport:
    """Copy the base's backbone into `model` where name and shape agree, and report what happened to every weight.

    Heads are copied only `with_base_heads`: an old head could fit a new one by accident. The top `reset_layers` layers,
    and what follows them, are not copied (Zhang et al., 2021).
    """
    new = model.state_dict()
    highest = model.backbone.depth + 1 if not reset_layers else model.backbone.depth - reset_layers

    def is_reused(name: str, weight: Tensor) -> bool:
        is_backbone = name.startswith("backbone.")
        is_wanted = (
            model.backbone.layer_of(name.removeprefix("backbone.")) <= highest if is_backbone else with_base_heads
        )
        return is_wanted and name in new and new[name].shape == weight.shape

    same = {name: weight for name, weight in base.items() if is_reused(name, weight)}
    model.load_state_dict(same, strict=False)
    return TransferReport(
        reused={name: weight.numel() for name, weight in same.items()},
        initialized={name: weight.numel() for name, weight in new.items() if name not in same},
        dropped={name: weight.numel() for name, weight in base.items() if name not in same},
    )


def reuses_head(report: TransferReport) -> bool:
    """Whether the head of a classifier is reused."""
    return any(name.startswith("heads.class.") for name in report.reused)


def describe_transfer(report: TransferReport) -> str:
    """A transfer report in one line."""
    head = " (the head too)" if reuses_head(report) else ""
    parts = ((f"reused{head}", report.reused), ("initialized", report.initialized), ("dropped", report.dropped))
    return ", ".join(f"{sum(sizes.values()):,} weights {word}" for word, sizes in parts)


def reordered(weights: Mapping[str, Tensor], head: str, old: Sequence[str], new: Sequence[str]) -> dict[str, Tensor]:
    """A classifier's weights with the classes of its head in another order."""
    if list(old) == list(new):
        return dict(weights)
    order = [old.index(name) for name in new]
    classes = f"heads.{head}.classifier."
    return {name: weight[order] if name.startswith(classes) else weight for name, weight in weights.items()}


def count_parameters(model: nn.Module) -> int:
    """Number of parameters; shared ones count once."""
    return sum(weight.numel() for weight in model.parameters())
