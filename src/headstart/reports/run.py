"""One training run as an HTML page."""

from collections.abc import Mapping
from typing import Any

from headstart.plots.curves import draw_training_curve
from headstart.reports.figure import svg_markup
from headstart.reports.formatting import format_duration
from headstart.reports.render import render

BASELINE_METRICS = ("accuracy", "macro_f1", "loss", "count", "correct")


def render_run(name: str, result: Mapping[str, Any], settings: Mapping[str, Any], transfer: str) -> str:
    """A finished run as one self-contained HTML page."""
    metrics = result.get("score") or {}
    facts = {key: f"{result[key]:,}" for key in ("parameters", "steps", "tokens") if key in result}
    facts["training time"] = format_duration(result["seconds"])
    if transfer:
        facts["transferred weights"] = transfer
    curve, baseline = result["curve"], result.get("baseline")
    label = "Validation metrics by epoch"
    return render(
        "run.html",
        name=name,
        warnings=result.get("warnings") or [],
        metrics=_rows({k: v for k, v in metrics.items() if v is not None and not isinstance(v, dict)}),
        baseline=_rows({key: baseline[key] for key in BASELINE_METRICS}) if baseline else {},
        figure=svg_markup(draw_training_curve(curve), "metrics", label) if curve else "",
        facts=facts,
        provenance={key: _format_value(value) for key, value in result["provenance"].items()},
        settings=settings,
    )


def _rows(metrics: Mapping[str, Any]) -> dict[str, str]:
    return {name.replace("_", " "): _format_value(value) for name, value in metrics.items()}


def _format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
