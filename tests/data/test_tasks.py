"""Tables and files of tasks beyond one class a text."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.batch import IGNORE
from headstart.config import DataConfig
from headstart.data.conll import read_conll
from headstart.data.datasets import encode_rows, infer_task, load_dataset, load_unlabelled
from headstart.data.labels import label_array
from headstart.data.subsets import balanced_subset
from headstart.data.text_io import Example
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, HeadstartError
from headstart.pretrained import shipped_bases


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load(shipped_bases()["en-tiny"])


@pytest.mark.parametrize(
    ("labels", "task", "is_said"),
    [
        (["good", "bad"], "single-label", False),
        (["a|b", "a"], "multi-label", True),
        (["0", "1"], "single-label", False),
        (["1", "2", "3"], "single-label", True),
        (["1", "2.5", "3"], "regression", True),
        ([str(number) for number in range(11)], "regression", True),
        ([*map(str, range(95)), *["?"] * 5], "regression", True),
        ([*map(str, range(94)), *["?"] * 6], "single-label", False),
        (["1_0", "nan", "inf"], "single-label", False),
    ],
)
def test_labels_show_their_task(labels, task, is_said):
    found, note = infer_task(labels, "label")
    assert found == task
    assert bool(note) == is_said
    assert not note or task in note


@settings(max_examples=60, deadline=None)
@given(labels=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1), min_size=1))
def test_any_labels_have_a_task_and_only_several_labels_or_numbers_change_it(labels):
    task, note = infer_task(labels, "label")
    assert task == "single-label" or note


def table(path, header, rows):
    path.write_text("\n".join("\t".join(row) for row in [header, *rows]) + "\n")
    return str(path)


def test_several_labels_are_sorted_and_a_text_may_have_none(tmp_path):
    rows = [(f"text {n}", ["b|a", "", " a ", "b|b"][n % 4]) for n in range(40)]
    dataset = load_dataset(table(tmp_path / "t.tsv", ("text", "label"), rows), DataConfig())
    assert (dataset.task, dataset.classes, dataset.skips) == ("multi-label", ["a", "b"], [])
    assert {row.label for row in dataset.train} == {"a|b", "", "a", "b"}
    assert sum(map(len, dataset.splits.values())) == 40


def test_lists_in_json_are_several_labels(tmp_path):
    lines = [json.dumps({"text": f"text {n}", "label": [["a", "b"], [], ["c"]][n % 3]}) for n in range(30)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    dataset = load_dataset(str(tmp_path / "t.jsonl"), DataConfig())
    assert (dataset.task, dataset.classes) == ("multi-label", ["a", "b", "c"])


def test_a_label_that_is_no_number_is_skipped_and_counted(tmp_path):
    rows = [(f"text {n}", f"{n / 2}" if n else "?") for n in range(40)]
    dataset = load_dataset(table(tmp_path / "t.tsv", ("text", "label"), rows), DataConfig())
    assert dataset.task == "regression"
    assert dataset.classes == ["label"]
    assert [skip.reason for skip in dataset.skips] == ["the label '?' is no number"]


def test_ordered_classes_are_in_the_order_of_their_numbers(tmp_path):
    rows = [(f"text {n}", str(n % 11)) for n in range(110)]
    dataset = load_dataset(table(tmp_path / "t.tsv", ("text", "label"), rows), DataConfig(task="ordinal"))
    assert dataset.classes == [str(n) for n in range(11)]


def test_pairs_have_two_texts_and_equal_pairs_share_a_split(tmp_path):
    rows = [(f"first {n % 20}", f"second {n % 20}", "ab"[n % 2]) for n in range(80)]
    config = DataConfig(text_column="one,two")
    dataset = load_dataset(table(tmp_path / "t.tsv", ("one", "two", "label"), rows), config)
    assert dataset.train[0].pair.startswith("second")
    assert not {row.content for row in dataset.train} & {row.content for row in dataset.valid}
    (tmp_path / "new.txt").write_text("a\tb\n")
    assert list(load_unlabelled(str(tmp_path / "new.txt"), config)) == [Example("a", None, "", "b")]


def test_a_subset_of_numbers_is_not_balanced_by_value(tmp_path):
    rows = [(f"text {n}", f"{n % 30 / 2}") for n in range(90)]
    dataset = load_dataset(table(tmp_path / "t.tsv", ("text", "label"), rows), DataConfig())
    assert len(balanced_subset(dataset, 20, 0).train) == 20


CONLL = "-DOCSTART- -X- O O\n\n# sent_id = 1\nEU NNP B-ORG\nrejects VBZ O\n\n#\tO\nparis\tB-LOC\n\n"


def test_conll_files_hold_a_token_and_its_tag_a_line(tmp_path):
    (tmp_path / "t.conll").write_text(CONLL)
    examples, skips = read_conll(tmp_path / "t.conll")
    assert [(each.text, each.label) for each in examples] == [("EU rejects", "B-ORG O"), ("# paris", "O B-LOC")]
    assert skips == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [("a\tO\nb\n", "'b' has no tag"), ("", "holds no tokens"), ("new york\tB-LOC\n", "'new york' holds a space")],
)
def test_a_conll_file_that_cannot_be_used_says_why(tmp_path, content, problem):
    (tmp_path / "t.conll").write_text(content)
    with pytest.raises(HeadstartError, match=problem):
        read_conll(tmp_path / "t.conll")


@pytest.mark.parametrize(("name", "task"), [("t.conll", "ordinal"), ("t.tsv", "token")])
def test_a_task_that_does_not_fit_the_file_is_refused(tmp_path, name, task):
    (tmp_path / name).write_text(CONLL if name == "t.conll" else "text\tlabel\na\tb\n")
    with pytest.raises(HeadstartError, match=f"the task is {task}"):
        load_dataset(str(tmp_path / name), DataConfig(task=task))


def test_each_token_of_a_long_text_has_its_tag_in_one_window(tokenizer):
    words = [f"word{n}" for n in range(100)]
    example = Example(" ".join(words), " ".join(["x", "y"][n % 2] for n in range(100)))
    rows = encode_rows(tokenizer, [example], ["x", "y"], 40, "start", "token")
    assert len(rows) > 1
    assert all(len(row.tokens) == len(row.targets) <= 40 for row in rows)
    tags = np.concatenate([row.targets[row.targets != IGNORE] for row in rows])
    assert tags.tolist() == label_array("token", [example.label], ["x", "y"]).tolist()


@pytest.mark.parametrize("length", [3, 4, 8, 64])
@settings(max_examples=30, deadline=None)
@given(words=st.lists(st.text("abc😀é-", min_size=1, max_size=12), min_size=1, max_size=30))
def test_no_window_loses_a_token(tokenizer, length, words):
    rows = encode_rows(tokenizer, [Example(" ".join(words))], None, length, "start", "token")
    assert sum((row.targets != IGNORE).sum() for row in rows) == len(words)
    assert all(len(row.tokens) <= length for row in rows)


def test_tokens_are_encoded_as_inside_their_text(tokenizer):
    text = "The quick brown fox doesn't jump ."
    (row,) = encode_rows(tokenizer, [Example(text)], None, 64, "start", "token")
    assert row.tokens.tolist() == tokenizer.add_special_tokens(tokenizer.encode([text])[0], 64).tolist()


def test_of_a_pair_both_texts_keep_a_part(tokenizer):
    pair = Example("red " * 50, None, "", "blue " * 50)
    (row,) = encode_rows(tokenizer, [pair], None, 21, "start")
    assert len(row.tokens) == 21
    assert np.bincount(row.segments).tolist() == [11, 10]
    short = Example("red " * 50, None, "", "blue")
    (row,) = encode_rows(tokenizer, [short], None, 21, "start")
    assert len(row.tokens) == 21


def test_more_than_two_texts_are_refused(tmp_path):
    with pytest.raises(HeadstartError, match="names 3 columns"):
        load_dataset(table(tmp_path / "t.tsv", ("a", "label"), [("x", "y")]), DataConfig(text_column="a,b,c"))


def test_an_unknown_task_is_refused():
    with pytest.raises((ConfigError, ValueError)):
        DataConfig(task="clustering")
