"""What every head promises on every body."""

import pytest
import torch

from headstart.batch import Batch, pad
from headstart.models import BACKBONES, HEADS
from headstart.models.heads import POOLINGS
from headstart.models.model import HeadSpec, build_model
from tests.helpers.tiny_models import VOCABULARY, random_rows, tiny_config

SETTINGS = {
    "lm": [{}, {"bias": False}],
    "pair": [{}],
    "replaced": [{}],
    "generator": [{}],
    "class": [{"pooling": p, "projection": q} for p in (*POOLINGS, "pair") for q in ("linear", "dense")],
    "regression": [{"pooling": p, "projection": "dense"} for p in POOLINGS],
    "ordinal": [{"pooling": p, "projection": "dense"} for p in POOLINGS],
    "token": [{}],
}
SOURCE = torch.tensor([[5, 6, 7], [8, 9, 0]])  # for bodies that read two texts
EVERY = [(kind, name, settings) for kind in BACKBONES for name in HEADS for settings in SETTINGS[name]]


@pytest.mark.parametrize(("kind", "name", "settings"), EVERY)
def test_a_head_fits_every_body_and_never_reads_padding(kind, name, settings):
    torch.manual_seed(0)
    size = {
        "lm": VOCABULARY.size,
        "generator": VOCABULARY.size,
        "class": 3,
        "pair": 2,
        "replaced": 1,
        "regression": 1,
        "ordinal": 3,
        "token": 3,
    }[name]
    spec = HeadSpec(name, size, settings)
    model = build_model(tiny_config(kind), VOCABULARY.size, {name: spec}).eval()
    tokens, real = pad([torch.from_numpy(row.tokens).long() for row in random_rows([9, 4])], VOCABULARY.pad_id)
    changed = tokens.masked_fill(~real, 17)
    with torch.no_grad():
        answer = model(Batch(tokens, real, source=SOURCE, source_attention_mask=SOURCE > 0))[name]
        other = model(Batch(changed, real, source=SOURCE, source_attention_mask=SOURCE > 0))[name]
        second = {"source": SOURCE[1:], "source_attention_mask": SOURCE[1:] > 0}
        alone = model(Batch(tokens[1:, :4], real[1:, :4], **second))[name]
    if answer.shape[:2] == (2, 9):  # an answer for every token
        answer, other, alone = answer[real], other[real], alone.flatten(0, 1)
        assert torch.allclose(answer[9:], alone, atol=1e-5)
    else:
        assert answer.shape == (2, size)
        assert torch.allclose(answer[1:], alone, atol=1e-5)
    assert torch.allclose(answer, other, atol=1e-5)


def test_a_tied_head_owns_no_matrix():
    model = build_model(tiny_config("causal"), VOCABULARY.size, {"lm": HeadSpec("lm", VOCABULARY.size)})
    assert not [name for name in model.state_dict() if name.startswith("heads.")]


def test_every_table_of_heads_is_covered_here():
    assert set(SETTINGS) == set(HEADS)


@pytest.mark.parametrize("pooling", [name for name in POOLINGS if name in ("last", "first", "mean", "mean+max")])
@pytest.mark.parametrize("kind", ["causal", "bidirectional", "cnn"])
def test_a_class_head_that_reads_one_place_answers_as_if_all_had_been_computed(kind, pooling):
    config = tiny_config(kind, "modern")
    torch.manual_seed(0)
    model = build_model(
        config, VOCABULARY.size, {"class": HeadSpec("class", 3, {"pooling": pooling, "projection": "dense"})}
    )
    rows = [torch.from_numpy(row.tokens).long() for row in random_rows([4, 9, 2])]
    batch = Batch(*pad(rows, VOCABULARY.pad_id))
    head = model.heads["class"]
    with torch.no_grad():
        assert torch.allclose(model(batch)["class"], head(model.backbone(batch), batch, model.backbone), atol=1e-5)
