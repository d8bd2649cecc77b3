"""What every body promises, in every shape of the block."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.batch import Batch, pad
from headstart.models.bodies import BODIES, TransformerBody
from tests.worlds import ALPHABET, SHAPES, random_rows, small_body

ATTENTIVE = [kind for kind, body in BODIES.items() if issubclass(body, TransformerBody)]
# The block's shapes are for bodies made of blocks; the others have one.
EVERY = [(kind, shape) for kind in BODIES for shape in SHAPES if kind in ATTENTIVE or shape == "modern"]
WATCHED = [(kind, shape) for kind, shape in EVERY if kind in ATTENTIVE]


def make_body(kind, shape, **changes):
    torch.manual_seed(1)
    return BODIES[kind](small_body(kind, shape, **changes), ALPHABET.size).eval()


def make_batch(lengths, seed=0):
    rows = [torch.from_numpy(row.tokens).long() for row in random_rows(lengths, seed)]
    tokens, real = pad(rows, ALPHABET.padding)
    return Batch(tokens, real)


@pytest.mark.parametrize(("kind", "shape"), EVERY)
@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.integers(2, 12), min_size=1, max_size=4),
    extra=st.integers(1, 5),
    junk=st.integers(0, 39),
)
def test_padding_never_changes_an_answer(kind, shape, lengths, extra, junk):
    body, batch = make_body(kind, shape), make_batch(lengths)
    longer = torch.cat((batch.tokens, torch.full((len(lengths), extra), junk)), dim=1)
    wider = Batch(longer, torch.cat((batch.real, torch.zeros(len(lengths), extra, dtype=torch.bool)), dim=1))
    with torch.no_grad():
        before, after = body(batch), body(wider)[:, : batch.tokens.shape[1]]
    assert torch.allclose(before[batch.real], after[batch.real], atol=1e-5)


@pytest.mark.parametrize(("kind", "shape"), EVERY)
def test_batch_mates_and_their_order_never_change_an_answer(kind, shape):
    body, lengths = make_body(kind, shape), [7, 3, 12, 5]
    batch = make_batch(lengths)
    with torch.no_grad():
        together = body(batch)
        turned = body(Batch(batch.tokens.flip(0), batch.real.flip(0))).flip(0)
        for index, length in enumerate(lengths):
            alone = body(
                Batch(batch.tokens[index : index + 1, :length], batch.real[index : index + 1, :length])
            )
            assert torch.allclose(alone[0], together[index, :length], atol=1e-5)
    assert torch.allclose(together[batch.real], turned[batch.real], atol=1e-5)


@pytest.mark.parametrize(("kind", "shape"), EVERY)
def test_a_body_sees_ahead_only_if_it_says_so(kind, shape):
    body, batch = make_body(kind, shape), make_batch([9])
    changed = batch.tokens.clone()
    changed[0, 6] = (changed[0, 6] + 1) % ALPHABET.size
    with torch.no_grad():
        moved = (body(batch) - body(Batch(changed, batch.real))).abs().amax(dim=-1)[0]
    assert bool((moved[:6] > 0).any()) == body.sees_ahead
    assert moved[6] > 0


@pytest.mark.parametrize(("kind", "shape"), EVERY)
def test_no_gradient_flows_from_the_past_to_the_future_in_a_causal_body(kind, shape):
    body, batch = make_body(kind, shape), make_batch([9])
    given = []
    body.embedding.tokens.register_forward_hook(
        lambda module, args, out: given.append(out.requires_grad_()) or out
    )
    hidden = body(batch)
    (slope,) = torch.autograd.grad(
        (hidden[0, 4] * torch.arange(16)).sum(), given[0]
    )  # a plain sum is flat under a norm
    reach = slope[0].abs().amax(dim=-1)
    assert bool((reach[5:] > 0).any()) == body.sees_ahead
    assert reach[4] > 0


@pytest.mark.parametrize(("kind", "shape"), WATCHED)
def test_watched_attention_equals_fast_attention(kind, shape):
    body, batch = make_body(kind, shape), make_batch([9, 4])
    with torch.no_grad():
        hidden, weights = body.watch(batch)
        assert torch.allclose(hidden[batch.real], body(batch)[batch.real], atol=1e-5)
    for layer in weights:
        assert torch.allclose(layer.sum(dim=-1), torch.ones(()), atol=1e-5)
        assert float(layer[1, :, :4, 4:].abs().max()) == 0  # nothing real ever reads padding
        if not body.sees_ahead:
            assert float(layer[0].triu(1).abs().max()) == 0


@pytest.mark.parametrize(("kind", "shape"), EVERY)
def test_a_full_batch_needs_no_mask_to_say_the_same(kind, shape):
    body, batch = make_body(kind, shape), make_batch([8, 8])
    with torch.no_grad():
        masked, free = body(batch), body(Batch(batch.tokens, batch.real, is_full=True))
    assert torch.allclose(masked, free, atol=1e-5)


@pytest.mark.parametrize("kind", ATTENTIVE)
@pytest.mark.parametrize("shape", ["modern", "lab"])
def test_bodies_without_learned_positions_read_past_their_maximum(kind, shape):
    short, batch = make_body(kind, shape, max_length=6), make_batch([20])
    assert torch.allclose(short(batch), make_body(kind, shape, max_length=64)(batch), atol=1e-5)
