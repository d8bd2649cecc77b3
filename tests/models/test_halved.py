"""Maps in bfloat16 give nearly what plain ones give."""

import pytest
import torch
from torch import nn

from headstart.models.block import ACTIVATIONS, FeedForward
from headstart.models.bodies import BODIES
from headstart.models.halved import HalfFeedForward, HalfLinear, halved
from tests.contracts.test_bodies import make_batch, make_body
from tests.worlds import small_body

NEAR = 0.02  # of the largest number: bfloat16 keeps eight binary digits


@pytest.fixture(params=["packed", "plain"])
def layout(request, monkeypatch):
    """With oneDNN and without it."""
    if request.param == "plain":
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)


def is_near(found, expected):
    return float((found - expected).abs().max()) <= NEAR * float(expected.abs().max())


@pytest.mark.parametrize("rows", [1, 16, 50])
@pytest.mark.parametrize("bias", [True, False])
def test_a_half_map_gives_nearly_what_the_plain_one_gives(rows, bias, layout):
    torch.manual_seed(rows)
    plain, x = nn.Linear(48, 24, bias=bias), torch.randn(2, rows, 48)
    with torch.inference_mode():
        found = HalfLinear(plain.weight, plain.bias)(x)
        assert found.dtype == torch.float32
        assert is_near(found, plain(x))


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_half_feed_forward_part_gives_nearly_what_the_plain_one_gives(activation, biases, layout):
    torch.manual_seed(3)
    plain = FeedForward(small_body("causal", "modern", activation=activation, biases=biases)).eval()
    x = torch.randn(5, 7, plain.widen.in_features)
    with torch.inference_mode():
        found = HalfFeedForward(plain)(x)
        assert found.dtype == torch.float32
        assert is_near(found, plain(x))


@pytest.mark.parametrize("kind", BODIES)
def test_a_half_body_reads_nearly_as_before_and_the_first_one_stays_as_it_was(kind):
    body, batch = make_body(kind, "modern").train(), make_batch([7, 4])
    names = set(body.state_dict())
    other = halved(body)
    assert body.training
    assert set(body.state_dict()) == names
    assert not any(isinstance(part, HalfLinear) for part in body.modules())
    assert not any(type(part) is nn.Linear for part in other.modules())
    with torch.inference_mode():
        found, expected = other(batch)[batch.real], body.eval()(batch)[batch.real]
    assert found.dtype == torch.float32
    assert is_near(found, expected)
    assert other.embedding.tokens.weight.data_ptr() == body.embedding.tokens.weight.data_ptr()
