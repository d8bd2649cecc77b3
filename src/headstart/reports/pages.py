"""Pages of figures and attention maps, and model cards."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from headstart.evaluation.attention import AttentionMaps, entropy, mean_distance
from headstart.evaluation.head_ablation import HeadAblation
from headstart.plots.heatmaps import HEADINGS
from headstart.plots.style import inline_svg
from headstart.reports.formatting import render

MAX_WEIGHT = 65535  # of an attention weight of 1, which is stored in two bytes


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
