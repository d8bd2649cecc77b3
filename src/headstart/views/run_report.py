"""One run as a page: what came out, how it got there, and where it comes from."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from headstart.views.figure import PALETTE, STYLE, inline_svg
from headstart.views.page import bullets, details, page, pairs, section

LEFT_OUT = ("epoch", "step", "perplexity")


def draw_marks(curve: Sequence[Mapping[str, float]]) -> Figure:
    """Every mark of a run against epochs, a small panel each."""
    names = [name for name in (curve[0] if curve else {}) if name not in LEFT_OUT]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.2, 2.9), layout="constrained")
        for number, name in enumerate(names, start=1):
            axes = figure.add_subplot(1, len(names), number)
            axes.plot(
                [p["epoch"] for p in curve],
                [p[name] for p in curve],
                color=PALETTE[0],
                marker="o",
                markersize=3,
            )
            axes.set_title(name.replace("_", " "), fontsize=10)
            axes.set_xlabel("epoch")
    return figure


def render_run(name: str, result: Mapping[str, Any], settings: Mapping[str, Any], transfer: str) -> str:
    """A finished run as one self-contained HTML file."""
    found = (result.get("score") or {}).items()
    score = {key: value for key, value in found if value is not None and not isinstance(value, dict)}
    facts = {key: f"{result[key]:,}" for key in ("parameters", "steps", "tokens") if key in result}
    facts["training time"] = f"{result['seconds']:.1f} s"
    if transfer:
        facts["carried over"] = transfer
    curve, story = result["curve"], result["story"]
    below = result.get("baseline")
    words = "Marks on held-out data by epoch"
    picture = f"<figure>{inline_svg(draw_marks(curve), 'marks', words)}</figure>" if curve else ""
    parts = [
        f"<header><p>headstart run</p><h1>{escape(name)}</h1></header>",
        *([section("Warnings", bullets(warnings))] if (warnings := result.get("warnings")) else []),
        section(
            "Marks on held-out data",
            pairs({key.replace("_", " "): _number(value) for key, value in score.items()}),
        ),
        *([section("TF-IDF + linear SVM on the same texts", pairs(_baseline(below)))] if below else []),
        section("How it got there", picture),
        section("The run", pairs(facts)),
        section(
            "Where these numbers come from",
            pairs({key: _number(value) for key, value in story.items()})
            + details("settings", f"<pre>{escape(json.dumps(settings, indent=2, ensure_ascii=False))}</pre>"),
        ),
    ]
    return page(f"headstart run: {name}", "\n".join(parts))


def _baseline(score: Mapping[str, Any]) -> dict[str, str]:
    names = ("accuracy", "macro_f1", "loss", "count", "correct")
    return {name.replace("_", " "): _number(score[name]) for name in names}


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
