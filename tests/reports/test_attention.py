import json
import re

import numpy as np
import pytest

from headstart.errors import ConfigError
from headstart.reports.formatting import script_json
from headstart.reports.pages import render_attention
from tests.helpers.attention_maps import HOSTILE_TOKENS, make_maps


def test_the_page_holds_hostile_tokens_as_text_alone():
    page = render_attention(make_maps(pieces=HOSTILE_TOKENS))
    assert "<script>alert" not in page
    assert "<img" not in page
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1))
    assert data["queries"][:2] == HOSTILE_TOKENS[:2]


def test_the_page_needs_nothing_from_outside_and_has_a_button_for_every_map():
    page = render_attention(make_maps())
    assert not re.search(r"""(src|href)\s*=\s*["']|@import|url\(|https?://""", page)
    assert page.count('class="thumb"') == 4
    assert "prefers-color-scheme: dark" in page
    for word in ("layer 2, attention head 1", "aria-pressed", "aria-live", "<noscript>"):
        assert word in page


def test_the_page_opens_on_the_given_map():
    assert '"start": [1, 0]' in render_attention(make_maps(), layer=2)
    with pytest.raises(ConfigError):
        render_attention(make_maps(), layer=3)


def test_json_inside_a_script_cannot_end_it():
    assert "<" not in script_json({"text": "</script><!--"})
    assert json.loads(script_json({"text": "</script>&"})) == {"text": "</script>&"}


def test_the_weights_travel_to_the_page_unchanged_to_four_digits():
    import base64

    maps = make_maps()
    data = json.loads(re.search(r'id="data">(.*?)</script>', render_attention(maps), re.DOTALL).group(1))
    sent = np.frombuffer(base64.b64decode(data["weights"]), "<u2").reshape(maps.weights.shape) / 65535
    np.testing.assert_allclose(sent, maps.weights, atol=1e-5)
