"""The cross-entropy of a large vocabulary on a GPU: all that is not a matrix product is compiled into few passes.

Done plainly, a piece of scores is read and written about a dozen times; compiled, it is written, read twice, and its
slope is written. Memory is that of one piece and its slope, whatever the number of rows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

PIECE = 2**27  # scores alive at once
_IS_FUSED: ContextVar[bool] = ContextVar("is_fused", default=False)


@contextmanager
def fused() -> Iterator[None]:
    """While this lasts, scores on a GPU are marked by the compiled function."""
    before = _IS_FUSED.set(True)
    try:
        yield
    finally:
        _IS_FUSED.reset(before)


def is_fused(hidden: Tensor) -> bool:
    """Whether these vectors are to be scored and marked here."""
    return _IS_FUSED.get() and hidden.device.type == "cuda" and hidden.shape[0] > 0


def fused_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """What `token_loss` gives: summed cross-entropy, and how many are right."""
    return _FusedLoss.apply(hidden, weight, bias, labels, smoothing, torch.is_grad_enabled())


class KeptSlopes(torch.autograd.Function):
    """A loss whose slopes are formed on the way forward; the way back only scales them."""

    @staticmethod
    def keep(ctx, total, correct, table, shift, grad_hidden):  # type: ignore[no-untyped-def]
        """Hold the slopes of `hidden`, of the matrix and, where there is one, of the bias; the loss and the marks."""
        (weight, grad_weight), (bias, grad_bias) = table, shift
        ctx.save_for_backward(grad_hidden, grad_weight, *([] if grad_bias is None else [grad_bias]))
        ctx.dtypes = (weight.dtype, None if bias is None else bias.dtype)
        ctx.mark_non_differentiable(correct)
        return total, correct

    @staticmethod
    def backward(ctx, grad_total, _):  # type: ignore[no-untyped-def]
        """The slopes, times that of the loss."""
        hidden, weight, *bias = ctx.saved_tensors
        kind_weight, kind_bias = ctx.dtypes
        grad_bias = (bias[0] * grad_total).to(kind_bias) if bias else None
        grad_hidden = (hidden * grad_total).to(hidden.dtype)
        return grad_hidden, (weight * grad_total).to(kind_weight), grad_bias, None, None, None


class _FusedLoss(KeptSlopes):
    """Slopes are formed on the way forward, piece by piece; all pieces are alike, but for a row."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, smoothing, may_learn):  # type: ignore[no-untyped-def]
        wants = may_learn and any(ctx.needs_input_grad[:3])
        pieces = -(-hidden.shape[0] * weight.shape[0] // PIECE)
        rows = -(-hidden.shape[0] // pieces)
        total = torch.zeros((), dtype=torch.float, device=hidden.device)
        correct = torch.zeros((), dtype=torch.long, device=hidden.device)
        grad_hidden = torch.empty_like(hidden if wants else hidden[:0])
        grad_weight = torch.zeros_like(weight if wants else weight[:0], dtype=torch.float)
        grad_bias = torch.zeros_like(bias, dtype=torch.float) if wants and bias is not None else None
        for start in range(0, hidden.shape[0], rows):
            part, wanted = hidden[start : start + rows], labels[start : start + rows]
            scores = F.linear(part, weight, bias)  # (n, V)
            for rowed in (scores, wanted):  # V stays a constant, of which the compiler makes use
                torch._dynamo.maybe_mark_dynamic(rowed, 0)
            loss, right, *slope = _marking(wants)(scores, wanted, smoothing)
            total += loss
            correct += right
            if not wants:
                continue
            torch.mm(slope[0], weight, out=grad_hidden[start : start + rows])
            grad_weight += slope[0].T @ part
            if grad_bias is not None:
                grad_bias += slope[0].sum(dim=0, dtype=torch.float)
        return _FusedLoss.keep(ctx, total, correct, (weight, grad_weight), (bias, grad_bias), grad_hidden)


@cache
def _marking(wants: bool) -> Callable[..., Any]:
    """`slopes` or `marks`, compiled once for any number of rows."""
    return torch.compile(slopes if wants else marks)


def _sums(full: Tensor, wanted: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    log_sum = full.logsumexp(dim=-1, keepdim=True)  # (n, 1)
    own = full.gather(1, wanted[:, None])
    total = (log_sum - (1 - smoothing) * own).sum()
    if smoothing:
        total = total - smoothing * full.mean(dim=-1).sum()
    return total, (full.argmax(dim=-1) == wanted).sum(), log_sum


def marks(scores: Tensor, wanted: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of scores (n, V), and how many are right."""
    return _sums(scores.float(), wanted, smoothing)[:2]


def slopes(scores: Tensor, wanted: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    """What `marks` gives, and the loss's slope at every score, in the scores' own precision."""
    full = scores.float()
    total, correct, log_sum = _sums(full, wanted, smoothing)
    share = (full - log_sum).exp() - smoothing / scores.shape[-1]  # (n, V)
    is_wanted = torch.arange(scores.shape[-1], device=scores.device) == wanted[:, None]
    return total, correct, torch.where(is_wanted, share + (smoothing - 1), share).to(scores.dtype)
