"""A search as a table and as a picture: how the trials went, and what each setting had to do with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from rich import box
from rich.markup import escape
from rich.table import Table

from headstart.views.figure import FAINT, INK, PALETTE, STYLE

COLUMNS = 4
SHOWN = 10  # trials in the table


@dataclass(frozen=True)
class Setting:
    """One searched setting: its value in each finished trial."""

    name: str
    values: list[Any]
    is_log: bool


@dataclass(frozen=True)
class TrialsData:
    """What each trial found."""

    metric: str
    is_higher_better: bool
    last: int  # the number of the last trial, however it ended
    numbers: np.ndarray  # (finished,)
    marks: np.ndarray
    best_so_far: np.ndarray
    pruned: np.ndarray  # (pruned, 2): number, last mark
    standing: float | None  # the mark of the settings as they stood
    settings: list[Setting]


def trials_data(content: Mapping[str, Any]) -> TrialsData:
    """A search as numbers to draw; `content` is what result.json holds."""
    higher = content["direction"] == "maximize"
    finished = [trial for trial in content["trials"] if trial["state"] == "finished"]
    given_up = [
        (trial["number"], trial["value"])
        for trial in content["trials"]
        if trial["state"] == "pruned" and trial["value"] is not None
    ]
    marks = np.array([trial["value"] for trial in finished], dtype=float)
    best = np.maximum.accumulate(marks) if higher else np.minimum.accumulate(marks)
    logs = {words.partition("=")[0] for words in content["search"] if words.endswith(":log")}
    names = [words.partition("=")[0] for words in content["search"]]
    return TrialsData(
        metric=content["metric"],
        is_higher_better=higher,
        last=content["trials"][-1]["number"],
        numbers=np.array([trial["number"] for trial in finished], dtype=int),
        marks=marks,
        best_so_far=best,
        pruned=np.array(given_up, dtype=float).reshape(-1, 2),
        standing=content["standing"]["value"] if content["standing"]["state"] == "finished" else None,
        settings=[Setting(name, [t["values"][name] for t in finished], name in logs) for name in names],
    )


def draw_trials(data: TrialsData) -> Figure:
    """The marks trial by trial above, and below them a panel for each setting that was searched."""
    rows = -(-len(data.settings) // COLUMNS)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 3.3 + 1.9 * rows), layout="constrained")
        grid = figure.add_gridspec(rows + 1, COLUMNS, height_ratios=[1.6, *[1.0] * rows])
        _draw_marks(figure.add_subplot(grid[0, :]), data)
        for place, setting in enumerate(data.settings):
            axes = figure.add_subplot(grid[1 + place // COLUMNS, place % COLUMNS])
            _draw_setting(axes, setting, data, has_label=place % COLUMNS == 0)
    return figure


def _draw_marks(axes: Axes, data: TrialsData) -> None:
    if data.standing is not None:
        axes.axhline(data.standing, color=INK, linewidth=1.2, linestyle=(0, (3, 3)))
        axes.annotate("as it stood", (1, data.standing), xycoords=("axes fraction", "data"), xytext=(-4, 3),
                      textcoords="offset points", ha="right", color=INK, fontsize=9)  # fmt: skip
    x, best = np.append(data.numbers, data.last), np.append(data.best_so_far, data.best_so_far[-1:])
    axes.step(x[: len(best)], best, where="post", color=PALETTE[0], linewidth=2, label="best so far")
    axes.scatter(data.numbers, data.marks, s=22, color=PALETTE[0], alpha=0.75, linewidth=0, label="finished")
    if len(data.pruned):
        numbers, marks = data.pruned.T
        axes.scatter(numbers, marks, s=24, marker="x", color=FAINT, linewidth=1.4, label="given up early")
    axes.set_xlabel("trial")
    axes.set_ylabel(data.metric.replace("_", "-"))
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.legend(
        frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0.2
    )


def _draw_setting(axes: Axes, setting: Setting, data: TrialsData, has_label: bool) -> None:
    """Marks against the values of one setting; the best trial is ringed."""
    is_number = all(isinstance(v, int | float) and not isinstance(v, bool) for v in setting.values)
    known = sorted({str(value) for value in setting.values})
    x = np.array([v if is_number else known.index(str(v)) for v in setting.values], dtype=float)
    axes.scatter(x, data.marks, s=16, color=PALETTE[0], alpha=0.6, linewidth=0)
    if len(x):
        best = int(data.marks.argmax() if data.is_higher_better else data.marks.argmin())
        axes.scatter(x[best], data.marks[best], s=70, facecolors="none", edgecolors=PALETTE[1], linewidth=1.8)
    if not is_number:
        axes.set_xticks(range(len(known)), known)
    elif setting.is_log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(10, numticks=4))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.margins(0.12)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=9, labelleft=has_label)
    axes.set_title(setting.name, fontsize=9.5)


def trials_table(content: Mapping[str, Any]) -> Table:
    """The best trials, each with the values that were searched; settings are the rows, for a narrow terminal."""
    sign = -1 if content["direction"] == "maximize" else 1
    finished = [trial for trial in content["trials"] if trial["state"] == "finished"]
    best = sorted(finished, key=lambda trial: sign * trial["value"])[:SHOWN]
    shown = best[:4] if content["standing"] in best[:4] else [*best[:4], content["standing"]]
    count = {
        state: sum(t["state"] == state for t in content["trials"])
        for state in ("finished", "pruned", "failed")
    }
    title = ", ".join(f"{number} {state}" for state, number in count.items() if number)
    table = Table(
        title=f"trials: {title}",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("trial", no_wrap=True)
    for trial in shown:
        is_first = trial["number"] == content["standing"]["number"]
        table.add_column(f"{trial['number']}{' stood' if is_first else ''}", justify="right", no_wrap=True)
    table.add_row(escape(content["metric"]), *(_short(trial["value"]) for trial in shown), style="bold")
    for words in content["search"]:
        name = words.partition("=")[0]
        table.add_row(escape(name), *(escape(_short(trial["values"][name])) for trial in shown))
    return table


def _short(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
