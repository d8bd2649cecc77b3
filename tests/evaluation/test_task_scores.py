"""Scores of several labels, numbers, ordered classes and tags."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from headstart.evaluation.task_scores import (
    best_threshold,
    cross_fitted_thresholds,
    curve_values,
    score_task,
    tune_thresholds,
)

CLASSES = ["a", "b", "c"]
RNG = np.random.default_rng(0)


def as_labels(matrix):
    return ["|".join(name for name, has in zip(CLASSES, row, strict=True) if has) for row in matrix]


def test_scores_of_several_labels_agree_with_scikit_learn():
    truth = RNG.integers(0, 2, (60, 3))
    found = (truth * 0.6 + RNG.random((60, 3)) * 0.6).clip(0, 1)
    score = score_task("multi-label", as_labels(truth), found, CLASSES)
    decisions = found >= 0.5
    assert score.micro_f1 == pytest.approx(reference.f1_score(truth, decisions, average="micro"))
    assert score.macro_f1 == pytest.approx(reference.f1_score(truth, decisions, average="macro"))
    assert score.subset_accuracy == score.accuracy == pytest.approx(reference.accuracy_score(truth, decisions))
    assert score.map == pytest.approx(reference.average_precision_score(truth, found, average="macro"))
    assert score.intervals["micro_f1"].low < score.micro_f1 < score.intervals["micro_f1"].high


def test_a_label_that_training_never_saw_is_missed_and_counted():
    score = score_task("multi-label", ["a", "a|new"], np.array([[0.9, 0.1, 0.1]] * 2), CLASSES)
    assert score.micro_f1 == pytest.approx(2 * 2 / (2 + 3))
    assert score.subset_accuracy == 0.5
    assert score.per_class["new"]["count"] == 1


def test_the_best_threshold_lies_between_two_probabilities():
    assert best_threshold(np.array([1, 0, 1, 0]), np.array([0.4, 0.1, 0.3, 0.2])) == pytest.approx(0.25)


def test_the_threshold_of_a_rare_label_stays_close_to_that_of_all_labels():
    truth = np.zeros((200, 2), int)
    truth[:100, 0] = truth[0, 1] = 1
    found = np.where(truth == 1, 0.3, 0.1)
    found[0, 1] = 0.9
    own = tune_thresholds(truth, found)
    assert own[0] == pytest.approx(0.2)
    assert abs(own[1] - own[0]) < 0.05


def test_thresholds_of_a_score_are_tuned_on_other_texts():
    truth = np.array([[1], [0], [1], [0]])
    found = cross_fitted_thresholds(truth, np.array([[0.9], [0.2], [0.8], [0.1]]))
    assert found[0, 0] != found[1, 0]
    assert found[0, 0] == found[2, 0]


def test_scores_of_numbers_agree_with_scipy():
    truth = RNG.normal(size=50).round(2)
    found = truth + RNG.normal(size=50)
    score = score_task("regression", [str(value) for value in truth], found[:, None], ["score"])
    assert score.spearman == pytest.approx(stats.spearmanr(truth, found).statistic)
    assert score.pearson == pytest.approx(stats.pearsonr(truth, found).statistic)
    assert score.rmse == pytest.approx(reference.mean_squared_error(truth, found) ** 0.5)
    assert score.r2 == pytest.approx(reference.r2_score(truth, found))
    assert math.isnan(score.accuracy)
    assert score.intervals["spearman"].low < score.spearman < score.intervals["spearman"].high


def test_constant_predictions_have_no_correlation_and_are_the_worst():
    score = score_task("regression", ["1", "2", "3"], np.full((3, 1), 2.0), ["score"])
    assert math.isnan(score.spearman)
    assert score.value == -math.inf


def test_scores_of_ordered_classes_know_the_distance_of_a_mistake():
    outputs = np.eye(3)[[0, 1, 1, 2]]
    score = score_task("ordinal", ["1", "2", "5", "5"], outputs, ["1", "2", "5"])
    assert score.accuracy == 0.75
    assert score.mae == pytest.approx(3 / 4)
    kappa = reference.cohen_kappa_score([0, 1, 2, 2], [0, 1, 1, 2], weights="quadratic")
    assert score.quadratic_kappa == pytest.approx(kappa)


def test_scores_of_tags_count_spans_and_tokens():
    classes = ["B-PER", "I-PER", "O"]
    outputs = np.eye(3)[[0, 2, 2, 0, 2]]
    score = score_task("token", ["B-PER I-PER O", "B-PER O"], outputs, classes)
    assert (score.span_precision, score.span_recall, score.span_f1) == (0.5, 0.5, 0.5)
    assert score.token_accuracy == score.accuracy == 0.8
    assert (score.count, score.texts) == (5, 2)


def test_a_tag_that_training_never_saw_is_a_mistake():
    score = score_task("token", ["B-LOC O"], np.eye(2)[[1, 1]], ["B-PER", "O"])
    assert (score.span_recall, score.token_accuracy) == (0.0, 0.5)


@pytest.mark.parametrize(
    ("task", "labels", "outputs", "first"),
    [
        ("multi-label", ["a", "b"], np.array([[0.3, 0.1, 0.1], [0.1, 0.3, 0.1]]), ("micro_f1", 1.0)),
        ("regression", ["1", "2"], np.array([[1.0], [2.0]]), ("spearman", 1.0)),
        ("ordinal", ["1", "2"], np.eye(2), ("accuracy", 1.0)),
        ("token", ["a", "b"], np.eye(3)[[0, 1]], ("span_f1", 1.0)),
    ],
)
def test_the_training_curve_shows_the_deciding_metric_first(task, labels, outputs, first):
    classes = ["1", "2"] if task == "ordinal" else CLASSES
    assert next(iter(curve_values(task, labels, outputs, classes).items())) == first
