"""Labels that authors wrote into their reviews, as the preparation scripts of the recipes find and cut them."""

import importlib
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.config import DataConfig
from headstart.data.built_in import SOURCES
from headstart.data.datasets import SPLITS, Example, load_dataset, split_by_hash
from headstart.errors import DataError


@pytest.fixture
def small(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "recipes")
    return importlib.import_module("prepare_en_small")


@pytest.fixture
def tiny(small):
    return importlib.import_module("prepare_en_tiny")


def labelled(small, pattern, *texts):
    labels = small.WrittenLabels(pattern)
    return [(labels.without(row.text), row.label) for row in labels.examples(texts)]


def test_a_rating_is_found_wherever_it_is_and_cut_out(small):
    texts = ["A joy. 8/10", "10.0 / ten for the music alone", "Dull, so  3 out of 10, and   I was kind."]
    assert labelled(small, small.RATING, *texts) == [
        ("A joy.", "positive"),
        ("for the music alone", "positive"),
        ("Dull, so , and I was kind.", "negative"),
    ]


@pytest.mark.parametrize(
    "text",
    ["No number here", "Was 8/10, is 2/10 today", "A clear 5/10", "Was 5/10, is 9/10 today", "7/10", "1/100", "20/10"],
)
def test_a_text_without_one_clear_rating_is_left_out(small, text):
    assert labelled(small, small.RATING, text) == []


def test_a_text_may_name_its_class_twice(small):
    assert labelled(small, small.RATING, "First 8/10, on reflection 9/10") == [("First , on reflection", "positive")]


def test_verdicts_are_found_beside_ratings(small):
    texts = [
        "A true masterpiece, 9/10",
        "What a waste of time it was",
        "This film was awful. 9/10",
        "Never the best film. The plot is thin, 3/10",
        "It is not a must see at all",
    ]
    assert labelled(small, small.VERDICT, *texts) == [
        ("A ,", "positive"),
        ("What a it was", "negative"),
        ("film. The plot is thin,", "negative"),
    ]


WORDS = st.lists(st.text("abcd,.!", min_size=1, max_size=5), min_size=1, max_size=8)


@given(before=WORDS, after=WORDS, mark=st.sampled_from(["2", "3", "8", "9"]))
def test_what_is_learnt_never_holds_its_label(before, after, mark):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "recipes")
        small = importlib.import_module("prepare_en_small")
    text = " ".join([*before, f"{mark}/10", *after])
    ((rest, label),) = labelled(small, small.RATING, text)
    assert rest.split() == [*before, *after]
    assert label == ("positive" if mark in "89" else "negative")


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Reviews without labels, a third of which are texts of a built-in imdb of our own."""
    rated = [f"text number {n} is here, {n % 10}/10" for n in range(400)]
    said = [f"text number {n} is {'a must see' if n % 2 else 'a waste of time'}" for n in range(400, 600)]
    films = [
        *(Example(text, "negative", "") for text in [*rated[::4], *said[::4]]),
        *(Example(f"film number {n}, {n % 11}/10", "negative", "") for n in range(300)),
        Example("text number 11 is here, 2/10", "positive", ""),  # another rating makes no other text
    ]
    monkeypatch.setitem(SOURCES, "imdb", lambda: films)
    with lzma.open(tmp_path / "imdb-unlabelled.txt.xz", "wt", encoding="utf-8") as file:
        file.write("\n".join([*rated, "", *said]) + "\n")
    held = {row.text for split in ("valid", "test") for row in split_by_hash(films, SPLITS)[0][split]}
    return tmp_path, rated, said, films, held


def rows_of(folder):
    dataset = load_dataset(str(folder), DataConfig())
    return {split: [(row.text, row.label) for row in rows] for split, rows in dataset.splits.items()}


def test_the_tables_hold_each_text_once_split_by_what_was_written(world, small, tiny, capsys):
    """The rows are those that the settings `label_pattern`, `also` and `apart` of the first recipes gave."""
    data, rated, said, films, held = world
    small.main(data)
    tiny.main(data)
    class_of = {**dict.fromkeys(range(5), "negative"), **dict.fromkeys(range(7, 11), "positive")}
    ratings = {text: class_of.get(n % 10) for n, text in enumerate(rated)}
    verdicts = {text: "positive" if "must" in text else "negative" for text in said}
    added = {row.text: class_of.get(n % 11) for n, row in enumerate(films[-301:-1])}
    for base, stage, own, more in (
        ("en-small", "verdicts", {**ratings, **verdicts}, added),
        ("en-small", "ratings", ratings, added),
        ("en-tiny", "ratings", ratings, {}),
    ):
        labels = small.WrittenLabels(small.VERDICT if stage == "verdicts" else small.RATING)
        named = [Example(text, label) for text, label in own.items() if label]
        splits = split_by_hash(named, ("train", "valid"))[0]
        train_films = [row.text for row in split_by_hash(films, SPLITS)[0]["train"]]
        splits["train"] += [Example(text, more[text]) for text in train_films if more.get(text)]
        wanted = {
            split: [(labels.without(row.text), row.label) for row in rows if row.text not in held]
            for split, rows in splits.items()
        }
        assert rows_of(data / base / stage) == wanted
        assert all(wanted.values())
    assert capsys.readouterr().out.count("rows to learn from") == 3


def test_texts_without_labels_are_told(tmp_path, small):
    with pytest.raises(DataError, match="no text for train has a label written into it"):
        small.write_tables(tmp_path / "out", small.RATING, ["plain", "plainer"], held_out=[])
