"""Time and memory by sequence length and width, from the JSON-able form of the measurement."""

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headstart.plots.style import FAINT, INK, PALETTE, STYLE

COLOURS = {"self-attention": 0, "recurrence": 1, "convolution": 2, "attention block": 4}  # in PALETTE
DOTTED = (0, (1, 2))
SYMBOLS = {"length": "n", "width": "d"}


@matplotlib.rc_context(STYLE)
def draw_growth(content: Mapping[str, Any]) -> Figure:
    """Time above memory, by length and by width; dotted lines are the theoretical power laws through the largest size."""
    figure = Figure(figsize=(11, 8.2), layout="constrained")
    grid = figure.subplots(2, 2)
    for column, axis in enumerate(SYMBOLS):
        _draw_panel(grid[0, column], content, axis, "time", "seconds", "milliseconds", 1e3)
        _draw_panel(grid[1, column], content, axis, "memory", "peak_bytes", "MiB", 2**-20)
    own = grid[0, 0].lines[0]  # the time of self-attention
    for crossing in content["crossings"]:
        if crossing["is_measured"]:  # a ring where self-attention takes as long as another type
            at = np.log(crossing["length"])
            value = float(np.exp(np.interp(at, np.log(own.get_xdata()), np.log(own.get_ydata()))))
            grid[0, 0].plot(crossing["length"], value, "o", markersize=13, markerfacecolor="none", markeredgecolor=INK)
            text = f"n = {crossing['length'] / content['width']:.1f} d"
            grid[0, 0].annotate(text, (crossing["length"], value), (10, -16), textcoords="offset points", color=INK)
    return figure


def _draw_panel(
    axes: Axes, content: Mapping[str, Any], axis: str, what: str, value: str, unit: str, scale: float
) -> None:
    """One quantity by length or width; the legend has the measured exponents."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    other, symbol, is_time = "width" if axis == "length" else "length", SYMBOLS[axis], what == "time"
    types = {layer["name"]: layer for layer in content["theory"]}
    for growth in [row for row in content["growths"] if row["axis"] == axis]:
        name = growth["kind"]
        points = sorted((point[axis], point[value]) for point in content[f"{axis}s"] if point["kind"] == name)
        sizes, values = np.array(points, dtype=float).T
        colour, style = PALETTE[COLOURS[name]], "-" if types[name]["is_theory"] else "--"
        label = f"{name}, {symbol}^{growth[f'{what}_exponent']:.2f}"
        axes.plot(sizes, values * scale, "o", color=colour, linewidth=2, linestyle=style, markersize=4, label=label)
        if is_time and types[name]["is_theory"]:
            law = values[-1] * scale * (sizes / sizes[-1]) ** growth["theory"]
            axes.plot(sizes, law, color=colour, linewidth=1.4, linestyle=DOTTED)
    if is_time:
        axes.plot([], [], color=FAINT, linestyle=DOTTED, linewidth=1.6, label="theoretical power law")
    ticks = sorted({point[axis] for point in content[f"{axis}s"]})
    if ticks[0] <= content[other] <= ticks[-1]:
        axes.axvline(content[other], color=INK, linewidth=1, linestyle=(0, (6, 4)), alpha=0.6)
        axes.annotate("n = d", (content[other], 0.03), (4, 0), ("data", "axes fraction"), "offset points", color=INK)
    axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks], fontsize=9.5)
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(frameon=False, labelcolor="linecolor", fontsize=9.5)
    axes.set_title(f"{what if is_time else 'peak memory'} by {axis}, {SYMBOLS[other]} = {content[other]}")
    axes.set_xlabel("length n, tokens" if axis == "length" else "width d")
    axes.set_ylabel(f"{unit}, forward and backward" if is_time else unit)
