"""Translations over HTTP are those of the command, with where each new token looks."""

import numpy as np

from headstart.inference.translate import translate
from headstart.serving import schema
from headstart.workflows.plot import plot_attention

TEXTS = ["1234", "7", "", "88 11 9", "é😀", "9 " * 80]


def test_translations_are_those_of_the_command_whatever_else_is_in_the_batch(serve, runs):
    client, _ = serve("translator")
    answer = client.post("/v1/translate", json={"texts": TEXTS})
    found = schema.TranslateResponse.model_validate(answer.json())
    known = list(translate(str(runs / "translator"), TEXTS))
    assert [each.text for each in found.translations] == [each.text for each in known]
    assert [each.cut for each in found.translations] == [each.is_source_cut for each in known]
    assert found.translations[2].text == ""
    assert all(each.attention is None for each in found.translations)


def test_cross_attention_is_that_of_the_picture(serve, runs):
    client, _ = serve("translator")
    answer = client.post("/v1/translate", json={"texts": ["1234", " "], "attention": True})
    found = schema.TranslateResponse.model_validate(answer.json()).translations
    known, _ = plot_attention(str(runs / "translator"), "1234", None)
    assert found[0].attention.queries == known.queries
    assert found[0].attention.keys == known.keys
    for each in found[0].attention.maps:
        weights = known.weights[each.layer - 1, each.attention_head - 1]
        np.testing.assert_allclose(each.weights, weights, atol=1e-4)
    assert found[1].attention is None


def test_more_attention_weights_than_the_limit_are_refused(serve):
    client, _ = serve("translator", max_attention_values=20)
    answer = client.post("/v1/translate", json={"texts": ["1234"], "attention": True})
    assert answer.status_code == 422
    assert client.post("/v1/translate", json={"texts": ["1234"]}).status_code == 200


def test_only_a_translator_translates_and_it_only_translates(serve):
    client, _ = serve("classifier", "translator")
    answer = client.post("/v1/translate", json={"model": "classifier", "texts": ["1"]})
    assert answer.status_code == 409
    assert "translate" in answer.json()["error"]
    for path in ("/v1/classify", "/v1/embed"):
        assert client.post(path, json={"model": "translator", "texts": ["1"]}).status_code == 409
    assert client.post("/v1/attention", json={"model": "translator", "text": "1"}).status_code == 409
    assert client.post("/v1/generate", json={"model": "translator"}).status_code == 409
    [model] = [each for each in client.get("/v1/models").json()["models"] if each["name"] == "translator"]
    assert model["can"] == ["translate"]
