"""Heat map: the one helper behind attention maps, masks, position vectors and head ablation."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.image import AxesImage

from headstart.plots.style import INK

DARK_TEXT, LIGHT_TEXT = "#11151c", "#fdfdfe"  # not the style's colours, which a dark page replaces
MASKED = "#e9ecf1"  # a key that the mask hides from the query; an allowed key of weight 0 is white
WEIGHTS = LinearSegmentedColormap.from_list(
    "weights", ["#ffffff", "#a9d3ec", "#0072b2", "#00304d"]
).with_extremes(bad=MASKED)


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
    image = axes.imshow(
        values,
        cmap=cmap,
        vmin=limits[0],
        vmax=limits[1],
        aspect=aspect,
        origin=origin,
        interpolation="nearest",
    )
    axes.grid(False)
    if cell_lines:
        axes.tick_params(which="both", length=0)
        rows, columns = values.shape
        axes.set_xticks(np.arange(0.5, columns - 1), minor=True)
        axes.set_yticks(np.arange(0.5, rows - 1), minor=True)
        axes.grid(which="minor", color=line_colour, linewidth=cell_lines, alpha=1)
    return image


def write_cells(axes: Axes, image: AxesImage, text_of: Callable[[int, int], str]) -> None:
    """Write `text_of(row, column)` into each cell, in a colour that is readable on it."""
    values = np.ma.getdata(image.get_array())  # type: ignore[arg-type]
    for row, column in np.ndindex(values.shape):
        red, green, blue, _ = image.to_rgba(values[row, column])
        is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.55
        axes.text(
            column,
            row,
            text_of(row, column),
            ha="center",
            va="center",
            fontsize=8.5,
            color=LIGHT_TEXT if is_dark else DARK_TEXT,
        )


def label_axis(axis: Any, names: Sequence[str], *, step: int = 1, **params: Any) -> None:
    """Name every `step`-th row or column."""
    positions = list(range(0, len(names), step))
    axis.set_ticks(positions, [names[position] for position in positions])
    axis.set_tick_params(length=0, **{"labelcolor": INK, **params})
