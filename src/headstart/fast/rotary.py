"""Rotation of queries and keys without intermediate copies.

Replaces: models/transformer.py, `Rotary`, in training and inference.
Equal by: tests/fast/test_rotary.py
Pays: benchmarks/results/profile-cpu.md
"""

from typing import Any

import torch
from torch import Tensor

from headstart.models.transformer import Rope, Rotary


class InPlaceRotary(Rotary):
    """Writes both halves into one new tensor; the backward pass rotates in the other direction."""

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        """(B, T, H, d) in and out."""
        if torch.compiler.is_compiling():  # the compiler fuses the plain code, and cannot trace `out=`
            return super().forward(x, rope)
        cos, sin = (part.unsqueeze(-2).to(x.dtype) for part in rope)
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
