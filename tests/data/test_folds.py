"""Folds: every text is held out once, none is learnt from where it is held out, and the order of rows plays no part."""

import random
from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headstart.data.datasets import Dataset, Example
from headstart.data.subsets import merge_folds, stratified_folds
from headstart.errors import ConfigError, DataError


def dataset(rows):
    """Rows of (text, label), every third in valid."""
    examples = [Example(text, label, f"t:{place}") for place, (text, label) in enumerate(rows)]
    splits = {"train": [e for n, e in enumerate(examples) if n % 3], "valid": examples[::3]}
    return Dataset("toy", splits, sorted({label for _, label in rows}))


@settings(max_examples=200, deadline=None)
@given(size=st.integers(12, 80), texts=st.integers(8, 60), count=st.integers(2, 6), seed=st.integers(0, 10**6))
def test_folds_are_apart_whole_even_and_blind_to_the_order_of_rows(size, texts, count, seed):
    chance = random.Random(seed)
    rows = [(f"text {chance.randrange(texts)}", chance.choice("abc")) for _ in range(size)]
    labels = Counter((text, label) for text, label in rows)
    clear = {text for text, _ in rows if len({label for other, label in labels if other == text}) == 1}
    sizes = Counter(next(label for other, label in labels if other == text) for text in clear)
    assume(len(sizes) == len({label for _, label in rows}) and min(sizes.values()) > 1 and len(clear) >= count)
    folds = stratified_folds(dataset(rows), count)
    held = [example.text for fold in folds for example in fold.valid]
    assert sorted(held) == sorted(clear)
    for fold in folds:
        assert {e.text for e in fold.train} | {e.text for e in fold.valid} == clear
        assert not {e.text for e in fold.train} & {e.text for e in fold.valid}
        assert {e.label for e in fold.train} == set(fold.classes)
        assert all(abs(len(fold.valid) - len(other.valid)) <= 1 for other in folds)
        for label, size in sizes.items():
            assert abs(sum(e.label == label for e in fold.valid) - size / count) < 1
    again = list(rows)
    chance.shuffle(again)
    assert [[e.text for e in fold.valid] for fold in stratified_folds(dataset(again), count)] == [
        [e.text for e in fold.valid] for fold in folds
    ]
    assert [e.text for e in merge_folds(folds).train] == held


def test_folds_are_the_same_for_ever():
    folds = stratified_folds(dataset([(f"text {n}", "ab"[n % 2]) for n in range(10)]), 3)
    assert [[int(e.text[-1]) for e in fold.valid] for fold in folds] == [[2, 4, 7, 5], [6, 8, 9], [0, 3, 1]]


def test_what_was_left_out_is_told():
    rows = [(f"text {n}", "ab"[n % 2]) for n in range(10)]
    folds = stratified_folds(dataset([*rows, ("text  1", "b"), ("text 2", "b")]), 2)
    assert "3 rows" in folds[0].notes[-1]  # the repeat, and both of the text with two labels


@pytest.mark.parametrize(
    ("rows", "count", "kind", "words"),
    [
        ([("x", "a"), ("y", "b")], 1, ConfigError, "hold nothing out"),
        ([("x", "a"), ("y", "a"), ("z", "b")], 2, DataError, "'b' has fewer than two"),
        ([("x", "a"), ("y", "a"), ("z", "b"), ("w", "b")], 5, DataError, "4 texts"),
    ],
)
def test_what_cannot_be_cut_is_refused(rows, count, kind, words):
    with pytest.raises(kind, match=words):
        stratified_folds(dataset([*rows]), count)
