import numpy as np
import pytest
import torch

from headstart.batch import Batch
from headstart.errors import ConfigError
from headstart.evaluation.attention import attention_maps, entropy, mean_distance, readable
from headstart.models import BACKBONES
from headstart.models.backbones import TransformerBackbone
from headstart.models.model import Model, build_model
from tests.helpers.attention_maps import make_maps
from tests.helpers.tiny_models import VOCABULARY, tiny_config


@pytest.mark.parametrize("kind", [kind for kind in BACKBONES if issubclass(BACKBONES[kind], TransformerBackbone)])
def test_every_row_of_every_map_adds_up_to_one(kind):
    maps = make_maps(kind)
    assert maps.weights.shape == (2, 2, 9, 9)
    np.testing.assert_allclose(maps.weights.sum(axis=-1), 1, atol=1e-5)


def test_a_causal_map_is_lower_triangular_and_says_so_in_its_mask():
    maps = make_maps("causal")
    assert np.abs(np.triu(maps.weights, k=1)).max() == 0
    assert (maps.seen == np.tri(9, dtype=bool)).all()


def test_padding_is_left_out_of_the_map():
    torch.manual_seed(3)
    model = build_model(tiny_config("bidirectional"), VOCABULARY.size, {})
    tokens = torch.tensor([[2, 7, 8, 3, 0, 0]])
    whole = attention_maps(model, Batch(tokens, torch.arange(6)[None, :] < 4), list("abcd"))
    alone = attention_maps(model, Batch(tokens[:, :4], torch.ones(1, 4, dtype=torch.bool)), list("abcd"))
    np.testing.assert_allclose(whole.weights, alone.weights, atol=1e-6)
    assert whole.seen.shape == (4, 4)
    assert whole.seen.all()


def test_a_body_without_attention_is_refused_with_a_hint():
    class Counter(torch.nn.Module):
        pass

    with pytest.raises(ConfigError) as caught:
        attention_maps(Model(Counter(), {}), Batch(torch.zeros(1, 2).long(), torch.ones(1, 2).bool()), ["a", "b"])
    assert "no attention" in str(caught.value)
    assert caught.value.hint


def test_entropy_and_distance_are_those_of_looks_that_are_known():
    even, next_one = np.full((4, 4), 0.25), np.eye(4, k=1)
    np.testing.assert_allclose(entropy(even), 2.0)
    np.testing.assert_allclose(entropy(next_one)[:3], 0.0)
    np.testing.assert_allclose(mean_distance(next_one)[:3], 1.0)
    np.testing.assert_allclose(mean_distance(even), [1.5, 1.0, 1.0, 1.5])


def test_control_characters_are_escaped():
    assert readable("\u202eevil") == "\\u202eevil"
    assert readable("") == "∅"
    assert readable("café▁日本") == "café▁日本"
