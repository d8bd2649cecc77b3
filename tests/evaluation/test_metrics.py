import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from headstart.evaluation.metrics import METRICS, score


def answers(count, classes, rng_seed):
    rng = np.random.default_rng(rng_seed)
    probabilities = rng.dirichlet(np.full(classes, 0.7), size=count).clip(1e-6)
    return rng.integers(0, classes, count), probabilities / probabilities.sum(axis=1, keepdims=True)


sizes = {"count": st.integers(1, 60), "classes": st.integers(2, 6), "rng_seed": st.integers(0, 10_000)}


@settings(max_examples=60, deadline=None)
@given(**sizes)
def test_metrics_agree_with_scikit_learn(count, classes, rng_seed):
    truth, probabilities = answers(count, classes, rng_seed)
    predicted = probabilities.argmax(axis=1)
    assert METRICS["accuracy"](truth, probabilities) == pytest.approx(reference.accuracy_score(truth, predicted))
    f1 = reference.f1_score(truth, predicted, average="macro", zero_division=0)
    assert METRICS["macro_f1"](truth, probabilities) == pytest.approx(f1)
    loss = reference.log_loss(truth, probabilities, labels=range(classes))
    assert METRICS["loss"](truth, probabilities) == pytest.approx(loss)


def test_the_calibration_error_is_the_gap_of_each_bin_weighed_by_its_texts():
    confidence = np.array([0.95, 0.95, 0.95, 0.95, 0.62, 0.62])
    truth = np.array([0, 0, 0, 1, 0, 1])
    expected = (4 * abs(0.95 - 0.75) + 2 * abs(0.62 - 0.5)) / 6
    probabilities = np.stack([confidence, 1 - confidence], axis=1)
    assert METRICS["calibration_error"](truth, probabilities) == pytest.approx(expected)


def test_a_sure_mistake_costs_much_but_not_infinity():
    assert METRICS["loss"](np.array([0]), np.array([[0.0, 1.0]])) == pytest.approx(-math.log(1e-7))


def test_a_model_that_diverged_to_nan_still_gets_metrics():
    found = score(np.array([0, 1]), np.full((2, 2), np.nan, dtype=np.float32), ["a", "b"])
    assert math.isnan(found.loss)
    assert found.accuracy == 0.5


def test_metrics_of_nothing_are_unknown():
    truth, probabilities = answers(0, 3, 0)
    assert all(math.isnan(metric(truth, probabilities)) for metric in METRICS.values())


def test_the_leak_free_accuracy_leaves_out_what_training_has_seen():
    truth = np.array([0, 0, 1, 1])
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.6, 0.4]])
    found = score(truth, probabilities, ["a", "b"], seen=np.array([False, True, False, True]), split="test")
    assert (found.accuracy, found.leak_free_accuracy) == (0.5, 1.0)
    assert (found.count, found.correct, found.leaked, found.leak_free_count) == (4, 2, 2, 2)
    assert found.split == "test"


def test_when_everything_leaked_the_leak_free_accuracy_is_unknown():
    truth, probabilities = answers(5, 2, 0)
    found = score(truth, probabilities, ["a", "b"], seen=np.ones(5, dtype=bool))
    assert math.isnan(found.leak_free_accuracy)
    assert found.leaked == 5


def test_metrics_of_each_class_agree_with_scikit_learn():
    truth, probabilities = answers(80, 3, 5)
    found = score(truth, probabilities, ["x", "y", "z"])
    expected = reference.precision_recall_fscore_support(truth, probabilities.argmax(axis=1), zero_division=0)
    for name, row in zip(("precision", "recall", "f1", "count"), expected, strict=True):
        assert [found.per_class[label][name] for label in "xyz"] == pytest.approx(row.tolist())
