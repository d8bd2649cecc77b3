"""Suggestions of what to label next are uncertain, diverse and new."""

import numpy as np
import pytest

import headstart as hs
from headstart.errors import ConfigError, DataError, RunError
from headstart.workflows.active_learning import choose_texts, margin


def test_the_margin_is_between_the_two_most_probable_classes():
    np.testing.assert_allclose(margin(np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])), [0.2, 0.7])


def test_uncertain_texts_are_chosen():
    sure = np.tile([0.99, 0.01], (100, 1))
    unsure = np.tile([0.5, 0.5], (4, 1))
    vectors = np.random.default_rng(0).normal(size=(104, 3))
    assert choose_texts(np.concatenate((sure, unsure)), vectors, 4, 0)[-1] >= 100
    assert len(choose_texts(unsure, vectors[:4], 10, 0)) == 4


def test_the_chosen_texts_differ_from_each_other():
    probabilities = np.tile([0.5, 0.5], (30, 1))
    vectors = np.repeat(np.eye(3) * 10, 10, axis=0) + np.random.default_rng(0).normal(size=(30, 3)) * 0.1
    chosen = choose_texts(probabilities, vectors, 3, 0)
    assert {index // 10 for index in chosen} == {0, 1, 2}
    assert chosen == choose_texts(probabilities, vectors, 3, 0)


def test_suggestions_are_new_texts_in_the_order_of_the_file(tmp_path):
    texts = [f"a {word} film number {number}" for number in range(20) for word in ("fine", "poor", "long")]
    path = tmp_path / "raw.txt"
    path.write_text("\n".join(["", texts[0], texts[0], *texts[1:]]) + "\n")
    found = hs.suggest("en-tiny", str(path), count=5)
    assert len(found) == 5
    assert [each.line for each in found] == sorted(each.line for each in found)
    assert all(each.text in texts for each in found)
    assert len({each.text for each in hs.suggest("en-tiny", str(path), count=100)}) == 60


def test_what_cannot_be_suggested_is_one_sentence(tmp_path):
    (tmp_path / "blank.txt").write_text("\n\n")
    (tmp_path / "raw.txt").write_text("a film\n")
    with pytest.raises(DataError, match="no text that is new"):
        hs.suggest("en-tiny", str(tmp_path / "blank.txt"))
    with pytest.raises(ConfigError, match="1 is the least"):
        hs.suggest("en-tiny", str(tmp_path / "raw.txt"), count=0)
    with pytest.raises(RunError, match="need a classifier"):
        hs.suggest("en-fr-captions", str(tmp_path / "raw.txt"))
