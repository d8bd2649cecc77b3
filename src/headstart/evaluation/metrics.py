"""Marks for a classifier: sums that add up over parts, and the numbers read from them once, at the end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headstart.results import Score

BINS = 15  # of equal width, for the calibration error
SMALLEST_PROBABILITY = 1e-7  # about what float32 can tell from 0; keeps one sure mistake from being infinite


@dataclass(frozen=True)
class ClassificationCounts:
    """The sums from which every metric is read; the tallies of parts add up to the tally of the whole."""

    confusion: np.ndarray  # (C, C) counts, row = truth, column = answer
    loss: float  # summed negative log-likelihood
    bin_counts: np.ndarray  # (BINS,) answers by confidence
    bin_confidence: np.ndarray  # (BINS,) summed confidence
    bin_correct: np.ndarray  # (BINS,) right answers

    def __add__(self, other: "ClassificationCounts") -> "ClassificationCounts":
        return ClassificationCounts(
            self.confusion + other.confusion,
            self.loss + other.loss,
            self.bin_counts + other.bin_counts,
            self.bin_confidence + other.bin_confidence,
            self.bin_correct + other.bin_correct,
        )

    @property
    def count(self) -> int:
        """How many texts were marked."""
        return int(self.confusion.sum())

    @property
    def correct(self) -> int:
        """How many were answered rightly."""
        return int(np.trace(self.confusion))


def count_predictions(truth: np.ndarray, probabilities: np.ndarray) -> ClassificationCounts:
    """The sums of one part: `truth` (N,) class indices, `probabilities` (N, C)."""
    classes = probabilities.shape[1]
    answers = probabilities.argmax(axis=1) if len(truth) else np.zeros(0, dtype=np.int64)
    confusion = np.bincount(truth * classes + answers, minlength=classes * classes).reshape(classes, classes)
    given = probabilities[np.arange(len(truth)), truth].astype(np.float64)
    # A model that has gone to NaN still gets its marks: the loss says NaN, the confidence counts as 0.
    confidence = np.nan_to_num(probabilities[np.arange(len(truth)), answers].astype(np.float64)).clip(
        0.0, 1.0
    )
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    return ClassificationCounts(
        confusion,
        float(-np.log(given.clip(SMALLEST_PROBABILITY, 1.0)).sum()),
        np.bincount(bins, minlength=BINS),
        np.bincount(bins, weights=confidence, minlength=BINS),
        np.bincount(bins, weights=(answers == truth).astype(np.float64), minlength=BINS),
    )


def accuracy(sums: ClassificationCounts) -> float:
    """The share of right answers."""
    return sums.correct / sums.count if sums.count else float("nan")


def macro_f1(sums: ClassificationCounts) -> float:
    """The mean F1 of the classes that occur in the truth or among the answers."""
    occurs = (sums.confusion.sum(axis=0) + sums.confusion.sum(axis=1)) > 0
    return float(_per_class(sums)[2][occurs].mean()) if occurs.any() else float("nan")


def loss(sums: ClassificationCounts) -> float:
    """The mean negative log-likelihood of the truth, in nats."""
    return sums.loss / sums.count if sums.count else float("nan")


def calibration_error(sums: ClassificationCounts) -> float:
    """How far confidence and accuracy lie apart, bin by bin (expected calibration error; Guo et al., 2017)."""
    return (
        float(np.abs(sums.bin_confidence - sums.bin_correct).sum()) / sums.count
        if sums.count
        else float("nan")
    )


@dataclass(frozen=True)
class Metric:
    """A number read from a tally; called, it tallies first."""

    read: Callable[[ClassificationCounts], float]

    def __call__(self, truth: np.ndarray, probabilities: np.ndarray) -> float:
        """The metric of `probabilities` (N, C) against `truth` (N,)."""
        return self.read(count_predictions(truth, probabilities))


METRICS: dict[str, Metric] = {
    "accuracy": Metric(accuracy),
    "macro_f1": Metric(macro_f1),
    "loss": Metric(loss),
    "calibration_error": Metric(calibration_error),
}


def score(
    truth: np.ndarray,
    probabilities: np.ndarray,
    classes: Sequence[str],
    seen: np.ndarray | None = None,
    split: str = "",
) -> Score:
    """All marks of one model; `seen` (N,) is True where any training stage has read the text."""
    whole = count_predictions(truth, probabilities)
    unseen = np.ones(len(truth), dtype=bool) if seen is None else ~np.asarray(seen, dtype=bool)
    fair = count_predictions(truth[unseen], probabilities[unseen])
    precision, recall, f1 = _per_class(whole)
    return Score(
        accuracy=accuracy(whole),
        macro_f1=macro_f1(whole),
        loss=loss(whole),
        calibration_error=calibration_error(whole),
        count=whole.count,
        correct=whole.correct,
        leaked=whole.count - fair.count,
        leak_free_accuracy=accuracy(fair),
        leak_free_count=fair.count,
        per_class={
            name: {
                "precision": float(precision[index]),
                "recall": float(recall[index]),
                "f1": float(f1[index]),
                "count": int(whole.confusion[index].sum()),
            }
            for index, name in enumerate(classes)
        },
        split=split,
    )


def _per_class(sums: ClassificationCounts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Precision, recall and F1 of each class; 0 where there is nothing to divide by."""
    right, answered, asked = np.diag(sums.confusion), sums.confusion.sum(axis=0), sums.confusion.sum(axis=1)
    return (
        right / np.maximum(answered, 1),
        right / np.maximum(asked, 1),
        2 * right / np.maximum(answered + asked, 1),
    )
