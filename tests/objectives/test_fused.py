from types import SimpleNamespace

import pytest
import torch

from headstart.objectives import fused
from headstart.objectives.cross_entropy import token_loss
from headstart.objectives.kept import kept_loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_fused_loss_is_the_plain_one_whatever_the_pieces(monkeypatch, smoothing, has_bias):
    chance = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(shape, generator=chance, requires_grad=True) for shape in ((83, 24), (200, 24), (200,))
    )
    labels = torch.randint(200, (83,), generator=chance)
    monkeypatch.setattr(fused, "_marking", lambda wants: fused.slopes if wants else fused.marks)
    given, learning = (weight, bias if has_bias else None), (hidden, weight, *([bias] if has_bias else []))
    wanted, right = token_loss(hidden, *given, labels, smoothing)
    slopes = torch.autograd.grad(wanted / 7, learning)
    for piece in (2**27, 2**12, 200):
        mark = fused.fused_mark(labels, smoothing)
        loss, correct = kept_loss(hidden, *given, mark, piece)
        assert correct == right
        assert torch.allclose(loss, wanted, rtol=1e-6)
        for own, plain in zip(torch.autograd.grad(loss / 7, learning), slopes, strict=True):
            assert torch.allclose(own, plain, atol=1e-5)
        with torch.no_grad():
            assert torch.allclose(kept_loss(hidden, *given, mark, piece)[0], wanted, rtol=1e-6)


@pytest.mark.slow
def test_the_marking_is_compiled_once_for_any_number_of_rows(monkeypatch):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    swift = torch.compile(fused.slopes, backend="aot_eager")
    monkeypatch.setattr(fused, "_marking", lambda wants: swift)
    weight = torch.randn(50, 8, requires_grad=True)
    for rows in (30, 31, 47, 12):
        hidden, labels = torch.randn(rows, 8), torch.randint(50, (rows,))
        loss, correct = kept_loss(hidden, weight, None, fused.fused_mark(labels), 2**27)
        wanted, right = token_loss(hidden, weight, None, labels)
        assert correct == right
        assert torch.allclose(loss, wanted, rtol=1e-6)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def on(device, rows=3):
    return SimpleNamespace(device=torch.device(device), shape=(rows, 4))


def test_the_compiled_loss_is_used_on_a_gpu_only_and_only_when_switched_on():
    assert not fused.is_fused(on("cuda"))
    with fused.fused():
        assert fused.is_fused(on("cuda"))
        assert not fused.is_fused(on("cuda", rows=0))
        assert not fused.is_fused(on("cpu"))
    assert not fused.is_fused(on("cuda"))
