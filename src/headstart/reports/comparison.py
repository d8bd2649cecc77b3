"""A comparison of models as sentences, as a table in a terminal and as a page."""

import math

from rich.markup import escape
from rich.table import Table

from headstart.models.model import describe_transfer
from headstart.plots.curves import (
    accuracy_curves,
    draw_curves,
    draw_label_efficiency,
    draw_reliability,
    label_efficiency,
    reliability,
)
from headstart.plots.style import PALETTE, arm_colours
from headstart.reports.formatting import (
    UNKNOWN,
    format_duration,
    format_epochs_to_target,
    format_interval,
    format_p_value,
    format_points,
    format_points_interval,
    format_score,
    render,
)
from headstart.reports.pages import inline_svg
from headstart.reports.tables import TextTable, render_audit, terminal_table
from headstart.results import Comparison, PairedTest, VariantResult, plain

VERDICT_COLOURS = {"better": "green", "worse": "red", "no difference shown": "yellow"}


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


def headline(comparison: Comparison) -> str:
    """The main result in one sentence, which claims no more than the paired test shows."""
    test = main_test(comparison)
    if test is None:
        return "No arm was compared with another, so nothing is claimed."
    # Only against its control is pretraining the one difference.
    controls = {(arm.name, arm.control) for arm in comparison.arms if arm.kind != "ensemble"}
    is_control = (test.arm, test.against) in controls
    seeds = len(comparison.provenance.seeds)
    return render("headline.txt", test=test, is_control=is_control, seeds=seeds).strip()


def format_test(test: PairedTest) -> str:
    """A paired test in one line."""
    verdict = {"better": "is better than", "worse": "is worse than"}.get(test.verdict, "no difference shown from")
    interval = format_points_interval(test.difference)
    numbers = f"{format_points(test.difference.mean)} points, 95\u00a0% interval {interval}"
    p_value = format_p_value(test.p_value)
    return f"{test.arm} ({test.labels:,} labels) {verdict} {test.against}: {numbers}, {p_value}"


def comparison_table(comparison: Comparison) -> Table:
    """The arms of a comparison with their scores; it fits 80 columns."""
    leaks, budgets = has_leaks(comparison), sorted(set(comparison.label_budgets), reverse=True)
    split = comparison.scored_split + ("" if "folds" in comparison.scored_split else " split")
    labels = f", {budgets[0]:,} labels" if len(budgets) == 1 else ""
    title = f"{comparison.data}, {split}, {comparison.scored_count:,} texts{labels}"
    names = ["accuracy", "95 % interval", "leak-free" if leaks else "F1", "target", "time"]
    groups = [[arm for arm in comparison.arms if arm.labels == budget] for budget in budgets]
    rows = [[f"{arm.labels:,}", *_arm_cells(arm, leaks)] for arms in groups for arm in arms]
    if labels:
        return terminal_table(TextTable(title, ["arm", *names], [row[1:] for row in rows]))
    table = terminal_table(TextTable(title, ["labels", "arm", *names], rows, text_columns=2))
    for index, row in enumerate(rows[1:]):
        table.rows[index].end_section = row[0] != rows[index][0]
    return table


def _arm_cells(arm: VariantResult, leaks: bool) -> list[str]:
    spread = f" ±{format_score(arm.accuracy.spread)}" if len(arm.results) > 1 else ""
    return [
        arm.name,
        format_score(arm.accuracy.mean) + spread,
        format_interval(arm.accuracy) or UNKNOWN,
        format_score((arm.leak_free_accuracy if leaks else arm.macro_f1).mean),
        format_epochs_to_target(arm.epochs_to_target),
        format_duration(mean_seconds(arm)),
    ]


def verdict_lines(comparison: Comparison) -> list[str]:
    """The headline and one line for each paired test, with rich's markup for colour."""
    return [f"[bold]{escape(headline(comparison))}[/]"] + [
        f"[{VERDICT_COLOURS[test.verdict]}]●[/] {escape(format_test(test))}" for test in comparison.tests
    ]


def mean_seconds(arm: VariantResult) -> float:
    """The mean training time of one seed."""
    return sum(result.seconds for result in arm.results) / max(len(arm.results), 1)


def has_leaks(comparison: Comparison) -> bool:
    """Whether the accuracy of any arm changes when texts that were in its training data are left out."""
    pairs = [(arm.accuracy.mean, arm.leak_free_accuracy.mean) for arm in comparison.arms]
    return any(math.isnan(leak_free) or abs(whole - leak_free) > 1e-12 for whole, leak_free in pairs)


def render_comparison(comparison: Comparison) -> str:
    """A comparison: headline, scores, tests, figures, worst errors, data audit and provenance."""
    budget, provenance = max(comparison.label_budgets), comparison.provenance
    main = main_test(comparison)
    colours = arm_colours((arm.name, arm.kind) for arm in comparison.arms)
    curves, efficiency, panels = accuracy_curves(comparison), label_efficiency(comparison), reliability(comparison)
    figures: dict[str, str] = dict.fromkeys(("curves", "efficiency", "calibration"), "")
    if curves.lines:
        ends = [f"{line.name} ends at {line.mean[-1]:.3f}" for line in curves.lines]
        ends += [f"{level.name} is level at {level.mean[0]:.3f}" for level in curves.levels]
        label = f"Validation accuracy by epoch: {'; '.join(ends)}."
        figures["curves"] = inline_svg(draw_curves(curves), "curves", label)
    if efficiency:
        ends = [f"{line.name} from {line.mean[0]:.3f} to {line.mean[-1]:.3f}" for line in efficiency]
        label = f"Accuracy by number of labels: {'; '.join(ends)}."
        figure = draw_label_efficiency(efficiency, comparison.scored_split)
        figures["efficiency"] = inline_svg(figure, "labels", label)
    if panels:
        errors = "; ".join(f"{panel.name} {format_score(panel.error)}" for panel in panels)
        label = f"Accuracy by confidence; expected calibration error: {errors}."
        figures["calibration"] = inline_svg(draw_reliability(panels), "reliability", label)
    return render(
        "comparison.html",
        comparison=comparison,
        budget=budget,
        headline=headline(comparison),
        other_tests=[format_test(test) for test in comparison.tests if test.labels == budget and test is not main],
        has_leaks=has_leaks(comparison),
        budgets=sorted(set(comparison.label_budgets), reverse=True),
        colour_index={name: PALETTE.index(colour) for name, colour in colours.items()},
        mean_seconds=mean_seconds,
        tests=sorted(comparison.tests, key=lambda test: -test.labels),
        curves=curves,
        efficiency=efficiency,
        figures=figures,
        # Those of the most labels come last, and replace the others.
        transfers={
            arm.name: arm.transfer for arm in sorted(comparison.arms, key=lambda arm: arm.labels) if arm.transfer
        },
        describe_transfer=describe_transfer,
        audit=render_audit(comparison.audit) if comparison.audit else "",
        provenance={
            **plain(provenance),
            "seconds": format_duration(provenance.seconds),
            "commit": provenance.commit or UNKNOWN,
            "epochs": f"{comparison.epochs:g}",
        },
    )
