"""Metrics of a classifier: accuracy, macro F1, loss and calibration."""

from collections.abc import Callable, Sequence

import numpy as np

from headstart.results import Score

BINS = 15  # of equal width, for the calibration error
SMALLEST_PROBABILITY = 1e-7  # about the resolution of float32; bounds the loss of one confident mistake

Metric = Callable[[np.ndarray, np.ndarray], float]  # of class indices (N,) and probabilities (N, C); NaN for N = 0


def accuracy(truth: np.ndarray, probabilities: np.ndarray) -> float:
    """The fraction of correct predictions."""
    return float((_answers(probabilities) == truth).mean()) if len(truth) else float("nan")


def macro_f1(truth: np.ndarray, probabilities: np.ndarray) -> float:
    """The mean F1 of the classes that occur in the truth or among the predictions."""
    from sklearn.metrics import f1_score  # takes long to load

    if not len(truth):
        return float("nan")
    return float(f1_score(truth, _answers(probabilities), average="macro", zero_division=0))


def loss(truth: np.ndarray, probabilities: np.ndarray) -> float:
    """The mean negative log-likelihood of the truth, in nats."""
    if not len(truth):
        return float("nan")
    likelihood = probabilities[np.arange(len(truth)), truth].astype(np.float64)
    return float(-np.log(likelihood.clip(SMALLEST_PROBABILITY, 1.0)).sum()) / len(truth)


def calibration_error(truth: np.ndarray, probabilities: np.ndarray) -> float:
    """The mean distance of confidence and accuracy over bins (expected calibration error; Guo et al., 2017)."""
    if not len(truth):
        return float("nan")
    # A model that has diverged to NaN still gets its metrics: its confidence counts as 0.
    confidence = np.nan_to_num(probabilities.max(axis=1).astype(np.float64)).clip(0.0, 1.0)
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, weights=confidence - (_answers(probabilities) == truth))
    return float(np.abs(gaps).sum()) / len(truth)


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
    "loss": loss,
    "calibration_error": calibration_error,
}


def score(
    truth: np.ndarray,
    probabilities: np.ndarray,
    classes: Sequence[str],
    seen: np.ndarray | None = None,
    split: str = "",
) -> Score:
    """All metrics of one model; `seen` (N,) is True where any training stage has read the text."""
    from sklearn.metrics import precision_recall_fscore_support  # takes long to load

    answers, labels = _answers(probabilities), range(len(classes))
    fair = np.ones(len(truth), dtype=bool) if seen is None else ~np.asarray(seen, dtype=bool)
    rows = precision_recall_fscore_support(truth, answers, labels=labels, zero_division=0)
    names = ("precision", "recall", "f1", "count")
    return Score(
        accuracy=accuracy(truth, probabilities),
        macro_f1=macro_f1(truth, probabilities),
        loss=loss(truth, probabilities),
        calibration_error=calibration_error(truth, probabilities),
        count=len(truth),
        correct=int((answers == truth).sum()),
        leaked=len(truth) - int(fair.sum()),
        leak_free_accuracy=accuracy(truth[fair], probabilities[fair]),
        leak_free_count=int(fair.sum()),
        per_class={
            label: dict(zip(names, (*map(float, row[:3]), int(row[3])), strict=True))
            for label, row in zip(classes, zip(*rows, strict=True), strict=True)
        },
        split=split,
    )


def _answers(probabilities: np.ndarray) -> np.ndarray:
    """The most likely class of each text (N,)."""
    return probabilities.argmax(axis=1) if len(probabilities) else np.zeros(0, dtype=np.int64)
