"""The cost of a layer by length and width: the table of Vaswani et al. (2017), and exponents measured on this machine.

n is the length of a text in tokens, d the width of its vectors, k the kernel of a convolution.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from headstart.config import ModelConfig, TrainingConfig
from headstart.models.transformer import SelfAttention
from headstart.training.runtime import start_runtime

LENGTHS, WIDTH = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096), 64
WIDTHS, LENGTH = (16, 32, 64, 128, 256, 512, 1024), 128
QUICK_LENGTHS, QUICK_WIDTHS = (64, 128, 256), (32, 64, 128)
Layer = Callable[[Tensor], Tensor]
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


KINDS = {
    "self-attention": LayerKind("self-attention", "n²·d", "1", "1", 2, 1),
    "recurrence": LayerKind("recurrence", "n·d²", "n", "n", 1, 2),
    "convolution": LayerKind("convolution", "k·n·d²", "1", "n/k, or log n dilated", 1, 2),
    "attention block": LayerKind("attention block", "n²·d + n·d²", "1", "1", 2, 2, is_theory=False),
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


def fit_exponent(sizes: Sequence[float] | np.ndarray, values: Sequence[float] | np.ndarray) -> float:
    """The exponent of a power law, fitted to the largest few sizes, where constants no longer count."""
    keep = min(LARGEST, max(2, (len(sizes) + 1) // 2))
    return float(np.polyfit(np.log(sizes[-keep:]), np.log(np.maximum(values[-keep:], 1e-12)), 1)[0])


def _columns(points: Sequence[Point], kind: str, axis: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sizes of one kind in order, with their seconds and peak bytes."""
    own = sorted((getattr(each, axis), each.seconds, each.peak_bytes) for each in points if each.kind == kind)
    sizes, seconds, peaks = np.array(own, dtype=float).reshape(-1, 3).T
    return sizes, seconds, peaks


def growths(lengths: Sequence[Point], widths: Sequence[Point]) -> list[dict[str, Any]]:
    """Fitted and theoretical exponents of every type on both axes."""
    found = []
    for kind in KINDS.values():
        for axis, points in (("length", lengths), ("width", widths)):
            sizes, seconds, peaks = _columns(points, kind.name, axis)
            if len(sizes) > 1:
                exponents = {
                    "time_exponent": fit_exponent(sizes, seconds),
                    "memory_exponent": fit_exponent(sizes, peaks),
                }
                found.append(
                    {"kind": kind.name, "axis": axis, **exponents, "theory": getattr(kind, f"{axis}_exponent")}
                )
    return found


def crossings(lengths: Sequence[Point]) -> list[dict[str, Any]]:
    """Lengths from which self-attention takes longer than other types, interpolated, else extrapolated."""
    sizes, own, _ = _columns(lengths, "self-attention", "length")
    found = []
    for other in ("recurrence", "convolution"):
        _, rival, _ = _columns(lengths, other, "length")
        if len(own) > 1 and len(rival) == len(own):
            length, is_measured = _zero(np.log(sizes), np.log(own / rival))
            found.append({"other": other, "length": length, "is_measured": is_measured})
    return found


def _zero(x: np.ndarray, gap: np.ndarray) -> tuple[float, bool]:
    """The last zero crossing of a gap on a log axis, interpolated, else extrapolated from the last points.

    A gap above zero everywhere crosses at the smallest size.
    """
    if (gap >= 0).all():
        return float(np.exp(x[0])), True
    rises = np.flatnonzero((gap[:-1] < 0) & (gap[1:] >= 0))
    if len(rises):
        around = slice(rises[-1], rises[-1] + 2)
        return float(np.exp(np.interp(0, gap[around], x[around]))), True
    keep = min(LARGEST, max(2, (len(gap) + 1) // 2))
    rise, start = np.polyfit(x[-keep:], gap[-keep:], 1)
    return (float(np.exp(-start / rise)), False) if rise > 0 else (float("nan"), False)


def build_layer(kind: str, width: int) -> tuple[nn.Module, Layer]:
    """A layer of random weights, and how it reads an input (1, n, d); attention heads are 64 wide."""
    heads = max(1, width // 64)
    if kind == "recurrence":
        lstm = nn.LSTM(width, width, batch_first=True)
        return lstm, lambda x: lstm(x)[0]
    if kind == "convolution":
        convolution = nn.Conv1d(width, width, KERNEL, padding="same")
        return convolution, lambda x: convolution(x.transpose(1, 2))
    if kind == "attention block":
        block = SelfAttention(ModelConfig(hidden_size=width, num_heads=heads, position_embedding="none"))
        return block, lambda x: block(x)[0]

    def attend(x: Tensor) -> Tensor:  # queries, keys and values are the input itself
        parts = x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (1, A, n, d/A)
        return F.scaled_dot_product_attention(parts, parts, parts)

    return nn.Identity(), attend


def summarise(machine: str, width: int, length: int, lengths: list[Point], widths: list[Point]) -> dict[str, Any]:
    """The table of theory, and the measured points with their exponents and crossings; JSON-able."""
    return {
        "theory": [asdict(kind) for kind in KINDS.values()],
        "machine": machine,
        "width": width,  # of the sweep over lengths
        "length": length,  # of the sweep over widths
        "lengths": [{**asdict(point), "seconds": point.seconds} for point in lengths],
        "widths": [{**asdict(point), "seconds": point.seconds} for point in widths],
        "growths": growths(lengths, widths),
        "crossings": crossings(lengths),
    }


def complexity(*, quick: bool = False, device: str = "auto") -> dict[str, Any]:
    """Every kind at every size, one text at a time and on a CPU in one thread; `quick` keeps to small sizes."""
    runtime = start_runtime(TrainingConfig(device=device, precision="float32"))
    lengths, widths = (QUICK_LENGTHS, QUICK_WIDTHS) if quick else (LENGTHS, WIDTHS)
    seconds = 0.02 if quick else 0.3

    def sweep(sizes: Sequence[tuple[int, int]]) -> list[Point]:
        return [measure(kind, *size, runtime.device, seconds) for size in sizes for kind in KINDS]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several threads would add the time that they wait for each other
    try:
        over_lengths = sweep([(length, WIDTH) for length in lengths])
        over_widths = sweep([(LENGTH, width) for width in widths])
        return summarise(runtime.describe(), WIDTH, LENGTH, over_lengths, over_widths)
    finally:
        torch.set_num_threads(threads)


def measure(kind: str, length: int, width: int, device: torch.device, seconds: float) -> Point:
    """The quickest of several rounds, forward and backward apart, and the peak memory of one round."""
    torch.manual_seed(0)
    module, layer = build_layer(kind, width)
    module.to(device)
    x = torch.randn(1, length, width, device=device, requires_grad=True)
    _round(module, layer, x)
    peak = _peak(module, layer, x)
    rounds = [_round(module, layer, x)]
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(rounds) < 3:
        rounds.append(_round(module, layer, x))
    return Point(kind, length, width, min(pair[0] for pair in rounds), min(pair[1] for pair in rounds), peak)


def _round(module: nn.Module, layer: Layer, x: Tensor) -> tuple[float, float]:
    """Seconds of one forward and one backward pass."""
    module.zero_grad(set_to_none=True)
    x.grad = None
    start = _now(x.device)
    out = layer(x)
    middle = _now(x.device)
    out.backward(torch.ones_like(out))
    return middle - start, _now(x.device) - middle


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _peak(module: nn.Module, layer: Layer, x: Tensor) -> int:
    """Bytes that one round takes at most beyond weights and input: as a GPU counts, or as the profiler saw."""
    if x.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        _round(module, layer, x)
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler logs every start otherwise
    module.zero_grad(set_to_none=True)
    x.grad = None
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        _round(module, layer, x)
    assert watched.profiler is not None
    assert watched.profiler.kineto_results is not None
    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
