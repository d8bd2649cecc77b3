"""The estimators keep scikit-learn's contract.

`check_estimator` skips estimators of texts, so it runs on an adapter that writes each row of numbers as a text.
"""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, TunedThresholdClassifierCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

import headstart as hs
from tests.api.test_estimators import LABELS, TEXTS, tiny

CONFIG = {
    "model": {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16},
    "tokenizer": {"type": "bpe", "vocab_size": 300},
    "training": {"max_length": 32, "batch_size": 16, "eval_steps": 100},
    "optimizer": {"learning_rate": 2e-2},
}


class OnNumbers(ClassifierMixin, BaseEstimator):
    """A TextClassifier that reads rows of numbers as texts: each number is a word."""

    def __init__(self, steps=60, seed=0):
        self.steps = steps
        self.seed = seed

    def fit(self, X, y):
        X, y = validate_data(self, X, y)
        if len(np.unique(y)) < 2:
            raise ValueError(f"Classifier can't train when only one class is present: {np.unique(y)}")
        self.scale_ = X.std(axis=0) + 1e-9
        config = CONFIG
        self.model_ = hs.TextClassifier("scratch", steps=self.steps, seed=self.seed, config=config)
        self.model_.fit(self._texts(X), y, eval_set=(self._texts(X), y))
        self.classes_ = self.model_.classes_
        return self

    def _texts(self, X):
        words = np.clip(np.round(2 * X / self.scale_), -9, 9).astype(int) + 9
        letters = np.array(list("abcdefghijklmnopqrs"))
        return [" ".join(f"{place}{letters[word]}" for place, word in enumerate(row[:12])) or "." for row in words]

    def predict(self, X):
        check_is_fitted(self)
        return self.model_.predict(self._texts(validate_data(self, X, reset=False)))

    def predict_proba(self, X):
        check_is_fitted(self)
        return self.model_.predict_proba(self._texts(validate_data(self, X, reset=False)))


EXCLUDED: dict[str, str] = {}


@pytest.mark.slow
@parametrize_with_checks([OnNumbers()], expected_failed_checks=lambda estimator: EXCLUDED)
def test_check_estimator(estimator, check):
    check(estimator)


def test_few_checks_are_excluded():
    assert len(EXCLUDED) <= 10
    assert all(EXCLUDED.values())


def test_parameters_can_be_read_set_and_cloned():
    model = hs.TextClassifier("fr-tiny", epochs=2, config={"training": {"max_length": 64}})
    copy = clone(model).set_params(epochs=3)
    assert copy.get_params() == {**model.get_params(), "epochs": 3}
    assert model.get_params()["epochs"] == 2


@pytest.mark.slow
def test_cross_validation_and_search():
    assert cross_val_score(tiny(), TEXTS, LABELS, cv=3).mean() > 0.9
    search = GridSearchCV(tiny(), {"steps": [1, 30]}, cv=2).fit(TEXTS, LABELS)
    assert search.best_params_ == {"steps": 30}
    assert search.predict(["good film number 3"]).tolist() == ["positive"]


@pytest.mark.slow
def test_processes_of_joblib():
    assert cross_val_score(tiny(), TEXTS, LABELS, cv=2, n_jobs=2).mean() > 0.9


@pytest.mark.slow
def test_calibration_and_thresholds():
    calibrated = CalibratedClassifierCV(tiny(), cv=2).fit(TEXTS, LABELS)
    assert calibrated.predict_proba(TEXTS).shape == (60, 2)
    labels = np.array([1, 0] * 30)
    tuned = TunedThresholdClassifierCV(tiny(), cv=2, scoring="f1").fit(TEXTS, labels)
    assert tuned.score(TEXTS, labels) > 0.9


def test_pipelines():
    model = make_pipeline(hs.Embedder("en-tiny"), LogisticRegression()).fit(TEXTS, LABELS)
    assert model.score(TEXTS, LABELS) > 0.9
    last = make_pipeline(Lower(), tiny()).fit(TEXTS, LABELS)
    assert last.predict(["GOOD FILM NUMBER 3"]).tolist() == ["positive"]


class Lower(BaseEstimator):
    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return [text.lower() for text in X]
