"""The machine under a run: device, precision, chance and the wish to stop."""

import platform
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from headstart.config import TrainingConfig
from headstart.errors import ConfigError


@dataclass(frozen=True)
class Runtime:
    """Where a run computes, and how exactly."""

    device: torch.device
    precision: torch.dtype

    def autocast(self) -> AbstractContextManager:
        """The context in which forward passes run."""
        if self.precision == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.precision)

    def describe(self) -> str:
        """The machine in words."""
        if self.device.type == "cuda":
            return f"{torch.cuda.get_device_name(self.device)}, {str(self.precision).removeprefix('torch.')}"
        kind = platform.processor() or platform.machine()
        return f"{self.device.type} ({kind}, {torch.get_num_threads()} threads), {str(self.precision).removeprefix('torch.')}"


def start_runtime(config: TrainingConfig) -> Runtime:
    """The device and precision that the settings ask for, or an error when this machine has them not."""
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"this machine cannot use device {name!r}: {str(error).splitlines()[0]}",
            hint="set training.device=auto",
        ) from None
    if config.precision in ("auto", "fast"):
        may_use = device.type == "cuda" or config.precision == "fast"
        precision = torch.bfloat16 if may_use and has_bfloat16(device) else torch.float32
    else:
        precision = getattr(torch, config.precision)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    return Runtime(device, precision)


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device multiplies bfloat16 itself, so that it is faster than float32 there."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )


def seed_for(*numbers: int) -> int:
    """One seed from several numbers: the same for the same numbers, for ever, on every machine."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = ((state ^ number) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state & 0x7FFFFFFFFFFFFFFF


def seed_everything(*numbers: int) -> None:
    """Make torch's chance a function of these numbers."""
    torch.manual_seed(seed_for(*numbers))


def generator_for(*numbers: int) -> torch.Generator:
    """A generator of its own that is a function of these numbers."""
    return torch.Generator().manual_seed(seed_for(*numbers))


class StopWish:
    """Whether somebody asked the run to stop."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stopping_gently() -> Iterator[StopWish]:
    """Turn the first SIGINT or SIGTERM into a wish that the loop answers; a second one stops at once."""
    wish = StopWish()
    before: dict[int, Any] = {}

    def on_signal(number: int, frame: object) -> None:
        wish.signal = number
        for kept, handler in before.items():
            signal.signal(kept, handler)

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, on_signal)
    except ValueError:  # not the main thread: signals are somebody else's
        pass
    try:
        yield wish
    finally:
        for kept, handler in before.items():
            signal.signal(kept, handler)


def peak_memory() -> int:
    """Bytes of memory this process has used at most."""
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage if platform.system() == "Darwin" else usage * 1024
