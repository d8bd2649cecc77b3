import numpy as np
import pytest

from headstart.batch import EncodedExample
from headstart.inference.classify import leave_one_out, log_odds

WEIGHTS = np.array([0.0, 0.0, 0.0, 0.0, 1.5, -0.7, 0.25, 3.0])


def bag_of_words(rows):
    """Two classes, scored by the sum of what each token weighs by itself."""
    return np.array([[-WEIGHTS[row.tokens].sum(), WEIGHTS[row.tokens].sum()] for row in rows], dtype=np.float32)


def row(*tokens):
    return EncodedExample(np.array([2, *tokens, 3], dtype=np.int32))


def test_the_parts_of_a_bag_of_words_are_its_weights_and_add_up_to_the_whole():
    found = leave_one_out(row(4, 5, 6, 4), 1, bag_of_words)
    np.testing.assert_allclose(found.parts, 2 * WEIGHTS[[4, 5, 6, 4]], atol=1e-5)
    assert found.parts.sum() == pytest.approx(found.whole, abs=1e-5)


def test_what_speaks_for_one_label_speaks_against_the_other():
    good, bad = (leave_one_out(row(4, 5, 7), label, bag_of_words) for label in (1, 0))
    np.testing.assert_allclose(good.parts, -bad.parts, atol=1e-5)


def test_tokens_that_say_the_same_hide_each_other_and_the_whole_shows_it():
    def either(rows):  # one such token is as good as two
        return np.array([[0.0, 2.0 if 7 in row.tokens else 0.0] for row in rows], dtype=np.float32)

    found = leave_one_out(row(7, 5, 7), 1, either)
    assert found.parts.tolist() == [0, 0, 0]
    assert found.whole == pytest.approx(2)


def test_an_empty_text_has_no_parts():
    found = leave_one_out(row(), 1, bag_of_words)
    assert found.parts.shape == (0,)
    assert found.whole == 0


def test_log_odds_stay_finite_where_probabilities_do_not():
    scores = np.array([[0.0, 500.0, 1.0], [0.0, -500.0, 1.0]], dtype=np.float32)
    found = log_odds(scores, 1)
    assert np.isfinite(found).all()
    assert found[0] == pytest.approx(500 - np.log(1 + np.e), rel=1e-6)


def test_log_odds_are_those_of_the_softmax():
    scores = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(log_odds(scores, 2), np.log(shares[:, 2] / (1 - shares[:, 2])), rtol=1e-4)
