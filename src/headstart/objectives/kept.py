"""Losses over a large vocabulary whose slopes are formed on the way forward, one piece of scores at a time.

Memory is that of one piece and its slope, whatever the number of rows; the way back only scales what was kept.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

# From the scores of some rows (n, V), which rows they are, and whether slopes are wanted: the summed loss, how many
# are right, and the loss's slope at every score (n, V), in the precision of the scores.
Mark = Callable[[Tensor, slice, bool], tuple[Tensor, Tensor, Tensor | None]]


Spot = tuple[Tensor, Tensor, Tensor | None]  # vectors (N, D), and the matrix and bias that make scores of them


def kept_loss(hidden: Tensor, weight: Tensor, bias: Tensor | None, mark: Mark, piece: int) -> tuple[Tensor, Tensor]:
    """The summed loss of scores `hidden @ weight.T + bias` by `mark`, and how many are right.

    `hidden` is (N, D), `weight` (V, D); no more than about `piece` scores are alive at once.
    """
    return _KeptSlopes.apply(hidden, weight, bias, mark, piece, torch.is_grad_enabled())  # type: ignore[no-untyped-call]


def in_autocast(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Spot:
    """What scores are made of in the precision that autocast asks for: changed once, and not for every piece."""
    device = hidden.device.type
    if not torch.is_autocast_enabled(device):
        return hidden, weight, bias
    kind = torch.get_autocast_dtype(device)
    return hidden.to(kind), weight.to(kind), None if bias is None else bias.to(kind)


class _KeptSlopes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, mark, piece, may_learn):  # type: ignore[no-untyped-def]
        wants = may_learn and any(ctx.needs_input_grad[:3])
        pieces = max(1, -(-hidden.shape[0] * weight.shape[0] // piece))
        rows = max(1, -(-hidden.shape[0] // pieces))  # pieces are alike, but for the last
        total = torch.zeros((), dtype=torch.float, device=hidden.device)
        correct = torch.zeros((), dtype=torch.long, device=hidden.device)
        grad_hidden = torch.empty_like(hidden if wants else hidden[:0])
        grad_weight = torch.zeros_like(weight if wants else weight[:0], dtype=torch.float)
        grad_bias = torch.zeros_like(bias, dtype=torch.float) if wants and bias is not None else None
        for start in range(0, hidden.shape[0], rows):
            span = slice(start, start + rows)
            part = hidden[span]
            loss, right, slope = mark(F.linear(part, weight, bias), span, wants)
            total += loss
            correct += right
            if not wants:
                continue
            torch.mm(slope, weight, out=grad_hidden[span])
            if grad_weight.dtype == slope.dtype:
                grad_weight.addmm_(slope.T, part)
            else:
                grad_weight += slope.T @ part
            if grad_bias is not None:
                grad_bias += slope.sum(dim=0, dtype=torch.float)
            del slope  # before the next scores are made
        ctx.save_for_backward(grad_hidden, grad_weight, *([] if grad_bias is None else [grad_bias]))
        ctx.dtypes = (weight.dtype, None if bias is None else bias.dtype)
        ctx.mark_non_differentiable(correct)
        return total, correct

    @staticmethod
    def backward(ctx, grad_total, _):  # type: ignore[no-untyped-def]
        hidden, weight, *bias = ctx.saved_tensors
        kind_weight, kind_bias = ctx.dtypes
        grad_bias = (bias[0] * grad_total).to(kind_bias) if bias else None
        grad_hidden = (hidden * grad_total).to(hidden.dtype)
        return grad_hidden, (weight * grad_total).to(kind_weight), grad_bias, None, None, None
