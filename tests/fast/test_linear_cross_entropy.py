from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from headstart import constants, fast
from headstart.fast import linear_cross_entropy as chunked
from headstart.fast.linear_cross_entropy import chunked_loss, loss_and_grad, loss_and_grad_in_place
from headstart.objectives.base import linear_cross_entropy


def plain(hidden, weight, bias, labels, label_smoothing):
    logits = F.linear(hidden, weight, bias)
    loss = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)
    return loss, (logits.argmax(-1) == labels).sum()


def eager(hidden, weight, bias, labels, label_smoothing, chunk=None):
    return chunked_loss([(hidden, weight, bias)], labels, loss_and_grad, label_smoothing, chunk)


def in_place(hidden, weight, bias, labels, label_smoothing):
    return chunked_loss([(hidden, weight, bias)], labels, loss_and_grad_in_place, label_smoothing)


def examples(rows=13, size=31, width=6, with_bias=True):
    torch.manual_seed(0)
    hidden, weight = torch.randn(rows, width), torch.randn(size, width)
    bias = torch.randn(size) if with_bias else None
    inputs = [value.requires_grad_() for value in (hidden, weight, bias) if value is not None]
    return inputs, (hidden, weight, bias, torch.randint(0, size, (rows,)))


def no_chunks(*inputs):
    raise AssertionError("the fast path was used")


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 64, 200, 10**9])
@pytest.mark.parametrize("loss_in_chunks", [in_place, eager, linear_cross_entropy])
def test_the_loss_in_chunks_equals_the_plain_one(monkeypatch, with_bias, smoothing, chunk, loss_in_chunks):
    monkeypatch.setitem(constants.LOGITS_PER_CHUNK, "cpu", chunk)
    monkeypatch.setitem(chunked.MAX_UNCHUNKED_LOGITS, "cpu", 0)
    inputs, given = examples(with_bias=with_bias)
    expected, right = plain(*given, smoothing)
    grads = torch.autograd.grad(expected * 0.3, inputs)
    loss, correct = loss_in_chunks(*given, smoothing)
    assert torch.allclose(loss, expected, rtol=1e-5)
    assert int(correct) == int(right)
    for found, grad in zip(torch.autograd.grad(loss * 0.3, inputs), grads, strict=True):
        assert torch.allclose(found, grad, atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(loss_in_chunks(*given, smoothing)[0], expected, rtol=1e-5)


def test_without_fast_paths_the_loss_is_the_plain_one(monkeypatch):
    monkeypatch.setitem(chunked.MAX_UNCHUNKED_LOGITS, "cpu", 0)
    _, given = examples()
    expected = linear_cross_entropy(*given)
    monkeypatch.setattr(chunked, "linear_cross_entropy", no_chunks)
    with pytest.raises(AssertionError, match="fast path"):
        linear_cross_entropy(*given)
    monkeypatch.setattr(fast, "is_enabled", lambda: False)
    for found, known in zip(linear_cross_entropy(*given), expected, strict=True):
        assert torch.allclose(found, known)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("loss_in_chunks", [in_place, eager])
def test_the_loss_of_chunks_in_16_bits_is_computed_in_32(monkeypatch, smoothing, loss_in_chunks):
    monkeypatch.setitem(constants.LOGITS_PER_CHUNK, "cpu", 200)
    _, (*given, labels) = examples()
    inputs = [value.detach().bfloat16().requires_grad_() for value in given]
    logits = F.linear(*inputs)
    expected = F.cross_entropy(logits.float(), labels, reduction="sum", label_smoothing=smoothing)
    grads = torch.autograd.grad(expected, inputs)
    loss, correct = loss_in_chunks(*inputs, labels, smoothing)
    assert loss.dtype == torch.float
    assert torch.allclose(loss, expected, rtol=1e-6)
    assert int(correct) == int((logits.argmax(-1) == labels).sum())
    for found, grad in zip(torch.autograd.grad(loss, inputs), grads, strict=True):
        assert found.dtype == torch.bfloat16
        assert torch.allclose(found.float(), grad.float(), rtol=0.02, atol=0.05)


def test_of_equal_logits_the_first_counts_as_the_prediction():
    torch.manual_seed(1)
    logits = torch.randint(0, 3, (64, 8)).float()  # ties in nearly every row
    labels = torch.randint(0, 8, (64,))
    _, correct = in_place(logits, torch.eye(8), None, labels, 0.0)
    assert int(correct) == int((logits.argmax(-1) == labels).sum())
    _, correct = in_place(torch.zeros(64, 8), torch.eye(8), None, labels, 0.0)
    assert int(correct) == int((labels == 0).sum())


def test_large_logits_neither_overflow_nor_vanish():
    inputs, given = examples()
    far = (given[0] * 1e4, *given[1:])
    loss, _ = in_place(*far, 0.0)
    expected, _ = plain(*far, 0.0)
    assert torch.isfinite(loss)
    assert torch.allclose(loss, expected, rtol=1e-5)
    for found in torch.autograd.grad(loss, inputs):
        assert torch.isfinite(found).all()


def test_a_logit_that_is_nan_makes_the_loss_nan():
    _, given = examples()
    hidden = given[0].detach().clone()
    hidden[3] = torch.nan
    assert torch.isnan(in_place(hidden, *given[1:], 0.0)[0])


def test_in_bfloat16_chunks_are_as_exact_as_the_plain_loss(monkeypatch):
    monkeypatch.setitem(constants.LOGITS_PER_CHUNK, "cpu", 200)
    inputs, given = examples(rows=40)
    exact = torch.autograd.grad(plain(*given, 0.0)[0], inputs)

    def error(size):
        monkeypatch.setitem(chunked.MAX_UNCHUNKED_LOGITS, "cpu", size)
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = linear_cross_entropy(*given)
        return [
            float((found - grad).norm() / grad.norm())
            for found, grad in zip(torch.autograd.grad(loss, inputs), exact, strict=True)
        ]

    for in_chunks, whole in zip(error(0), error(10**9), strict=True):
        assert in_chunks <= 1.5 * whole + 1e-3


def test_a_second_backward_pass_is_an_error():
    _, given = examples()
    loss, _ = in_place(*given, 0.0)
    loss.backward(retain_graph=True)
    with pytest.raises(AssertionError, match="second backward"):
        loss.backward()


# --- The compiled loss ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_loss_is_compiled_once_for_any_number_of_rows(monkeypatch):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(loss_and_grad, backend="aot_eager")
    monkeypatch.setattr(chunked, "_compile", lambda function: compiled)
    monkeypatch.setattr(chunked, "is_compiled", lambda hidden: True)
    weight = torch.randn(50, 8, requires_grad=True)
    for rows in (30, 31, 47, 12):
        hidden, labels = torch.randn(rows, 8), torch.randint(50, (rows,))
        loss, correct = eager(hidden, weight, None, labels, 0.0)
        expected, right = plain(hidden, weight, None, labels, 0.0)
        assert correct == right
        assert torch.allclose(loss, expected, rtol=1e-6)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def on(device, rows=3):
    return SimpleNamespace(device=torch.device(device), shape=(rows, 4))


def test_the_compiled_loss_is_used_on_a_gpu_only_and_only_when_switched_on():
    assert not chunked.is_compiled(on("cuda"))
    with chunked.compiled():
        assert chunked.is_compiled(on("cuda"))
        assert not chunked.is_compiled(on("cuda", rows=0))
        assert not chunked.is_compiled(on("cpu"))
    assert not chunked.is_compiled(on("cuda"))
