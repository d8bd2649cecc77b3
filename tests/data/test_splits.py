from collections import Counter
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.data.datasets import Dataset, Example, split_by_hash, split_of
from headstart.data.subsets import balanced_subset
from headstart.data.text_io import text_hash
from headstart.errors import DataError


def examples_of(counts):
    return [
        Example(f"{label} {number}", label, f"t.tsv:{number}") for label, n in counts.items() for number in range(n)
    ]


def dataset_of(counts):
    return Dataset("toy", {"train": examples_of(counts), "valid": []}, sorted(counts))


def test_a_text_falls_into_the_same_split_for_ever():
    texts = [f"text {number}" for number in range(10_000)]
    assert Counter(split_of(text_hash(text)) for text in texts) == {"train": 7983, "valid": 1013, "test": 1004}
    assert [split_of(key) for key in range(12)] == ["valid", "test", *["train"] * 8, "valid", "test"]


def test_a_cut_keeps_every_row_once_and_in_order():
    examples = examples_of({"a": 300, "b": 300})
    splits, notes = split_by_hash(examples, ("train", "valid", "test"))
    assert all(split_of(text_hash(found.text)) == name for name, part in splits.items() for found in part)
    assert sorted(chain(*splits.values()), key=examples.index) == examples
    assert notes == []


def test_without_a_test_split_its_rows_stay_in_train():
    examples = examples_of({"a": 300, "b": 300})
    two, _ = split_by_hash(examples, ("train", "valid"))
    three, _ = split_by_hash(examples, ("train", "valid", "test"))
    assert two["valid"] == three["valid"]
    assert set(two["train"]) == {*three["train"], *three["test"]}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from("abc")), min_size=1, max_size=30),
    st.sampled_from([("train", "valid"), ("train", "valid", "test")]),
)
def test_a_tiny_cut_shows_each_class_to_train_and_no_text_twice(rows, names):
    examples = [Example(f"text {number}", label) for number, label in rows]
    splits, _ = split_by_hash(examples, names)
    assert Counter(chain(*splits.values())) == Counter(examples)
    assert {found.label for found in splits["train"]} == {label for _, label in rows}
    texts = [{found.text for found in part} for part in splits.values()]
    assert sum(map(len, texts)) == len(set().union(*texts))


@pytest.mark.parametrize("count", range(2, 8))
def test_two_rows_a_class_are_enough_for_train_and_valid(count):
    splits, _ = split_by_hash(examples_of({"a": count, "b": count, "c": count}), ("train", "valid"))
    for part in splits.values():
        assert {found.label for found in part} == {"a", "b", "c"}


def test_a_cut_does_not_depend_on_the_order_of_rows():
    examples = examples_of({"a": 5, "b": 5})
    forward, notes = split_by_hash(examples, ("train", "valid", "test"))
    backward, _ = split_by_hash(examples[::-1], ("train", "valid", "test"))
    assert {name: set(part) for name, part in forward.items()} == {name: set(part) for name, part in backward.items()}
    assert notes


@pytest.mark.parametrize("count", [2, 7, 100, 399, 400])
def test_chosen_labels_are_exact_balanced_and_nested(count):
    dataset = dataset_of({"a": 250, "b": 220})
    small, large = balanced_subset(dataset, count, seed=3), balanced_subset(dataset, 420, seed=3)
    assert len(small.train) == count
    assert abs(small.balance("train")["a"] - small.balance("train")["b"]) <= 1
    assert set(small.train) <= set(large.train)
    assert small.notes == []


def test_the_rest_loses_its_labels_but_not_its_texts():
    dataset = dataset_of({"a": 10, "b": 10})
    taken = balanced_subset(dataset, 6, seed=0)
    assert {found.label for found in taken.unlabelled} == {None}
    assert sorted([*taken.texts("train"), *(found.text for found in taken.unlabelled)]) == sorted(
        dataset.texts("train")
    )
    assert taken.classes == dataset.classes
    assert len(dataset.train) == 20


def test_a_seed_chooses_the_same_rows_for_ever_and_another_seed_others():
    dataset = dataset_of({"a": 100, "b": 100})
    assert balanced_subset(dataset, 4, seed=0).texts("train") == ["a 25", "a 32", "b 42", "b 98"]
    assert balanced_subset(dataset, 20, seed=0).train != balanced_subset(dataset, 20, seed=1).train


def test_repeated_texts_are_counted_as_rows():
    dataset = Dataset("toy", {"train": [Example("same", "a"), Example("same", "a"), Example("other", "b")]}, ["a", "b"])
    assert len(balanced_subset(dataset, 3, seed=0).train) == 3
    assert balanced_subset(dataset, 2, seed=0).balance("train") == {"a": 1, "b": 1}


def test_a_small_class_is_filled_up_by_the_others_with_a_note():
    taken = balanced_subset(dataset_of({"a": 3, "b": 50}), 20, seed=0)
    assert taken.balance("train") == {"a": 3, "b": 17}
    assert "a 3, b 17" in taken.notes[0]


def test_more_labels_than_rows_says_how_many_there_are():
    with pytest.raises(DataError, match="train has 20") as caught:
        balanced_subset(dataset_of({"a": 10, "b": 10}), 21, seed=0)
    assert "20" in caught.value.hint


def test_fewer_labels_than_classes_is_an_error():
    with pytest.raises(DataError, match="2 labels cannot show 3 classes"):
        balanced_subset(dataset_of({"a": 10, "b": 10, "c": 10}), 2, seed=0)
