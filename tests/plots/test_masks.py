import numpy as np
import pytest
import torch

from headstart.batch import Batch
from headstart.errors import ConfigError
from headstart.evaluation.attention import attention_mask
from headstart.models import BACKBONES
from headstart.models.kv_cache import causal_mask
from headstart.plots.masks import all_masks, draw_masks
from tests.helpers.tiny_models import tiny_config

MASKS = {mask.name: mask for mask in all_masks(8)}  # 8 tokens, 2 of them padding; 6 source tokens, 2 of them padding


def attended(kind, length, real):
    """The keys to which a real model of random weights gives any weight, by layer and query."""
    torch.manual_seed(0)
    body = BACKBONES[kind](tiny_config(kind), 40)
    batch = Batch(torch.randint(5, 40, (1, length)), torch.arange(length)[None, :] < real)
    with torch.no_grad():
        layers = body(batch, output_attentions=True).attentions
    return np.array([(layer[0] > 0).all(dim=0).numpy() for layer in layers])


@pytest.mark.parametrize(
    ("name", "kind", "real"),
    [("causal", "causal", 8), ("padding", "bidirectional", 6), ("causal + padding", "causal", 6)],
)
def test_a_mask_of_the_model_is_where_its_attention_weights_are(name, kind, real):
    assert MASKS[name].source == "model"
    for layer in attended(kind, 8, real):
        np.testing.assert_array_equal(layer, MASKS[name].seen)


def test_the_cross_mask_is_where_a_decoder_gives_its_source_any_weight():
    torch.manual_seed(0)
    body, mask = BACKBONES["encoder-decoder"](tiny_config("encoder-decoder"), 40), MASKS["cross"]
    tokens, source = torch.randint(5, 40, (1, 8)), torch.randint(5, 40, (1, 6))
    batch = Batch(tokens, tokens > 0, source=source, source_attention_mask=torch.arange(6)[None, :] < 4)
    with torch.no_grad():
        output = body(batch, output_attentions=True)
    assert mask.source == "model"
    for layer in output.cross_attentions:
        np.testing.assert_array_equal((layer[0] > 0).all(dim=0).numpy(), mask.seen)


def test_for_real_queries_the_causal_mask_alone_is_both_masks_combined():
    mask, real = MASKS["causal + padding"], torch.arange(8)[None, None, None, :] < 6
    combined = causal_mask(8, real, torch.device("cpu"))[0, 0].numpy()
    np.testing.assert_array_equal(mask.seen[:6], combined[:6])
    assert mask.padding_queries == 2


def test_a_full_text_hides_nothing_from_a_bidirectional_body():
    body = BACKBONES["bidirectional"](tiny_config("bidirectional"), 8)
    full = Batch(torch.zeros(1, 5).long(), torch.ones(1, 5).bool(), unpadded=True)
    assert attention_mask(body, full).all()


def test_packed_documents_never_see_each_other():
    mask = MASKS["packed documents"]
    documents = np.array(mask.key_groups)
    assert len(set(documents)) == 3
    assert not mask.seen[documents[:, None] != documents[None, :]].any()
    np.testing.assert_array_equal(mask.seen[:3, :3], np.tri(3, dtype=bool))


def test_a_prefix_is_seen_by_all_and_the_rest_is_causal():
    seen = MASKS["prefix"].seen
    assert seen[:, :2].all()
    np.testing.assert_array_equal(seen[:, 2:], np.tri(8, dtype=bool)[:, 2:])


def test_masks_that_no_body_applies_say_so():
    sources = {mask.name: mask.source for mask in all_masks(8)}
    assert [name for name, source in sources.items() if source == "definition"] == ["packed documents", "prefix"]


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
