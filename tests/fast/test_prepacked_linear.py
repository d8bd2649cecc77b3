"""Prepacked linear layers equal plain ones."""

import pytest
import torch
from torch import nn

from headstart.fast import cpu_decoder as module
from headstart.fast.cpu_decoder import PrepackedLinear, cast_linears, prepack
from headstart.models import BACKBONES
from tests.helpers.tiny_models import make_backbone, make_batch


@pytest.mark.parametrize("rows", [1, 5, 16, 300])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("into", "out"), [(512, 300), (8, 8)])
def test_a_prepacked_layer_equals_the_plain_one(rows, bias, into, out):
    torch.manual_seed(rows)
    plain = nn.Linear(into, out, bias=bias)
    x = torch.randn(2, rows, into)
    with torch.inference_mode():
        found = PrepackedLinear(plain.weight, plain.bias)(x)
        assert found.shape == (2, rows, out)
        assert torch.allclose(found, plain(x), atol=1e-5)


@pytest.mark.parametrize("kind", BACKBONES)
def test_a_prepacked_backbone_equals_the_first_one_and_the_first_one_stays_as_it_was(kind, monkeypatch):
    monkeypatch.setattr(module, "MIN_NUMEL", 1)
    body, batch = make_backbone(kind, "modern").train(), make_batch([7, 4])
    names = set(body.state_dict())
    other = prepack(body)
    assert body.training
    assert set(body.state_dict()) == names
    assert not any(isinstance(part, PrepackedLinear) for part in body.modules())
    with torch.inference_mode():
        assert torch.allclose(other(batch)[batch.attention_mask], body.eval()(batch)[batch.attention_mask], atol=1e-5)
    assert other.embedding.token_embedding.weight.data_ptr() == body.embedding.token_embedding.weight.data_ptr()


@pytest.mark.parametrize("kind", BACKBONES)
def test_a_body_with_cast_linears_gives_what_autocast_gives_and_the_first_one_stays_as_it_was(kind):
    body, batch = make_backbone(kind, "modern"), make_batch([7, 4])
    before = {name: weight.clone() for name, weight in body.state_dict().items()}
    other = cast_linears(body.train(), torch.bfloat16)
    assert body.training
    assert all(part.weight.dtype == torch.bfloat16 for part in other.modules() if type(part) is nn.Linear)
    for name, weight in body.state_dict().items():
        assert weight.dtype == before[name].dtype
        assert torch.equal(weight, before[name])
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        found, expected = other(batch)[batch.attention_mask], body.eval()(batch)[batch.attention_mask]
    assert torch.equal(found, expected)
    assert other.embedding.token_embedding.weight.data_ptr() == body.embedding.token_embedding.weight.data_ptr()


def test_what_cannot_be_packed_stays_plain(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    plain = nn.Linear(512, 300)
    found = PrepackedLinear(plain.weight, plain.bias)
    assert found.packed is None
    assert torch.equal(found(torch.ones(2, 512)), plain(torch.ones(2, 512)))
