"""Head ablation as three heat maps: entropy, mean distance, and rise of the loss without each head."""

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from headstart.evaluation.head_ablation import HeadAblation
from headstart.plots.heatmap import LIGHT_TEXT, WEIGHTS, draw_heatmap, label_axis, write_cells
from headstart.plots.style import FAINT, STYLE

MAX_NUMBERED = 12  # layers or attention heads up to which numbers are written into the cells


def draw_head_ablation(study: HeadAblation) -> Figure:
    """Three grids with a row for each layer and a column for each attention head."""
    layers, heads = study.entropy.shape
    cell = min(0.95, 9.0 / max(layers, heads))
    width, height = max(3.0, cell * heads + 1.1), max(2.2, 0.72 * cell * layers + 1.5)
    limit = max(float(np.abs(study.ablation).max()), 1e-9)
    in_brackets = ~study.is_significant()
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(
            figsize=(3 * width, height + 0.75), layout=ConstrainedLayoutEngine(w_pad=0.14, h_pad=0.06)
        )
        entropy, distance, ablation = figure.subplots(1, 3)
        limits = (0.0, max(study.even_entropy, float(study.entropy.max())))
        _draw_grid(entropy, study.entropy, WEIGHTS, limits, "{:.2f}")
        entropy.set_title(f"Entropy, bits\nuniform attention: {study.even_entropy:.2f}", fontsize=10)
        limits = (0.0, max(study.even_distance, float(study.distance.max())))
        _draw_grid(distance, study.distance, WEIGHTS, limits, "{:.1f}")
        distance.set_title(
            f"Mean distance, tokens\nuniform attention: {study.even_distance:.1f}", fontsize=10
        )
        diverging = matplotlib.colormaps["PuOr_r"]
        _draw_grid(ablation, study.ablation, diverging, (-limit, limit), "{:+.3f}", in_brackets)
        ablation.set_title(
            f"Rise of the loss without the head, nats\nloss with all heads: {study.loss:.3f}", fontsize=10
        )
        figure.suptitle(f"Attention heads{': ' * bool(study.title)}{study.title}", fontsize=12)
        note = " · in brackets: not significant" if in_brackets.any() else ""
        figure.supxlabel(
            f"{study.texts:,} texts, {study.answers:,} predictions{note}", fontsize=8.5, color=FAINT
        )
    return figure


def _draw_grid(
    axes: Axes,
    values: np.ndarray,
    cmap: Colormap,
    limits: tuple[float, float],
    number_format: str,
    in_brackets: np.ndarray | None = None,
) -> None:
    def text_of(layer: int, head: int) -> str:
        text = number_format.format(values[layer, head])
        return f"({text})" if in_brackets is not None and in_brackets[layer, head] else text

    image = draw_heatmap(axes, values, cmap, limits, aspect="auto", cell_lines=1.5, line_colour=LIGHT_TEXT)
    layers, heads = values.shape
    if max(layers, heads) <= MAX_NUMBERED:
        write_cells(axes, image, text_of)
    label_axis(axes.xaxis, [str(head + 1) for head in range(heads)], labelsize=9)
    label_axis(axes.yaxis, [str(layer + 1) for layer in range(layers)], labelsize=9)
    axes.set_xlabel("attention head", fontsize=9.5)
    axes.set_ylabel("layer", fontsize=9.5)
