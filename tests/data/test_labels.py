"""Labels of a table made into other classes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.config import DataConfig, RunConfig
from headstart.data.datasets import Example, load_dataset
from headstart.data.labels import map_labels, normalize_label
from headstart.errors import ConfigError, DataError

HERE = Path("reviews.tsv")
STARS = {"negative": ["0.5", "1", "2"], "positive": ["4", "5"]}


def test_stars_become_classes_and_the_rest_is_left_out():
    labels = ["5.0", "5", "3.0", "NA", "0.50", " 1 ", "2.5", "4"]
    found = map_labels([Example(str(place), label) for place, label in enumerate(labels)], STARS, HERE)
    assert [(row.text, row.label) for row in found] == [
        ("0", "positive"),
        ("1", "positive"),
        ("4", "negative"),
        ("5", "negative"),
        ("7", "positive"),
    ]


def test_words_are_labels_too():
    rows = [Example("a", "fake"), Example("b", "true"), Example("c", "mixed")]
    assert [row.label for row in map_labels(rows, {"no": ["fake", "mixed"], "yes": ["true"]}, HERE)] == [
        "no",
        "yes",
        "no",
    ]


def test_a_label_in_two_classes_is_refused():
    with pytest.raises(ConfigError, match="'5'"):
        map_labels([Example("a", "5")], {"good": ["5.0"], "great": ["5"]}, HERE)


def test_classes_that_no_row_has_are_answered_with_the_labels_that_there_are():
    with pytest.raises(DataError, match="'fine'"):
        map_labels([Example("a", "fine")], STARS, HERE)


def test_a_whole_table_is_read_under_other_classes(tmp_path):
    rows = "".join(f"text number {n} is here\t{n % 6}.0\n" for n in range(120))
    (tmp_path / "stars.tsv").write_text("text\tstars\n" + rows)
    dataset = load_dataset(str(tmp_path / "stars.tsv"), DataConfig(label_column="stars", label_map=STARS))
    assert dataset.classes == ["negative", "positive"]
    assert sum(dataset.balance(split)["positive"] for split in ("train", "valid")) == 40


def test_a_table_may_have_the_classes_themselves_as_labels():
    rows = [Example("a", "positive"), Example("b", "negative")]
    assert map_labels(rows, STARS, HERE) == rows
    mixed = [*rows, Example("c", "5")]  # the labels of data.label_map are there, so they count alone
    assert [row.text for row in map_labels(mixed, STARS, HERE)] == ["c"]
    for labels in (["positive", "neutral"], []):
        with pytest.raises(DataError):
            map_labels([Example("a", label) for label in labels], STARS, HERE)


def test_classes_that_are_set_replace_those_of_before():
    run = RunConfig(job="finetune", data={"label_map": {"good": ["5"]}})
    assert run.with_({"data": {"label_map": {"bad": ["1"]}}}).data.label_map == {"bad": ["1"]}
    assert run.with_({"data": {"label_map": {}}}).data.label_map == {}
    assert run.with_({"data": {"truncation_side": "both"}}).data.label_map == {"good": ["5"]}


def test_long_numbers_are_told_apart():
    rows = [Example(f"day {n}", str(20240000 + n)) for n in range(20)]
    found = map_labels(rows, {"chosen": ["20240003", "20240004.0"]}, HERE)
    assert [row.text for row in found] == ["day 3", "day 4"]


@given(st.text("0123456789", min_size=1, max_size=60), st.integers(0, 5), st.integers(0, 3))
def test_numbers_are_compared_to_the_last_digit(digits, zeros, more):
    assert normalize_label("0" * zeros + digits) == normalize_label(digits + "." + "0" * more) == str(int(digits))
    assert normalize_label(f"{digits}.5" + "0" * more) == f"{int(digits)}.5"
    assert normalize_label(digits + "1") != normalize_label(digits + "2")
