"""Linear maps that multiply in bfloat16, their weights turned and laid out once; all between them stays in float32.

A processor with units for bfloat16 multiplies it twice as fast, but bends, norms and adds it slower than float32.
"""

from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.models.block import ACTIVATIONS, FeedForward
from headstart.models.packed import ROWS, can_pack, sharing_copy

HALF = torch.bfloat16
Bend = tuple[str, str]  # an activation in the words of oneDNN, and which form of it
BENDS: dict[object, Bend] = {
    ACTIVATIONS["relu"]: ("relu", ""),
    ACTIVATIONS["gelu"]: ("gelu", "none"),
    ACTIVATIONS["gelu-tanh"]: ("gelu", "tanh"),
    ACTIVATIONS["swiglu"]: ("swish", ""),
}
Module = TypeVar("Module", bound=nn.Module)


class HalfLinear(nn.Module):
    """What `nn.Linear` with these weights gives when it multiplies in bfloat16, for inference alone."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.is_packed = can_pack(weight) and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        half = weight.detach().to(HALF)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(half, ROWS) if self.is_packed else half
        self.bias = None if bias is None else bias.detach().to(HALF)

    def forward(self, x: Tensor) -> Tensor:
        """`x` (…, in) to (…, out), as wide as it came."""
        return self.mapped(x.to(HALF)).to(x.dtype)

    def mapped(self, x: Tensor, bend: Bend = ("none", "")) -> Tensor:
        """`x` in bfloat16 to what the map makes of it; packed, an activation is a part of the map."""
        if not self.is_packed:
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, bend[0], [], bend[1])

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        """`x` in bfloat16 to what the map makes of it, times `gate`."""
        if not self.is_packed:
            return F.linear(x, self.weight, self.bias) * gate
        return torch.ops.mkldnn._linear_pointwise.binary(x, gate, self.weight, self.bias, "mul")


class HalfFeedForward(nn.Module):
    """What `FeedForward` gives in evaluation when all of it is in bfloat16: wide vectors are written once."""

    def __init__(self, plain: FeedForward):
        super().__init__()
        parts = 2 if plain.is_gated else 1
        bias = plain.widen.bias
        biases = [None] * parts if bias is None else bias.chunk(parts)
        self.first, *second = map(HalfLinear, plain.widen.weight.chunk(parts), biases)
        self.second = second[0] if second else None
        self.narrow = HalfLinear(plain.narrow.weight, plain.narrow.bias)
        self.activation = plain.activation
        self.bend = BENDS.get(plain.activation) if self.first.is_packed else None

    def forward(self, hidden: Tensor) -> Tensor:
        """The same map at every position."""
        x = hidden.to(HALF)
        wide = self.first.mapped(x, self.bend) if self.bend else self.activation(self.first.mapped(x))
        if self.second is not None:
            wide = self.second.gated(x, wide)
        return self.narrow.mapped(wide).to(hidden.dtype)


def halved(module: Module) -> Module:
    """A copy of a module for inference whose linear maps multiply in bfloat16; other weights are shared with it."""
    copy = sharing_copy(module)
    for kind, made in ((FeedForward, _feed_forward), (nn.Linear, _linear)):
        for parent in list(copy.modules()):
            for name, child in list(parent.named_children()):
                if type(child) is kind:
                    setattr(parent, name, made(child))
    return copy.eval()


def _feed_forward(child: nn.Module) -> HalfFeedForward:
    assert isinstance(child, FeedForward)
    return HalfFeedForward(child)


def _linear(child: nn.Module) -> HalfLinear:
    assert isinstance(child, nn.Linear)
    return HalfLinear(child.weight, child.bias)
