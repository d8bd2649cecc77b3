"""Texts without their padding are read as with it."""

import pytest
import torch

from headstart.models import BACKBONES
from headstart.models.backbones import TransformerBackbone
from headstart.models.flat import COARSE, FINE, flat_of
from headstart.models.model import HeadSpec, Model, build_heads
from tests.helpers.tiny_models import SHAPES, make_backbone, make_batch, tiny_config

KINDS = [kind for kind, body in BACKBONES.items() if issubclass(body, TransformerBackbone)]
LENGTHS = [[5], [12, 2, 7], [3] * 6, [11, 12, 10, 9, 12, 8, 7]]


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)} texts")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_body_reads_the_same_without_padding(kind, shape, lengths):
    body, batch = make_backbone(kind, shape), make_batch(lengths)
    with torch.inference_mode():
        plain = body(batch)
        body.is_flat = True
        found = body(batch)
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
        body.is_flat = True
        assert torch.allclose(model(batch)["class"], plain, atol=1e-5)


@pytest.mark.parametrize("window", [2])
def test_layers_with_a_window_read_the_same_without_padding(window):
    body, batch = make_backbone("bidirectional", "modern", sliding_window=window), make_batch([12, 2, 7])
    with torch.inference_mode():
        plain = body(batch)
        body.is_flat = True
        assert torch.allclose(body(batch)[batch.attention_mask], plain[batch.attention_mask], atol=1e-5)


@pytest.mark.parametrize("lengths", [[1], [16], [40, 30], [100, 90, 3]])
def test_few_numbers_of_tokens_occur_and_every_token_finds_its_place(lengths):
    real = make_batch([12]).attention_mask.new_zeros(len(lengths), max(lengths))
    for row, length in enumerate(lengths):
        real[row, :length] = True
    flat, count = flat_of(real), sum(lengths)
    assert len(flat.places) % (FINE if count < COARSE else COARSE) == 0
    assert len(flat.places) - count < COARSE
    assert flat.places[flat.slots[real.flatten()]].tolist() == real.flatten().nonzero()[:, 0].tolist()
    assert flat.columns[:count].tolist() == [column for length in lengths for column in range(length)]


def test_training_reads_padding_as_ever():
    body, batch = make_backbone("bidirectional", "modern"), make_batch([12, 2])
    plain = body.train()(batch)
    body.is_flat = True
    assert torch.equal(body(batch), plain)
