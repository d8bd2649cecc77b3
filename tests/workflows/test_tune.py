"""The search space: how `--search` is read, which settings are searched, and the default point."""

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.config import resolve
from headstart.errors import ConfigError
from headstart.workflows.tune import DEFAULT_SPACE, SearchDim, default_point, make_space, nest, to_toml


def test_a_dimension_is_parsed():
    assert SearchDim.parse("optimizer.learning_rate=1e-5:1e-3:log") == SearchDim(
        "optimizer.learning_rate", 1e-5, 1e-3, True
    )
    assert SearchDim.parse("training.max_epochs=3:20:int") == SearchDim("training.max_epochs", 3, 20, is_int=True)
    assert SearchDim.parse("lr_schedule.name=linear,cosine").choices == ("linear", "cosine")
    assert SearchDim.parse("training.freeze_backbone=true,false").choices == (True, False)
    assert SearchDim.parse("training.batch_size=8,16").choices == (8, 16)


numbers = st.floats(1e-6, 1e6).map(lambda value: float(f"{value:g}"))


@settings(deadline=None)
@given(numbers, numbers, st.booleans(), st.booleans())
def test_parsing_inverts_str(low, high, is_log, is_int):
    if low < high:
        dim = SearchDim("a.b", low, high, is_log, is_int)
        assert SearchDim.parse(str(dim)) == dim


@pytest.mark.parametrize("text", DEFAULT_SPACE)
def test_the_default_point_lies_in_the_default_space(text):
    dim = SearchDim.parse(text)
    assert SearchDim.parse(str(dim)) == dim
    for preset in ("tiny", "small"):
        config = resolve("finetune", preset)
        value = default_point(config, [dim])[dim.name]
        assert dim.distribution()._contains(dim.distribution().to_internal_repr(value))
        resolve("finetune", preset, nest({dim.name: value}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("learning_rate=1:2", "names no setting"),
        ("optimizer.learning_rate", "names no setting"),
        ("a.b=3", "fewer than two choices"),
        ("a.b=3,3", "fewer than two choices"),
        ("a.b=x:y", "not a range of numbers"),
        ("a.b=1:2:lgo", "not a range of numbers"),
        ("a.b=true:false", "not a range of numbers"),
        ("a.b=2:1", "empty range"),
        ("a.b=0:1:log", "no logarithm at 0"),
    ],
)
def test_an_invalid_dimension_is_refused_with_a_hint(text, words):
    with pytest.raises(ConfigError, match=words) as caught:
        SearchDim.parse(text)
    assert caught.value.hint


def test_named_dimensions_override_default_ones_and_fixed_settings_are_not_searched():
    dims = {dim.name: dim for dim in make_space(["training.max_epochs=1:2:int"], False, {"model": {"dropout": 0.1}})}
    assert dims["training.max_epochs"].high == 2
    assert "model.dropout" not in dims
    assert "optimizer.learning_rate" in dims
    assert [dim.name for dim in make_space(["a.b=1:2"], True, {})] == ["a.b"]
    assert "training.max_epochs" not in {dim.name for dim in make_space([], False, {"training": {"max_steps": 5}})}
    with pytest.raises(ConfigError, match="both set and searched"):
        make_space(["model.dropout=0.1:0.2"], False, {"model": {"dropout": 0.1}})
    with pytest.raises(ConfigError, match="nothing to search"):
        make_space([], True, {})


def test_the_nearest_value_lies_in_the_dimension():
    assert SearchDim("a.b", 1.0, 2.0).nearest(5) == 2.0
    assert SearchDim("a.b", 1.0, 9.0, is_int=True).nearest(2.6) == 3
    assert SearchDim("a.b", choices=(8, 16, 32)).nearest(20) == 16
    assert SearchDim("a.b", choices=("x", "y")).nearest("z") == "x"
    assert SearchDim("a.b", choices=("x", "y")).nearest("y") == "y"
    assert SearchDim("a.b", choices=(8, 16)).nearest(None) == 8
    assert SearchDim("a.b", 1.0, 2.0).nearest(None) == 1.0


words = st.text(st.sampled_from("ab \"'\\\n\t\x00\x7f\u2028é😀"), max_size=8)
values = st.one_of(st.booleans(), st.integers(-(10**6), 10**6), st.floats(allow_nan=False, allow_infinity=False), words)
nested = st.one_of(values, st.dictionaries(words, st.lists(words, max_size=2), max_size=2))
sections = st.dictionaries(st.sampled_from("abc"), nested, max_size=3)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["body", "training"]), sections, max_size=2))
def test_settings_survive_toml(content):
    assert tomllib.loads(to_toml(content)) == content
