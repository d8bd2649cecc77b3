import pytest

from headstart.errors import ConfigError
from headstart.plots.heatmaps import draw_attention
from headstart.plots.style import save_figure
from tests.helpers.attention_maps import HOSTILE_TOKENS, make_maps


@pytest.mark.parametrize(("layer", "attention_head"), [(0, None), (3, None), (None, 3), (-1, 1)])
def test_a_layer_or_attention_head_that_is_not_there_is_answered_with_the_range(layer, attention_head):
    with pytest.raises(ConfigError) as caught:
        draw_attention(make_maps(), layer, attention_head)
    assert "from 1 to 2" in caught.value.hint


def test_one_map_alone_is_drawn_with_its_tokens_and_a_grid_with_all_maps():
    maps = make_maps()
    one = draw_attention(maps, 2, 1)
    assert [label.get_text() for label in one.axes[0].get_yticklabels()] == maps.queries
    assert "layer 2 · attention head 1" in one.axes[0].get_title()
    assert len(draw_attention(maps).axes) == 4
    assert len(draw_attention(maps, layer=1).axes) == 2


def test_hostile_tokens_are_drawn_as_valid_svg(tmp_path):
    from xml.dom import minidom

    save_figure(draw_attention(make_maps(pieces=HOSTILE_TOKENS), 1, 1), tmp_path / "map.svg")
    minidom.parse(str(tmp_path / "map.svg"))
