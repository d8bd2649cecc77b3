"""Hyperparameter search: the metric by trial, and against each searched setting."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from headstart.plots.style import FAINT, INK, PALETTE, STYLE

COLUMNS = 4


@dataclass(frozen=True)
class TrialsData:
    """The metric of each trial."""

    metric: str
    numbers: np.ndarray  # (finished,)
    values: np.ndarray
    best_so_far: np.ndarray
    pruned: np.ndarray  # (pruned, 2): number, last value
    last: int  # the number of the last trial, finished or not
    default: float | None  # the value of the default settings
    settings: dict[str, list[Any]]  # each searched setting: its value in each finished trial
    log_settings: set[str]


def trials_data(content: Mapping[str, Any]) -> TrialsData:
    """The data of the figure; `content` is the search's result.json."""
    trials, default = content["trials"], content["default"]
    finished = [trial for trial in trials if trial["state"] == "finished"]
    pruned = [trial for trial in trials if trial["state"] == "pruned" and trial["value"] is not None]
    values = np.array([trial["value"] for trial in finished], dtype=float)
    best = np.maximum if content["direction"] == "maximize" else np.minimum
    names = [dim.partition("=")[0] for dim in content["search"]]
    return TrialsData(
        metric=content["metric"],
        numbers=np.array([trial["number"] for trial in finished], dtype=int),
        values=values,
        best_so_far=best.accumulate(values),
        pruned=np.array([(trial["number"], trial["value"]) for trial in pruned]).reshape(-1, 2),
        last=trials[-1]["number"],
        default=default["value"] if default["state"] == "finished" else None,
        settings={name: [trial["values"][name] for trial in finished] for name in names},
        log_settings={dim.partition("=")[0] for dim in content["search"] if dim.endswith(":log")},
    )


def draw_trials(data: TrialsData) -> Figure:
    """The metric trial by trial, above a panel for each searched setting."""
    rows = -(-len(data.settings) // COLUMNS)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 3.3 + 1.9 * rows), layout="constrained")
        grid = figure.add_gridspec(rows + 1, COLUMNS, height_ratios=[1.6, *[1.0] * rows])
        _draw_history(figure.add_subplot(grid[0, :]), data)
        for index, name in enumerate(data.settings):
            row, column = divmod(index, COLUMNS)
            axes = figure.add_subplot(grid[1 + row, column])
            _draw_setting(axes, name, data)
            axes.tick_params(labelsize=9, labelleft=column == 0)
    return figure


def _draw_history(axes: Axes, data: TrialsData) -> None:
    if data.default is not None:
        axes.axhline(data.default, color=INK, linewidth=1.2, linestyle=(0, (3, 3)))
        axes.annotate("default", (1, data.default), (-4, 3), ("axes fraction", "data"), "offset points",
                      ha="right", color=INK, fontsize=9)  # fmt: skip
    x, best = np.append(data.numbers, data.last), np.append(data.best_so_far, data.best_so_far[-1:])
    axes.step(x[: len(best)], best, where="post", color=PALETTE[0], linewidth=2, label="best so far")
    axes.scatter(data.numbers, data.values, s=22, color=PALETTE[0], alpha=0.75, linewidth=0, label="finished")
    if len(data.pruned):
        axes.scatter(data.pruned[:, 0], data.pruned[:, 1], s=24, marker="x", color=FAINT, linewidth=1.4, label="pruned")
    axes.set(xlabel="trial", ylabel=data.metric.replace("_", "-"))
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0.2)


def _draw_setting(axes: Axes, name: str, data: TrialsData) -> None:
    """The metric against the values of one setting; a ring around the best trial."""
    values = data.settings[name]
    is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    known = sorted({str(value) for value in values})
    x = np.array([value if is_number else known.index(str(value)) for value in values], dtype=float)
    axes.scatter(x, data.values, s=16, color=PALETTE[0], alpha=0.6, linewidth=0)
    best = data.values == data.best_so_far[-1:]
    axes.scatter(x[best][:1], data.values[best][:1], s=70, facecolors="none", edgecolors=PALETTE[1], linewidth=1.8)
    if not is_number:
        axes.set_xticks(range(len(known)), known)
    elif name in data.log_settings:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(10, numticks=4))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.margins(0.12)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.set_title(name, fontsize=9.5)
