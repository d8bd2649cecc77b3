"""Attention weights as heat maps: one map enlarged, or a grid of layers and attention heads."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headstart.evaluation.attention import AttentionMaps
from headstart.plots.heatmap import WEIGHTS, draw_heatmap, label_axis
from headstart.plots.style import FAINT, STYLE

HEADINGS = {
    "self": "Attention weights of each token",
    "cross": "Cross-attention: source tokens that each target token attends to",
    "encoder": "Encoder self-attention of each source token",
    "decoder": "Decoder self-attention of each target token",
}
MAX_TOKEN_CHARS = 14  # of a tick label
TITLE_INCHES = 1.9  # width of a map's title
MAX_LABELS = 90  # on one axis; of more tokens, every second, third ... has a label


def draw_attention(
    maps: AttentionMaps, layer: int | None = None, attention_head: int | None = None
) -> Figure:
    """A grid of heat maps, a row for each layer and a column for each attention head; one alone is enlarged."""
    layers, heads = maps.chosen(layer, attention_head)
    if len(layers) == len(heads) == 1:
        return _draw_enlarged(maps, layers[0], heads[0])
    length = max(len(maps.queries), len(maps.keys))
    panel = min(max(1.5, 0.15 * length), 3.2, 22 / max(len(layers), len(heads)))  # inches
    font_size = min(8.0, 0.72 * 72 * panel / length)  # points
    has_labels = font_size >= 4.5
    left, top, gap, bottom = (1.25 if has_labels else 0.5), 0.95, 0.32, (0.95 if has_labels else 0.4)
    map_width, map_height = panel * len(maps.keys) / length, panel * len(maps.queries) / length
    pitch = map_width if map_width == panel else max(map_width, TITLE_INCHES)  # room for the title
    width = max(left + len(heads) * (pitch + gap), 4.2)
    height = top + len(layers) * (map_height + gap) + bottom - gap
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(width, height))
        for row, layer_index in enumerate(layers):
            for column, head_index in enumerate(heads):
                x = left + column * (pitch + gap)
                y = height - top - row * (map_height + gap) - map_height
                axes = figure.add_axes((x / width, y / height, map_width / width, map_height / height))
                _draw_map(axes, maps, layer_index, head_index)
                is_bottom = row == len(layers) - 1
                _label_tokens(axes, maps, font_size, has_labels and column == 0, has_labels and is_bottom)
                axes.set_title(
                    f"layer {layer_index + 1} · attention head {head_index + 1}", fontsize=8.5, pad=4
                )
        _draw_heading(figure, maps, height)
    return figure


def _draw_enlarged(maps: AttentionMaps, layer: int, attention_head: int) -> Figure:
    length = max(len(maps.queries), len(maps.keys))
    panel = min(max(3.6, 0.27 * length), 20.0)
    left, top, right, bottom = 1.75, 0.95, 0.95, 1.7
    map_width, map_height = panel * len(maps.keys) / length, panel * len(maps.queries) / length
    width, height = left + max(map_width, TITLE_INCHES) + right, top + map_height + bottom
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((left / width, bottom / height, map_width / width, map_height / height))
        image = _draw_map(axes, maps, layer, attention_head)
        _label_tokens(axes, maps, min(10.0, 0.8 * 72 * panel / min(length, MAX_LABELS)), True, True)
        axes.set_title(f"layer {layer + 1} · attention head {attention_head + 1}", pad=8)
        axes.set_ylabel("query" if maps.is_self else "query: target token")
        axes.set_xlabel("key" if maps.is_self else "key: source token")
        bar_height = min(map_height, 2.4)
        bar_axes = ((left + map_width + 0.18) / width, bottom / height, 0.13 / width, bar_height / height)
        bar = figure.colorbar(image, cax=figure.add_axes(bar_axes))
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=8, length=2)
        _draw_heading(figure, maps, height)
    return figure


def _draw_heading(figure: Figure, maps: AttentionMaps, height: float) -> None:
    title = maps.title if len(maps.title) <= 60 else f"{maps.title[:59]}…"
    heading = HEADINGS[maps.attention_type]
    figure.text(0.02, 1 - 0.3 / height, f"{heading}{': ' if title else ''}{title}", fontsize=11)
    masked = "" if maps.seen.all() else "; grey: hidden by the mask"
    note = f"each row adds up to one, darkest = the map's largest weight{masked}"
    figure.text(0.02, 1 - 0.5 / height, note, fontsize=8, color=FAINT)


def _draw_map(axes: Axes, maps: AttentionMaps, layer: int, attention_head: int) -> Any:
    weights = maps.weights[layer, attention_head]
    for spine in axes.spines.values():
        spine.set(visible=True, linewidth=0.6)
    allowed = np.ma.masked_array(weights, mask=~maps.seen)
    return draw_heatmap(axes, allowed, WEIGHTS, (0, max(float(weights.max()), 1e-6)))


def _label_tokens(axes: Axes, maps: AttentionMaps, size: float, has_queries: bool, has_keys: bool) -> None:
    sides = ((axes.yaxis, maps.queries, has_queries, 0), (axes.xaxis, maps.keys, has_keys, 90))
    for axis, tokens, has_labels, angle in sides:
        names = [_truncate(token) for token in tokens] if has_labels else []
        step = -(-len(tokens) // MAX_LABELS)
        label_axis(axis, names, step=step, labelsize=size, labelrotation=angle, pad=2)


def _truncate(token: str) -> str:
    return token if len(token) <= MAX_TOKEN_CHARS else f"{token[: MAX_TOKEN_CHARS - 1]}…"
