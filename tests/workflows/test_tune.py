"""The search space: how `--search` is read, which settings are searched, and the default point."""

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from headstart.config import resolve
from headstart.errors import ConfigError
from headstart.workflows.tune import DEFAULT_SPACE, default_point, make_space, nearest_value, nest, parse_dim, to_toml


def test_a_dimension_is_parsed():
    assert parse_dim("optimizer.learning_rate=1e-5:1e-3:log") == (
        "optimizer.learning_rate",
        FloatDistribution(1e-5, 1e-3, log=True),
    )
    assert parse_dim(" training.max_epochs = 3:20:int ") == ("training.max_epochs", IntDistribution(3, 20))
    for text, choices in {
        "lr_schedule.name=linear,cosine": ("linear", "cosine"),
        "training.freeze_backbone=true,false": (True, False),
        "training.batch_size=8, 16": (8, 16),
    }.items():
        assert parse_dim(text)[1].choices == choices


numbers = st.floats(1e-6, 1e6).map(lambda value: float(f"{value:g}"))


@settings(deadline=None)
@given(numbers, numbers, st.booleans())
def test_every_range_is_parsed(low, high, is_log):
    if low < high:
        text = f"a.b={low:g}:{high:g}{':log' * is_log}"
        assert parse_dim(text) == ("a.b", FloatDistribution(low, high, log=is_log))


@pytest.mark.parametrize("text", DEFAULT_SPACE)
def test_the_default_point_lies_in_the_default_space(text):
    name, distribution = parse_dim(text)
    for preset in ("tiny", "small"):
        config = resolve("finetune", preset)
        value = default_point(config, {name: distribution})[name]
        assert distribution._contains(distribution.to_internal_repr(value))
        resolve("finetune", preset, nest({name: value}))


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
        parse_dim(text)
    assert caught.value.hint


def test_named_dimensions_override_default_ones_and_fixed_settings_are_not_searched():
    dims = dict(map(parse_dim, make_space(["training.max_epochs=1:2:int"], False, {"model": {"dropout": 0.1}})))
    assert dims["training.max_epochs"].high == 2
    assert "model.dropout" not in dims
    assert "optimizer.learning_rate" in dims
    assert make_space([" a.b=1:2"], True, {}) == ["a.b=1:2"]
    assert not [text for text in make_space([], False, {"training": {"max_steps": 5}}) if "max_epochs" in text]
    with pytest.raises(ConfigError, match="both set and searched"):
        make_space(["model.dropout=0.1:0.2"], False, {"model": {"dropout": 0.1}})
    with pytest.raises(ConfigError, match="nothing to search"):
        make_space([], True, {})


def test_the_nearest_value_lies_in_the_dimension():
    assert nearest_value(FloatDistribution(1.0, 2.0), 5) == 2.0
    assert nearest_value(IntDistribution(1, 9), 2.6) == 3
    assert nearest_value(CategoricalDistribution((8, 16, 32)), 20) == 16
    assert nearest_value(CategoricalDistribution(("x", "y")), "z") == "x"
    assert nearest_value(CategoricalDistribution(("x", "y")), "y") == "y"
    assert nearest_value(CategoricalDistribution((8, 16)), None) == 8
    assert nearest_value(FloatDistribution(1.0, 2.0), None) == 1.0


words = st.text(st.sampled_from("ab \"'\\\n\t\x00\x7f\u2028é😀"), max_size=8)
values = st.one_of(st.booleans(), st.integers(-(10**6), 10**6), st.floats(allow_nan=False, allow_infinity=False), words)
nested = st.one_of(values, st.dictionaries(words, st.lists(words, max_size=2), max_size=2))
sections = st.dictionaries(st.sampled_from("abc"), nested, max_size=3)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["body", "training"]), sections, max_size=2))
def test_settings_survive_toml(content):
    assert tomllib.loads(to_toml(content)) == content
