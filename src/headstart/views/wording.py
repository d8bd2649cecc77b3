"""Results in words and short numbers, the same on a page and in a terminal."""

import math
from collections.abc import Sequence

from headstart.results import Arm, Comparison, Interval, PairedTest

UNKNOWN = "–"


def share(value: float, digits: int = 3) -> str:
    """An accuracy or other share, or a dash when it is unknown."""
    return UNKNOWN if math.isnan(value) else f"{value:.{digits}f}"


def points(value: float) -> str:
    """A difference of accuracies in points of a hundred, always with its sign."""
    rounded = round(100 * value, 1) + 0.0  # + 0.0 turns -0.0 into 0.0
    return f"{'−' if rounded < 0 else '+'}{abs(rounded):.1f}"


def p_words(p_value: float) -> str:
    """A p-value as "p = 0.012" or "p < 0.001"."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def range_words(interval: Interval, digits: int = 3) -> str:
    """The 95 % interval as "[low, high]", or nothing when it is unknown."""
    if math.isnan(interval.low) or math.isnan(interval.high):
        return ""
    return f"[{share(interval.low, digits)}, {share(interval.high, digits)}]"


def points_range(interval: Interval) -> str:
    """The 95 % interval of a difference, in points."""
    return f"{points(interval.low)} to {points(interval.high)}"


def duration(seconds: float) -> str:
    """A time that a person reads: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def mark_words(epochs: Sequence[float | None]) -> str:
    """The epoch that passes the mark: the median when every seed does, else how many do."""
    passed = sorted(epoch for epoch in epochs if epoch is not None)
    if not epochs:
        return UNKNOWN
    if not passed:
        return "never"
    if len(passed) < len(epochs):
        return f"{len(passed)} of {len(epochs)}"
    middle = (passed[(len(passed) - 1) // 2] + passed[len(passed) // 2]) / 2
    return f"{middle:g}"


def seconds_of(arm: Arm) -> float:
    """The mean training time of one seed."""
    return sum(result.seconds for result in arm.results) / max(len(arm.results), 1)


def has_leaks(comparison: Comparison) -> bool:
    """Whether any arm answers differently once texts that training has seen are left out."""
    pairs = [(arm.accuracy.mean, arm.leak_free_accuracy.mean) for arm in comparison.arms]
    return any(math.isnan(fair) or abs(whole - fair) > 1e-12 for whole, fair in pairs)


def headline(comparison: Comparison) -> str:
    """The one sentence that the comparison was run for, no bolder than its test."""
    test = main_test(comparison)
    if test is None:
        return "No arm was set against another, so nothing is claimed."
    numbers = f"95\u00a0% interval {points_range(test.difference)}, {p_words(test.p_value)}"
    twins = {(arm.name, arm.twin) for arm in comparison.arms if arm.kind != "ensemble"}
    # Only against a twin is pretraining all that differs.
    subject = "Pretraining" if (test.arm, test.against) in twins else f"“{test.arm}” over “{test.against}”"
    if test.verdict == "better":
        return f"{subject} is worth {points(test.difference.mean)} points of accuracy ({numbers})."
    if test.verdict == "worse":
        return f"{subject} costs {points(-test.difference.mean).lstrip('+')} points of accuracy ({numbers})."
    if test.p_value < 0.05:  # these models differ on new texts, but other seeds might not
        seeds = len(comparison.story.seeds)
        return (
            f"{subject}: {points(test.difference.mean)} points of accuracy with these {seeds} seeds "
            f"({p_words(test.p_value)}), but the 95\u00a0% interval over seeds and texts, "
            f"{points_range(test.difference)}, does not leave out zero: train more seeds to be sure."
        )
    which = (
        "with and without pretraining"
        if subject == "Pretraining"
        else f"between “{test.arm}” and “{test.against}”"
    )
    return f"No difference shown {which}: {points(test.difference.mean)} points of accuracy ({numbers})."


def test_line(test: PairedTest) -> str:
    """One test as a line."""
    verdict = {"better": "is better than", "worse": "is worse than"}.get(
        test.verdict, "no difference shown from"
    )
    numbers = f"{points(test.difference.mean)} points, 95\u00a0% interval {points_range(test.difference)}"
    return f"{test.arm} ({test.labels:,} labels) {verdict} {test.against}: {numbers}, {p_words(test.p_value)}"


def main_test(comparison: Comparison) -> PairedTest | None:
    """The test that answers the question: the best fine-tuned arm against its twin from scratch, at the largest budget."""
    if not comparison.tests:
        return None
    arms = {(arm.name, arm.labels): arm for arm in comparison.arms}

    def rank(test: PairedTest) -> tuple[int, bool, bool, bool, float]:
        arm, other = arms.get((test.arm, test.labels)), arms.get((test.against, test.labels))
        is_tuned, is_scratch = (
            arm is not None and arm.kind == "fine-tuned",
            other is not None and other.kind == "scratch",
        )
        is_twin = arm is not None and arm.twin == test.against
        return test.labels, is_scratch, is_tuned, is_twin, arm.accuracy.mean if arm else 0.0

    return max(comparison.tests, key=rank)
