import time

import numpy as np
import pytest

from headstart.baselines.tfidf import DEFAULT_INVERSE_TEMPERATURE, train_tfidf
from headstart.errors import DataError

GOOD, BAD = (
    ["un très bon livre", "quel plaisir", "superbe histoire"],
    ["très mauvais", "quel ennui", "histoire nulle"],
)


def reviews(count, rng_seed=0):
    rng = np.random.default_rng(rng_seed)
    labels = rng.integers(0, 2, count)
    filler = ["le", "la", "roman", "page", "auteur", "et", "de"]
    texts = [
        " ".join([*rng.choice(filler, 6), rng.choice(GOOD if label else BAD), *rng.choice(filler, 4)])
        for label in labels
    ]
    return texts, labels


def test_it_learns_what_words_tell():
    texts, labels = reviews(120)
    new, truth = reviews(60, rng_seed=1)
    probabilities = train_tfidf(texts, labels, seed=0).predict_probabilities(new)
    assert (probabilities.argmax(axis=1) == truth).mean() > 0.95


def test_probabilities_are_probabilities_of_every_class():
    texts, labels = reviews(40)
    probabilities = train_tfidf(texts, labels, seed=0, classes=3).predict_probabilities([*texts, "", "neuf"])
    assert probabilities.shape == (42, 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert (probabilities[:, 2] == 0).all()


def test_three_classes_with_a_gap_keep_their_columns():
    texts = ["rouge rouge", "bleu bleu", "vert vert"] * 6
    model = train_tfidf(texts, [0, 2, 4] * 6, seed=0)
    assert model.predict_probabilities(["rouge", "bleu", "vert"]).argmax(axis=1).tolist() == [0, 2, 4]


@pytest.mark.parametrize("texts", [["a", "b"], ["好", "坏"], ["😀", "😡"], ["!", "?"], ["", "b"], ["oui", "non"]])
def test_two_texts_of_one_sign_are_enough_in_any_script(texts):
    model = train_tfidf(texts, [0, 1], seed=0)
    assert model.inverse_temperature == DEFAULT_INVERSE_TEMPERATURE
    assert model.predict_probabilities(texts).argmax(axis=1).tolist() == [0, 1]


def test_no_texts_give_no_rows():
    assert train_tfidf(["a", "b"], [0, 1], seed=0).predict_probabilities([]).shape == (0, 2)


@pytest.mark.parametrize(("texts", "labels"), [(["a", "b"], [1, 1]), (["", " \n"], [0, 1]), ([], [])])
def test_what_cannot_be_learned_is_a_problem_with_a_hint(texts, labels):
    with pytest.raises(DataError) as caught:
        train_tfidf(texts, labels, seed=0)
    assert caught.value.hint


def test_the_same_seed_gives_the_same_answers():
    texts, labels = reviews(60)
    first, second = (train_tfidf(texts, labels, seed=3).predict_probabilities(texts) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_the_temperature_changes_no_prediction():
    texts, labels = reviews(60)
    model = train_tfidf(texts, labels, seed=0)
    margins = model.linear.decision_function(
        np.hstack([each.transform(texts).toarray() for each in model.vectorizers.values()]).astype(np.float32)
    )
    assert (model.predict_probabilities(texts).argmax(axis=1) == (margins > 0)).all()


@pytest.mark.slow
def test_sixteen_hundred_long_texts_train_in_well_under_half_a_minute():
    texts, labels = reviews(1600)
    long = [" ".join([text] * 20)[:1300] for text in texts]
    start = time.perf_counter()
    train_tfidf(long, labels, seed=0)
    assert time.perf_counter() - start < 30
