"""Numbers and results as text, the same on a page and in a terminal."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headstart.results import Comparison, Interval, PairedTest, VariantResult

UNKNOWN = "–"


def format_score(value: float, digits: int = 3) -> str:
    """An accuracy or another fraction, or a dash when it is unknown."""
    return UNKNOWN if math.isnan(value) else f"{value:.{digits}f}"


def format_points(value: float) -> str:
    """A difference of accuracies in percentage points, always with its sign."""
    rounded = round(100 * value, 1) + 0.0  # + 0.0 removes the sign of -0.0
    return f"{'−' if rounded < 0 else '+'}{abs(rounded):.1f}"


def format_p_value(p_value: float) -> str:
    """A p-value as "p = 0.012" or "p < 0.001"."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def format_interval(interval: Interval, digits: int = 3) -> str:
    """The 95 % interval as "[low, high]", or nothing when it is unknown."""
    if math.isnan(interval.low) or math.isnan(interval.high):
        return ""
    return f"[{format_score(interval.low, digits)}, {format_score(interval.high, digits)}]"


def format_points_interval(interval: Interval) -> str:
    """The 95 % interval of a difference, in percentage points."""
    return f"{format_points(interval.low)} to {format_points(interval.high)}"


def format_duration(seconds: float) -> str:
    """A duration as 12 ms, 0.4 s, 12 s, 3 min 20 s, 2 h 5 min or 3.5 days."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.2g} ms" if seconds else "0 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 2 * 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{seconds / 86400:,.1f} days"


def format_count(value: float | None, name: str = "") -> str:
    """A count of an audit with thousands separators, a fraction in per cent, or a dash."""
    if value is None:
        return UNKNOWN
    if name in ("truncated", "unknown"):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}"


def format_value(value: Any) -> str:
    """A metric, a setting or a fact: floats with four decimals, the items of lists and dicts on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def format_markdown_cell(value: Any) -> str:
    """A value in a cell of a Markdown table, on one line."""
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return " ".join(text.replace("|", "\\|").split())


def format_benchmark(row: Mapping[str, Any]) -> str:
    """A published score of a base in one line."""
    count = row.get("labels")
    labels = "" if count is None else f", {count:,} labels" if count else ", no labels"
    low, high = format_benchmark_score(row["low"]), format_benchmark_score(row["high"])
    return f"{row['task']}{labels}: {row['metric']} {format_benchmark_score(row['value'])} ({low} to {high})"


def format_benchmark_score(value: float) -> str:
    """A fraction with four decimals, or a score up to 100 with one."""
    return f"{value:.4f}" if abs(value) <= 1 else f"{value:.1f}"


def format_epochs_to_target(epochs: Sequence[float | None]) -> str:
    """The first epoch at the target accuracy: the median when every seed reaches it, else how many seeds do."""
    reached = sorted(epoch for epoch in epochs if epoch is not None)
    if not epochs:
        return UNKNOWN
    if not reached:
        return "never"
    if len(reached) < len(epochs):
        return f"{len(reached)} of {len(epochs)}"
    median = (reached[(len(reached) - 1) // 2] + reached[len(reached) // 2]) / 2
    return f"{median:g}"


def mean_seconds(arm: VariantResult) -> float:
    """The mean training time of one seed."""
    return sum(result.seconds for result in arm.results) / max(len(arm.results), 1)


def has_leaks(comparison: Comparison) -> bool:
    """Whether the accuracy of any arm changes when texts that were in its training data are left out."""
    pairs = [(arm.accuracy.mean, arm.leak_free_accuracy.mean) for arm in comparison.arms]
    return any(math.isnan(leak_free) or abs(whole - leak_free) > 1e-12 for whole, leak_free in pairs)


def headline(comparison: Comparison) -> str:
    """The main result in one sentence, which claims no more than the paired test shows."""
    test = main_test(comparison)
    if test is None:
        return "No arm was compared with another, so nothing is claimed."
    points, interval = format_points(test.difference.mean), format_points_interval(test.difference)
    numbers = f"95\u00a0% interval {interval}, {format_p_value(test.p_value)}"
    controls = {(arm.name, arm.control) for arm in comparison.arms if arm.kind != "ensemble"}
    # Only against its control is pretraining the one difference.
    is_control = (test.arm, test.against) in controls
    subject = "Pretraining" if is_control else f"“{test.arm}” over “{test.against}”"
    if test.verdict == "better":
        return f"{subject} is worth {points} points of accuracy ({numbers})."
    if test.verdict == "worse":
        return f"{subject} costs {format_points(-test.difference.mean).lstrip('+')} points of accuracy ({numbers})."
    if test.p_value < 0.05:  # these models differ on new texts, but other seeds might not
        seeds = len(comparison.provenance.seeds)
        return (
            f"{subject}: {points} points of accuracy with these {seeds} seeds "
            f"({format_p_value(test.p_value)}), but the 95\u00a0% interval over seeds and texts, "
            f"{interval}, does not exclude zero: train more seeds to be sure."
        )
    pair = "with and without pretraining" if is_control else f"between “{test.arm}” and “{test.against}”"
    return f"No difference shown {pair}: {points} points of accuracy ({numbers})."


def format_test(test: PairedTest) -> str:
    """A paired test in one line."""
    verdict = {"better": "is better than", "worse": "is worse than"}.get(test.verdict, "no difference shown from")
    interval = format_points_interval(test.difference)
    numbers = f"{format_points(test.difference.mean)} points, 95\u00a0% interval {interval}"
    p_value = format_p_value(test.p_value)
    return f"{test.arm} ({test.labels:,} labels) {verdict} {test.against}: {numbers}, {p_value}"


def main_test(comparison: Comparison) -> PairedTest | None:
    """The test of the headline: the best fine-tuned arm against its from-scratch control, at the largest budget."""
    if not comparison.tests:
        return None
    arms = {(arm.name, arm.labels): arm for arm in comparison.arms}

    def priority(test: PairedTest) -> tuple[int, bool, bool, bool, float]:
        arm, other = arms.get((test.arm, test.labels)), arms.get((test.against, test.labels))
        is_fine_tuned = arm is not None and arm.kind == "fine-tuned"
        is_scratch = other is not None and other.kind == "scratch"
        is_control = arm is not None and arm.control == test.against
        return test.labels, is_scratch, is_fine_tuned, is_control, arm.accuracy.mean if arm else 0.0

    return max(comparison.tests, key=priority)
