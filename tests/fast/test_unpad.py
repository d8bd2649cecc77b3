"""Backbones that skip padding equal plain ones."""

import pytest
import torch

from headstart import fast
from headstart.fast.unpad import COARSE, FINE, unpadded_layout
from headstart.models import BACKBONES
from headstart.models.backbones import TransformerBackbone
from headstart.models.model import HeadSpec, Model, build_heads
from tests.helpers.tiny_models import SHAPES, make_backbone, make_batch, tiny_config

KINDS = [kind for kind, body in BACKBONES.items() if issubclass(body, TransformerBackbone)]
LENGTHS = [[5], [12, 2, 7], [3] * 6, [11, 12, 10, 9, 12, 8, 7]]


def unpadded(backbone):
    found = fast.optimize(Model(backbone, {}), "infer").backbone
    assert found.skips_padding
    assert not backbone.skips_padding
    return found


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)} texts")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_body_reads_the_same_without_padding(kind, shape, lengths):
    body, batch = make_backbone(kind, shape), make_batch(lengths)
    with torch.inference_mode():
        plain = body(batch)
        found = unpadded(body)(batch)
    assert found.shape == plain.shape
    assert torch.allclose(found[batch.attention_mask], plain[batch.attention_mask], atol=1e-5)


@pytest.mark.parametrize("pooling", ["last", "first", "mean", "max"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_answers_the_same_without_padding(kind, pooling):
    body, batch = make_backbone(kind, "modern"), make_batch([12, 2, 7])
    spec = HeadSpec("class", 3, {"pooling": pooling, "projection": "linear"})
    model = Model(body, build_heads(tiny_config(kind, "modern"), {"class": spec})).eval()
    with torch.inference_mode():
        plain = model(batch)["class"]
        assert torch.allclose(fast.optimize(model, "infer")(batch)["class"], plain, atol=1e-5)


@pytest.mark.parametrize("window", [2])
def test_layers_with_a_window_read_the_same_without_padding(window):
    body, batch = make_backbone("bidirectional", "modern", sliding_window=window), make_batch([12, 2, 7])
    with torch.inference_mode():
        plain = body(batch)
        assert torch.allclose(unpadded(body)(batch)[batch.attention_mask], plain[batch.attention_mask], atol=1e-5)


@pytest.mark.parametrize("lengths", [[1], [16], [40, 30], [100, 90, 3]])
def test_few_numbers_of_tokens_occur_and_every_token_is_found(lengths):
    mask = make_batch([12]).attention_mask.new_zeros(len(lengths), max(lengths))
    for row, length in enumerate(lengths):
        mask[row, :length] = True
    layout, count = unpadded_layout(mask), sum(lengths)
    assert len(layout.indices) % (FINE if count < COARSE else COARSE) == 0
    assert len(layout.indices) - count < COARSE
    assert layout.indices[layout.slots[mask.flatten()]].tolist() == mask.flatten().nonzero()[:, 0].tolist()
    assert layout.positions[:count].tolist() == [position for length in lengths for position in range(length)]


def test_training_does_not_skip_padding():
    body, batch = make_backbone("bidirectional", "modern"), make_batch([12, 2])
    with torch.no_grad():
        plain = body.train()(batch)
        found = unpadded(body).train()(batch)
    assert torch.allclose(found, plain, atol=1e-5)
    assert float((found - plain)[1, 2:].abs().max()) < 1e-5  # at padding, too
