"""Attention weights as an answer holds them, within its bound."""

from typing import Any

import numpy as np

from headstart.evaluation.attention import AttentionMaps, entropy, mean_distance
from headstart.serving.refusal import Refusal


def check_size(maps: int, queries: int, keys: int, most: int) -> None:
    """Refuse more weights than one answer holds."""
    if maps * queries * keys > most:
        raise Refusal(
            422,
            f"{maps} maps of {queries} by {keys} tokens are more than one answer holds",
            hint="ask for one layer and attention_head, or send a shorter text",
        )


def shown_maps(
    found: AttentionMaps, layer: int | None = None, attention_head: int | None = None
) -> dict[str, Any]:
    """Tokens, mask, and the weights of the layers and attention heads asked for, all of them where None is given."""
    layers, heads = found.chosen(layer, attention_head)
    maps = [
        {
            "layer": at + 1,
            "attention_head": head + 1,
            "weights": np.round(found.weights[at, head].astype(np.float64), 5).tolist(),
            "entropy": round(float(entropy(found.weights[at, head]).mean()), 4),
            "distance": round(float(mean_distance(found.weights[at, head]).mean()), 4),
        }
        for at in layers
        for head in heads
    ]
    seen = found.seen.astype(int).tolist()
    return {"queries": found.queries, "keys": found.keys, "seen": seen, "maps": maps}
