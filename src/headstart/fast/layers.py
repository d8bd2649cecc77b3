"""Dropout, rotary positions and the last layer in fewer operations.

- Dropout on a CPU takes one random byte for each number. torch draws its mask number by number, which is a fifth of a
  fine-tuning step. Replaces: `nn.Dropout`, and `ScaledDotProductAttention` with dropout. Equal by: tests/fast/test_dropout.py
- Rotary positions are applied without intermediate copies. Replaces: `Rotary`. Equal by: tests/fast/test_rotary.py
- The last layer computes only the positions whose output is used. Replaces: `Block` with `output_positions`.
  Equal by: tests/fast/test_last_layer.py

Pays: benchmarks/results/profile-cpu.md, benchmarks/results/speed-cpu-finetune.md
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.batch import select_positions
from headstart.models.kv_cache import causal_mask
from headstart.models.transformer import Block, LayerInputs, Rotary, ScaledDotProductAttention


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

    def forward(self, query: Tensor, key: Tensor, value: Tensor, inputs: LayerInputs) -> tuple[Tensor, Tensor | None]:
        """Vectors (B, H, T, d), and the attention weights (B, H, T, S) on request."""
        if inputs.output_attentions or not (self.training and self.dropout) or query.device.type != "cpu":
            return super().forward(query, key, value, inputs)
        scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)  # (B, H, T, S)
        mask = inputs.attention_mask
        mask = causal_mask(query.shape[2], mask, query.device) if inputs.is_causal else mask
        if mask is not None:
            scores = scores.masked_fill_(~mask, -torch.inf)
        return byte_mask_dropout(scores.softmax(dim=-1), self.dropout, True) @ value, None


class InPlaceRotary(Rotary):
    """Writes both halves into one new tensor; the backward pass rotates in the other direction."""

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        """(B, T, H, d) in and out."""
        if torch.compiler.is_compiling():  # the compiler fuses the plain code, and cannot trace `out=`
            return super().forward(x, rope)
        cos, sin = rope.unsqueeze(-2).to(x.dtype).chunk(2, dim=-1)
        if x.requires_grad:
            rotated: Tensor = _Rotation.apply(x, cos, sin)  # type: ignore[no-untyped-call]
            return rotated
        return _rotate(x, cos, sin, 1)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(grad, cos, sin, -1), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, direction: int) -> Tensor:
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    rotated = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.mul(first, cos, out=rotated[..., :half]).addcmul_(second, sin, value=-direction)
    torch.mul(second, cos, out=rotated[..., half:]).addcmul_(first, sin, value=direction)
    return rotated


class OutputPositionsBlock(Block):
    """Computes everything after attention at `output_positions` only."""

    def forward(self, hidden: Tensor, inputs: LayerInputs) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(B, T, D) in and out, or (N, D) out at `output_positions`; and the attention weights on request."""
        positions, attention = inputs.output_positions, self.attention
        is_plain = inputs.cross_kv is None and inputs.cache is None and not inputs.output_attentions
        if positions is None or not is_plain:
            return super().forward(hidden, inputs)
        query, key, value = attention.project(self.normed(hidden, self.attention_norm), inputs.rope)
        mixed, _ = attention.attend(query, key, value, inputs)
        update = attention.out_proj(select_positions(mixed.transpose(1, 2).flatten(2), positions))
        return self.after_attention(select_positions(hidden, positions), update, inputs)[0], None, None
