"""A body under heads: built, given new heads, and filled from a base."""

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
    """A body that reads, and the heads that answer."""

    body: Backbone

    def __init__(self, body: Backbone, heads: dict[str, nn.Module]):
        super().__init__()
        self.backbone, self.heads = body, nn.ModuleDict(heads)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The answers of every head, by its name."""
        hidden = self.backbone(batch, self._places(batch))  # (B, T, D), or (B, D) if one vector a text is enough
        return {name: head(hidden, batch, self.backbone) for name, head in self.heads.items()}

    def _places(self, batch: Batch) -> Tensor | None:
        """The positions at which a lone class head reads; None when it reads them all."""
        heads = list(self.heads.values())
        return heads[0].places(batch.attention_mask) if len(heads) == 1 and isinstance(heads[0], ClassHead) else None


def build_heads(config: ModelConfig, specs: Mapping[str, HeadSpec]) -> dict[str, nn.Module]:
    """Fresh heads for a body of this shape."""
    return {name: pick(HEADS, spec.kind, "head")(config, spec.size, **spec.settings) for name, spec in specs.items()}


def build_model(config: ModelConfig, vocabulary: int, specs: Mapping[str, HeadSpec]) -> Model:
    """A model with fresh weights; what they are depends on torch's seed alone."""
    body = pick(BACKBONES, config.architecture, "body")(config, vocabulary)
    return Model(body, build_heads(config, specs))


def transfer(
    base: Mapping[str, Tensor], model: Model, with_base_heads: bool = False, reset_layers: int = 0
) -> TransferReport:
    """Copy a base's body into `model` where name and shape agree, and account for every weight.

    Heads stay behind unless `with_base_heads`: an old head could fit a new one by accident. So do the top
    `reset_layers` layers and what is above them (Zhang et al., 2021).
    """
    new = model.state_dict()
    highest = model.backbone.depth + 1 if not reset_layers else model.backbone.depth - reset_layers

    def crosses(name: str) -> bool:
        if not name.startswith("backbone."):
            return with_base_heads
        return model.backbone.layer_of(name.removeprefix("backbone.")) <= highest

    may_cross = {name: weight for name, weight in base.items() if crosses(name)}
    same = {name: weight for name, weight in may_cross.items() if name in new and new[name].shape == weight.shape}
    model.load_state_dict(same, strict=False)
    return TransferReport(
        reused={name: weight.numel() for name, weight in same.items()},
        initialized={name: weight.numel() for name, weight in new.items() if name not in same},
        dropped={name: weight.numel() for name, weight in base.items() if name not in same},
    )


def reordered(weights: Mapping[str, Tensor], head: str, old: Sequence[str], new: Sequence[str]) -> dict[str, Tensor]:
    """A classifier's weights with the answers of its head in another order of the same classes."""
    order = [old.index(name) for name in new]
    answers = f"heads.{head}.classifier."
    return {name: weight[order] if name.startswith(answers) else weight for name, weight in weights.items()}


def count_parameters(model: nn.Module) -> int:
    """How many numbers a model learns; a tied table counts once."""
    return sum(weight.numel() for weight in model.parameters())
