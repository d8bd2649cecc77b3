"""Dropout on a CPU with one random byte for each number.

Replaces: torch's `nn.Dropout`, and `ScaledDotProductAttention` of models/transformer.py with dropout, on a CPU.
Equal by: tests/fast/test_dropout.py
Pays: torch draws its CPU mask number by number, a fifth of a fine-tuning step (benchmarks/results/profile-cpu.md)
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.models.transformer import ScaledDotProductAttention, causal_mask


def byte_mask_dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Dropout; one draw of 64 bits decides for eight numbers, so `p` is rounded to 256ths, as is the scale."""
    if not training or p == 0.0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():  # the compiler has its own random numbers
        return F.dropout(x, p, training=True)
    dropped = min(255, max(1, round(p * 256)))
    bits = torch.empty(x.numel() // 8 + 1, dtype=torch.int64).random_(-(2**63), None).view(torch.uint8)
    mask = bits[: x.numel()].view(x.shape) >= dropped
    return x * mask.to(x.dtype).mul_(256 / (256 - dropped))


class ByteMaskDropout(nn.Dropout):
    """`nn.Dropout` by `byte_mask_dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape in and out."""
        return byte_mask_dropout(x, self.p, self.training)


class ByteMaskAttention(ScaledDotProductAttention):
    """Attention with dropout, which torch does not fuse on a CPU."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, with_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Vectors (B, H, T, d), and the attention weights (B, H, T, S) on request."""
        if with_weights or not (self.training and self.dropout) or query.device.type != "cpu":
            return super().forward(query, key, value, mask, is_causal, with_weights)
        scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)  # (B, H, T, S)
        mask = causal_mask(query.shape[2], mask, query.device) if is_causal else mask
        if mask is not None:
            scores = scores.masked_fill_(~mask, -torch.inf)
        return byte_mask_dropout(scores.softmax(dim=-1), self.dropout, True) @ value, None
