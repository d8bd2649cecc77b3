"""Heat maps of attention weights and of head ablation, and the helper that masks and positions use too."""

from collections.abc import Sequence
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine

from headstart.evaluation.attention import AttentionMaps, HeadAblation
from headstart.plots.style import FAINT, INK, STYLE, truncate

DARK_TEXT, LIGHT_TEXT = "#11151c", "#fdfdfe"  # not the style's colours, which a dark page replaces
MASKED = "#e9ecf1"  # a key that the mask hides from the query; an allowed key of weight 0 is white
WEIGHTS = LinearSegmentedColormap.from_list("weights", ["#ffffff", "#a9d3ec", "#0072b2", "#00304d"]).with_extremes(
    bad=MASKED
)
HEADINGS = {
    "self": "Attention weights of each token",
    "cross": "Cross-attention: source tokens that each target token attends to",
    "encoder": "Encoder self-attention of each source token",
    "decoder": "Decoder self-attention of each target token",
}
MAX_TOKEN_CHARS = 14  # of a tick label
TITLE_INCHES = 1.9  # width of a map's title
MAX_LABELS = 90  # on one axis; of more tokens, every second, third ... has a label
MAX_NUMBERED = 12  # layers or attention heads up to which numbers are written into the cells


def draw_heatmap(
    axes: Axes,
    values: np.ndarray,
    cmap: str | Colormap,
    limits: tuple[float, float],
    *,
    aspect: Literal["equal", "auto"] = "equal",
    origin: Any = "upper",
    cell_lines: float = 0.0,
    line_colour: str = "#ffffff",
) -> AxesImage:
    """An array (rows, columns) as coloured cells, with lines of the given width between them."""
    low, high = limits
    image = axes.imshow(values, cmap, vmin=low, vmax=high, aspect=aspect, origin=origin, interpolation="nearest")
    axes.grid(False)
    if cell_lines:
        axes.tick_params(which="both", length=0)
        rows, columns = values.shape
        axes.set_xticks(np.arange(0.5, columns - 1), minor=True)
        axes.set_yticks(np.arange(0.5, rows - 1), minor=True)
        axes.grid(which="minor", color=line_colour, linewidth=cell_lines, alpha=1)
    return image


def label_axis(axis: Any, names: Sequence[str], *, step: int = 1, **params: Any) -> None:
    """Name every `step`-th row or column."""
    positions = list(range(0, len(names), step))
    axis.set_ticks(positions, [names[position] for position in positions])
    axis.set_tick_params(length=0, **{"labelcolor": INK, **params})


def draw_attention(maps: AttentionMaps, layer: int | None = None, attention_head: int | None = None) -> Figure:
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
                axes.set_title(f"layer {layer_index + 1} · attention head {head_index + 1}", fontsize=8.5, pad=4)
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
    title = truncate(maps.title, 60)
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
        names = [truncate(token, MAX_TOKEN_CHARS) for token in tokens] if has_labels else []
        step = -(-len(tokens) // MAX_LABELS)
        label_axis(axis, names, step=step, labelsize=size, labelrotation=angle, pad=2)


def draw_head_ablation(study: HeadAblation) -> Figure:
    """Entropy, mean distance and rise of the loss: three grids with a row for each layer, a column for each head."""
    layers, heads = study.entropy.shape
    cell = min(0.95, 9.0 / max(layers, heads))  # inches
    size = (3 * max(3.0, cell * heads + 1.1), max(2.2, 0.72 * cell * layers + 1.5) + 0.75)
    limit = max(float(np.abs(study.ablation).max()), 1e-9)
    in_brackets = ~study.is_significant()
    max_entropy = max(study.even_entropy, float(study.entropy.max()))
    max_distance = max(study.even_distance, float(study.distance.max()))
    titles = (
        f"Entropy, bits\nuniform attention: {study.even_entropy:.2f}",
        f"Mean distance, tokens\nuniform attention: {study.even_distance:.1f}",
        f"Rise of the loss without the head, nats\nloss with all heads: {study.loss:.3f}",
    )
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.14, h_pad=0.06))
        grid = figure.subplots(1, 3)
        _draw_grid(grid[0], study.entropy, WEIGHTS, (0.0, max_entropy), "{:.2f}")
        _draw_grid(grid[1], study.distance, WEIGHTS, (0.0, max_distance), "{:.1f}")
        _draw_grid(grid[2], study.ablation, "PuOr_r", (-limit, limit), "{:+.3f}", in_brackets)
        for axes, title in zip(grid, titles, strict=True):
            axes.set_title(title, fontsize=10)
        figure.suptitle(f"Attention heads{': ' * bool(study.title)}{study.title}", fontsize=12)
        note = " · in brackets: not significant" if in_brackets.any() else ""
        counts = f"{study.texts:,} texts, {study.answers:,} predictions{note}"
        figure.supxlabel(counts, fontsize=8.5, color=FAINT)
    return figure


def _draw_grid(
    axes: Axes,
    values: np.ndarray,
    cmap: str | Colormap,
    limits: tuple[float, float],
    number_format: str,
    in_brackets: np.ndarray | None = None,
) -> None:
    """Values (L, A) as cells; a small grid has numbers in a colour that is readable on the cell."""
    image = draw_heatmap(axes, values, cmap, limits, aspect="auto", cell_lines=1.5, line_colour=LIGHT_TEXT)
    layers, heads = values.shape
    for layer, head in np.ndindex(values.shape) if max(layers, heads) <= MAX_NUMBERED else ():
        red, green, blue, _ = image.to_rgba(values[layer, head])
        colour = LIGHT_TEXT if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else DARK_TEXT
        text = number_format.format(values[layer, head])
        if in_brackets is not None and in_brackets[layer, head]:
            text = f"({text})"
        axes.text(head, layer, text, ha="center", va="center", fontsize=8.5, color=colour)
    label_axis(axes.xaxis, [str(head + 1) for head in range(heads)], labelsize=9)
    label_axis(axes.yaxis, [str(layer + 1) for layer in range(layers)], labelsize=9)
    axes.set_xlabel("attention head", fontsize=9.5)
    axes.set_ylabel("layer", fontsize=9.5)
