"""Linear maps laid out for a CPU's matrix unit once, instead of at every call.

When text is written, few rows meet large matrices, and much of a call goes into bringing the matrix into the order that
the kernel reads. oneDNN, which comes with torch, can keep it in that order. Where it cannot, maps stay as they are.
"""

from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEAST = 2**17  # numbers in a matrix from which packing pays
FEW = 2**18  # numbers in a matrix up to which a row that comes alone is quicker on the plain one
ROWS = 16  # rows that the order is chosen for; it serves others as well
Module = TypeVar("Module", bound=nn.Module)


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN can keep a matrix in the order that it reads."""
    is_plain = weight.device.type == "cpu" and weight.dtype == torch.float32
    return is_plain and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _pays(weight: Tensor) -> bool:
    return weight.numel() >= LEAST and can_pack(weight)


class PackedLinear(nn.Module):
    """What `nn.Linear` with these weights gives, for inference alone."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.bias = None if bias is None else bias.detach()
        self.weight, self.packed, self.is_small = weight.detach(), None, weight.numel() <= FEW
        if _pays(weight):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, ROWS)

    def forward(self, x: Tensor) -> Tensor:
        """`x` (…, in) to (…, out)."""
        if self.packed is None or x.dtype != torch.float32 or (self.is_small and x.numel() == x.shape[-1]):
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def packed(module: Module) -> Module:
    """A copy of a module for inference, its linear maps packed; other weights are shared with the module."""
    copy = sharing_copy(module)
    for parent in list(copy.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and _pays(child.weight):
                setattr(parent, name, PackedLinear(child.weight, child.bias))
    return copy.eval()


def cast_linears(module: Module, dtype: torch.dtype) -> Module:
    """A copy of a module for autocast to `dtype`, its linear maps cast once and not at every call; the rest is shared."""
    copy = sharing_copy(module)
    for child in copy.modules():
        if type(child) is nn.Linear:
            for name, weight in list(child.named_parameters()):
                setattr(child, name, nn.Parameter(weight.detach().to(dtype), requires_grad=False))
    return copy.eval()


def sharing_copy(module: Module) -> Module:
    """A copy of a module whose weights are the module's own."""
    shared = {id(weight): weight for weight in (*module.parameters(), *module.buffers())}
    return deepcopy(module, shared)  # what the memo already knows is not copied
