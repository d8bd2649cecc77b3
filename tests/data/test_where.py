"""Rows by what stands in their columns: in every kind of table, and told where there are none to ask."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.config import DataConfig, RunConfig
from headstart.data.relabel import value_of
from headstart.data.sources import load_dataset, load_for_scoring
from headstart.data.tables import read_table
from headstart.errors import ConfigError, DataError
from headstart.workflows.pretrain import pretrain
from tests.worlds_of_text import write_corpus

ROWS = [
    ("films", "5", "fine"),
    ("insurers", "1", "awful"),
    ("films", "1.0", "dull"),
    ("games", "5.0", "a joy"),
    ("films ", "2", "so, so"),
]


def write(path, rows=ROWS):
    if path.suffix == ".jsonl":
        names = ("source", "stars", "text")
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    else:
        tab = "\t" if path.suffix == ".tsv" else ","
        shown = [[f'"{value}"' if path.suffix == ".csv" else value for value in row] for row in rows]
        lines = [tab.join(("source", "stars", "text")), *map(tab.join, shown)]
    path.write_text("\n".join(lines) + "\n")
    return path


def texts(path, where, strict=False):
    examples, skips = read_table(path, "text", "stars", strict, where)
    assert {skip.reason for skip in skips} <= {"data.where asks for other rows"}
    assert len(examples) + len(skips) == len(read_table(path, "text", "stars")[0])  # none vanishes
    return [example.text for example in examples]


@pytest.mark.parametrize("kind", [".tsv", ".csv", ".jsonl"])
def test_rows_are_chosen_by_any_column_numbers_by_their_value(tmp_path, kind):
    path = write(tmp_path / f"rows{kind}")
    assert texts(path, {}) == ["fine", "awful", "dull", "a joy", "so, so"]
    assert texts(path, {"source": ["films"]}, strict=True) == ["fine", "dull", "so, so"]
    assert texts(path, {"source": ["films", "games"], "stars": ["5"]}) == ["fine", "a joy"]
    assert texts(path, {"text": ["dull"]}) == ["dull"]


def test_long_numbers_are_told_apart(tmp_path):
    path = write(tmp_path / "rows.tsv", [(str(20240000 + n), "1", f"day {n}") for n in range(20)])
    assert texts(path, {"source": ["20240003", "20240004.0"]}) == ["day 3", "day 4"]


def test_what_is_asked_for_above_replaces_what_was_below():
    run = RunConfig(job="finetune", data={"where": {"source": ["a"]}})
    assert run.with_({"data": {"where": {"stars": ["5"]}}}).data.where == {"stars": ["5"]}
    assert run.with_({"data": {"where": {}}}).data.where == {}
    assert run.with_({"data": {"keep": "both"}}).data.where == {"source": ["a"]}


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("12")), min_size=1),
    st.sets(st.sampled_from("abc")),
)
def test_what_is_asked_for_is_what_a_filter_keeps(tmp_path_factory, rows, wanted):
    path = tmp_path_factory.mktemp("where") / "rows.tsv"
    write(path, [(source, label, f"text {number}") for number, (source, label) in enumerate(rows)])
    kept = [f"text {number}" for number, (source, _) in enumerate(rows) if source in wanted]
    if kept:
        assert texts(path, {"source": sorted(wanted)}) == kept
    else:
        with pytest.raises(DataError, match=r"no row of .* holds what data\.where asks for"):
            texts(path, {"source": sorted(wanted)})


def test_a_damaged_row_is_counted_whatever_was_asked_for(tmp_path):
    path = write(tmp_path / "rows.tsv")
    path.write_text(path.read_text() + "films\t1\n")
    examples, skips = read_table(path, "text", "stars", False, {"source": ["games"]})
    assert [example.text for example in examples] == ["a joy"]
    assert [skip.origin for skip in skips if "data.where" not in skip.reason] == ["rows.tsv:7"]
    assert len(skips) == 5


def test_a_column_or_value_that_is_not_there_is_told(tmp_path):
    path = write(tmp_path / "rows.tsv")
    with pytest.raises(DataError, match=r"no column 'sorce', which data\.where asks") as caught:
        texts(path, {"sorce": ["films"]})
    assert "source" in caught.value.hint
    with pytest.raises(DataError, match="there are 'films', 'games', 'insurers'"):
        texts(path, {"source": ["books"]})


def many(path):
    rows = [
        (source, label, f"{source} {label} {n}") for n in range(60) for source in "ab" for label in ("1", "5")
    ]
    return write(path, rows)


def test_every_split_is_of_the_rows_asked_for(tmp_path):
    data = DataConfig(label_column="stars", where={"source": ["a"]})
    dataset = load_dataset(str(many(tmp_path / "rows.tsv")), data)
    found = [example.text for rows in dataset.splits.values() for example in rows]
    assert len(found) == 120
    assert Counter(text[0] for text in found) == {"a": 120}


def test_what_is_judged_on_is_asked_only_where_it_has_the_column(tmp_path):
    data = DataConfig(label_column="stars", where={"source": ["a"]})
    assert len(load_for_scoring(str(many(tmp_path / "rows.tsv")), data)[1]) == 120
    other = tmp_path / "other.tsv"
    other.write_text("stars\ttext\n1\tbad\n5\tgood\n")
    assert len(load_for_scoring(str(other), data)[1]) == 2
    rated = tmp_path / "rated.txt"
    rated.write_text("fine 5/5\nawful 1/5\n")
    written = data.model_copy(update={"label_pattern": r"(\d)/5"})
    assert len(load_for_scoring(str(rated), written)[1]) == 2
    assert len(load_for_scoring("rotten-tomatoes", data)[1]) > 0
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "train.tsv").write_text("stars\ttext\n" + "".join(f"{n % 2}\ttext {n}\n" for n in range(40)))
    assert load_for_scoring(str(folder), data)[0] == "valid"


def test_what_has_no_columns_is_told(tmp_path):
    asked = DataConfig(where={"source": ["a"]})
    with pytest.raises(ConfigError, match="built-in set imdb has no columns"):
        load_dataset("imdb", asked)
    path = tmp_path / "rated.txt"
    path.write_text("fine 9/10\n")
    with pytest.raises(DataError, match=r"has no columns for data\.where"):
        load_dataset(str(path), asked.model_copy(update={"label_pattern": r"(\d)/10"}))
    write_corpus(tmp_path / "corpus.txt")
    with pytest.raises(ConfigError, match=r"data\.where is for labelled texts"):
        pretrain(
            [str(tmp_path / "corpus.txt")], tmp_path / "run", settings={"data": {"where": {"source": ["a"]}}}
        )


@given(st.text("0123456789", min_size=1, max_size=60), st.integers(0, 5), st.integers(0, 3))
def test_numbers_are_compared_to_the_last_digit(digits, zeros, more):
    assert value_of("0" * zeros + digits) == value_of(digits + "." + "0" * more) == str(int(digits))
    assert value_of(f"{digits}.5" + "0" * more) == f"{int(digits)}.5"
    assert value_of(digits + "1") != value_of(digits + "2")
