"""The page of a finished run: metrics, training curve, provenance and settings."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from headstart.plots.style import PALETTE, STYLE, inline_svg
from headstart.reports.formatting import format_duration, render

BASELINE_METRICS = ("accuracy", "macro_f1", "loss", "count", "correct")
NOT_PLOTTED = ("epoch", "step", "perplexity")


def render_run(name: str, result: Mapping[str, Any], settings: Mapping[str, Any], transfer: str) -> str:
    """A finished run with its metrics, training curve, provenance and settings."""
    metrics = result.get("score") or {}
    facts = {key: f"{result[key]:,}" for key in ("parameters", "steps", "tokens") if key in result}
    facts["training time"] = format_duration(result["seconds"])
    if transfer:
        facts["transferred weights"] = transfer
    curve, baseline = result["curve"], result.get("baseline")
    return render(
        "run.html",
        name=name,
        warnings=result.get("warnings") or [],
        metrics={key: value for key, value in metrics.items() if not isinstance(value, dict | None)},
        baseline={key: baseline[key] for key in BASELINE_METRICS} if baseline else {},
        figure=inline_svg(draw_training_curve(curve), "metrics", "Validation metrics by epoch") if curve else "",
        facts=facts,
        provenance=result["provenance"],
        settings=settings,
    )


def draw_training_curve(curve: Sequence[Mapping[str, float]]) -> Figure:
    """Every validation metric of one run by epoch, a panel each."""
    names = [name for name in (curve[0] if curve else {}) if name not in NOT_PLOTTED]
    epochs = [point["epoch"] for point in curve]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.2, 2.9), layout="constrained")
        for number, name in enumerate(names, start=1):
            axes = figure.add_subplot(1, len(names), number)
            axes.plot(epochs, [point[name] for point in curve], color=PALETTE[0], marker="o", markersize=3)
            axes.set_title(name.replace("_", " "), fontsize=10)
            axes.set_xlabel("epoch")
    return figure
