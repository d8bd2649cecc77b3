"""Scores of tasks beyond one class a text: several labels, numbers, ordered classes and tags of tokens."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from headstart.config import TaskName
from headstart.data.labels import label_array, names_in
from headstart.evaluation.metrics import METRICS, SMALLEST_PROBABILITY, score
from headstart.evaluation.spans import count_spans
from headstart.results import Interval, TaskScore

RESAMPLES, MAX_WEIGHTS = 1_000, 5_000_000  # of a bootstrap: resamples at most, and of resamples times texts
SHRINKAGE = 20  # texts with a label that weigh as much as the threshold of all labels together
LOWEST_THRESHOLD = 0.05
# The metric that decides between models, and those of the training curve beside the loss.
DECIDING: dict[TaskName, str] = {
    "single-label": "accuracy",
    "ordinal": "accuracy",
    "multi-label": "micro_f1",
    "regression": "spearman",
    "token": "span_f1",
}
NAN = float("nan")


def score_task(
    task: TaskName,
    labels: Sequence[str],
    outputs: np.ndarray,
    classes: Sequence[str],
    seen: np.ndarray | None = None,
    split: str = "",
    thresholds: np.ndarray | None = None,
) -> TaskScore:
    """All metrics of one model; `outputs` are probabilities (N, C), of tokens one after the other, or numbers (N, 1).

    `thresholds` (C,) or (N, C) are those of several labels; `seen` (N,) is True where training has read the text.
    """
    fair = np.ones(len(labels), dtype=bool) if seen is None else ~np.asarray(seen, dtype=bool)
    found = SCORERS[task](labels, outputs, classes, fair, 0.5 if thresholds is None else thresholds)
    return TaskScore(
        **{**found, "intervals": found["intervals"]()},
        leaked=int((~fair).sum()),
        leak_free_count=int(fair.sum()),
        split=split,
        task=task,
        metric=DECIDING[task],
        texts=len(labels),
    )


# --- Several labels ---------------------------------------------------------------------------------------------------


def _score_label_sets(
    labels: Sequence[str], outputs: np.ndarray, classes: Sequence[str], fair: np.ndarray, thresholds: Any
) -> dict[str, Any]:
    decisions = (outputs >= thresholds).astype(np.int64)
    unknown = sorted({name for label in labels for name in names_in("multi-label", label)} - set(classes))
    truth = label_array("multi-label", labels, [*classes, *unknown])  # labels that training never saw are missed
    missed = np.zeros((len(labels), len(unknown)))
    decisions, outputs = np.hstack([decisions, missed.astype(np.int64)]), np.hstack([outputs, missed])
    counts = np.stack([(decisions * truth).sum(1), decisions.sum(1), truth.sum(1)], axis=1)
    by_label = np.stack([(decisions * truth).sum(0), decisions.sum(0), truth.sum(0)], axis=1)
    exact = (decisions == truth).all(axis=1)
    occurring = by_label[:, 1:].any(axis=1)
    scores = [_f1(row) for row in by_label]
    right = np.where(truth == 1, outputs, 1 - outputs).clip(SMALLEST_PROBABILITY, 1)
    return {
        "accuracy": _mean(exact),
        "subset_accuracy": _mean(exact),
        "micro_f1": _f1(counts.sum(0)),
        "macro_f1": _mean(np.array(scores)[occurring]),
        "map": mean_average_precision(truth, outputs),
        "loss": float(-np.log(right).mean()) if right.size else NAN,
        "calibration_error": NAN,
        "count": len(labels),
        "correct": int(exact.sum()),
        "leak_free_accuracy": _mean(exact[fair]),
        "per_class": {
            name: {"precision": _ratio(c, f), "recall": _ratio(c, t), "f1": _f1(row), "count": int(t)}
            for name, row in zip([*classes, *unknown], by_label, strict=True)
            for c, f, t in [row]
        },
        "intervals": lambda: {
            "micro_f1": _resampled(counts, _f1),
            "subset_accuracy": _resampled(exact[:, None], lambda sums: float(sums[0]) / max(1, len(exact))),
        },
    }


def mean_average_precision(truth: np.ndarray, outputs: np.ndarray) -> float:
    """The mean over labels that occur of the area under the curve of precision by recall (N, C)."""
    from sklearn.metrics import average_precision_score

    present = [column for column in range(truth.shape[1]) if truth[:, column].any()]
    values = [average_precision_score(truth[:, column], outputs[:, column]) for column in present]
    return float(np.mean(values)) if values else NAN


def best_threshold(truth: np.ndarray, probabilities: np.ndarray) -> float:
    """The threshold with the highest F1 over decisions (M,), halfway between two probabilities."""
    order = np.argsort(-probabilities, kind="stable")
    ranked, correct = probabilities[order], truth[order].cumsum()
    f1 = 2 * correct / (np.arange(1, len(order) + 1) + truth.sum())
    f1[:-1][ranked[:-1] == ranked[1:]] = -1.0  # no threshold lies between equal ones
    best = int(f1.argmax())
    below = ranked[best + 1] if best + 1 < len(ranked) else 0.0
    return float(np.clip((ranked[best] + below) / 2, LOWEST_THRESHOLD, 1 - LOWEST_THRESHOLD))


def tune_thresholds(truth: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """A threshold for each label (C,): its best one, the closer to that of all labels together the rarer it is."""
    if not truth.any():
        return np.full(truth.shape[1], 0.5)
    pooled = best_threshold(truth.ravel(), probabilities.ravel())
    counts = truth.sum(axis=0)
    own = [best_threshold(*columns) for columns in zip(truth.T, probabilities.T, strict=True)]
    return (counts * own + SHRINKAGE * pooled) / (counts + SHRINKAGE)  # type: ignore[no-any-return]


def cross_fitted_thresholds(truth: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Thresholds (N, C) that each half of the texts has from the other half, so that none is tuned on its own label."""
    halves, found = np.arange(len(truth)) % 2, np.full(truth.shape, 0.5)
    for half in (0, 1):
        if (halves != half).any():
            found[halves == half] = tune_thresholds(truth[halves != half], probabilities[halves != half])
    return found


# --- Numbers and ordered classes --------------------------------------------------------------------------------------


def _score_numbers(
    labels: Sequence[str], outputs: np.ndarray, classes: Sequence[str], fair: np.ndarray, thresholds: Any
) -> dict[str, Any]:
    found = number_metrics(label_array("regression", labels, classes), outputs[:, 0])
    return {
        **found,
        **dict.fromkeys(("accuracy", "macro_f1", "calibration_error", "leak_free_accuracy"), NAN),
        "loss": found["rmse"] ** 2,
        "count": len(labels),
        "correct": 0,
        "per_class": {},
    }


def number_metrics(truth: np.ndarray, found: np.ndarray) -> dict[str, Any]:
    """MAE, RMSE, R2 and correlations of predicted numbers (N,), and a function for their intervals."""
    if not len(truth):
        return {**dict.fromkeys(("mae", "rmse", "r2", "spearman", "pearson"), NAN), "intervals": dict}
    errors, pairs = np.abs(found - truth), {"spearman": (rankdata(truth), rankdata(found)), "pearson": (truth, found)}

    def metrics(weights: np.ndarray) -> dict[str, np.ndarray]:
        correlations = {name: _correlation(weights, *pair) for name, pair in pairs.items()}
        return {**correlations, "mae": weights @ errors, "rmse": np.sqrt(weights @ errors**2)}

    values = {name: float(value[0]) for name, value in metrics(np.full((1, len(truth)), 1 / len(truth))).items()}
    variance = float(truth.var())

    def intervals() -> dict[str, Interval]:
        draws = metrics(_weights(len(truth)))
        return {name: _interval(values[name], draw) for name, draw in draws.items()}

    return {**values, "r2": 1 - values["rmse"] ** 2 / variance if variance else NAN, "intervals": intervals}


def _correlation(weights: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pearson's correlation under each row of weights (R, N) that add up to 1; NaN where a side is constant."""
    first, second = first - first.mean(), second - second.mean()
    one, two = weights @ first, weights @ second
    variances = (weights @ first**2 - one**2) * (weights @ second**2 - two**2)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (weights @ (first * second) - one * two) / np.sqrt(variances.clip(0))
    return np.where(variances > 1e-18, found, NAN)


def _score_ordered_classes(
    labels: Sequence[str], outputs: np.ndarray, classes: Sequence[str], fair: np.ndarray, thresholds: Any
) -> dict[str, Any]:
    from sklearn.metrics import cohen_kappa_score

    truth, values = label_array("ordinal", labels, classes), np.array([float(name) for name in classes])
    plain = score(truth, outputs, classes, ~fair)
    best = outputs.argmax(axis=1)
    found = number_metrics(values[truth], values[best])
    expected = number_metrics(values[truth], outputs @ values)
    kappa = (
        float(cohen_kappa_score(truth, best, weights="quadratic", labels=range(len(classes)))) if len(truth) else NAN
    )
    correct = (best == truth)[:, None]

    def intervals() -> dict[str, Interval]:
        own = {name: each["intervals"]().get(name) for name, each in (("mae", found), ("spearman", expected))}
        accuracy = _resampled(correct, lambda sums: float(sums[0]) / max(1, len(truth)))
        return {"accuracy": accuracy, **{name: value for name, value in own.items() if value is not None}}

    names = ("accuracy", "macro_f1", "loss", "calibration_error", "count", "correct", "leak_free_accuracy", "per_class")
    return {
        **{name: getattr(plain, name) for name in names},
        "mae": found["mae"],
        "rmse": found["rmse"],
        "spearman": expected["spearman"],
        "quadratic_kappa": kappa,
        "intervals": intervals,
    }


# --- Tags of tokens ---------------------------------------------------------------------------------------------------


def _score_tags(
    labels: Sequence[str], outputs: np.ndarray, classes: Sequence[str], fair: np.ndarray, thresholds: Any
) -> dict[str, Any]:
    tags = [label.split(" ") for label in labels]
    best = outputs.argmax(axis=1) if len(outputs) else np.zeros(0, np.int64)
    answers = split_tokens([classes[index] for index in best], [len(each) for each in tags])
    truth = label_array("token", labels, classes)
    counts, by_kind = count_spans(tags, answers)
    correct = best == truth
    known = truth >= 0
    correct_by_text = np.array(
        [[sum(map(str.__eq__, *pair)), len(pair[0])] for pair in zip(tags, answers, strict=True)]
    )
    total = counts.sum(axis=0)
    fair_tokens = np.repeat(fair, [len(each) for each in tags])
    token_accuracy = _mean(correct)
    return {
        "accuracy": token_accuracy,
        "token_accuracy": token_accuracy,
        "span_f1": _f1(total),
        "span_precision": _ratio(total[0], total[1]),
        "span_recall": _ratio(total[0], total[2]),
        "macro_f1": _mean(np.array([_f1((c["correct"], c["found"], c["true"])) for c in by_kind.values()])),
        "loss": METRICS["loss"](truth[known], outputs[known]),
        "calibration_error": METRICS["calibration_error"](truth, outputs),
        "count": len(truth),
        "correct": int(correct.sum()),
        "leak_free_accuracy": _mean(correct[fair_tokens]),
        "per_class": {
            kind: {
                "precision": _ratio(c["correct"], c["found"]),
                "recall": _ratio(c["correct"], c["true"]),
                "f1": _f1((c["correct"], c["found"], c["true"])),
                "count": c["true"],
            }
            for kind, c in sorted(by_kind.items())
        },
        "intervals": lambda: {
            "span_f1": _resampled(counts, _f1),
            "token_accuracy": _resampled(correct_by_text, lambda sums: float(sums[0]) / max(1.0, float(sums[1]))),
        },
    }


def split_tokens(values: Sequence[str], lengths: Sequence[int]) -> list[list[str]]:
    """The values of all tokens, text by text."""
    left = iter(values)
    return [[next(left) for _ in range(length)] for length in lengths]


SCORERS: dict[TaskName, Callable[..., dict[str, Any]]] = {
    "multi-label": _score_label_sets,
    "regression": _score_numbers,
    "ordinal": _score_ordered_classes,
    "token": _score_tags,
}


def curve_values(
    task: TaskName, labels: Sequence[str], outputs: np.ndarray, classes: Sequence[str]
) -> dict[str, float]:
    """The metrics of an evaluation during training, the deciding one first; of several labels at their best threshold."""
    if task == "multi-label":
        truth = label_array(task, labels, classes)
        best = best_threshold(truth.ravel(), outputs.ravel()) if truth.any() else 0.5
        found, names = (
            _score_label_sets(labels, outputs, classes, np.ones(len(labels), bool), best),
            ("micro_f1", "macro_f1"),
        )
    else:
        found = SCORERS[task](labels, outputs, classes, np.ones(len(labels), bool), 0.5)
        names = {"regression": ("spearman", "rmse"), "token": ("span_f1", "token_accuracy")}.get(
            task, ("accuracy", "macro_f1")
        )
    return {name: float(found[name]) for name in (*names, "loss")}


# --- Intervals --------------------------------------------------------------------------------------------------------


def _weights(count: int) -> np.ndarray:
    """The share of each text in every resample (R, N), the same on every call."""
    size = min(RESAMPLES, max(200, MAX_WEIGHTS // count))
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=size)
    return drawn / count


def _resampled(counts: np.ndarray, metric: Callable[[np.ndarray], float]) -> Interval:
    """The metric of summed counts (N, K) over new texts."""
    if not len(counts):
        return Interval(NAN, NAN, NAN, 0.0)
    sums = _weights(len(counts)) @ counts * len(counts)
    return _interval(metric(counts.sum(axis=0)), np.array([metric(row) for row in sums]))


def _interval(value: float, draws: np.ndarray) -> Interval:
    low, high = (
        (float(each) for each in np.nanquantile(draws, [0.025, 0.975])) if np.isfinite(draws).any() else (NAN, NAN)
    )
    return Interval(value, low, high, 0.0)


def _f1(counts: Any) -> float:
    """F1 of how many are correct, found and true."""
    correct, found, true = counts
    return _ratio(2 * correct, found + true)


def _ratio(part: Any, whole: Any) -> float:
    return float(part) / float(whole) if whole else 0.0


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else NAN
