import numpy as np
import pytest
import torch

from headstart.errors import ConfigError
from headstart.models.transformer import Embedding, Rotary, rotary_angles, sinusoids
from headstart.plots.positions import draw_positions, model_map, rotary_map, sinusoidal_map
from tests.helpers.tiny_models import tiny_config


def embedding(**changes):
    torch.manual_seed(0)
    return Embedding(tiny_config("bidirectional", **changes), 40)


def test_sinusoids_are_those_that_the_model_adds():
    found = model_map(embedding(position_embedding="sinusoidal"), 20)
    np.testing.assert_array_equal(found.vectors, sinusoids(20, 16).numpy())


def test_sinusoidal_similarity_depends_on_distance_alone():
    found = sinusoidal_map(40, 32)
    np.testing.assert_allclose(found.low, found.high, atol=1e-5)
    np.testing.assert_allclose(found.dot, 16 * found.cosine, rtol=1e-5)
    assert found.cosine[0] == pytest.approx(1)
    rates = 10000.0 ** (-np.arange(0, 32, 2) / 32)
    expected = [np.cos(distance * rates).mean() for distance in range(40)]
    np.testing.assert_allclose(found.cosine, expected, atol=1e-5)


def test_rotary_similarity_is_that_of_a_vector_with_itself_rotated():
    rope = rotary_angles(12, 8, 10000.0)
    rotated = Rotary()(torch.ones(1, 12, 1, 8), rope)[0, :, 0]  # all pairs are equal, so every angle counts the same
    measured = (rotated @ rotated.T)[0] / 8
    np.testing.assert_allclose(rotary_map(12, 8).cosine, measured, atol=1e-5)


def test_learned_positions_are_the_model_s_own():
    own = embedding(position_embedding="learned")
    found = model_map(own, 30)
    assert found.kind == "learned"
    np.testing.assert_array_equal(found.vectors, own.position_embedding.weight[:30].detach().numpy())
    assert (found.low <= found.cosine + 1e-12).all()
    assert (found.cosine <= found.high + 1e-12).all()


def test_rotary_positions_of_a_model_have_the_width_of_an_attention_head():
    assert model_map(embedding(), 10).vectors.shape == (10, 8)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: model_map(embedding(position_embedding="none"), 10),
        lambda: model_map(embedding(position_embedding="learned"), 65),
        lambda: sinusoidal_map(1, 16),
        lambda: sinusoidal_map(10**6, 16),
        lambda: rotary_map(8, 7),
    ],
    ids=["none", "too-long", "one", "too-many", "odd"],
)
def test_positions_that_cannot_be_drawn_are_a_sentence_with_a_hint(draw):
    with pytest.raises(ConfigError) as caught:
        draw()
    assert caught.value.hint


def test_each_way_has_its_heat_map_above_two_curves():
    figure = draw_positions([sinusoidal_map(16, 8), rotary_map(16, 8)])
    titles = [axes.get_title() for axes in figure.axes]
    assert sum("Sinusoidal" in title or "Rotary" in title for title in titles) == 2
    assert any("by distance" in title for title in titles)
