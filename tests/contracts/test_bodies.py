"""What every backbone promises, in every shape of the block, with fast paths and without."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart import fast
from headstart.batch import Batch, pad
from headstart.models import BACKBONES
from tests.helpers.tiny_models import ATTENTIVE, CACHED, SHAPES, VOCABULARY, make_batch
from tests.helpers.tiny_models import make_backbone as make_plain_backbone

# The block's shapes are for bodies made of blocks; the others have one.
EVERY = [(kind, shape) for kind in BACKBONES for shape in SHAPES if kind in ATTENTIVE or shape == "modern"]
WITH_ATTENTION = [(kind, shape) for kind, shape in EVERY if kind in ATTENTIVE]


@pytest.fixture(autouse=True, scope="module", params=[True, False], ids=["fast", "plain"])
def _fast(request):
    fast.set_enabled(request.param)
    yield
    fast.set_enabled(True)


def make_backbone(kind, shape, **changes):
    return fast.optimize(make_plain_backbone(kind, shape, **changes))


def with_tokens(batch, tokens, real, rows=slice(None), **changes):
    source = {"source": batch.source[rows], "source_attention_mask": batch.source_attention_mask[rows]}
    return Batch(tokens, real, **source, **changes)


@pytest.mark.parametrize(("kind", "shape"), EVERY)
@settings(max_examples=10, deadline=None)
@given(lengths=st.lists(st.integers(2, 12), min_size=1, max_size=4), extra=st.integers(1, 5), junk=st.integers(0, 39))
def test_padding_never_changes_an_answer(kind, shape, lengths, extra, junk):
    body, batch = make_backbone(kind, shape), make_batch(lengths)
    longer = torch.cat((batch.tokens, torch.full((len(lengths), extra), junk)), dim=1)
    real = torch.cat((batch.attention_mask, torch.zeros(len(lengths), extra, dtype=torch.bool)), dim=1)
    wider = with_tokens(batch, longer, real)
    with torch.no_grad():
        before, after = body(batch), body(wider)[:, : batch.tokens.shape[1]]
    assert torch.allclose(before[batch.attention_mask], after[batch.attention_mask], atol=1e-5)


@pytest.mark.parametrize(("kind", "shape"), EVERY)
def test_batch_mates_and_their_order_never_change_an_answer(kind, shape):
    body, lengths = make_backbone(kind, shape), [7, 3, 12, 5]
    batch = make_batch(lengths)
    with torch.no_grad():
        together = body(batch)
        back = torch.arange(len(lengths)).flip(0)
        turned = body(with_tokens(batch, batch.tokens[back], batch.attention_mask[back], back)).flip(0)
        for index, length in enumerate(lengths):
            one = slice(index, index + 1)
            alone = body(with_tokens(batch, batch.tokens[one, :length], batch.attention_mask[one, :length], one))
            assert torch.allclose(alone[0], together[index, :length], atol=1e-5)
    assert torch.allclose(together[batch.attention_mask], turned[batch.attention_mask], atol=1e-5)


@pytest.mark.parametrize(("kind", "shape"), EVERY)
def test_a_body_sees_ahead_only_if_it_says_so(kind, shape):
    body, batch = make_backbone(kind, shape), make_batch([9])
    changed = batch.tokens.clone()
    changed[0, 6] = (changed[0, 6] + 1) % VOCABULARY.size
    with torch.no_grad():
        moved = (body(batch) - body(with_tokens(batch, changed, batch.attention_mask))).abs().amax(dim=-1)[0]
    assert bool((moved[:6] > 0).any()) == body.sees_ahead
    assert moved[6] > 0


@pytest.mark.parametrize(("kind", "shape"), EVERY)
def test_no_gradient_flows_from_the_past_to_the_future_in_a_causal_body(kind, shape):
    body, batch = make_backbone(kind, shape), make_batch([9])
    given = []
    body.embedding.token_embedding.register_forward_hook(
        lambda module, args, out: given.append(out.requires_grad_()) or out
    )
    hidden = body(batch)
    (grad,) = torch.autograd.grad(
        (hidden[0, 4] * torch.arange(16)).sum(), given[-1]
    )  # a plain sum is flat under a norm
    reach = grad[0].abs().amax(dim=-1)
    assert bool((reach[5:] > 0).any()) == body.sees_ahead
    assert reach[4] > 0


@pytest.mark.parametrize(("kind", "shape"), WITH_ATTENTION)
def test_attention_weights_are_those_of_the_output(kind, shape):
    body, batch = make_backbone(kind, shape), make_batch([9, 4])
    with torch.no_grad():
        output = body(batch, output_attentions=True)
        hidden, weights = output.hidden, output.attentions
        assert torch.allclose(hidden[batch.attention_mask], body(batch)[batch.attention_mask], atol=1e-5)
    for layer in weights:
        assert torch.allclose(layer.sum(dim=-1), torch.ones(()), atol=1e-5)
        assert float(layer[1, :, :4, 4:].abs().max()) == 0  # nothing real ever reads padding
        if not body.sees_ahead:
            assert float(layer[0].triu(1).abs().max()) == 0


@pytest.mark.parametrize(("kind", "shape"), EVERY)
def test_a_full_batch_needs_no_mask_to_say_the_same(kind, shape):
    body, batch = make_backbone(kind, shape), make_batch([8, 8])
    with torch.no_grad():
        masked, free = (body(batch), body(with_tokens(batch, batch.tokens, batch.attention_mask, unpadded=True)))
    assert torch.allclose(masked, free, atol=1e-5)


@pytest.mark.parametrize("kind", ATTENTIVE)
@pytest.mark.parametrize("shape", ["modern", "lab"])
def test_bodies_without_learned_positions_read_past_their_maximum(kind, shape):
    short, batch = make_backbone(kind, shape, max_position_embeddings=6), make_batch([20])
    assert torch.allclose(short(batch), make_backbone(kind, shape, max_position_embeddings=64)(batch), atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_padding_of_a_source_never_changes_an_answer(shape):
    body, batch = make_backbone("encoder-decoder", shape), make_batch([7, 4])
    junk = torch.full((2, 3), 17)
    wider = replace(
        batch,
        source=torch.cat((batch.source, junk), dim=1),
        source_attention_mask=torch.cat((batch.source_attention_mask, torch.zeros(2, 3, dtype=torch.bool)), dim=1),
    )
    with torch.no_grad():
        assert torch.allclose(body(batch)[batch.attention_mask], body(wider)[batch.attention_mask], atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_decoder_reads_its_source_and_says_where(shape):
    body, batch = make_backbone("encoder-decoder", shape), make_batch([7, 4])
    changed = batch.source.clone()
    changed[0, 1] += 1
    with torch.no_grad():
        moved = (body(batch) - body(replace(batch, source=changed))).abs().amax(dim=-1)
        output = body(batch, output_attentions=True)
    assert (moved[0] > 0).all()
    assert float(moved[1].max()) == 0
    for layer in output.cross_attentions:
        assert torch.allclose(layer.sum(dim=-1), torch.ones(()), atol=1e-5)
        assert float(layer[~batch.source_attention_mask[:, None, None, :].expand_as(layer)].abs().max()) == 0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", CACHED)
@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    new=st.integers(1, 4),
    piece=st.integers(1, 3),
    data=st.data(),
)
def test_decoding_with_a_cache_equals_one_forward_pass(kind, shape, lengths, new, piece, data):
    """Prompts of different lengths, more tokens a piece at a time, rows taken twice, left out and reordered."""
    body, batch = make_backbone(kind, shape), make_batch([length + 1 for length in lengths])
    prompts = [row[:length] for row, length in zip(batch.tokens, lengths, strict=True)]
    tokens, real = pad(prompts, 17)
    order = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=4))
    rows = torch.tensor(order)
    fresh = torch.randint(5, VOCABULARY.size, (len(order), new), generator=torch.Generator().manual_seed(new))
    with torch.no_grad():
        cache = body.new_cache(batch, 2)
        first = body.decode(tokens, cache, real)
        cache.select(rows, rows)
        later = torch.cat([body.decode(part, cache) for part in fresh.split(piece, dim=1)], dim=1)
        for index, row in enumerate(order):
            one = slice(row, row + 1)
            whole = torch.cat((prompts[row], fresh[index]))[None]
            alone = body(with_tokens(batch, whole, torch.ones_like(whole, dtype=torch.bool), one))[0]
            length = lengths[row]
            assert torch.allclose(first[row, :length], alone[:length], atol=1e-5)
            assert torch.allclose(later[index], alone[length:], atol=1e-5)


def test_several_rows_attend_to_one_source():
    """As in beam search: rows of one source stand together, and the source is stored once."""
    body, batch = make_backbone("encoder-decoder", "modern"), make_batch([5, 5])
    with torch.no_grad():
        cache = body.new_cache(batch, 8)
        body.decode(batch.tokens[:, :3], cache)
        cache.select(torch.tensor([0, 0, 0, 1, 1, 1]))
        assert len(cache.cross_kv[0][0]) == 2
        new = torch.tensor([[7], [8], [9], [7], [8], [9]])
        found = body.decode(new, cache)[:, 0]
        for row in range(6):
            whole = torch.cat((batch.tokens[row // 3, :3], new[row]))[None]
            one = slice(row // 3, row // 3 + 1)
            alone = body(with_tokens(batch, whole, torch.ones_like(whole, dtype=torch.bool), one))[0, -1]
            assert torch.allclose(found[row], alone, atol=1e-5)


@pytest.mark.parametrize(("kind", "shape"), EVERY)
def test_output_positions_select_vectors(kind, shape):
    body, batch = make_backbone(kind, shape), make_batch([5, 9, 3])
    positions = torch.tensor([0, 4, 10, 17, 18])  # of tokens; the last row begins at 18
    way = torch.randn(len(positions), body.config.hidden_size)
    found = body(batch, positions)
    plain = body(batch).flatten(0, 1)[positions]
    assert torch.allclose(found, plain, atol=1e-5)
    weights = [weight for weight in body.parameters() if weight.requires_grad]
    for own, wanted in zip(
        torch.autograd.grad((found * way).sum(), weights, allow_unused=True),
        torch.autograd.grad((plain * way).sum(), weights, allow_unused=True),
        strict=True,
    ):
        assert (own is None) == (wanted is None)
        assert own is None or torch.allclose(own, wanted, atol=1e-4)
