"""Hyperparameter search: the metric by trial, and against each searched setting."""

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from headstart.plots.style import FAINT, INK, PALETTE, STYLE

COLUMNS = 4


@matplotlib.rc_context(STYLE)
def draw_trials(search: Mapping[str, Any]) -> Figure:
    """The metric trial by trial, above a panel for each searched setting; `search` is the content of result.json."""
    rows = -(-len(search["search"]) // COLUMNS)
    figure = Figure(figsize=(9.0, 3.3 + 1.9 * rows), layout="constrained")
    grid = figure.add_gridspec(rows + 1, COLUMNS, height_ratios=[1.6, *[1.0] * rows])
    _draw_history(figure.add_subplot(grid[0, :]), search)
    for index, dim in enumerate(search["search"]):
        row, column = divmod(index, COLUMNS)
        axes = figure.add_subplot(grid[1 + row, column])
        _draw_setting(axes, search, dim.partition("=")[0], is_log=dim.endswith(":log"))
        axes.tick_params(labelsize=9, labelleft=column == 0)
    return figure


def _draw_history(axes: Axes, search: Mapping[str, Any]) -> None:
    trials, default = search["trials"], search["default"]
    if default["state"] == "finished":
        axes.axhline(default["value"], color=INK, linewidth=1.2, linestyle=(0, (3, 3)), label="default")
    numbers, values = np.array([(each["number"], each["value"]) for each in trials if each["state"] == "finished"]).T
    best = (np.maximum if search["direction"] == "maximize" else np.minimum).accumulate(values)
    x, best = np.append(numbers, trials[-1]["number"]), np.append(best, best[-1])
    axes.step(x, best, where="post", color=PALETTE[0], linewidth=2, label="best so far")
    axes.scatter(numbers, values, s=22, color=PALETTE[0], alpha=0.75, linewidth=0, label="finished")
    pruned = [each for each in trials if each["state"] == "pruned" and each["value"] is not None]
    if pruned:
        x, values = np.array([(each["number"], each["value"]) for each in pruned]).T
        axes.scatter(x, values, s=24, marker="x", color=FAINT, linewidth=1.4, label="pruned")
    axes.set(xlabel="trial", ylabel=search["metric"].replace("_", "-"))
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, borderaxespad=0.2)


def _draw_setting(axes: Axes, search: Mapping[str, Any], name: str, *, is_log: bool) -> None:
    """The metric of the finished trials against the values of one setting; a ring around the best trial."""
    finished, best = [trial for trial in search["trials"] if trial["state"] == "finished"], search["best"]
    is_number = all(type(trial["values"][name]) in (int, float) for trial in finished)

    def draw(trials: list[Mapping[str, Any]], **style: Any) -> None:
        values = [trial["values"][name] if is_number else str(trial["values"][name]) for trial in trials]
        axes.scatter(values, [trial["value"] for trial in trials], **style)

    draw(sorted(finished, key=lambda trial: str(trial["values"][name])), s=16, color=PALETTE[0], alpha=0.6, linewidth=0)
    draw([best], s=70, facecolors="none", edgecolors=PALETTE[1], linewidth=1.8)
    if is_number and is_log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(10, numticks=4))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif is_number:
        axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.margins(0.12)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.set_title(name, fontsize=9.5)
