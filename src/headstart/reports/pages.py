"""HTML pages of runs, comparisons and figures, and model cards; every page is one file without external content."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from headstart.evaluation.attention import AttentionMaps, entropy, mean_distance
from headstart.evaluation.head_ablation import HeadAblation
from headstart.plots.curves import (
    accuracy_curves,
    draw_curves,
    draw_label_efficiency,
    draw_reliability,
    draw_training_curve,
    label_efficiency,
    reliability,
)
from headstart.plots.heatmaps import HEADINGS
from headstart.plots.style import PALETTE, arm_colours, inline_svg
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
from headstart.reports.tables import audit_leaks, audit_tables
from headstart.results import Comparison, TransferReport, VariantResult

MAX_WEIGHT = 65535  # of an attention weight of 1, which is stored in two bytes
MAX_EXCERPT = 160  # characters of an error's text that are visible before it is unfolded
BASELINE_METRICS = ("accuracy", "macro_f1", "loss", "count", "correct")


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


def render_audit(audit: Mapping[str, Any]) -> Markup:
    """A data audit as part of a page."""
    html = render("audit.html", audit=audit, tables=audit_tables(audit, is_page=True), leaks=audit_leaks(audit))
    return Markup(html)


def render_comparison(comparison: Comparison) -> str:
    """A comparison: headline, scores, tests, figures, worst errors, data audit and provenance."""
    budget = max(comparison.label_budgets)
    main = main_test(comparison)
    colours = arm_colours((arm.name, arm.kind) for arm in comparison.arms)
    curves, efficiency, panels = (accuracy_curves(comparison), label_efficiency(comparison), reliability(comparison))
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
        max_excerpt=MAX_EXCERPT,
        transfers=_transfers(comparison.arms),
        audit=render_audit(comparison.audit) if comparison.audit else "",
        provenance=_provenance(comparison),
    )


def _transfers(arms: list[VariantResult]) -> dict[str, TransferReport]:
    """Transferred weights by arm, of its run with the most labels."""
    transfers: dict[str, TransferReport] = {}
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
        "seeds": provenance.seeds,
        "machine": provenance.machine,
        "commit": provenance.commit or UNKNOWN,
        "versions": provenance.versions,
        "epochs": f"{comparison.epochs:g}",
    }
