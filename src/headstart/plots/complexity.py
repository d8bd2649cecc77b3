"""Time and memory by sequence length and width, from the JSON-able form of the measurement."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headstart.plots.style import FAINT, INK, PALETTE, PAPER, STYLE

COLOURS = {"self-attention": 0, "recurrence": 1, "convolution": 2, "attention block": 4}  # in PALETTE
DOTTED = (0, (1, 2))
LABEL_GAP = 0.055  # of the axis, between the exponents beside the last points


@dataclass(frozen=True)
class Line:
    """One layer type along one axis: measurements, and the theoretical power law through the last point."""

    name: str
    colour: str
    sizes: np.ndarray
    values: np.ndarray
    theory: np.ndarray
    exponent: float
    is_theory: bool  # a row of the table in Vaswani et al. (2017)


@dataclass(frozen=True)
class GrowthPanel:
    """Time or memory along one axis."""

    title: str
    axis: str  # "length" or "width"
    unit: str
    lines: list[Line]
    crossing: float  # where n = d
    crossings: list[float]  # lengths from which self-attention was measured to take longer than another type


def growth_panels(content: Mapping[str, Any]) -> list[GrowthPanel]:
    """Time by length, time by width, memory by length, memory by width."""
    panels = []
    for what, value, scale, unit in (
        ("time", "seconds", 1e3, "milliseconds"),
        ("peak memory", "peak_bytes", 2**-20, "MiB"),
    ):
        for axis, other, symbol in (("length", "width", "d"), ("width", "length", "n")):
            measured = {point["kind"] for point in content[f"{axis}s"]}
            types = [layer for layer in content["theory"] if layer["name"] in measured]
            is_time_by_length = (what, axis) == ("time", "length")
            crossings = [each["length"] for each in content["crossings"] if each["is_measured"]]
            panels.append(
                GrowthPanel(
                    f"{what} by {axis}, {symbol} = {content[other]}",
                    axis,
                    unit,
                    [_line(content, layer, axis, value, scale) for layer in types],
                    float(content[other]),
                    crossings if is_time_by_length else [],
                )
            )
    return panels


def _line(content: Mapping[str, Any], layer: Mapping[str, Any], axis: str, value: str, scale: float) -> Line:
    name = layer["name"]
    points = [point for point in content[f"{axis}s"] if point["kind"] == name]
    points.sort(key=lambda point: point[axis])
    sizes = np.array([point[axis] for point in points], dtype=float)
    values = np.array([point[value] for point in points], dtype=float) * scale
    growth = next(row for row in content["growths"] if row["kind"] == name and row["axis"] == axis)
    exponent = growth["time_exponent" if value == "seconds" else "memory_exponent"]
    theory = values[-1] * (sizes / sizes[-1]) ** growth["theory"]
    return Line(name, PALETTE[COLOURS[name]], sizes, values, theory, exponent, layer["is_theory"])


def draw_growth(content: Mapping[str, Any]) -> Figure:
    """Four panels on logarithmic axes; dotted lines are the theoretical power laws through the largest size."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 8.2), layout="constrained")
        grid = figure.subplots(2, 2).ravel()
        for axes, panel in zip(grid, growth_panels(content), strict=True):
            _draw_panel(axes, panel)
        grid[0].plot([], [], color=FAINT, linestyle=DOTTED, linewidth=1.6, label="theoretical power law")
        handles, names = grid[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False)
    return figure


def _draw_panel(axes: Axes, panel: GrowthPanel) -> None:
    is_time, symbol = panel.unit == "milliseconds", "n" if panel.axis == "length" else "d"
    for line in panel.lines:
        style: Any = "-" if line.is_theory else (0, (4, 2))
        axes.plot(line.sizes, line.values, "o", color=line.colour, linewidth=2, linestyle=style, markersize=4,
                  label=line.name)  # fmt: skip
        if is_time and line.is_theory:
            axes.plot(line.sizes, line.theory, color=line.colour, linewidth=1.4, linestyle=DOTTED)
    ticks = panel.lines[0].sizes
    low = min(float(line.values.min()) for line in panel.lines) / 1.6
    high = max(float(line.values.max()) for line in panel.lines) * 1.6
    span = float(ticks[-1] / ticks[0])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks], fontsize=9.5)
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(low, high)
    axes.set_xlim(ticks[0] / span**0.03, ticks[-1] * span**0.17)  # room on the right for the exponents
    height = -1.0
    for line in sorted(panel.lines, key=lambda line: float(line.values[-1])):  # exponents without overlap
        height = max(float(np.log(line.values[-1] / low) / np.log(high / low)), height + LABEL_GAP)
        _annotate(axes, f"{symbol}^{line.exponent:.2f}", ticks[-1], height, line.colour, (9, 0), va="center")
    if ticks[0] <= panel.crossing <= ticks[-1]:
        axes.axvline(panel.crossing, color=INK, linewidth=1, linestyle=(0, (6, 4)), alpha=0.6)
        _annotate(axes, "n = d", panel.crossing, 0.97, INK, (4, 0), va="top")
    own = panel.lines[0]
    for length in panel.crossings:  # a ring where self-attention takes as long as another type
        value = float(np.exp(np.interp(np.log(length), np.log(own.sizes), np.log(own.values))))
        axes.plot(length, value, "o", markersize=13, markerfacecolor="none", markeredgecolor=INK)
        box = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.85, "pad": 1}
        text = f"n = {length / panel.crossing:.1f} d"
        axes.annotate(text, (length, value), (10, -16), textcoords="offset points", color=INK, bbox=box)
    axes.set_title(panel.title)
    axes.set_xlabel("length n, tokens" if panel.axis == "length" else "width d")
    axes.set_ylabel(f"{panel.unit}, forward and backward" if is_time else panel.unit)


def _annotate(
    axes: Axes, text: str, x: float, height: float, colour: str, offset: tuple[float, float], va: str
) -> None:
    """Text at a size `x` and a height in fractions of the axis, moved by `offset` points."""
    axes.annotate(text, (x, height), offset, ("data", "axes fraction"), "offset points", va=va, color=colour)
