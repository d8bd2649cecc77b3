"""Cross-entropy over a large vocabulary in chunks of logits, with the gradients computed in the forward pass.

Replaces: objectives.base.linear_cross_entropy.   Equal by: tests/fast/test_linear_cross_entropy.py (1e-5).
Pays: 1.5x the speed and a tenth of the memory at 50,001 tokens (benchmarks/results/speed-cpu-limits.md).

torch.nn.functional.linear_cross_entropy is as fast with chunks of 256 rows, and takes twice as long with its own choice.
But its chunks have neither label smoothing nor a count of correct predictions, which would cost another product.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headstart.constants import DEFAULT_LOGITS_PER_CHUNK, LOGITS_PER_CHUNK, MAX_UNCHUNKED_LOGITS, VOCAB_TILE

LOG2_E = 1 / math.log(2)

# logits (n, V), their rows among all, and whether a gradient is needed ->
# the summed loss, the number of correct predictions, and the gradient of the logits in their precision
ComputeLoss = Callable[[Tensor, slice, bool], tuple[Tensor, Tensor, Tensor | None]]


def is_worthwhile(hidden: Tensor, weight: Tensor) -> bool:
    """Whether chunks are faster than all logits at once, or need to be because the memory would not do."""
    limit = MAX_UNCHUNKED_LOGITS.get(hidden.device.type, DEFAULT_LOGITS_PER_CHUNK)
    return is_compiled(hidden) or hidden.shape[0] * weight.shape[0] > limit


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of the logits `hidden @ weight.T + bias`, and the number of correct predictions.

    `hidden` is (N, D), `weight` (V, D), `labels` (N,).
    """
    hidden, weight, bias = autocast_inputs(hidden, weight, bias)
    if is_compiled(hidden):
        return chunked_loss(hidden, weight, bias, compiled_loss(labels, label_smoothing))
    if hidden.device.type == "cpu":
        return tiled_loss(hidden, weight, bias, labels, label_smoothing)
    return chunked_loss(hidden, weight, bias, eager_loss(labels, label_smoothing))


def autocast_inputs(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The inputs in the precision of autocast: converted once and not for every chunk."""
    device = hidden.device.type
    if not torch.is_autocast_enabled(device):
        return hidden, weight, bias
    dtype = torch.get_autocast_dtype(device)
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


# --- Chunks of rows ---------------------------------------------------------------------------------------------------


class Gradients:
    """The gradients of hidden states, weight and bias, accumulated in float32 from those of logits."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None):
        self.inputs = (hidden, weight)
        self.hidden, self.weight = (torch.zeros_like(each, dtype=torch.float) for each in (hidden, weight))
        self.bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float)

    def add(self, rows: slice, columns: slice, grad_logits: Tensor) -> None:
        """Add what follows from the gradient of the logits of some rows and columns."""
        hidden, weight = self.inputs[0][rows], self.inputs[1][columns]
        if self.bias is not None:
            self.bias[columns] += grad_logits.sum(dim=0, dtype=torch.float)
        grad_logits = grad_logits.to(hidden.dtype)
        for total, left, right in (
            (self.hidden[rows], grad_logits, weight),
            (self.weight[columns], grad_logits.T, hidden),
        ):
            if left.dtype == total.dtype:
                total.addmm_(left, right)
            else:
                total += left @ right


def chunked_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, compute: ComputeLoss, logits_per_chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """The summed loss of the logits `hidden @ weight.T + bias` by `compute`, and the number of correct predictions."""

    def compute_chunk(rows: slice, grads: Gradients | None) -> tuple[Tensor, Tensor]:
        loss, correct, grad_logits = compute(F.linear(hidden[rows], weight, bias), rows, grads is not None)
        if grads is not None and grad_logits is not None:
            grads.add(rows, slice(None), grad_logits)
        return loss, correct

    return _apply(hidden, weight, bias, compute_chunk, _rows_per_chunk(hidden, weight, logits_per_chunk))


def _rows_per_chunk(hidden: Tensor, weight: Tensor, logits_per_chunk: int | None = None) -> int:
    """Chunks have the same number of rows, but for the last."""
    size = logits_per_chunk or LOGITS_PER_CHUNK.get(hidden.device.type, DEFAULT_LOGITS_PER_CHUNK)
    chunks = max(1, -(-hidden.shape[0] * weight.shape[0] // size))
    return max(1, -(-hidden.shape[0] // chunks))


def _apply(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    compute_chunk: Callable[[slice, Gradients | None], tuple[Tensor, Tensor]],
    rows: int,
) -> tuple[Tensor, Tensor]:
    needs_grad = _needs_grad(hidden, weight, bias)
    output: tuple[Tensor, Tensor] = _ChunkedLoss.apply(hidden, weight, bias, compute_chunk, rows, needs_grad)  # type: ignore[no-untyped-call]
    return output


def _needs_grad(*inputs: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in inputs)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, compute_chunk, rows, needs_grad):  # type: ignore[no-untyped-def]
        total = torch.zeros((), dtype=torch.float, device=hidden.device)
        correct = torch.zeros((), dtype=torch.long, device=hidden.device)
        grads = Gradients(hidden, weight, bias) if needs_grad else None
        for start in range(0, hidden.shape[0], rows):
            loss, right = compute_chunk(slice(start, min(start + rows, hidden.shape[0])), grads)
            total += loss
            correct += right
        ctx.grads = None if grads is None else [grads.hidden, grads.weight, grads.bias]
        ctx.dtypes = [None if each is None else each.dtype for each in (hidden, weight, bias)]
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
        return *scaled, None, None, None


# --- On a CPU: tiles of rows and columns --------------------------------------------------------------------------------


def tiled_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """`linear_cross_entropy` on a CPU: the logits of a chunk are computed and exponentiated tile by tile, in the cache.

    When the sum over all tiles is known, each tile becomes the gradient of its logits. Powers of two are faster than
    those of e.
    """
    size = weight.shape[0]
    rows_per_chunk, tile_starts = _rows_per_chunk(hidden, weight), range(0, size, VOCAB_TILE)
    needs_grad = _needs_grad(hidden, weight, bias)
    buffer = torch.empty(rows_per_chunk * (size if needs_grad else min(size, VOCAB_TILE)))  # of all chunks
    mean_weight = weight.detach().float().mean(dim=0) if label_smoothing else None
    mean_bias = bias.detach().float().mean() if label_smoothing and bias is not None else 0.0

    def compute_chunk(rows: slice, grads: Gradients | None) -> tuple[Tensor, Tensor]:
        part, targets, count = hidden[rows], labels[rows], rows.stop - rows.start
        order = targets.argsort()
        bounds = torch.searchsorted(targets[order], torch.tensor([*tile_starts, size])).tolist()
        highest, own = torch.full((count,), -torch.inf), torch.empty(count)  # logits
        correct = torch.zeros(count, dtype=torch.bool)
        tiles: list[tuple[slice, Tensor, Tensor, tuple[Tensor, Tensor]]] = []
        sums: list[Tensor] = []
        for number, start in enumerate(tile_starts):
            columns = slice(start, min(start + VOCAB_TILE, size))
            offset = count * start if needs_grad else 0
            tile = buffer[offset : offset + count * (columns.stop - start)].view(count, -1)
            if part.dtype == tile.dtype:
                torch.mm(part, weight[columns].T, out=tile)
            else:
                tile.copy_(part @ weight[columns].T)
            if bias is not None:
                tile.add_(bias[columns])
            top = tile.amax(dim=-1)
            labelled = order[bounds[number] : bounds[number + 1]]  # the rows whose label is in the tile
            index = labelled, targets[labelled] - start
            if len(labelled):
                own[labelled] = tile[index]
                is_best = (own[labelled] == top[labelled]) & (own[labelled] > highest[labelled])
                best, column = labelled[is_best], index[1][is_best]
                correct[best] = tile[best].argmax(dim=-1) == column  # of equal logits the first is the prediction
            highest = torch.maximum(highest, top)
            sums.append(tile.sub_(top[:, None]).mul_(LOG2_E).exp2_().sum(dim=-1))
            tiles.append((columns, tile, top, index))
        scaled = [each * (top - highest).exp_() for each, (_, _, top, _) in zip(sums, tiles, strict=True)]
        log_sum = highest + torch.stack(scaled).sum(dim=0).log_()
        total = (log_sum - (1 - label_smoothing) * own).sum()
        if mean_weight is not None:
            total -= label_smoothing * (part.float() @ mean_weight + mean_bias).sum()
        if grads is None:
            return total, (correct & (own >= highest)).sum()
        for columns, tile, top, index in tiles:
            grad_logits = tile.mul_((top - log_sum).exp_()[:, None])  # softmax
            if label_smoothing:
                grad_logits.sub_(label_smoothing / size)
            grad_logits[index] -= 1 - label_smoothing
            grads.add(rows, columns, grad_logits)
        return total, (correct & (own >= highest)).sum()

    return _apply(hidden, weight, bias, compute_chunk, rows_per_chunk)


# --- On a GPU: eager and compiled -----------------------------------------------------------------------------------


def eager_loss(labels: Tensor, label_smoothing: float) -> ComputeLoss:
    """Cross-entropy against `labels` (N,), with as few passes over the logits as torch's kernels allow."""

    def compute(logits: Tensor, rows: slice, needs_grad: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        targets, dtype = labels[rows], logits.dtype
        floor = label_smoothing / logits.shape[-1]  # the target probability of every other token
        correct = (logits.argmax(dim=-1) == targets).sum()
        log_probs = logits.log_softmax(dim=-1, dtype=torch.float)
        del logits
        own = log_probs.gather(1, targets[:, None])  # (n, 1)
        total = (label_smoothing - 1) * own.sum()
        if label_smoothing:
            total = total - label_smoothing * log_probs.mean(dim=-1).sum()
        if not needs_grad:
            return total, correct, None
        grad = torch.sub(log_probs.exp_(), floor, out=torch.empty_like(log_probs, dtype=dtype))
        grad.scatter_(1, targets[:, None], (own.exp() - floor + label_smoothing - 1).to(dtype))
        return total, correct, grad

    return compute


_IS_COMPILED: ContextVar[bool] = ContextVar("is_compiled", default=False)


@contextmanager
def compiled() -> Iterator[None]:
    """While this lasts, losses on a GPU are computed by compiled functions: logits are read twice, not a dozen times."""
    before = _IS_COMPILED.set(True)
    try:
        yield
    finally:
        _IS_COMPILED.reset(before)


def is_compiled(hidden: Tensor) -> bool:
    """Whether the loss of these vectors is computed by a compiled function."""
    return _IS_COMPILED.get() and hidden.device.type == "cuda" and hidden.shape[0] > 0


def compiled_loss(labels: Tensor, label_smoothing: float = 0.0) -> ComputeLoss:
    """Cross-entropy against `labels` (N,), compiled once for any number of rows."""

    def compute(logits: Tensor, rows: slice, needs_grad: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        targets = labels[rows]
        mark_dynamic(logits, targets)
        loss, correct, *grad = _compile(loss_and_grad if needs_grad else loss_alone)(logits, targets, label_smoothing)
        return loss, correct, grad[0] if needs_grad else None

    return compute


def mark_dynamic(*tensors: Tensor) -> None:
    """Let the number of rows vary; the vocabulary's size stays a constant, which the compiler uses."""
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)


@cache
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)


def _loss_and_log_sum(logits: Tensor, targets: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    log_sum = logits.logsumexp(dim=-1, keepdim=True)  # (n, 1)
    total = (log_sum - (1 - label_smoothing) * logits.gather(1, targets[:, None])).sum()
    if label_smoothing:
        total = total - label_smoothing * logits.mean(dim=-1).sum()
    return total, (logits.argmax(dim=-1) == targets).sum(), log_sum


def loss_alone(logits: Tensor, targets: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of logits (n, V), and the number of correct predictions."""
    return _loss_and_log_sum(logits.float(), targets, label_smoothing)[:2]


def loss_and_grad(logits: Tensor, targets: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    """What `loss_alone` returns, and the gradient of the logits in their own precision."""
    full = logits.float()
    total, correct, log_sum = _loss_and_log_sum(full, targets, label_smoothing)
    grad = (full - log_sum).exp() - label_smoothing / logits.shape[-1]  # (n, V)
    is_target = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    return total, correct, torch.where(is_target, grad + (label_smoothing - 1), grad).to(logits.dtype)
