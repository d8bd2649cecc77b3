"""Self-attention, recurrence and convolution timed and weighed on this machine, over lengths and widths."""

import os
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from headstart.config import ModelConfig, TrainingConfig
from headstart.models.transformer import SelfAttention
from headstart.planning.complexity import KERNEL, KINDS, Complexity, Point, summarise
from headstart.training.runtime import start_runtime

LENGTHS, WIDTH = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096), 64
WIDTHS, LENGTH = (16, 32, 64, 128, 256, 512, 1024), 128
QUICK_LENGTHS, QUICK_WIDTHS = (64, 128, 256), (32, 64, 128)
Layer = Callable[[Tensor], Tensor]


def attention_heads(width: int) -> int:
    """Attention heads 64 wide, as in the Transformer."""
    return max(1, width // 64)


def _mixing(width: int) -> tuple[nn.Module, Layer]:
    """Self-attention alone: queries, keys and values are the input itself."""

    def read(x: Tensor) -> Tensor:
        parts = x.unflatten(-1, (attention_heads(width), -1)).transpose(1, 2)  # (1, A, n, d/A)
        return F.scaled_dot_product_attention(parts, parts, parts)

    return nn.Identity(), read


def _block(width: int) -> tuple[nn.Module, Layer]:
    heads = attention_heads(width)
    layer = SelfAttention(ModelConfig(hidden_size=width, num_heads=heads, position_embedding="none"))
    return layer, lambda x: layer(x)[0]


def _recurrence(width: int) -> tuple[nn.Module, Layer]:
    layer = nn.LSTM(width, width, batch_first=True)
    return layer, lambda x: layer(x)[0]


def _convolution(width: int) -> tuple[nn.Module, Layer]:
    layer = nn.Conv1d(width, width, KERNEL, padding="same")
    return layer, lambda x: layer(x.transpose(1, 2))


LAYERS: dict[str, Callable[[int], tuple[nn.Module, Layer]]] = {
    "self-attention": _mixing,
    "recurrence": _recurrence,
    "convolution": _convolution,
    "attention block": _block,
}


def complexity(
    *, quick: bool = False, device: str = "auto", on_point: Callable[[Point], None] = lambda point: None
) -> Complexity:
    """Every kind at every size, one text at a time and on a CPU in one thread; `quick` keeps to small sizes."""
    runtime = start_runtime(TrainingConfig(device=device, precision="float32"))
    lengths, widths = (QUICK_LENGTHS, QUICK_WIDTHS) if quick else (LENGTHS, WIDTHS)
    seconds = 0.02 if quick else 0.3

    def sweep(sizes: Sequence[tuple[int, int]]) -> list[Point]:
        points = []
        for length, width in sizes:
            for kind in KINDS:
                points.append(measure(kind, length, width, runtime.device, seconds))
                on_point(points[-1])
        return points

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that the law is seen, not how threads wait for each other
    try:
        over_lengths = sweep([(length, WIDTH) for length in lengths])
        over_widths = sweep([(LENGTH, width) for width in widths])
        return summarise(runtime.describe(), WIDTH, LENGTH, over_lengths, over_widths)
    finally:
        torch.set_num_threads(threads)


def measure(kind: str, length: int, width: int, device: torch.device, seconds: float) -> Point:
    """The quickest of several rounds, forward and backward apart, and the peak memory of one round."""
    torch.manual_seed(0)
    module, layer = LAYERS[kind](width)
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
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells of its every start otherwise
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
