"""A comparison as one HTML page without JavaScript."""

from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from headstart.plots.curves import (
    accuracy_curves,
    draw_curves,
    draw_label_efficiency,
    draw_reliability,
    label_efficiency,
    reliability,
)
from headstart.plots.style import PALETTE, arm_colours
from headstart.reports.audit import render_audit
from headstart.reports.figure import svg_markup
from headstart.reports.formatting import (
    UNKNOWN,
    format_duration,
    format_score,
    format_test,
    has_leaks,
    headline,
    main_test,
    mean_seconds,
)
from headstart.reports.render import render
from headstart.results import Arm, Comparison, Transfer

EXCERPT = 160  # characters of an error's text that are visible before it is unfolded


@dataclass(frozen=True)
class FigureSection:
    """A titled figure with its caption; the legend names arms where the screen is too narrow for the figure's labels."""

    title: str
    svg: Markup
    caption: str
    legend: list[str] = field(default_factory=list)


def render_comparison(comparison: Comparison) -> str:
    """The comparison as one self-contained HTML page."""
    budget = max(comparison.label_budgets)
    main = main_test(comparison)
    colours = arm_colours((arm.name, arm.kind) for arm in comparison.arms)
    figures = (_learning_curves(comparison), _label_efficiency(comparison), _calibration(comparison))
    return render(
        "comparison.html",
        comparison=comparison,
        budget=budget,
        headline=headline(comparison),
        other_tests=[
            format_test(test) for test in comparison.tests if test.labels == budget and test is not main
        ],
        has_leaks=has_leaks(comparison),
        budgets=sorted(set(comparison.label_budgets), reverse=True),
        colour_index={name: PALETTE.index(colour) for name, colour in colours.items()},
        mean_seconds=mean_seconds,
        tests=sorted(comparison.tests, key=lambda test: -test.labels),
        figures=[figure for figure in figures if figure is not None],
        excerpt=EXCERPT,
        transfers=_transfers(comparison.arms),
        audit=render_audit(comparison.audit),
        provenance=_provenance(comparison),
    )


def _learning_curves(comparison: Comparison) -> FigureSection | None:
    data = accuracy_curves(comparison)
    if not data.lines:
        return None
    ends = [f"{line.name} ends at {line.mean[-1]:.3f}" for line in data.lines]
    ends += [f"{level.name} is level at {level.mean[0]:.3f}" for level in data.levels]
    svg = svg_markup(draw_curves(data), "curves", f"Validation accuracy by epoch: {'; '.join(ends)}.")
    caption = (
        f"Validation accuracy with {data.labels:,} labels: mean over seeds, the band from lowest to highest."
        + (" Where a line is dotted, its training has ended." if data.shorter else "")
    )
    return FigureSection("Learning curves", svg, caption, [line.name for line in [*data.lines, *data.levels]])


def _label_efficiency(comparison: Comparison) -> FigureSection | None:
    data = label_efficiency(comparison)
    if data is None:
        return None
    ends = [f"{line.name} from {line.mean[0]:.3f} to {line.mean[-1]:.3f}" for line in data.lines]
    label = f"Accuracy by number of labels: {'; '.join(ends)}."
    svg = svg_markup(draw_label_efficiency(data), "labels", label)
    caption = "Accuracy by number of labels, with 95 % intervals."
    return FigureSection("Label efficiency", svg, caption, [line.name for line in data.lines])


def _calibration(comparison: Comparison) -> FigureSection | None:
    data = reliability(comparison)
    if not data.panels:
        return None
    errors = "; ".join(f"{panel.name} {format_score(panel.error)}" for panel in data.panels)
    label = f"Accuracy by confidence; expected calibration error: {errors}."
    svg = svg_markup(draw_reliability(data), "reliability", label)
    caption = (
        "On the dashed line confidence equals accuracy; below it the model is overconfident. "
        "Large points hold many predictions."
    )
    return FigureSection("Calibration", svg, caption)


def _transfers(arms: list[Arm]) -> dict[str, Transfer]:
    """Transferred weights by arm, of its run with the most labels."""
    transfers: dict[str, Transfer] = {}
    for arm in sorted(arms, key=lambda arm: -arm.labels):
        if arm.transfer is not None:
            transfers.setdefault(arm.name, arm.transfer)
    return transfers


def _provenance(comparison: Comparison) -> dict[str, Any]:
    provenance = comparison.provenance
    return {
        "command": provenance.command,
        "started": provenance.started,
        "duration": format_duration(provenance.seconds),
        "seeds": ", ".join(str(seed) for seed in provenance.seeds),
        "machine": provenance.machine,
        "commit": provenance.commit or UNKNOWN,
        "versions": ", ".join(f"{name} {version}" for name, version in provenance.versions.items()),
        "epochs": f"{comparison.epochs:g}",
    }
