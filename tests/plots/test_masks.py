import numpy as np
import pytest
import torch

from headstart.batch import Batch
from headstart.errors import ConfigError
from headstart.evaluation.attention import attention_mask
from headstart.models.attention import visible
from headstart.models.bodies import BODIES
from headstart.plots.masks import (
    all_masks,
    causal,
    causal_and_padding,
    cross,
    draw_masks,
    packed,
    padding,
    prefix,
)
from tests.helpers.tiny_models import tiny_config


def looked_at(kind, length, real):
    """The positions that a real model of random weights gives any weight to."""
    torch.manual_seed(0)
    body = BODIES[kind](tiny_config(kind), 40)
    batch = Batch(torch.randint(5, 40, (1, length)), torch.arange(length)[None, :] < real)
    with torch.no_grad():
        _, layers = body.watch(batch)
    return np.array([(layer[0] > 0).all(dim=0).numpy() for layer in layers])


@pytest.mark.parametrize(
    ("mask", "kind", "real"),
    [
        (causal(8), "causal", 8),
        (padding(8, 6), "bidirectional", 6),
        (causal_and_padding(8, 6), "causal", 6),
    ],
    ids=["causal", "padding", "causal+padding"],
)
def test_a_mask_of_the_model_is_where_its_attention_weights_are(mask, kind, real):
    assert mask.source == "model"
    for layer in looked_at(kind, 8, real):
        np.testing.assert_array_equal(layer, mask.seen)


def test_the_cross_mask_is_where_a_decoder_gives_its_source_any_weight():
    torch.manual_seed(0)
    body, mask = BODIES["encoder-decoder"](tiny_config("encoder-decoder"), 40), cross(7, 6, 4)
    tokens, source = torch.randint(5, 40, (1, 7)), torch.randint(5, 40, (1, 6))
    batch = Batch(tokens, tokens > 0, source=source, source_attention_mask=torch.arange(6)[None, :] < 4)
    with torch.no_grad():
        watched = body.watch_all(batch)
    assert mask.source == "model"
    for layer in watched.cross:
        np.testing.assert_array_equal((layer[0] > 0).all(dim=0).numpy(), mask.seen)


def test_for_real_queries_the_causal_mask_alone_is_both_masks_joined():
    mask, kept = causal_and_padding(8, 6), torch.arange(8)[None, None, None, :] < 6
    joined = visible(8, True, kept, torch.device("cpu"))[0, 0].numpy()
    np.testing.assert_array_equal(mask.seen[:6], joined[:6])
    assert mask.padding_queries == 2


def test_a_full_text_hides_nothing_from_a_bidirectional_body():
    body = BODIES["bidirectional"](tiny_config("bidirectional"), 8)
    full = Batch(torch.zeros(1, 5).long(), torch.ones(1, 5).bool(), unpadded=True)
    assert attention_mask(body, full).all()


def test_packed_documents_never_see_each_other():
    documents = np.array([0, 0, 0, 1, 1])
    seen = packed(documents).seen
    assert not seen[documents[:, None] != documents[None, :]].any()
    np.testing.assert_array_equal(seen[:3, :3], np.tri(3, dtype=bool))


def test_a_prefix_is_seen_by_all_and_the_rest_is_causal():
    seen = prefix(6, 2).seen
    assert seen[:, :2].all()
    np.testing.assert_array_equal(seen[:, 2:], np.tri(6, dtype=bool)[:, 2:])


def test_masks_that_no_body_applies_say_so():
    sources = {mask.name: mask.source for mask in all_masks(8)}
    assert [name for name, source in sources.items() if source == "definition"] == [
        "packed documents",
        "prefix",
    ]


@pytest.mark.parametrize("length", [4, 8, 64])
@pytest.mark.slow
def test_masks_are_drawn_with_query_and_key_on_the_axes(length):
    masks = all_masks(length)
    axes = draw_masks(masks).axes
    assert len(axes) == len(masks) == 6
    assert all("query" in each.get_ylabel() and "key" in each.get_xlabel() for each in axes)


@pytest.mark.parametrize("length", [0, 3, 65])
def test_a_length_that_cannot_be_drawn_is_answered_with_the_range(length):
    with pytest.raises(ConfigError) as caught:
        all_masks(length)
    assert "4 to 64" in caught.value.hint
