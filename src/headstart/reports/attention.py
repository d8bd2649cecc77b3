"""Attention weights as one interactive HTML page without external files."""

import base64

import numpy as np

from headstart.evaluation.attention import AttentionMaps, entropy, mean_distance
from headstart.plots.attention import HEADINGS
from headstart.reports.render import render

MAX_WEIGHT = 65535  # of a weight of 1, which is stored in two bytes


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
