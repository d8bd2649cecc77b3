import pytest
import torch
from torch.nn import functional as F

from headstart.objectives import cross_entropy
from headstart.objectives.cross_entropy import divergence, divergence_in_pieces, token_loss


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("piece", [1, 64, 200, 10**9])
def test_the_loss_in_pieces_equals_the_plain_one(monkeypatch, with_bias, smoothing, piece):
    monkeypatch.setitem(cross_entropy.PIECE, "cpu", piece)
    torch.manual_seed(0)
    hidden, weight = torch.randn(13, 6, requires_grad=True), torch.randn(31, 6, requires_grad=True)
    bias = torch.randn(31, requires_grad=True) if with_bias else None
    labels = torch.randint(0, 31, (13,))
    inputs = [value for value in (hidden, weight, bias) if value is not None]
    scores = F.linear(hidden, weight, bias)
    expected = F.cross_entropy(scores, labels, reduction="sum", label_smoothing=smoothing)
    slopes = torch.autograd.grad(expected * 0.3, inputs)
    loss, correct = token_loss(hidden, weight, bias, labels, smoothing)
    assert torch.allclose(loss, expected, rtol=1e-5)
    assert int(correct) == int((scores.argmax(-1) == labels).sum())
    for found, wanted in zip(torch.autograd.grad(loss * 0.3, inputs), slopes, strict=True):
        assert torch.allclose(found, wanted, atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(token_loss(hidden, weight, bias, labels, smoothing)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("piece", [1, 200, 10**9])
def test_the_divergence_in_pieces_equals_the_plain_one(monkeypatch, with_bias, piece):
    monkeypatch.setitem(cross_entropy.PIECE, "cpu", piece)
    torch.manual_seed(0)
    first, second, weight = (torch.randn(size, 6, requires_grad=True) for size in (13, 13, 31))
    bias = torch.randn(31, requires_grad=True) if with_bias else None
    inputs = [value for value in (first, second, weight, bias) if value is not None]
    expected = divergence(F.linear(first, weight, bias), F.linear(second, weight, bias))
    slopes = torch.autograd.grad(expected, inputs)
    found = divergence_in_pieces(first, second, weight, bias)
    assert torch.allclose(found, expected, rtol=1e-5)
    for mine, wanted in zip(torch.autograd.grad(found, inputs), slopes, strict=True):
        assert torch.allclose(mine, wanted, atol=1e-5)
