"""The cross-entropy of a large vocabulary, computed in pieces so that the full table of scores never exists."""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from headstart.constants import DEFAULT_LOGITS_PER_CHUNK, LOGITS_PER_CHUNK, MAX_UNCHUNKED_LOGITS
from headstart.objectives.fused import fused_mark, is_fused
from headstart.objectives.kept import Mark, in_autocast, kept_loss
from headstart.objectives.tiles import tiled_loss


def token_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of scores `hidden @ weight.T + bias` against `labels`, and how many are right.

    `hidden` is (N, D), `weight` (V, D), `labels` (N,). Gradients are formed piece by piece on the way
    forward, so memory is one piece of scores whatever N is.
    """
    device = hidden.device.type
    hidden, weight, bias = in_autocast(hidden, weight, bias)
    if is_fused(hidden):
        return kept_loss(hidden, weight, bias, fused_mark(labels, smoothing), LOGITS_PER_CHUNK[device])
    if hidden.shape[0] * weight.shape[0] <= MAX_UNCHUNKED_LOGITS.get(device, DEFAULT_LOGITS_PER_CHUNK):
        scores = F.linear(hidden, weight, bias).float()  # (N, V)
        loss = F.cross_entropy(scores, labels, reduction="sum", label_smoothing=smoothing)
        return loss, (scores.detach().argmax(dim=-1) == labels).sum()
    if device == "cpu":
        return tiled_loss(hidden, weight, bias, labels, smoothing)
    return kept_loss(
        hidden, weight, bias, plain_mark(labels, smoothing), LOGITS_PER_CHUNK.get(device, DEFAULT_LOGITS_PER_CHUNK)
    )


def divergence(first: Tensor, second: Tensor) -> Tensor:
    """How far two tables of scores (N, C) for the same questions are apart, summed over questions: the mean of both
    Kullback-Leibler divergences, as in R-Drop (Liang et al., 2021).
    """
    one, other = first.log_softmax(dim=-1), second.log_softmax(dim=-1)
    return ((one.exp() - other.exp()) * (one - other)).sum() / 2


def divergence_in_pieces(first: Tensor, second: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The divergence of the scores that two hidden states (N, D) give by `weight` (V, D).

    Scores live one piece at a time: they are computed anew on the way back.
    """
    rows = max(1, LOGITS_PER_CHUNK.get(first.device.type, DEFAULT_LOGITS_PER_CHUNK) // (2 * weight.shape[0]))

    def piece(one: Tensor, other: Tensor) -> Tensor:
        return divergence(F.linear(one, weight, bias).float(), F.linear(other, weight, bias).float())

    if first.shape[0] <= rows:
        return piece(first, second)
    parts = [
        checkpoint(piece, one, other, use_reentrant=False)
        for one, other in zip(first.split(rows), second.split(rows), strict=True)
    ]
    return torch.stack(parts).sum()


def plain_mark(labels: Tensor, smoothing: float) -> Mark:
    """Cross-entropy against `labels` (N,), with as few passes over the scores as kernels of torch's own allow."""

    def mark(scores: Tensor, span: slice, wants: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        wanted, kind = labels[span], scores.dtype
        floor = smoothing / scores.shape[-1]  # what is wanted of every token
        right = (scores.argmax(dim=-1) == wanted).sum()
        shares = scores.log_softmax(dim=-1, dtype=torch.float)  # a kernel of few passes
        del scores
        own = shares.gather(1, wanted[:, None])  # (n, 1)
        total = (smoothing - 1) * own.sum()
        if smoothing:
            total = total - smoothing * shares.mean(dim=-1).sum()
        if not wants:
            return total, right, None
        slope = torch.sub(shares.exp_(), floor, out=torch.empty_like(shares, dtype=kind))
        slope.scatter_(1, wanted[:, None], (own.exp() - floor + smoothing - 1).to(kind))
        return total, right, slope

    return mark
