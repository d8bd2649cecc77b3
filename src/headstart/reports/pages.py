"""Pages of runs, figures and attention maps, and model cards; figures are inline SVG."""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from headstart.evaluation.attention import AttentionMaps, HeadAblation, entropy, mean_distance
from headstart.plots.heatmaps import HEADINGS
from headstart.plots.style import FAINT, INK, PALETTE, PAPER, STYLE
from headstart.reports.formatting import format_duration, render

MAX_WEIGHT = 65535  # of an attention weight of 1, which is stored in two bytes
BASELINE_METRICS = ("accuracy", "macro_f1", "loss", "count", "correct")
NOT_PLOTTED = ("epoch", "step", "perplexity")


def inline_svg(figure: Figure, prefix: str, label: str) -> Markup:
    """A figure as SVG inside a page: unique ids, a label for screen readers, colours that the page may set.

    Colours become CSS variables (`--ink`, `--faint`, `--paper`, `--arm-0` ...) with the colour itself as fallback.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", svg)
    names = {INK: "ink", FAINT: "faint", PAPER: "paper"} | {c: f"arm-{i}" for i, c in enumerate(PALETTE)}
    for colour, name in names.items():
        svg = re.sub(rf"(:\s*){colour}\b", rf"\1var(--{name}, {colour})", svg)
    opening = f'<svg role="img" aria-label="{escape(label)}" viewBox='
    svg = re.sub(r"<svg [^>]*?viewBox=", lambda _: opening, svg, count=1)
    return Markup(re.sub(r'(viewBox="[^"]*")[^>]*>', r"\1>", svg, count=1).strip())


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
        metrics=_shown_metrics(metrics),
        baseline=_shown_metrics(baseline or {}, None if "task" in metrics else BASELINE_METRICS),
        figure=inline_svg(draw_training_curve(curve), "metrics", "Validation metrics by epoch") if curve else "",
        facts=facts,
        provenance=result["provenance"],
        settings=settings,
    )


def _shown_metrics(score: Mapping[str, Any], names: Sequence[str] | None = None) -> dict[str, Any]:
    """The metrics of a score that are known, or those of these names."""
    return {
        key: value
        for key, value in score.items()
        if (names is None or key in names) and not isinstance(value, dict | None) and value == value
    }


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


def render_figure(title: str, figure: Figure, lines: Sequence[str] = (), study: HeadAblation | None = None) -> str:
    """One figure above its description; a head ablation also has its numbers as a table."""
    return render("figure.html", title=title, svg=inline_svg(figure, "figure", title), lines=lines, study=study)


def render_attention(maps: AttentionMaps, layer: int | None = None, attention_head: int | None = None) -> str:
    """All maps as thumbnails, one of them enlarged, and the tokens; it opens on the given layer and attention head."""
    layers, heads = maps.chosen(layer, attention_head)
    weights = np.round(np.clip(maps.weights, 0, 1) * MAX_WEIGHT).astype("<u2")
    data = {
        "layers": maps.layers,
        "heads": maps.attention_heads,
        "queries": maps.queries,
        "keys": maps.keys,
        "start": (layers[0], heads[0]),
        "isSelf": maps.is_self,
        "weights": base64.b64encode(weights.tobytes()).decode("ascii"),
        "seen": base64.b64encode(maps.seen.astype(np.uint8).tobytes()).decode("ascii"),
    }
    return render(
        "attention.html",
        maps=maps,
        heading=HEADINGS[maps.attention_type],
        distance=mean_distance(maps.weights).mean(axis=-1),  # (L, A)
        entropy=entropy(maps.weights).mean(axis=-1),
        data=data,
    )


def render_model_card(card: Mapping[str, Any]) -> str:
    """The card of a packaged base as Markdown: model, scores, data, training and limits."""
    before, after = card["storing"]["before"], card["storing"]["after"]
    return render(
        "model_card.md",
        card=card,
        stored_scores=[(name, f"{before[name]:.5f}", f"{after[name]:.5f}") for name in before],
        data=[(row["name"], row["licence"], row["words"]) for row in card["data"]],
        stages=[tuple(stage.values()) for stage in card["stages"]],
    )
