"""Estimators for several labels, ordered classes, pairs, numbers and tags."""

import json
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

import headstart as hs
from headstart.config import DataConfig
from headstart.data.datasets import load_dataset
from headstart.errors import HeadstartError
from headstart.workflows.finetune import data_fingerprint
from tests.api.test_estimators import TINY

WORDS = ("red", "blue", "dog")
RNG = np.random.default_rng(0)
MATRIX = RNG.integers(0, 2, (80, 3))
TEXTS = [
    "so " + " ".join(word for word, has in zip(WORDS, row, strict=True) if has) + f" it is {n}"
    for n, row in enumerate(MATRIX)
]
SETS = [[word for word, has in zip(WORDS, row, strict=True) if has] for row in MATRIX]
NUMBERS = 100 + 10.5 * MATRIX.sum(axis=1)
STEPS = {"base": "scratch", "steps": 60, "config": TINY}


def test_several_labels(tmp_path):
    model = hs.TextClassifier(**STEPS).fit(TEXTS, SETS)
    assert model.classes_.tolist() == ["blue", "dog", "red"]
    expected = MATRIX[:, [1, 2, 0]]
    found = model.predict(TEXTS)
    assert found.shape == (80, 3)
    assert (found == expected).mean() > 0.9
    assert model.predict_proba(TEXTS).shape == (80, 3)
    assert model.score(TEXTS, expected) == (found == expected).all(axis=1).mean()
    assert model.evaluate(TEXTS, SETS).task == "multi-label"
    model.save_pretrained(tmp_path / "model")
    loaded = hs.TextClassifier.from_pretrained(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(TEXTS), model.predict_proba(TEXTS))


def test_an_indicator_matrix_has_numbers_as_classes():
    model = hs.TextClassifier(**{**STEPS, "steps": 5}).fit(TEXTS, MATRIX)
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.predict(TEXTS[:2]).shape == (2, 3)


def test_a_label_that_no_text_has_keeps_its_column(tmp_path):
    matrix = np.insert(MATRIX, 1, 0, axis=1)
    model = hs.TextClassifier(**{**STEPS, "steps": 5}).fit(TEXTS, matrix)
    assert model.classes_.tolist() == [0, 1, 2, 3]
    assert model.predict_proba(TEXTS)[:, 1].tolist() == [0.0] * 80
    assert model.predict(TEXTS).shape == (80, 4)
    model.save_pretrained(tmp_path / "model")
    loaded = hs.TextClassifier.from_pretrained(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(TEXTS), model.predict(TEXTS))
    assert loaded.curve_ == model.curve_ != []


def test_several_labels_are_written_and_read_back(tmp_path):
    hs.TextClassifier(**{**STEPS, "steps": 2}).fit(TEXTS, SETS, out=tmp_path / "run")
    config = DataConfig(label_column="label", task="multi-label")
    dataset = load_dataset(str(tmp_path / "run" / "data"), config)
    assert len(dataset.train) + len(dataset.valid) == 80  # those without a label, too
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert data_fingerprint(dataset) == info["inputs"]["fingerprint"]


def test_ordered_classes():
    model = hs.TextClassifier(**STEPS, ordinal=True).fit(TEXTS, MATRIX.sum(axis=1))
    assert model.classes_.tolist() == [0, 1, 2, 3]
    assert np.abs(model.predict(TEXTS) - MATRIX.sum(axis=1)).mean() < 0.8
    assert model.model_.task == "ordinal"
    with pytest.raises(TypeError, match="ordered classes are numbers"):
        hs.TextClassifier(**STEPS, ordinal=True).fit(TEXTS, ["a", "b"] * 40)


def test_pairs_of_texts(tmp_path):
    pairs = [(text, text if n % 2 else TEXTS[(n + 7) % 80]) for n, text in enumerate(TEXTS)]
    labels = ["other", "same"] * 40
    model = hs.TextClassifier(**{**STEPS, "steps": 5}).fit(pairs, labels, out=tmp_path / "run")
    assert model.predict_proba(pairs).shape == (80, 2)
    assert (
        hs.TextClassifier.from_pretrained(tmp_path / "run").predict(pairs[:3]).tolist()
        == model.predict(pairs[:3]).tolist()
    )
    with pytest.raises(HeadstartError, match="reads pairs"):
        model.predict(TEXTS)


def test_numbers(tmp_path):
    model = hs.TextRegressor(**STEPS).fit(TEXTS, NUMBERS)
    assert model.predict(TEXTS).shape == (80,)
    assert model.score(TEXTS, NUMBERS) > 0.3
    assert model.evaluate(TEXTS, NUMBERS).mae < 10
    model.save_pretrained(tmp_path / "model")
    np.testing.assert_array_equal(
        hs.TextRegressor.from_pretrained(tmp_path / "model").predict(TEXTS), model.predict(TEXTS)
    )
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(TEXTS), model.predict(TEXTS))
    with pytest.raises(HeadstartError, match="holds a TextRegressor"):
        hs.TextClassifier.from_pretrained(tmp_path / "model")
    (tmp_path / "model" / "estimator.json").unlink()
    with pytest.raises(HeadstartError, match="not what a TextClassifier does"):
        hs.TextClassifier.from_pretrained(tmp_path / "model")
    assert clone(model).get_params()["steps"] == 60


@pytest.mark.slow
def test_numbers_in_cross_validation():
    assert cross_val_score(hs.TextRegressor(**STEPS), TEXTS, NUMBERS, cv=2).shape == (2,)


def test_tags(tmp_path):
    tokens = [text.split() for text in TEXTS]
    tags = [["B-" + word if word in WORDS else "O" for word in row] for row in tokens]
    model = hs.TokenClassifier(**STEPS).fit(tokens, tags, eval_set=(tokens[:20], tags[:20]), out=tmp_path / "run")
    found = model.predict(tokens)
    assert [len(row) for row in found] == [len(row) for row in tags]
    assert model.score(tokens, tags) > 0.8
    assert model.predict([]) == []
    assert model.classes_.tolist() == ["B-blue", "B-dog", "B-red", "O"]
    loaded = hs.TokenClassifier.from_pretrained(tmp_path / "run")
    assert loaded.predict(tokens) == found
    with pytest.raises(TypeError, match="one string"):
        model.predict(["a dog"])
