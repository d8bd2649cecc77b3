import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.data.audit import TokenCounts, audit
from headstart.data.datasets import Dataset, Example, SkippedRow
from headstart.data.text_io import text_hash


def dataset_of(skips=(), **splits):
    parts = {
        name: [Example(text, label, f"{name}.tsv:{line}") for line, (text, label) in enumerate(rows, start=2)]
        for name, rows in splits.items()
    }
    classes = sorted({example.label for example in parts["train"]})
    return Dataset("toy", parts, classes, list(skips), ["a note"])


LEAKY = dataset_of(
    train=[("Good book", "a"), ("good  book", "b"), ("Good\tbook", "b"), ("fine", "a"), (":)", "a")],
    valid=[("Good book ", "a"), ("GOOD BOOK!", "b"), ("new", "a"), (":(", "b"), ("Fine.", "a"), ("new", "a")],
    test=[("fine", "b"), ("new", "a")],
)


def test_repeats_and_leaks_are_counted_by_row():
    found = audit(LEAKY)
    assert [part.duplicates for part in found.splits.values()] == [1, 1, 0]
    assert [part.conflicts for part in found.splits.values()] == [1, 0, 0]
    assert [part.in_train for part in found.splits.values()] == [0, 1, 1]
    assert [part.near_in_train for part in found.splits.values()] == [0, 2, 0]


def test_a_leak_names_the_rows_in_each_split():
    leaks = {leak.excerpt: leak for leak in audit(LEAKY).leaks}
    assert set(leaks) == {"Good book", "fine", "new"}
    assert leaks["Good book"].origins == {"train": ["train.tsv:2", "train.tsv:4"], "valid": ["valid.tsv:2"]}
    assert leaks["new"].origins == {"valid": ["valid.tsv:4", "valid.tsv:7"], "test": ["test.tsv:3"]}
    assert leaks["fine"].hash == f"{text_hash('fine'):016x}"


def test_near_leaks_are_told_apart_and_texts_without_letters_are_none():
    assert {leak.excerpt for leak in audit(LEAKY).near} == {"Good book", "fine"}


def test_the_same_row_twice_counts_twice():
    row = Example("x", "a")
    found = audit(Dataset("toy", {"train": [row, row], "valid": [row, row]}, ["a"]))
    assert [(part.duplicates, part.in_train) for part in found.splits.values()] == [(1, 0), (1, 2)]


def test_lengths_are_spread_and_the_share_cut_is_told():
    dataset = dataset_of(train=[("x" * n, "ab"[n % 2]) for n in range(1, 101)])
    found = audit(dataset, {"train": TokenCounts(range(1, 101), 0.02)}, limit=80)
    part = found.splits["train"]
    assert part.characters == part.tokens
    assert (part.tokens.mean, part.tokens.p50, part.tokens.max) == (50.5, 50.5, 100)
    assert part.tokens.p5 < part.tokens.p95 < part.tokens.p99 < 100
    assert part.truncated == 0.2
    assert part.unknown == 0.02
    assert found.warnings == ["20% of the texts of train are cut at 80 tokens"]


def test_without_lengths_nothing_is_said_of_tokens():
    part = audit(LEAKY, limit=3).splits["train"]
    assert part.tokens is part.truncated is part.unknown is None


@pytest.mark.parametrize(
    ("dataset", "warning"),
    [
        (
            dataset_of(train=[*((f"t{n}", "a") for n in range(4)), ("x", "b")]),
            "train is uneven: 4 rows of 'a' and 1 of 'b'",
        ),
        (dataset_of(train=[("x", "a"), ("y", "b")], valid=[("z", "a")]), "valid is uneven: 1 rows of 'a' and 0 of 'b'"),
        (LEAKY, "1 of the 6 rows of valid are also in train"),
        (LEAKY, "2 rows of valid are in train but for case, space or punctuation"),
        (LEAKY, "1 texts of train have more than one label"),
        (
            dataset_of(
                [SkippedRow("t:2", "odd"), SkippedRow("t:3", "empty"), SkippedRow("t:4", "empty")],
                train=[("x", "a"), ("y", "b")],
            ),
            "2 rows were skipped, the first at t:3: empty",
        ),
    ],
)
def test_what_deserves_a_second_look_is_said_in_words(dataset, warning):
    assert warning in audit(dataset).warnings


def test_a_clean_dataset_earns_no_warning():
    found = audit(dataset_of(train=[("w", "a"), ("x", "b")], valid=[("y", "a"), ("z", "b")]))
    assert (found.warnings, found.leaks, found.near, found.notes) == ([], [], [], ["a note"])


def test_a_long_leak_is_shown_by_its_beginning():
    dataset = dataset_of(train=[("word " * 100, "a"), ("x", "b")], valid=[("word " * 100, "a")])
    assert len(audit(dataset).leaks[0].excerpt) == 83


@settings(max_examples=50, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            name: st.lists(st.tuples(st.text("aA !é😀", max_size=4), st.sampled_from("ab")))
            for name in ("train", "valid", "test")
        }
    )
)
def test_any_dataset_has_an_audit_that_is_plain_json(splits):
    dataset = dataset_of(**splits)
    found = audit(dataset)
    assert json.loads(json.dumps(found.to_dict()))["splits"].keys() == splits.keys()
    for name, part in found.splits.items():
        assert part.count == len(splits[name])
        assert part.duplicates == part.count - len({text_hash(text) for text, _ in splits[name]})
        assert part.in_train + part.near_in_train <= part.count
