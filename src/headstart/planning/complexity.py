"""Cost of a layer by length and width: the table of Vaswani et al. (2017), and exponents fitted to measurements.

n is the length of a text in tokens, d the width of its vectors, k the kernel of a convolution.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

KERNEL = 3
LARGEST = 4  # sizes to which an exponent is fitted


@dataclass(frozen=True)
class LayerKind:
    """A type of layer: operations, sequential steps, longest path between two tokens."""

    name: str
    operations: str
    sequential: str
    path: str
    length_exponent: float  # the power of n in the operations
    width_exponent: float  # the power of d
    is_theory: bool = True  # a row of the published table


KINDS: dict[str, LayerKind] = {
    kind.name: kind
    for kind in (
        LayerKind("self-attention", "n²·d", "1", "1", 2, 1),
        LayerKind("recurrence", "n·d²", "n", "n", 1, 2),
        LayerKind("convolution", "k·n·d²", "1", "n/k, or log n dilated", 1, 2),
        LayerKind("attention block", "n²·d + n·d²", "1", "1", 2, 2, is_theory=False),
    )
}


@dataclass(frozen=True)
class Point:
    """One layer measured at one size, forward and backward, for one text."""

    kind: str
    length: int
    width: int
    forward: float  # seconds
    backward: float
    peak_bytes: int  # beside weights and input

    @property
    def seconds(self) -> float:
        """Forward and backward together."""
        return self.forward + self.backward


@dataclass(frozen=True)
class Growth:
    """The measured and the theoretical exponent of one type of layer along one axis."""

    kind: str
    axis: str  # "length" or "width"
    time_exponent: float
    memory_exponent: float
    theory: float


@dataclass(frozen=True)
class Crossing:
    """The length from which self-attention takes longer than another type of layer at one width."""

    other: str
    length: float
    is_measured: bool  # False = extrapolated from the fitted lines


@dataclass(frozen=True)
class Complexity:
    """The types of layers in theory and as measured on one machine."""

    machine: str
    width: int  # of the sweep over lengths
    length: int  # of the sweep over widths
    lengths: list[Point]
    widths: list[Point]
    growths: list[Growth]
    crossings: list[Crossing]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, with the table of theory first."""
        content = asdict(self)
        for sweep in ("lengths", "widths"):
            content[sweep] = [{**asdict(point), "seconds": point.seconds} for point in getattr(self, sweep)]
        return {"theory": [asdict(kind) for kind in KINDS.values()], **content}


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The exponent of a power law, fitted to the largest few sizes, where constants no longer count."""
    keep = min(LARGEST, max(2, (len(sizes) + 1) // 2))
    return float(np.polyfit(np.log(sizes[-keep:]), np.log(np.maximum(values[-keep:], 1e-12)), 1)[0])


def along(points: Sequence[Point], kind: str, axis: str) -> tuple[list[int], list[Point]]:
    """The sizes and points of one kind, in order."""
    own = sorted((point for point in points if point.kind == kind), key=lambda point: getattr(point, axis))
    return [getattr(point, axis) for point in own], own


def growths(lengths: Sequence[Point], widths: Sequence[Point]) -> list[Growth]:
    """Fitted and theoretical exponents of every type on both axes."""
    found = []
    for kind in KINDS.values():
        for axis, points in (("length", lengths), ("width", widths)):
            sizes, own = along(points, kind.name, axis)
            if len(own) > 1:
                times = fit_exponent(sizes, [point.seconds for point in own])
                memory = fit_exponent(sizes, [float(point.peak_bytes) for point in own])
                found.append(Growth(kind.name, axis, times, memory, getattr(kind, f"{axis}_exponent")))
    return found


def crossings(lengths: Sequence[Point]) -> list[Crossing]:
    """Lengths from which self-attention takes longer than other types, interpolated or extrapolated."""
    sizes, own = along(lengths, "self-attention", "length")
    found = []
    for other in ("recurrence", "convolution"):
        _, rival = along(lengths, other, "length")
        if len(own) < 2 or len(rival) != len(own):
            continue
        gap = np.log([point.seconds for point in own]) - np.log([point.seconds for point in rival])
        found.append(Crossing(other, *_zero(np.log(np.array(sizes, dtype=float)), gap)))
    return found


def _zero(x: np.ndarray, gap: np.ndarray) -> tuple[float, bool]:
    """The last zero crossing of a gap on a log axis, interpolated, else extrapolated from the last points.

    A gap above zero everywhere crosses at the smallest size.
    """
    if (gap >= 0).all():
        return float(np.exp(x[0])), True
    for index in range(len(gap) - 1, 0, -1):
        if gap[index - 1] < 0 <= gap[index]:
            share = -gap[index - 1] / (gap[index] - gap[index - 1])
            return float(np.exp(x[index - 1] + share * (x[index] - x[index - 1]))), True
    keep = min(LARGEST, max(2, (len(gap) + 1) // 2))
    rise, start = np.polyfit(x[-keep:], gap[-keep:], 1)
    return (float(np.exp(-start / rise)), False) if rise > 0 else (float("nan"), False)


def summarise(machine: str, width: int, length: int, lengths: list[Point], widths: list[Point]) -> Complexity:
    """The measured points with their exponents and crossings."""
    return Complexity(machine, width, length, lengths, widths, growths(lengths, widths), crossings(lengths))
