"""Rotation into one new tensor equals the plain one."""

import torch

from headstart.fast.layers import InPlaceRotary
from headstart.models.transformer import Rotary, rotary_angles


def test_a_rotation_keeps_lengths_and_its_gradient_is_right():
    rope = rotary_angles(5, 6, 10000.0).double()
    x = torch.randn(2, 5, 3, 6, dtype=torch.double, requires_grad=True)
    rotary = InPlaceRotary()
    assert torch.allclose(rotary(x, rope).norm(dim=-1), x.norm(dim=-1))
    assert torch.allclose(rotary(x, rope), Rotary()(x, rope))
    assert torch.allclose(rotary(x.detach(), rope), Rotary()(x, rope))
    assert torch.autograd.gradcheck(lambda value: rotary(value, rope), x)
    cos, sin = (part[:, None, :].repeat(1, 1, 2) for part in rope.chunk(2, dim=-1))
    first, second = x.chunk(2, dim=-1)
    assert torch.allclose(rotary(x, rope), x * cos + torch.cat((-second, first), dim=-1) * sin)
