import pytest
import torch
from torch.nn import functional as F

from headstart import constants
from headstart.objectives.base import linear_symmetric_kl, symmetric_kl


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("chunk", [1, 200, 10**9])
def test_the_divergence_in_chunks_equals_the_plain_one(monkeypatch, with_bias, chunk):
    monkeypatch.setitem(constants.LOGITS_PER_CHUNK, "cpu", chunk)
    torch.manual_seed(0)
    first, second, weight = (torch.randn(size, 6, requires_grad=True) for size in (13, 13, 31))
    bias = torch.randn(31, requires_grad=True) if with_bias else None
    inputs = [value for value in (first, second, weight, bias) if value is not None]
    expected = symmetric_kl(F.linear(first, weight, bias), F.linear(second, weight, bias))
    grads = torch.autograd.grad(expected, inputs)
    found = linear_symmetric_kl(first, second, weight, bias)
    assert torch.allclose(found, expected, rtol=1e-5)
    for own, grad in zip(torch.autograd.grad(found, inputs), grads, strict=True):
        assert torch.allclose(own, grad, atol=1e-5)
