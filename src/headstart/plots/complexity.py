"""Time and memory by sequence length and width, from the JSON-able form of the measurement."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headstart.plots.style import FAINT, INK, PALETTE, PAPER, STYLE

COLOURS = {
    "self-attention": PALETTE[0],
    "recurrence": PALETTE[1],
    "convolution": PALETTE[2],
    "attention block": PALETTE[4],
}


@dataclass(frozen=True)
class Line:
    """One layer type along one axis: measurements, and the theoretical power law through the last point."""

    name: str
    colour: str
    sizes: np.ndarray
    values: np.ndarray
    theory: np.ndarray
    exponent: float
    theory_exponent: float
    is_dashed: bool  # not a row of the table in Vaswani et al. (2017)


@dataclass(frozen=True)
class GrowthPanel:
    """Time or memory along one axis."""

    title: str
    axis: str
    unit: str
    lines: list[Line]
    crossing: float  # where n = d
    crossings: list[float]  # lengths from which self-attention was measured to take longer than another type


def growth_panels(content: Mapping[str, Any]) -> list[GrowthPanel]:
    """Time by length, time by width, memory by length, memory by width."""
    panels = []
    for value, scale, unit in (("seconds", 1e3, "milliseconds"), ("peak_bytes", 2**-20, "MiB")):
        for axis, sweep, fixed in (
            ("length", "lengths", f"d = {content['width']}"),
            ("width", "widths", f"n = {content['length']}"),
        ):
            lines = [
                _line(content, kind, axis, sweep, value, scale)
                for kind in content["theory"]
                if any(point["kind"] == kind["name"] for point in content[sweep])
            ]
            what = "time" if value == "seconds" else "peak memory"
            crossing = content["width"] if axis == "length" else content["length"]
            crossings = _crossings(content) if (value, axis) == ("seconds", "length") else []
            panels.append(
                GrowthPanel(f"{what} by {axis}, {fixed}", axis, unit, lines, float(crossing), crossings)
            )
    return panels


def _crossings(content: Mapping[str, Any]) -> list[float]:
    return [crossing["length"] for crossing in content["crossings"] if crossing["is_measured"]]


def _line(
    content: Mapping[str, Any], kind: Mapping[str, Any], axis: str, sweep: str, value: str, scale: float
) -> Line:
    own = [point for point in content[sweep] if point["kind"] == kind["name"]]
    own.sort(key=lambda point: point[axis])
    sizes = np.array([point[axis] for point in own], dtype=float)
    values = np.array([point[value] for point in own], dtype=float) * scale
    growth = next(row for row in content["growths"] if row["kind"] == kind["name"] and row["axis"] == axis)
    exponent = growth["time_slope" if value == "seconds" else "memory_slope"]
    theory = values[-1] * (sizes / sizes[-1]) ** growth["theory"]
    return Line(
        kind["name"], COLOURS.get(kind["name"], INK), sizes, values, theory, exponent, growth["theory"],
        not kind["is_theory"],
    )  # fmt: skip


def draw_growth(content: Mapping[str, Any]) -> Figure:
    """Four panels on logarithmic axes; dotted lines are the theoretical power laws through the largest size."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 8.2), layout="constrained")
        grid = figure.subplots(2, 2).ravel()
        for axes, panel in zip(grid, growth_panels(content), strict=True):
            _draw_panel(axes, panel)
        handles, names = grid[0].get_legend_handles_labels()
        dotted = matplotlib.lines.Line2D([], [], color=FAINT, linestyle=(0, (1, 2)), linewidth=1.6)
        figure.legend(
            [*handles, dotted],
            [*names, "theoretical power law"],
            loc="outside lower center",
            ncols=5,
            frameon=False,
        )
    return figure


def _draw_panel(axes: Axes, panel: GrowthPanel) -> None:
    is_time = panel.unit == "milliseconds"
    for line in panel.lines:
        style = (0, (4, 2)) if line.is_dashed else "-"
        axes.plot(
            line.sizes, line.values, color=line.colour, linewidth=2, linestyle=style, marker="o", markersize=4,
            label=line.name,
        )  # fmt: skip
        if is_time and not line.is_dashed:
            axes.plot(line.sizes, line.theory, color=line.colour, linewidth=1.4, linestyle=(0, (1, 2)))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = panel.lines[0].sizes
    axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks], fontsize=9.5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xticks([], minor=True)
    low = min(float(line.values.min()) for line in panel.lines)
    high = max(float(line.values.max()) for line in panel.lines)
    axes.set_ylim(low / 1.6, high * 1.6)
    span = float(ticks[-1] / ticks[0])
    axes.set_xlim(ticks[0] / span**0.03, ticks[-1] * span**0.17)  # room on the right for the exponents
    for line, height in zip(panel.lines, _label_positions(panel, low / 1.6, high * 1.6), strict=True):
        exponent = f"{'n' if panel.axis == 'length' else 'd'}^{line.exponent:.2f}"
        axes.annotate(
            exponent, (ticks[-1], height), xycoords=("data", "axes fraction"), xytext=(9, 0),
            textcoords="offset points", ha="left", va="center", color=line.colour, fontsize=10, fontweight="bold",
        )  # fmt: skip
    if ticks[0] <= panel.crossing <= ticks[-1]:
        axes.axvline(panel.crossing, color=INK, linewidth=1, linestyle=(0, (6, 4)), alpha=0.6)
        axes.annotate(
            "n = d", (panel.crossing, 0.97), xycoords=("data", "axes fraction"), xytext=(4, 0),
            textcoords="offset points", va="top", fontsize=10, color=INK,
        )  # fmt: skip
    _draw_crossings(axes, panel)
    axes.set_title(panel.title)
    axes.set_xlabel("length n, tokens" if panel.axis == "length" else "width d")
    axes.set_ylabel(f"{panel.unit}, forward and backward" if is_time else panel.unit)


def _draw_crossings(axes: Axes, panel: GrowthPanel) -> None:
    """Rings where self-attention was measured to take as long as another type."""
    own = panel.lines[0]
    for length in panel.crossings:
        height = float(np.exp(np.interp(np.log(length), np.log(own.sizes), np.log(own.values))))
        axes.plot(
            length,
            height,
            marker="o",
            markersize=13,
            markerfacecolor="none",
            markeredgecolor=INK,
            linestyle="",
        )
        axes.annotate(
            f"n = {length / panel.crossing:.1f} d", (length, height), xytext=(10, -16),
            textcoords="offset points", fontsize=10, color=INK,
            bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.85, "pad": 1},
        )  # fmt: skip


def _label_positions(panel: GrowthPanel, low: float, high: float) -> list[float]:
    """Heights of the exponents beside the last points, as fractions of the axis, without overlap."""
    last_points = np.array([line.values[-1] for line in panel.lines])
    heights = np.log(last_points / low) / np.log(high / low)
    previous = -1.0
    for index in np.argsort(heights):
        heights[index] = previous = max(float(heights[index]), previous + 0.055)
    return [float(height) for height in heights]
