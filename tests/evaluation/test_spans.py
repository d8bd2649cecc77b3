"""Spans as conlleval counts them."""

import pytest

from headstart.evaluation.spans import count_spans, find_spans


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("O O", []),
        ("B-PER I-PER O", [("PER", 0, 2)]),
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("I-PER I-PER", [("PER", 0, 2)]),  # IOB1
        ("O I-PER I-LOC", [("PER", 1, 2), ("LOC", 2, 3)]),
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),  # another kind ends a span
        ("B-PER O I-PER", [("PER", 0, 1), ("PER", 2, 3)]),
        ("S-PER B-LOC I-LOC E-LOC E-LOC", [("PER", 0, 1), ("LOC", 1, 4), ("LOC", 4, 5)]),
        ("U-PER B-LOC L-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),
        ("B-creative-work I-creative-work", [("creative-work", 0, 2)]),
        ("NN NN VB", [("NN", 0, 2), ("VB", 2, 3)]),  # tags without a prefix
    ],
)
def test_spans_are_those_of_conlleval(tags, spans):
    assert list(find_spans(tags.split())) == spans


def test_a_span_counts_when_its_kind_and_both_ends_are_right():
    truth = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG"]]
    found = [["B-PER", "O", "O", "B-LOC"], ["B-ORG", "B-ORG"]]
    counts, by_kind = count_spans(truth, found)
    assert counts.tolist() == [[1, 2, 2], [1, 2, 1]]  # correct, found, true
    assert by_kind["PER"] == {"found": 1, "true": 1}
    assert by_kind["LOC"] == {"correct": 1, "found": 1, "true": 1}
