import pytest
import torch
from torch.nn import functional as F

from headstart.objectives import cross_entropy, tiles
from headstart.objectives.cross_entropy import divergence, divergence_in_pieces, plain_mark, token_loss
from headstart.objectives.kept import kept_loss


def plain(hidden, weight, bias, labels, smoothing):
    scores = F.linear(hidden, weight, bias)
    loss = F.cross_entropy(scores, labels, reduction="sum", label_smoothing=smoothing)
    return loss, (scores.argmax(-1) == labels).sum()


def in_pieces(hidden, weight, bias, labels, smoothing):
    return kept_loss(hidden, weight, bias, plain_mark(labels, smoothing), tiles.LOGITS_PER_CHUNK["cpu"])


def some(rows=13, size=31, width=6, with_bias=True):
    torch.manual_seed(0)
    hidden, weight = torch.randn(rows, width), torch.randn(size, width)
    bias = torch.randn(size) if with_bias else None
    inputs = [value.requires_grad_() for value in (hidden, weight, bias) if value is not None]
    return inputs, (hidden, weight, bias, torch.randint(0, size, (rows,)))


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("piece", [1, 64, 200, 10**9])
@pytest.mark.parametrize("way", [tiles.tiled_loss, in_pieces, token_loss])
@pytest.mark.parametrize("tile", [1, 7, 31, 2048])
def test_the_loss_in_pieces_equals_the_plain_one(monkeypatch, with_bias, smoothing, piece, way, tile):
    monkeypatch.setitem(tiles.LOGITS_PER_CHUNK, "cpu", piece)
    monkeypatch.setattr(tiles, "VOCAB_TILE", tile)
    monkeypatch.setitem(cross_entropy.MAX_UNCHUNKED_LOGITS, "cpu", 0)
    inputs, asked = some(with_bias=with_bias)
    expected, right = plain(*asked, smoothing)
    slopes = torch.autograd.grad(expected * 0.3, inputs)
    loss, correct = way(*asked, smoothing)
    assert torch.allclose(loss, expected, rtol=1e-5)
    assert int(correct) == int(right)
    for found, wanted in zip(torch.autograd.grad(loss * 0.3, inputs), slopes, strict=True):
        assert torch.allclose(found, wanted, atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(way(*asked, smoothing)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_pieces_in_16_bits_are_marked_in_32(monkeypatch, smoothing):
    monkeypatch.setitem(tiles.LOGITS_PER_CHUNK, "cpu", 200)
    _, (*given, labels) = some()
    inputs = [value.detach().bfloat16().requires_grad_() for value in given]
    scores = F.linear(*inputs)
    expected = F.cross_entropy(scores.float(), labels, reduction="sum", label_smoothing=smoothing)
    slopes = torch.autograd.grad(expected, inputs)
    loss, correct = in_pieces(*inputs, labels, smoothing)
    assert loss.dtype == torch.float
    assert torch.allclose(loss, expected, rtol=1e-6)
    assert int(correct) == int((scores.argmax(-1) == labels).sum())
    for found, wanted in zip(torch.autograd.grad(loss, inputs), slopes, strict=True):
        assert found.dtype == torch.bfloat16
        assert torch.allclose(found.float(), wanted.float(), rtol=0.02, atol=0.05)


@pytest.mark.parametrize("tile", [1, 3, 8])
def test_of_equal_scores_the_first_counts_as_the_answer(monkeypatch, tile):
    monkeypatch.setattr(tiles, "VOCAB_TILE", tile)
    torch.manual_seed(1)
    scores = torch.randint(0, 3, (64, 8)).float()  # ties in nearly every row
    labels = torch.randint(0, 8, (64,))
    _, correct = tiles.tiled_loss(scores, torch.eye(8), None, labels, 0.0)
    assert int(correct) == int((scores.argmax(-1) == labels).sum())
    _, correct = tiles.tiled_loss(torch.zeros(64, 8), torch.eye(8), None, labels, 0.0)
    assert int(correct) == int((labels == 0).sum())


def test_large_scores_neither_overflow_nor_vanish():
    inputs, asked = some()
    far = (asked[0] * 1e4, *asked[1:])
    loss, _ = tiles.tiled_loss(*far, 0.0)
    expected, _ = plain(*far, 0.0)
    assert torch.isfinite(loss)
    assert torch.allclose(loss, expected, rtol=1e-5)
    for found in torch.autograd.grad(loss, inputs):
        assert torch.isfinite(found).all()


def test_a_score_that_is_no_number_makes_the_loss_no_number():
    _, asked = some()
    hidden = asked[0].detach().clone()
    hidden[3] = torch.nan
    assert torch.isnan(tiles.tiled_loss(hidden, *asked[1:], 0.0)[0])


def test_in_bfloat16_the_tiles_stay_as_near_as_the_plain_way(monkeypatch):
    monkeypatch.setattr(tiles, "VOCAB_TILE", 7)
    inputs, asked = some(rows=40)
    exact = torch.autograd.grad(plain(*asked, 0.0)[0], inputs)

    def off(size):
        monkeypatch.setitem(cross_entropy.MAX_UNCHUNKED_LOGITS, "cpu", size)
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = token_loss(*asked)
        return [
            float((found - wanted).norm() / wanted.norm())
            for found, wanted in zip(torch.autograd.grad(loss, inputs), exact, strict=True)
        ]

    for tiled, whole in zip(off(0), off(10**9), strict=True):
        assert tiled <= 1.5 * whole + 1e-3


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("piece", [1, 200, 10**9])
def test_the_divergence_in_pieces_equals_the_plain_one(monkeypatch, with_bias, piece):
    monkeypatch.setitem(cross_entropy.LOGITS_PER_CHUNK, "cpu", piece)
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
