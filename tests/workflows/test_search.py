"""Rows of a search: what is typed is what is searched, and what makes no sense is told."""

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.config import resolve
from headstart.errors import ConfigError
from headstart.workflows.search import SEARCH, Row, as_settings, make_space, parse_row, standing, to_toml


def test_a_row_is_read_as_it_is_written():
    assert parse_row("optimizer.learning_rate=1e-5:1e-3:log") == Row("optimizer.learning_rate", 1e-5, 1e-3, True)
    assert parse_row("training.max_epochs=3:20:int") == Row("training.max_epochs", 3, 20, is_whole=True)
    assert parse_row("lr_schedule.name=linear,cosine").choices == ("linear", "cosine")
    assert parse_row("training.freeze_backbone=true,false").choices == (True, False)
    assert parse_row("training.batch_size=8,16").choices == (8, 16)


numbers = st.floats(1e-6, 1e6).map(lambda value: float(f"{value:g}"))


@settings(deadline=None)
@given(numbers, numbers, st.booleans(), st.booleans())
def test_the_words_of_a_row_give_the_row(low, high, is_log, is_whole):
    if low < high:
        row = Row("a.b", low, high, is_log, is_whole)
        assert parse_row(row.words) == row


@pytest.mark.parametrize("text", SEARCH)
def test_the_usual_rows_hold_the_presets_or_say_what_is_nearest(text):
    row = parse_row(text)
    assert parse_row(row.words) == row
    for preset in ("tiny", "small"):
        config = resolve("finetune", preset)
        value = standing(config, [row])[row.name]
        assert row.distribution()._contains(row.distribution().to_internal_repr(value))
        resolve("finetune", preset, as_settings({row.name: value}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("learning_rate=1:2", "names no setting"),
        ("optimizer.learning_rate", "names no setting"),
        ("a.b=3", "leaves nothing to choose"),
        ("a.b=3,3", "leaves nothing to choose"),
        ("a.b=x:y", "no range of numbers"),
        ("a.b=1:2:lgo", "no range of numbers"),
        ("a.b=true:false", "no range of numbers"),
        ("a.b=2:1", "empty range"),
        ("a.b=0:1:log", "no logarithm at 0"),
    ],
)
def test_a_row_that_makes_no_sense_is_told_with_the_form(text, words):
    with pytest.raises(ConfigError, match=words) as caught:
        parse_row(text)
    assert caught.value.hint


def test_what_is_asked_for_goes_over_the_usual_and_what_is_set_is_not_searched():
    rows = {row.name: row for row in make_space(["training.max_epochs=1:2:int"], False, {"model": {"dropout": 0.1}})}
    assert rows["training.max_epochs"].high == 2
    assert "model.dropout" not in rows
    assert "optimizer.learning_rate" in rows
    assert [row.name for row in make_space(["a.b=1:2"], True, {})] == ["a.b"]
    assert "training.max_epochs" not in {row.name for row in make_space([], False, {"training": {"max_steps": 5}})}
    with pytest.raises(ConfigError, match="both set and searched"):
        make_space(["model.dropout=0.1:0.2"], False, {"model": {"dropout": 0.1}})
    with pytest.raises(ConfigError, match="nothing to search"):
        make_space([], True, {})


def test_the_nearest_value_lies_in_the_row():
    assert Row("a.b", 1.0, 2.0).nearest(5) == 2.0
    assert Row("a.b", 1.0, 9.0, is_whole=True).nearest(2.6) == 3
    assert Row("a.b", choices=(8, 16, 32)).nearest(20) == 16
    assert Row("a.b", choices=("x", "y")).nearest("z") == "x"
    assert Row("a.b", choices=("x", "y")).nearest("y") == "y"
    assert Row("a.b", choices=(8, 16)).nearest(None) == 8
    assert Row("a.b", 1.0, 2.0).nearest(None) == 1.0


words = st.text(st.sampled_from("ab \"'\\\n\t\x00\x7f\u2028é😀"), max_size=8)
values = st.one_of(st.booleans(), st.integers(-(10**6), 10**6), st.floats(allow_nan=False, allow_infinity=False), words)
nested = st.one_of(values, st.dictionaries(words, st.lists(words, max_size=2), max_size=2))
sections = st.dictionaries(st.sampled_from("abc"), nested, max_size=3)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["body", "training"]), sections, max_size=2))
def test_settings_survive_toml(content):
    assert tomllib.loads(to_toml(content)) == content
