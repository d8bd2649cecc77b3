import json
import re

import numpy as np
import pytest
import torch

from headstart.batch import Batch
from headstart.errors import ConfigError
from headstart.models.bodies import BODIES, TransformerBody
from headstart.models.model import Model, build_model
from headstart.views.attention import attention_maps, draw_attention, entropy, mean_distance, readable
from headstart.views.attention_page import attention_page, script_json
from headstart.views.figure import save_figure
from tests.worlds import ALPHABET, random_rows, small_body

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "$x$",
    "\u202eevil",
    "a\x0bb",
    "",
]


def make_maps(kind="bidirectional", length=9, pieces=None, **changes):
    torch.manual_seed(3)
    model = build_model(small_body(kind, **changes), ALPHABET.size, {})
    tokens = torch.from_numpy(random_rows([length])[0].tokens).long()[None, :]
    batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool))
    words = [f"▁{number}" for number in tokens[0].tolist()]
    return attention_maps(model, batch, (pieces or []) + words[len(pieces or []) :], "a run")


@pytest.mark.parametrize("kind", [kind for kind in BODIES if issubclass(BODIES[kind], TransformerBody)])
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
    model = build_model(small_body("bidirectional"), ALPHABET.size, {})
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
        attention_maps(
            Model(Counter(), {}), Batch(torch.zeros(1, 2).long(), torch.ones(1, 2).bool()), ["a", "b"]
        )
    assert "no attention" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(("layer", "attention_head"), [(0, None), (3, None), (None, 3), (-1, 1)])
def test_a_layer_or_attention_head_that_is_not_there_is_answered_with_the_range(layer, attention_head):
    with pytest.raises(ConfigError) as caught:
        draw_attention(make_maps(), layer, attention_head)
    assert "from 1 to 2" in caught.value.hint


def test_entropy_and_distance_are_those_of_looks_that_are_known():
    even, next_one = np.full((4, 4), 0.25), np.eye(4, k=1)
    np.testing.assert_allclose(entropy(even), 2.0)
    np.testing.assert_allclose(entropy(next_one)[:3], 0.0)
    np.testing.assert_allclose(mean_distance(next_one)[:3], 1.0)
    np.testing.assert_allclose(mean_distance(even), [1.5, 1.0, 1.0, 1.5])


def test_one_map_alone_is_drawn_with_its_tokens_and_a_grid_with_all_maps():
    maps = make_maps()
    one = draw_attention(maps, 2, 1)
    assert [label.get_text() for label in one.axes[0].get_yticklabels()] == maps.queries
    assert "layer 2 · attention head 1" in one.axes[0].get_title()
    assert len(draw_attention(maps).axes) == 4
    assert len(draw_attention(maps, layer=1).axes) == 2


def test_hostile_tokens_are_drawn_as_valid_svg(tmp_path):
    from xml.dom import minidom

    save_figure(draw_attention(make_maps(pieces=HOSTILE), 1, 1), tmp_path / "map.svg")
    minidom.parse(str(tmp_path / "map.svg"))


def test_marks_that_turn_or_break_a_line_are_spelt_out():
    assert readable("\u202eevil") == "\\u202eevil"
    assert readable("") == "∅"
    assert readable("café▁日本") == "café▁日本"


def test_the_page_holds_hostile_tokens_as_text_alone():
    page = attention_page(make_maps(pieces=HOSTILE))
    assert "<script>alert" not in page
    assert "<img" not in page
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1))
    assert data["queries"][:2] == HOSTILE[:2]


def test_the_page_needs_nothing_from_outside_and_has_a_button_for_every_map():
    page = attention_page(make_maps())
    assert not re.search(r"""(src|href)\s*=\s*["']|@import|url\(|https?://""", page)
    assert page.count('class="thumb"') == 4
    assert "prefers-color-scheme: dark" in page
    for word in ("layer 2, attention head 1", "aria-pressed", "aria-live", "<noscript>"):
        assert word in page


def test_the_page_opens_on_the_map_that_is_asked_for():
    assert '"start": [1, 0]' in attention_page(make_maps(), layer=2)
    with pytest.raises(ConfigError):
        attention_page(make_maps(), layer=3)


def test_json_inside_a_script_cannot_end_it():
    assert "<" not in script_json({"text": "</script><!--"})
    assert json.loads(script_json({"text": "</script>&"})) == {"text": "</script>&"}


def test_the_weights_travel_to_the_page_unchanged_to_four_digits():
    import base64

    maps = make_maps()
    data = json.loads(re.search(r'id="data">(.*?)</script>', attention_page(maps), re.DOTALL).group(1))
    sent = np.frombuffer(base64.b64decode(data["weights"]), "<u2").reshape(maps.weights.shape) / 65535
    np.testing.assert_allclose(sent, maps.weights, atol=1e-5)
