"""Cross-entropy and symmetric Kullback-Leibler divergence of a linear output layer."""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from headstart import fast
from headstart.constants import DEFAULT_LOGITS_PER_CHUNK, LOGITS_PER_CHUNK
from headstart.fast import linear_cross_entropy as chunked


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of the logits `hidden @ weight.T + bias`, and the number of correct predictions.

    `hidden` is (N, D), `weight` (V, D), `labels` (N,). The fast path never has all logits in memory.
    """
    if fast.is_enabled() and chunked.is_worthwhile(hidden, weight):
        return chunked.linear_cross_entropy(hidden, weight, bias, labels, label_smoothing)
    logits = F.linear(hidden, weight, bias)
    loss = F.cross_entropy(logits.float(), labels, reduction="sum", label_smoothing=label_smoothing)
    return loss, (logits.detach().argmax(dim=-1) == labels).sum()


def symmetric_kl(first: Tensor, second: Tensor) -> Tensor:
    """The mean of both Kullback-Leibler divergences of logits (N, C), summed over N, as in R-Drop (Liang et al., 2021)."""
    one, other = first.log_softmax(dim=-1), second.log_softmax(dim=-1)
    return ((one.exp() - other.exp()) * (one - other)).sum() / 2


def linear_symmetric_kl(first: Tensor, second: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The symmetric divergence of the logits of two hidden states (N, D); the backward pass computes them again."""
    rows = max(1, LOGITS_PER_CHUNK.get(first.device.type, DEFAULT_LOGITS_PER_CHUNK) // (2 * weight.shape[0]))

    def chunk(one: Tensor, other: Tensor) -> Tensor:
        return symmetric_kl(F.linear(one, weight, bias).float(), F.linear(other, weight, bias).float())

    if first.shape[0] <= rows:
        return chunk(first, second)
    chunks = zip(first.split(rows), second.split(rows), strict=True)
    return torch.stack([checkpoint(chunk, *each, use_reentrant=False) for each in chunks]).sum()
