"""Rows with a wrong label are found, by models that have not seen them."""

import numpy as np
import pytest

import headstart as hs
from headstart.errors import ConfigError, DataError
from headstart.workflows.label_errors import find_label_errors, out_of_fold_probabilities

WORDS = {"good": ["superb", "moving", "fine", "warm"], "bad": ["dull", "poor", "flat", "cold"]}


def write_rows(path, wrong=()):
    generator = np.random.default_rng(0)
    rows = []
    for number in range(120):
        label = ("good", "bad")[number % 2]
        text = f"a {' '.join(generator.choice(WORDS[label], 3))} film, number {number}"
        rows.append((text, {"good": "bad", "bad": "good"}[label] if number in wrong else label))
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    return path


@pytest.mark.parametrize("base", [None, "en-tiny"])
def test_flipped_labels_come_first(tmp_path, base):
    wrong = {3, 40, 77}
    found = find_label_errors(str(write_rows(tmp_path / "rows.tsv", wrong)), base=base)
    assert {row.origin for row in found[:3]} == {f"rows.tsv:{number + 2}" for number in wrong}
    assert all(row.predicted != row.label for row in found)
    assert [row.loss for row in found] == sorted((row.loss for row in found), reverse=True)


def test_clean_labels_are_not_listed(tmp_path):
    assert hs.find_label_errors(str(write_rows(tmp_path / "rows.tsv"))) == []


def test_a_repeated_text_is_never_predicted_by_a_model_that_has_seen_it():
    texts = [f"text {number // 2}" for number in range(40)]
    labels = np.array([0, 1] * 20)  # each text has both labels: a model that has seen it would know one
    probabilities = out_of_fold_probabilities(texts, labels)
    np.testing.assert_allclose(probabilities[0::2], probabilities[1::2])


def test_too_few_rows_for_the_folds():
    rows, labels = [f"text {number}" for number in range(10)], np.array([0] * 8 + [1] * 2)
    with pytest.raises(DataError, match="rarest class has 2 rows"):
        out_of_fold_probabilities(rows, labels)
    with pytest.raises(ConfigError, match="hold nothing out"):
        out_of_fold_probabilities(rows, labels, folds=1)
