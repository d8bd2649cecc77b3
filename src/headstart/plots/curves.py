"""Learning curves, label efficiency and reliability diagrams: data first, then figures."""

from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headstart.plots.style import FAINT, INK, STYLE, arm_colours, truncate
from headstart.results import Comparison, SeedResult, VariantResult

BINS = 10
MAX_NAME = 20  # characters


@dataclass(frozen=True)
class Band:
    """One arm's values along an axis: the mean between a lower and an upper bound."""

    name: str
    colour: str
    x: np.ndarray  # (points,)
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    is_classical: bool = False  # drawn dashed

    @property
    def label(self) -> str:
        """Its entry in a legend: name and last value."""
        return f"{truncate(self.name, MAX_NAME)} {self.mean[-1]:.3f}"


@dataclass(frozen=True)
class Panel:
    """One arm's predictions by confidence, without empty bins."""

    name: str
    colour: str
    confidence: np.ndarray  # (bins,) mean in each
    accuracy: np.ndarray
    share: np.ndarray  # of all predictions
    error: float  # expected calibration error, mean over seeds


@dataclass(frozen=True)
class CurveData:
    """Validation accuracy by epoch: a line for each arm that trains in epochs, a level for each other."""

    labels: int
    epochs: float
    target: float
    lines: list[Band]
    levels: list[Band]  # one point each

    @property
    def end(self) -> float:
        """The last epoch of any line."""
        return max([self.epochs, *(float(line.x[-1]) for line in self.lines)])

    @property
    def shorter(self) -> list[Band]:
        """The lines that end before the last epoch."""
        return [line for line in self.lines if line.x[-1] < self.end]


def accuracy_curves(comparison: Comparison, labels: int | None = None) -> CurveData:
    """Each arm's validation accuracy by epoch at one label budget (default: the largest), over all seeds."""
    budget = max(comparison.label_budgets) if labels is None else labels
    colours = _colours(comparison)
    lines, levels = list[Band](), list[Band]()
    for arm in comparison.arms:
        if arm.labels != budget or not arm.results or arm.kind == "ensemble":  # evaluated once, at the end
            continue
        is_line = arm.kind != "classical" and all(len(result.curve) > 1 for result in arm.results)
        if is_line:
            x, values = _on_one_grid(arm.results)
        else:
            last = [result.curve[-1].accuracy if result.curve else result.accuracy for result in arm.results]
            x, values = np.zeros(1), np.array(last)[:, None]
        mean, low, high = values.mean(axis=0), values.min(axis=0), values.max(axis=0)
        (lines if is_line else levels).append(Band(arm.name, colours[arm.name], x, mean, low, high))
    return CurveData(budget, comparison.epochs, comparison.target_accuracy, lines, levels)


def label_efficiency(comparison: Comparison) -> list[Band]:
    """Each arm's accuracy by number of labels with 95 % intervals; nothing when there is one budget only."""
    if len(set(comparison.label_budgets)) < 2:
        return []
    lines = []
    for name, colour in _colours(comparison).items():
        arms = sorted((arm for arm in comparison.arms if arm.name == name), key=lambda arm: arm.labels)
        mean, low, high = np.array([(a.accuracy.mean, a.accuracy.low, a.accuracy.high) for a in arms]).T
        low, high = np.where(np.isnan(low), mean, low), np.where(np.isnan(high), mean, high)
        x, is_classical = np.array([arm.labels for arm in arms], dtype=float), arms[0].kind == "classical"
        lines.append(Band(name, colour, x, mean, low, high, is_classical))
    return lines


def reliability(comparison: Comparison) -> list[Panel]:
    """Accuracy by confidence for each arm at the largest label budget, all seeds pooled."""
    budget = max(comparison.label_budgets)
    colours, truth = _colours(comparison), np.array(comparison.truth)
    arms = [arm for arm in comparison.arms if arm.labels == budget and arm.results]
    return [_panel(arm, colours[arm.name], truth) for arm in arms]


@matplotlib.rc_context(STYLE)
def draw_curves(data: CurveData) -> Figure:
    """Lines by epoch with a band over the seeds, dotted after their end; an arm without epochs is a dashed level."""
    figure, axes = _canvas("epoch", "validation accuracy")
    for band in sorted([*data.lines, *data.levels], key=lambda band: -band.mean[-1]):
        if len(band.x) == 1:
            axes.axhspan(band.low[0], band.high[0], color=band.colour, alpha=0.12, linewidth=0)
            axes.axhline(band.mean[0], color=band.colour, linewidth=1.8, linestyle=(0, (5, 3)), label=band.label)
            continue
        axes.fill_between(band.x, band.low, band.high, color=band.colour, alpha=0.16, linewidth=0)
        axes.plot(band.x, band.mean, color=band.colour, linewidth=2.2, marker="o", markersize=3.5, label=band.label)
        if band in data.shorter:
            last = [band.mean[-1], band.mean[-1]]
            axes.plot([band.x[-1], data.end], last, color=band.colour, linewidth=1.2, linestyle=(0, (1, 3)))
    label = f"target {data.target:.3f}"
    axes.axhline(data.target, color=INK, linewidth=1, linestyle=(0, (1, 2)), label=label)
    axes.set_xlim(0, data.end)
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=data.end >= 2))
    _add_legend(figure)
    return figure


@matplotlib.rc_context(STYLE)
def draw_label_efficiency(lines: list[Band], split: str) -> Figure:
    """Accuracy against labels on a logarithmic axis, with the 95 % interval of each point."""
    figure, axes = _canvas("training labels", f"accuracy on {split}")
    for offset, line in enumerate(sorted(lines, key=lambda line: -line.mean[-1])):
        # Shifted a little, so that error bars do not overlap.
        x = line.x * (1 + 0.012 * (offset - (len(lines) - 1) / 2))
        error = np.maximum([line.mean - line.low, line.high - line.mean], 0)
        style = "--" if line.is_classical else "-"
        axes.errorbar(x, line.mean, error, color=line.colour, linewidth=2, linestyle=style, marker="o", capsize=3,
                      label=line.label)  # fmt: skip
    ticks = sorted({float(x) for line in lines for x in line.x})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks], minor=False)
    axes.set_xticks([], minor=True)
    _add_legend(figure)
    return figure


@matplotlib.rc_context(STYLE)
def draw_reliability(panels: list[Panel]) -> Figure:
    """A panel for each arm: points on the diagonal are calibrated, points below it overconfident."""
    columns = min(4, max(1, len(panels)))
    rows = -(-max(1, len(panels)) // columns)
    least = min((float(panel.confidence.min()) for panel in panels), default=0.0) - 0.06
    figure = Figure(figsize=(1.75 * columns + 0.4, 2.35 * rows + 0.3), layout="constrained")
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1.2, linestyle=(0, (3, 3)))
        axes.plot(panel.confidence, panel.accuracy, color=panel.colour, linewidth=1.6)
        size = 14 + 220 * panel.share
        axes.scatter(panel.confidence, panel.accuracy, s=size, color=panel.colour, alpha=0.8, linewidth=0)
        axes.set_title(f"{truncate(panel.name, MAX_NAME)}\nerror {panel.error:.3f}", fontsize=10)
        axes.set(xlim=(max(0.0, least), 1.06), ylim=(0, 1.06))
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.label_outer()
    figure.supxlabel("confidence", fontsize=11)
    figure.supylabel("accuracy", fontsize=11)
    return figure


def _colours(comparison: Comparison) -> dict[str, str]:
    return arm_colours((arm.name, arm.kind) for arm in comparison.arms)


def _on_one_grid(results: list[SeedResult]) -> tuple[np.ndarray, np.ndarray]:
    """Epochs that every seed reached, and accuracies (seeds, epochs), interpolated where evaluations differ."""
    last = min(result.curve[-1].epoch for result in results)
    curves = [np.array([(point.epoch, point.accuracy) for point in result.curve]) for result in results]
    epochs = np.unique(np.concatenate(curves)[:, 0])
    grid = epochs[epochs <= last]
    return grid, np.array([np.interp(grid, *curve.T) for curve in curves])


def _panel(arm: VariantResult, colour: str, truth: np.ndarray) -> Panel:
    found = np.concatenate([np.array(result.confidences, dtype=float) for result in arm.results])
    confidence = np.nan_to_num(found)  # a diverged model has no confidence
    right = np.concatenate([np.array(result.predictions) == truth for result in arm.results])
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    counts = np.bincount(bins, minlength=BINS)
    is_filled = counts > 0
    means, rates = (np.bincount(bins, values, BINS)[is_filled] / counts[is_filled] for values in (confidence, right))
    return Panel(arm.name, colour, means, rates, counts[is_filled] / max(len(bins), 1), arm.calibration_error.mean)


def _canvas(x_name: str, y_name: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8.2, 4.3), layout="constrained")
    axes = figure.add_subplot(xlabel=x_name, ylabel=y_name)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.2f}")
    return figure, axes


def _add_legend(figure: Figure) -> None:
    """Names in the colours of their lines, to the right of the plot."""
    figure.legend(loc="outside right upper", frameon=False, labelcolor="linecolor", fontsize=10)
