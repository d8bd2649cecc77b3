"""Linear layers with weights in the memory layout of oneDNN's kernels.

In inference few rows meet large matrices, and much of a call goes into the conversion of the matrix. oneDNN can store it
converted. Where it cannot, layers stay as they are.

Replaces: torch's `nn.Linear` in inference on a CPU.
Equal by: tests/fast/test_prepacked_linear.py
Pays: benchmarks/results/serve-tiny-cpu-2-cores.md, benchmarks/results/speed-translate.md
"""

from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.models.heads import LanguageHead

MIN_NUMEL = 2**17  # of a matrix that is worth converting
SMALL_NUMEL = 2**18  # of a matrix up to which a single row is faster with the plain one
NUM_ROWS = 16  # for which the layout is chosen; it serves other numbers as well
Module = TypeVar("Module", bound=nn.Module)


def can_prepack(weight: Tensor) -> bool:
    """Whether oneDNN can convert a matrix."""
    is_plain = weight.device.type == "cpu" and weight.dtype == torch.float32
    return is_plain and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _is_worth_it(weight: Tensor) -> bool:
    return weight.numel() >= MIN_NUMEL and can_prepack(weight)


class PrepackedLinear(nn.Module):
    """`nn.Linear` for inference."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.bias = None if bias is None else bias.detach()
        self.weight, self.packed, self.is_small = weight.detach(), None, weight.numel() <= SMALL_NUMEL
        if _is_worth_it(weight):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, NUM_ROWS)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        if self.packed is None or x.dtype != torch.float32 or (self.is_small and x.numel() == x.shape[-1]):
            return F.linear(x, self.weight, self.bias)
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return output


class PrepackedLanguageHead(LanguageHead):
    """A language-model head whose last layer is prepacked, also if its weights are the token embeddings."""

    prepacked: PrepackedLinear

    def logits(self, hidden: Tensor, table: Tensor) -> Tensor:
        """(..., D) to (..., V)."""
        logits: Tensor = self.prepacked(self.transformed(hidden))
        return logits


def install_prepacked_head(head: nn.Module, table: Tensor) -> None:
    """Prepack the last layer of a language-model head over the token embeddings `table`."""
    if type(head) is LanguageHead:
        head.__class__ = PrepackedLanguageHead
        head.prepacked = PrepackedLinear(*head.projection(table))


def prepack(module: Module) -> Module:
    """A copy of a module for inference, with its linear layers prepacked; other weights are shared with the module."""
    copy = sharing_copy(module)
    for parent in list(copy.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and _is_worth_it(child.weight):
                setattr(parent, name, PrepackedLinear(child.weight, child.bias))
    return copy.eval()


def cast_linears(module: Module, dtype: torch.dtype) -> Module:
    """A copy of a module for autocast to `dtype`, its linear layers cast once and not at every call; the rest is shared."""
    copy = sharing_copy(module)
    for child in copy.modules():
        if type(child) is nn.Linear:
            for name, weight in list(child.named_parameters()):
                setattr(child, name, nn.Parameter(weight.detach().to(dtype), requires_grad=False))
    return copy.eval()


def sharing_copy(module: Module) -> Module:
    """A copy of a module with the module's own weights."""
    shared = {id(weight): weight for weight in (*module.parameters(), *module.buffers())}
    return deepcopy(module, shared)  # what the memo contains is not copied
