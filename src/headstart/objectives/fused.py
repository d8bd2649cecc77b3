"""The cross-entropy of a large vocabulary on a GPU: all that is not a matrix product is compiled into few passes.

Done plainly, a piece of scores is read and written about a dozen times; compiled, it is written, read twice, and its
slope is written.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headstart.objectives.kept import Mark

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


def fused_mark(labels: Tensor, smoothing: float = 0.0) -> Mark:
    """Cross-entropy against `labels` (N,)."""

    def mark(scores: Tensor, span: slice, wants: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        wanted = labels[span]
        for rowed in (scores, wanted):  # V stays a constant, of which the compiler makes use
            torch._dynamo.maybe_mark_dynamic(rowed, 0)
        loss, right, *slope = _marking(wants)(scores, wanted, smoothing)
        return loss, right, slope[0] if wants else None

    return mark


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
