import pytest
import torch

from headstart.models.dropout import drop
from headstart.models.transformer import rotary_turns, rotate


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_the_share_dropped_and_the_mean_are_right(share):
    torch.manual_seed(0)
    x = torch.ones(400, 501)
    y = drop(x, share, True)
    wanted = max(1, round(share * 256)) / 256
    assert float((y == 0).float().mean()) == pytest.approx(wanted, abs=4 * (wanted / x.numel()) ** 0.5)
    assert float(y.mean()) == pytest.approx(1, abs=0.02)
    columns = (y == 0).float().mean(dim=0)  # every place is dropped as often as any other
    assert float(columns.std()) < 2 * (wanted * (1 - wanted) / 400) ** 0.5


def test_nothing_is_dropped_outside_training():
    x = torch.randn(3, 5)
    assert drop(x, 0.5, False) is x
    assert drop(x, 0.0, True) is x


def test_the_same_seed_drops_the_same_and_gradients_follow():
    x = torch.randn(7, 9, requires_grad=True)
    torch.manual_seed(3)
    y = drop(x, 0.3, True)
    torch.manual_seed(3)
    assert torch.equal(y, drop(x, 0.3, True))
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(slope == 0, y == 0)


def test_a_rotation_keeps_lengths_and_its_gradient_is_right():
    turns = rotary_turns(5, 6, 10000.0)
    x = torch.randn(2, 5, 2, 3, 6, dtype=torch.double, requires_grad=True)
    wide = tuple(turn.double() for turn in turns)
    assert torch.allclose(rotate(x, wide).norm(dim=-1), x.norm(dim=-1))
    assert torch.autograd.gradcheck(lambda value: rotate(value, wide), x)
    cos, sin = (turn[:, None, None, :] for turn in wide)
    first, second = x.chunk(2, dim=-1)
    assert torch.allclose(rotate(x, wide), x * cos + torch.cat((-second, first), dim=-1) * sin)
