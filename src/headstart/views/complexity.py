"""Growth with length and width as a table and as a picture, from the result's JSON-able form."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.markup import escape
from rich.table import Table

from headstart.views.figure import FAINT, INK, PALETTE, PAPER, STYLE

COLOURS = {
    "self-attention": PALETTE[0],
    "recurrence": PALETTE[1],
    "convolution": PALETTE[2],
    "attention block": PALETTE[4],
}


@dataclass(frozen=True)
class Line:
    """One kind along one axis: what was measured, and theory's power drawn through the last point."""

    name: str
    colour: str
    sizes: np.ndarray
    values: np.ndarray
    theory: np.ndarray
    slope: float
    theory_slope: float
    is_dashed: bool  # not a row of the published table


@dataclass(frozen=True)
class GrowthPanel:
    """One panel: time or memory along one axis, with what is worth pointing at."""

    title: str
    axis: str
    unit: str
    lines: list[Line]
    crossing: float  # where n = d
    meetings: list[float]  # lengths at which self-attention was measured to pass another kind


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
            met = _meetings(content) if (value, axis) == ("seconds", "length") else []
            panels.append(GrowthPanel(f"{what} by {axis}, {fixed}", axis, unit, lines, float(crossing), met))
    return panels


def _meetings(content: Mapping[str, Any]) -> list[float]:
    return [crossing["length"] for crossing in content["crossings"] if crossing["is_measured"]]


def _line(
    content: Mapping[str, Any], kind: Mapping[str, Any], axis: str, sweep: str, value: str, scale: float
) -> Line:
    own = [point for point in content[sweep] if point["kind"] == kind["name"]]
    own.sort(key=lambda point: point[axis])
    sizes = np.array([point[axis] for point in own], dtype=float)
    values = np.array([point[value] for point in own], dtype=float) * scale
    growth = next(row for row in content["growths"] if row["kind"] == kind["name"] and row["axis"] == axis)
    slope = growth["time_slope" if value == "seconds" else "memory_slope"]
    theory = values[-1] * (sizes / sizes[-1]) ** growth["theory"]
    return Line(
        kind["name"], COLOURS.get(kind["name"], INK), sizes, values, theory, slope, growth["theory"],
        not kind["is_theory"],
    )  # fmt: skip


def draw_growth(content: Mapping[str, Any]) -> Figure:
    """Four panels on logarithmic axes; thin dotted lines are theory, drawn through the largest size."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 8.2), layout="constrained")
        grid = figure.subplots(2, 2).ravel()
        for axes, panel in zip(grid, growth_panels(content), strict=True):
            _draw_panel(axes, panel)
        handles, names = grid[0].get_legend_handles_labels()
        dotted = matplotlib.lines.Line2D([], [], color=FAINT, linestyle=(0, (1, 2)), linewidth=1.6)
        figure.legend(
            [*handles, dotted],
            [*names, "power in theory"],
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
    reach = float(ticks[-1] / ticks[0])
    axes.set_xlim(ticks[0] / reach**0.03, ticks[-1] * reach**0.17)  # room on the right for the powers
    for line, place in zip(panel.lines, _places(panel, low / 1.6, high * 1.6), strict=True):
        words = f"{'n' if panel.axis == 'length' else 'd'}^{line.slope:.2f}"
        axes.annotate(
            words, (ticks[-1], place), xycoords=("data", "axes fraction"), xytext=(9, 0),
            textcoords="offset points", ha="left", va="center", color=line.colour, fontsize=10, fontweight="bold",
        )  # fmt: skip
    if ticks[0] <= panel.crossing <= ticks[-1]:
        axes.axvline(panel.crossing, color=INK, linewidth=1, linestyle=(0, (6, 4)), alpha=0.6)
        axes.annotate(
            "n = d", (panel.crossing, 0.97), xycoords=("data", "axes fraction"), xytext=(4, 0),
            textcoords="offset points", va="top", fontsize=10, color=INK,
        )  # fmt: skip
    _draw_meetings(axes, panel)
    axes.set_title(panel.title)
    axes.set_xlabel("length n, tokens" if panel.axis == "length" else "width d")
    axes.set_ylabel(f"{panel.unit}, forward and backward" if is_time else panel.unit)


def _draw_meetings(axes: Axes, panel: GrowthPanel) -> None:
    """Rings where self-attention was measured to pass another kind."""
    own = panel.lines[0]
    for length in panel.meetings:
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


def _places(panel: GrowthPanel, low: float, high: float) -> list[float]:
    """Heights for the powers beside the last points, as shares of the axis, moved apart where they would touch."""
    reach = np.log(high / low)
    wanted = [float(np.log(line.values[-1] / low) / reach) for line in panel.lines]
    order = np.argsort(wanted)
    placed, last = dict[int, float](), -1.0
    for index in order:
        last = max(wanted[index], last + 0.055)
        placed[int(index)] = last
    return [placed[index] for index in range(len(wanted))]


def complexity_tables(content: Mapping[str, Any]) -> list[Table]:
    """Theory, then the powers measured beside it."""
    theory = _table("in theory", ["kind", "operations", "sequential steps", "longest path"])
    for kind in content["theory"]:
        theory.add_row(escape(kind["name"]), kind["operations"], kind["sequential"], kind["path"])
    found = _table(
        f"measured: {content['machine']}", ["kind", "along", "power in theory", "of time", "of memory"]
    )
    for row in content["growths"]:
        along = f"{row['axis']} {'n' if row['axis'] == 'length' else 'd'}"
        found.add_row(
            row["kind"], along, f"{row['theory']:g}", f"{row['time_slope']:.2f}", f"{row['memory_slope']:.2f}"
        )
    times = _table(
        f"milliseconds forward + backward at d = {content['width']}",
        ["length n", *(kind["name"] for kind in content["theory"])],
    )
    for length in sorted({point["length"] for point in content["lengths"]}):
        own = {point["kind"]: point for point in content["lengths"] if point["length"] == length}
        cells = (
            f"{own[kind['name']]['forward'] * 1e3:.2f} + {own[kind['name']]['backward'] * 1e3:.2f}"
            for kind in content["theory"]
        )
        times.add_row(f"{length:,}", *cells)
    return [theory, found, times]


def crossing_lines(content: Mapping[str, Any]) -> list[str]:
    """Where self-attention begins to cost more than the others, in words."""
    width = content["width"]
    lines = [
        f"in theory n²·d passes n·d² at n = d, here {width:,}; with the constants of these layers"
        " (4·n²·d against 16·n·d² and 6·n·d²) at 4 d for recurrence and 1.5 d for convolution:"
    ]
    for crossing in content["crossings"]:
        if crossing["length"] is None or not np.isfinite(crossing["length"]):
            lines.append(f"  {crossing['other']}: no crossing within reach")
            continue
        how = "measured" if crossing["is_measured"] else "by the fitted lines, beyond the sweep"
        lines.append(
            f"  self-attention takes longer than {crossing['other']} from n ≈ {crossing['length']:,.0f}"
            f" = {crossing['length'] / width:.1f} d ({how})"
        )
    return lines


def _table(title: str, columns: list[str]) -> Table:
    table = Table(
        title=escape(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table
