"""Dropout by byte masks is dropout."""

import pytest
import torch

from headstart.fast.layers import ByteMaskAttention, byte_mask_dropout
from headstart.models.transformer import LayerInputs, ScaledDotProductAttention


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_the_share_dropped_and_the_mean_are_right(p):
    torch.manual_seed(0)
    x = torch.ones(400, 501)
    y = byte_mask_dropout(x, p, True)
    expected = max(1, round(p * 256)) / 256
    assert float((y == 0).float().mean()) == pytest.approx(expected, abs=4 * (expected / x.numel()) ** 0.5)
    assert float(y.mean()) == pytest.approx(1, abs=0.02)
    columns = (y == 0).float().mean(dim=0)  # every position is dropped as often as any other
    assert float(columns.std()) < 2 * (expected * (1 - expected) / 400) ** 0.5


def test_nothing_is_dropped_outside_training():
    x = torch.randn(3, 5)
    assert byte_mask_dropout(x, 0.5, False) is x
    assert byte_mask_dropout(x, 0.0, True) is x


def test_the_same_seed_drops_the_same_and_gradients_follow():
    x = torch.randn(7, 9, requires_grad=True)
    torch.manual_seed(3)
    y = byte_mask_dropout(x, 0.3, True)
    torch.manual_seed(3)
    assert torch.equal(y, byte_mask_dropout(x, 0.3, True))
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad == 0, y == 0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("with_mask", [True, False])
def test_attention_with_dropout_drops_weights_of_plain_attention(causal, with_mask):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 2, 5, 8).unbind(0)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])[:, None, None, :] if with_mask else None
    _, weights = ScaledDotProductAttention(0.3).eval()(
        query, key, value, LayerInputs(mask, causal, output_attentions=True)
    )
    torch.manual_seed(7)
    expected = byte_mask_dropout(weights, 0.3, True) @ value
    torch.manual_seed(7)
    found, _ = ByteMaskAttention(0.3)(query, key, value, LayerInputs(mask, causal))
    assert torch.allclose(found, expected, atol=1e-6)
