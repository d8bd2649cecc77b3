"""Heat maps of attention weights and of head ablation, and the helper that masks and positions use too."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

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
MAX_LABELS = 90  # on one axis; of more tokens, every second, third ... has a label
MAX_NUMBERED = 12  # layers or attention heads up to which numbers are written into the cells
NO_GRID = {**STYLE, "axes.grid": False}


def draw_heatmap(
    axes: Axes,
    values: np.ndarray,
    cmap: str | Colormap,
    limits: tuple[float, float],
    *,
    cell_lines: float = 0.0,
    line_colour: str = "#ffffff",
    **image_options: Any,
) -> AxesImage:
    """An array (rows, columns) as coloured cells, with lines of the given width between them."""
    low, high = limits
    image = axes.imshow(values, cmap, vmin=low, vmax=high, interpolation="nearest", **image_options)
    axes.grid(False)
    if cell_lines:
        rows, columns = values.shape
        axes.set_xticks(np.arange(0.5, columns - 1), minor=True)
        axes.set_yticks(np.arange(0.5, rows - 1), minor=True)
        axes.tick_params(which="both", length=0)
        axes.grid(which="minor", color=line_colour, linewidth=cell_lines, alpha=1)
    return image


def label_axis(axis: Any, names: Sequence[str], *, step: int = 1, **params: Any) -> None:
    """Name every `step`-th row or column."""
    axis.set_ticks(range(0, len(names), step), names[::step])
    axis.set_tick_params(length=0, **{"labelcolor": INK, **params})


@matplotlib.rc_context(NO_GRID)
def draw_attention(maps: AttentionMaps, layer: int | None = None, attention_head: int | None = None) -> Figure:
    """A grid of heat maps, a row for each layer and a column for each attention head; one alone is enlarged."""
    layers, heads = maps.chosen(layer, attention_head)
    is_single = len(layers) == len(heads) == 1
    length = max(len(maps.queries), len(maps.keys))
    smallest, largest = (3.6, 20.0) if is_single else (1.9, 3.2)
    panel = min(max(smallest, 0.27 * length), largest, 22 / max(len(layers), len(heads)))  # inches
    font_size = min(10.0, 0.72 * 72 * panel / min(length, MAX_LABELS))  # points
    height = len(layers) * (panel * len(maps.queries) / length + 0.4)
    figure = Figure(figsize=(len(heads) * (panel + 0.15) + 1.5, height + 2), layout="constrained")
    grid = figure.subplots(len(layers), len(heads), squeeze=False, sharex=True, sharey=True)
    for (row, column), axes in np.ndenumerate(grid):
        weights = np.ma.masked_array(maps.weights[layers[row], heads[column]], mask=~maps.seen)
        image = draw_heatmap(axes, weights, WEIGHTS, (0, max(float(weights.max()), 1e-6)))
        for spine in axes.spines.values():
            spine.set(visible=True, linewidth=0.6)
        for axis, tokens, angle in ((axes.yaxis, maps.queries, 0), (axes.xaxis, maps.keys, 90)):
            names = [truncate(token, MAX_TOKEN_CHARS) for token in tokens] if font_size >= 4.5 else []
            step = -(-len(tokens) // MAX_LABELS)
            label_axis(axis, names, step=step, labelsize=font_size, labelrotation=angle, pad=2)
        title = f"layer {layers[row] + 1} · attention head {heads[column] + 1}"
        axes.set_title(title, fontsize=min(11.0 if is_single else 8.5, 4.5 * panel), pad=4)
        if is_single:
            source, target = ("", "") if maps.is_self else (": source token", ": target token")
            axes.set(xlabel=f"key{source}", ylabel=f"query{target}")
            figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02).outline.set_visible(False)
    name = f": {truncate(maps.title, 60)}" if maps.title else ""
    figure.suptitle(HEADINGS[maps.attention_type] + name, fontsize=11, x=0.02, ha="left")
    masked = "" if maps.seen.all() else "; grey: hidden by the mask"
    note = f"each row adds up to one, darkest = the map's largest weight{masked}"
    figure.supxlabel(note, fontsize=8, color=FAINT, x=0.02, ha="left")
    return figure


@matplotlib.rc_context(NO_GRID)
def draw_head_ablation(study: HeadAblation) -> Figure:
    """Entropy, mean distance and rise of the loss: three grids with a row for each layer, a column for each head."""
    layers, heads = study.entropy.shape
    cell = min(0.95, 9.0 / max(layers, heads))  # inches
    size = (3 * max(3.0, cell * heads + 1.1), max(2.2, 0.72 * cell * layers + 1.5) + 0.75)
    limit = max(float(np.abs(study.ablation).max()), 1e-9)
    in_brackets = ~study.is_significant()
    max_entropy = max(study.even_entropy, float(study.entropy.max()))
    max_distance = max(study.even_distance, float(study.distance.max()))
    figure = Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.14, h_pad=0.06)  # type: ignore[union-attr, call-arg]
    grid = figure.subplots(1, 3)
    _draw_grid(grid[0], study.entropy, WEIGHTS, (0.0, max_entropy), "{:.2f}")
    _draw_grid(grid[1], study.distance, WEIGHTS, (0.0, max_distance), "{:.1f}")
    _draw_grid(grid[2], study.ablation, "PuOr_r", (-limit, limit), "{:+.3f}", in_brackets)
    grid[0].set_title(f"Entropy, bits\nuniform attention: {study.even_entropy:.2f}", fontsize=10)
    grid[1].set_title(f"Mean distance, tokens\nuniform attention: {study.even_distance:.1f}", fontsize=10)
    rise = f"Rise of the loss without the head, nats\nloss with all heads: {study.loss:.3f}"
    grid[2].set_title(rise, fontsize=10)
    figure.suptitle(f"Attention heads{': ' * bool(study.title)}{study.title}", fontsize=12)
    note = " · in brackets: not significant" if in_brackets.any() else ""
    figure.supxlabel(f"{study.texts:,} texts, {study.answers:,} predictions{note}", fontsize=8.5, color=FAINT)
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
    for cell in np.ndindex(values.shape) if max(layers, heads) <= MAX_NUMBERED else ():
        red, green, blue, _ = image.to_rgba(values[cell])
        colour = LIGHT_TEXT if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else DARK_TEXT
        text = number_format.format(values[cell])
        if in_brackets is not None and in_brackets[cell]:
            text = f"({text})"
        axes.text(cell[1], cell[0], text, ha="center", va="center", fontsize=8.5, color=colour)
    for axis, name, count in ((axes.xaxis, "attention head", heads), (axes.yaxis, "layer", layers)):
        label_axis(axis, [str(number + 1) for number in range(count)], labelsize=9)
        axis.set_label_text(name, fontsize=9.5)
