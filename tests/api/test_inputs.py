"""Texts and labels in memory come in any container, and anything else gets one clear sentence."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.data.inputs import (
    as_contents,
    as_label_sets,
    as_labels,
    as_numbers,
    as_tags,
    as_texts,
    as_token_texts,
    label_names,
    with_labels,
)
from headstart.errors import HeadstartError, InputTypeError, InputValueError

TEXTS = ["a good film", "a bad film"]


def containers():
    pandas = pytest.importorskip("pandas")
    found = {
        "list": TEXTS,
        "tuple": tuple(TEXTS),
        "generator": (text for text in TEXTS),
        "object array": np.array(TEXTS, dtype=object),
        "string array": np.array(TEXTS),
        "column of an array": np.array(TEXTS)[:, None],
        "Series": pandas.Series(TEXTS, index=[7, 3]),
        "string Series": pandas.Series(TEXTS, dtype="string"),
        "categorical Series": pandas.Series(TEXTS, dtype="category"),
        "DataFrame": pandas.DataFrame({"text": TEXTS}),
    }
    try:
        import polars

        found |= {"polars Series": polars.Series(TEXTS), "polars DataFrame": polars.DataFrame({"text": TEXTS})}
    except ImportError:
        pass
    return found


@pytest.mark.parametrize("kind", containers())
def test_every_container_of_texts_is_read(kind):
    assert as_texts(containers()[kind]) == TEXTS


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ("a film", TypeError, r"write \[text\]"),
        (b"a film", TypeError, "not one string"),
        (None, TypeError, "is None"),
        (3, TypeError, "of type int"),
        ({"text": "a"}, TypeError, "of type dict"),
        ([1, 2], TypeError, r"texts\[0\] is of type int"),
        (["a", None], ValueError, r"texts\[1\] is missing"),
        (["a", float("nan")], ValueError, r"texts\[1\] is missing"),
        (["\ud800"], ValueError, "half a character"),
        (["a\0b"], ValueError, "NUL"),
        (np.array([["a", "b"]]), ValueError, r"shape \(1, 2\)"),
    ],
)
def test_what_is_no_list_of_texts_is_refused_with_a_hint(texts, error, message):
    with pytest.raises(error, match=message) as caught:
        as_texts(texts)
    assert isinstance(caught.value, HeadstartError)
    assert caught.value.hint in str(caught.value)


def test_a_table_of_several_columns_names_them():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputValueError, match=r"'review', 'stars'.*table\['review'\]"):
        as_texts(pandas.DataFrame({"review": ["a"], "stars": [1]}))


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (["a"], InputValueError, "2 texts and 1 labels"),
        (["a", None], InputValueError, "missing"),
        (["a", float("nan")], InputValueError, "missing"),
        (["a", ""], InputValueError, "missing"),
        (["a", object()], InputTypeError, "of type object"),
        ("ab", InputTypeError, "one string"),
    ],
)
def test_labels_that_are_none_are_refused(labels, error, message):
    with pytest.raises(error, match=message):
        as_labels(labels, 2)


def test_labels_keep_their_type_and_their_order():
    classes, names = label_names([10, 9, 10])
    assert classes.tolist() == [9, 10]
    assert names == ["10", "9", "10"]
    assert label_names([1.0, 2.0])[1] == ["1", "2"]
    with pytest.raises(InputValueError, match="continuous"):
        label_names([1.0, 2.5])
    with pytest.raises(InputTypeError, match="mix strings and numbers"):
        label_names(["a", 1])


def test_blank_texts_are_left_out_with_their_place():
    examples, skips = with_labels(as_contents(["a", " ", "b"]), ["x", "y", "x"])
    assert [(each.text, each.label, each.origin) for each in examples] == [
        ("a", "x", "texts[0]"),
        ("b", "x", "texts[2]"),
    ]
    assert [skip.origin for skip in skips] == ["texts[1]"]


@given(st.lists(st.one_of(st.text(), st.none(), st.integers(), st.floats(), st.binary(), st.booleans())))
def test_no_list_ends_in_another_error(values):
    with suppress(HeadstartError):
        assert as_texts(values) == values


def test_pairs_are_two_tuples_or_two_columns():
    pandas = pytest.importorskip("pandas")
    pairs = [("a", "b"), ("c", "d")]
    table = pandas.DataFrame(pairs, columns=["first", "second"])
    for given_pairs in (pairs, np.array(pairs), table):
        assert [(each.text, each.pair) for each in as_contents(given_pairs)] == pairs
    assert as_contents(["a", "b"])[0].pair is None


def test_several_labels_come_as_lists_or_as_an_indicator_matrix():
    pandas = pytest.importorskip("pandas")
    matrix = np.array([[1, 0, 1], [0, 0, 0]])
    assert as_label_sets(matrix, 2) == ([0, 1, 2], [["0", "2"], []])
    assert as_label_sets(pandas.DataFrame(matrix, columns=["x", "y", "z"]), 2) == (["x", "y", "z"], [["x", "z"], []])
    assert as_label_sets([["x", "z"], []], 2) == (["x", "z"], [["x", "z"], []])
    assert as_label_sets(["x", "y"], 2) is None
    assert as_label_sets([0, 1], 2) is None
    with pytest.raises(InputValueError, match="other values than 0 and 1"):
        as_label_sets(matrix * 2, 2)
    with pytest.raises(InputValueError, match=r"holds a \|"):
        as_label_sets([["a|b"]], 1)


def test_tokens_and_tags_are_lists_of_equal_length():
    examples = as_token_texts([["A", "dog"], ("runs",)])
    assert [each.text for each in examples] == ["A dog", "runs"]
    assert as_tags([["O", "B-animal"], ["O"]], examples) == ["O B-animal", "O"]
    with pytest.raises(InputValueError, match="differ in length"):
        as_tags([["O"], ["O"]], examples)
    with pytest.raises(InputTypeError, match="one string"):
        as_token_texts(["A dog"])
    with pytest.raises(InputValueError, match="white space"):
        as_token_texts([["A dog"]])
    with pytest.raises(InputValueError, match="the token ''"):
        as_token_texts([["A", ""]])


@pytest.mark.parametrize("numbers", [["a", "b"], [1, float("inf")], [1], [1, None]])
def test_targets_are_finite_numbers(numbers):
    with pytest.raises(InputValueError):
        as_numbers(numbers, 2)
