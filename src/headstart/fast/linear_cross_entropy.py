"""Cross-entropy over a large vocabulary in chunks of logits, with the gradients computed in the forward pass.

Replaces: objectives.base.linear_cross_entropy.   Equal by: tests/fast/test_linear_cross_entropy.py (1e-5).
Pays: 1.5x the speed and a tenth of the memory at 50,001 tokens (benchmarks/results/speed-cpu-limits.md).

torch.nn.functional.linear_cross_entropy is as fast with chunks of 256 rows, and takes twice as long with its own choice.
But its chunks have neither label smoothing nor a count of correct predictions, which would cost another product.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headstart.constants import MAX_UNCHUNKED_LOGITS, logits_per_chunk

LOG2_E = 1 / math.log(2)
CACHED_LOGITS = 2**17  # that fit into a CPU's cache
ROWS_IN_CACHE = 2048  # of a gradient
ALIGNMENT = 16  # a CPU multiplies matrices faster if their rows start at multiples of it

Projection = tuple[Tensor, Tensor, Tensor | None]  # hidden states (N, D), and weight (V, D) and bias of their logits
# Logits (n, V) of the projections, labels (n,), settings, and whether a gradient is needed -> the summed loss, the number
# of correct predictions, and the gradient of the first logits in their precision.
LossAndGrad = Callable[[list[Tensor], Tensor, Any, bool], tuple[Tensor, ...]]


def is_worthwhile(hidden: Tensor, weight: Tensor) -> bool:
    """Whether chunks are faster than all logits at once, or need to be because the memory would not do."""
    limit = MAX_UNCHUNKED_LOGITS.get(hidden.device.type, logits_per_chunk(hidden.device.type))
    return is_compiled(hidden) or hidden.shape[0] * weight.shape[0] > limit


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of the logits `hidden @ weight.T + bias`, and the number of correct predictions.

    `hidden` is (N, D), `weight` (V, D), `labels` (N,).
    """
    compute = loss_and_grad_in_place if hidden.device.type == "cpu" else loss_and_grad
    return chunked_loss([(hidden, weight, bias)], labels, compute, label_smoothing)


def chunked_loss(
    projections: Sequence[Projection], labels: Tensor, compute: LossAndGrad, settings: Any, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """The summed loss by `compute`, and the number of correct predictions.

    The first projection is trained. `chunk` is the number of its logits that are computed at once.
    """
    (hidden, weight, bias), *others = [autocast_inputs(*each) for each in projections]
    chunk = chunk or logits_per_chunk(hidden.device.type)
    num_chunks = max(1, -(-hidden.shape[0] * weight.shape[0] // chunk))
    num_rows = max(1, -(-hidden.shape[0] // num_chunks))  # the same in each chunk, but for the last
    needs_grad = torch.is_grad_enabled() and any(
        each is not None and each.requires_grad for each in (hidden, weight, bias)
    )
    arguments = (hidden, weight, bias, others, labels, compute, settings, num_rows, needs_grad)
    output: tuple[Tensor, Tensor] = _ChunkedLoss.apply(*arguments)  # type: ignore[no-untyped-call]
    return output


def autocast_inputs(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Projection:
    """The inputs in the precision of autocast: converted once and not for every chunk."""
    device = hidden.device.type
    if not torch.is_autocast_enabled(device):
        return hidden, weight, bias
    dtype = torch.get_autocast_dtype(device)
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, others, labels, compute, settings, num_rows, needs_grad):  # type: ignore[no-untyped-def]
        ctx.dtypes = [None if each is None else each.dtype for each in (hidden, weight, bias)]
        grads = [
            torch.zeros_like(each, dtype=torch.float) if needs_grad and each is not None else None
            for each in (hidden, weight, bias)
        ]
        total = torch.zeros((), dtype=torch.float, device=hidden.device)
        correct = torch.zeros((), dtype=torch.long, device=hidden.device)
        buffer = _logits_buffer(num_rows, weight) if hidden.device.type == "cpu" else None
        uses_compiled = is_compiled(hidden)
        compute = _compile(compute) if uses_compiled else compute
        for start in range(0, hidden.shape[0], num_rows):
            rows = slice(start, start + num_rows)
            targets, logits = labels[rows], [_logits(hidden[rows], weight, bias, buffer)]
            logits += [F.linear(vectors[rows], matrix, shift) for vectors, matrix, shift in others]
            if uses_compiled:  # the number of rows varies; the vocabulary's size is a constant, which the compiler uses
                for tensor in (targets, *logits):
                    torch._dynamo.maybe_mark_dynamic(tensor, 0)
            loss, right, *grad = compute(logits, targets, settings, needs_grad)
            total += loss
            correct += right
            if needs_grad:
                _accumulate(grads, hidden, weight, rows, grad[0])
        ctx.grads = grads if needs_grad else None
        ctx.mark_non_differentiable(correct)
        return total, correct

    @staticmethod
    def backward(ctx, grad_total, _):  # type: ignore[no-untyped-def]
        assert ctx.grads is not None, "a second backward pass: the first one has scaled the gradients in place"
        scaled = [
            None if grad is None else grad.mul_(grad_total).to(dtype)
            for grad, dtype in zip(ctx.grads, ctx.dtypes, strict=True)
        ]
        ctx.grads = None
        return *scaled, *[None] * 6


def _logits_buffer(num_rows: int, weight: Tensor) -> Tensor:
    """Memory for the logits of each chunk (num_rows, V), because new memory is slow on a CPU."""
    size = weight.shape[0]
    return weight.new_empty(num_rows, -(-size // ALIGNMENT) * ALIGNMENT)[:, :size]


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, buffer: Tensor | None) -> Tensor:
    if buffer is None:
        return F.linear(hidden, weight, bias)
    logits = buffer[: hidden.shape[0]]
    if bias is None:
        return torch.mm(hidden, weight.T, out=logits)
    return torch.addmm(bias, hidden, weight.T, out=logits)


def _accumulate(grads: list[Tensor | None], hidden: Tensor, weight: Tensor, rows: slice, grad_logits: Tensor) -> None:
    """Add to the gradients of hidden states, weight and bias what follows from the gradient of some rows' logits."""
    grad_hidden, grad_weight, grad_bias = grads
    assert grad_hidden is not None
    assert grad_weight is not None
    if grad_bias is not None:
        grad_bias += grad_logits.sum(dim=0, dtype=torch.float)
    products = ((grad_hidden[rows], grad_logits, weight), (grad_weight, grad_logits.T, hidden[rows]))
    size = ROWS_IN_CACHE if hidden.device.type == "cpu" else len(weight)
    for totals, left, right in products:
        if left.dtype == totals.dtype:
            totals.addmm_(left, right)
            continue
        for total, part in zip(totals.split(size), left.split(size), strict=True):
            total += part @ right


def loss_and_grad_in_place(
    logits: Sequence[Tensor], labels: Tensor, label_smoothing: float, needs_grad: bool
) -> tuple[Tensor, ...]:
    """Cross-entropy on a CPU; the logits become their gradient. Powers of two are faster than those of e."""
    (given,) = logits
    size, total, correct = given.shape[-1], torch.zeros(()), torch.zeros((), dtype=torch.long)
    num_rows = max(1, CACHED_LOGITS // size)
    for part, targets in zip(given.split(num_rows), labels[:, None].split(num_rows), strict=True):
        full = part.float()
        best = torch.from_numpy(full.numpy().argmax(axis=-1))[:, None]  # (n, 1); torch's takes several times as long
        top, own = full.gather(1, best), full.gather(1, targets)
        if label_smoothing:
            total -= label_smoothing * full.mean(dim=-1).sum()
        probs = full.sub_(top).mul_(LOG2_E).exp2_()  # (n, V), not normalized
        sums = probs.sum(dim=-1, keepdim=True)
        total += (sums.log() + top - (1 - label_smoothing) * own).sum()
        correct += (best == targets).sum()
        if needs_grad:
            grad = probs.mul_(sums.reciprocal_())
            if label_smoothing:
                grad.sub_(label_smoothing / size)
            part.copy_(grad.scatter_add_(1, targets, torch.full_like(own, label_smoothing - 1)))
    return total, correct, given


def loss_and_grad(
    logits: Sequence[Tensor], labels: Tensor, label_smoothing: float, needs_grad: bool
) -> tuple[Tensor, ...]:
    """Cross-entropy with as few passes over the logits as torch's kernels allow; compiled, they are read twice."""
    (given,) = logits
    floor = label_smoothing / given.shape[-1]  # the target probability of every other token
    correct = (given.argmax(dim=-1) == labels).sum()
    log_probs = given.log_softmax(dim=-1, dtype=torch.float)
    own = log_probs.gather(1, labels[:, None])  # (n, 1)
    total = (label_smoothing - 1) * own.sum()
    if label_smoothing:
        total = total - label_smoothing * log_probs.mean(dim=-1).sum()
    if not needs_grad:
        return total, correct
    grad = torch.sub(log_probs.exp_(), floor, out=torch.empty_like(given))
    return total, correct, grad.scatter_(1, labels[:, None], (own.exp() - floor + label_smoothing - 1).to(grad.dtype))


# --- Compiled by torch, on a GPU ------------------------------------------------------------------------------------

_IS_COMPILED: ContextVar[bool] = ContextVar("is_compiled", default=False)
_compile = cache(torch.compile)


@contextmanager
def compiled() -> Iterator[None]:
    """While this lasts, losses on a GPU are computed by compiled functions."""
    before = _IS_COMPILED.set(True)
    try:
        yield
    finally:
        _IS_COMPILED.reset(before)


def is_compiled(hidden: Tensor) -> bool:
    """Whether the loss of these vectors is computed by a compiled function."""
    return _IS_COMPILED.get() and hidden.device.type == "cuda" and hidden.shape[0] > 0
