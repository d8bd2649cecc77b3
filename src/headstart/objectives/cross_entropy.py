"""The cross-entropy of a large vocabulary, computed in pieces so that the full table of scores never exists."""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from headstart.objectives.fused import KeptSlopes, fused_loss, is_fused
from headstart.objectives.tiles import OTHER, PIECE, tiled_loss

# Up to how many scores the plain way is the fastest: on a CPU until they leave its cache, on a GPU until they fill it.
WHOLE = {"cpu": 2**17, "cuda": 2**27}


def token_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of scores `hidden @ weight.T + bias` against `labels`, and how many are right.

    `hidden` is (N, D), `weight` (V, D), `labels` (N,). Gradients are formed piece by piece on the way
    forward, so memory is one piece of scores whatever N is.
    """
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        kind = torch.get_autocast_dtype(device)
        hidden, weight, bias = hidden.to(kind), weight.to(kind), None if bias is None else bias.to(kind)
    if is_fused(hidden):
        return fused_loss(hidden, weight, bias, labels, smoothing)
    if hidden.shape[0] * weight.shape[0] <= WHOLE.get(device, OTHER):
        scores = F.linear(hidden, weight, bias).float()  # (N, V)
        loss = F.cross_entropy(scores, labels, reduction="sum", label_smoothing=smoothing)
        return loss, (scores.detach().argmax(dim=-1) == labels).sum()
    if device == "cpu":
        return tiled_loss(hidden, weight, bias, labels, smoothing)
    return _PiecewiseLoss.apply(hidden, weight, bias, labels, smoothing, torch.is_grad_enabled())


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
    rows = max(1, PIECE.get(first.device.type, OTHER) // (2 * weight.shape[0]))

    def piece(one: Tensor, other: Tensor) -> Tensor:
        return divergence(F.linear(one, weight, bias).float(), F.linear(other, weight, bias).float())

    if first.shape[0] <= rows:
        return piece(first, second)
    parts = [
        checkpoint(piece, one, other, use_reentrant=False)
        for one, other in zip(first.split(rows), second.split(rows), strict=True)
    ]
    return torch.stack(parts).sum()


class _PiecewiseLoss(KeptSlopes):
    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, smoothing, may_learn):  # type: ignore[no-untyped-def]
        rows = max(1, PIECE.get(hidden.device.type, OTHER) // weight.shape[0])
        floor = smoothing / weight.shape[0]  # what is wanted of every token
        wants = may_learn and any(ctx.needs_input_grad[:3])
        total = torch.zeros((), dtype=torch.float, device=hidden.device)
        correct = torch.zeros((), dtype=torch.long, device=hidden.device)
        grad_hidden = torch.empty_like(hidden if wants else hidden[:0])
        grad_weight = torch.zeros_like(weight if wants else weight[:0], dtype=torch.float)
        grad_bias = torch.zeros_like(bias, dtype=torch.float) if wants and bias is not None else None
        for start in range(0, hidden.shape[0], rows):
            part, wanted = hidden[start : start + rows], labels[start : start + rows]
            scores = F.linear(part, weight, bias)  # (n, V)
            correct += (scores.argmax(dim=-1) == wanted).sum()
            shares = scores.log_softmax(dim=-1, dtype=torch.float)  # a kernel of few passes
            del scores
            own = shares.gather(1, wanted[:, None])  # (n, 1)
            total -= (1 - smoothing) * own.sum()
            if smoothing:
                total -= smoothing * shares.mean(dim=-1).sum()
            if not wants:
                continue
            slope = torch.sub(shares.exp_(), floor, out=torch.empty_like(shares, dtype=weight.dtype))
            slope.scatter_(1, wanted[:, None], (own.exp() - floor + smoothing - 1).to(slope.dtype))
            torch.mm(slope, weight, out=grad_hidden[start : start + rows])
            if grad_weight.dtype == slope.dtype:
                grad_weight.addmm_(slope.T, part)
            else:
                grad_weight += slope.T @ part
            if grad_bias is not None:
                grad_bias += slope.sum(dim=0)
        return _PiecewiseLoss.keep(ctx, total, correct, (weight, grad_weight), (bias, grad_bias), grad_hidden)
