"""The machine under a run: device, precision, chance and the wish to stop."""

import os
import platform
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from headstart.config import TrainingConfig
from headstart.errors import ConfigError
from headstart.training.distributed import ALONE, Processes
from headstart.training.launch import rank_info


@dataclass(frozen=True)
class Runtime:
    """Where a run computes, how exactly, and with whom."""

    device: torch.device
    precision: torch.dtype
    processes: Processes = ALONE
    is_sharded: bool = False

    def autocast(self) -> AbstractContextManager[object]:
        """The context in which forward passes run."""
        if self.precision == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.precision)

    def inference_mode(self) -> AbstractContextManager[object]:
        """The context in which nothing is learnt; what FSDP2 gathers there is used again where something is."""
        return torch.no_grad() if self.is_sharded else torch.inference_mode()

    @property
    def eval_batch_tokens(self) -> int:
        """Tokens read together, padding included, when nothing is learnt: what a CPU's cache holds, or a GPU wants."""
        return 1024 if self.device.type == "cpu" else 16384

    @property
    def eval_max_padding(self) -> int | None:
        """Padding from which texts are read apart when nothing is learnt: a CPU pays for each token, a GPU for each call."""
        return 32 if self.device.type == "cpu" else None

    def shard(self, count: int) -> list[tuple[int, bool]]:
        """Which of `count` pieces of work are this process's, each once over all, and whether it is theirs to count.

        Where a model is sharded all must read it equally often, so some read a piece that is another's.
        """
        rank, others = self.processes.rank, self.processes.count
        own = [(number, True) for number in range(rank, count, others)]
        rounds = -(-count // others) if self.is_sharded else len(own)
        return own + [(0, False)] * (rounds - len(own))

    def describe(self) -> str:
        """The machine in words."""
        kind = str(self.precision).removeprefix("torch.")
        many = "" if self.processes.is_alone else f", {self.processes.count} processes"
        many += " (sharded)" if self.is_sharded else ""
        if self.device.type == "cuda":
            return f"{torch.cuda.get_device_name(self.device)}, {kind}{many}"
        machine = platform.processor() or platform.machine()
        return f"{self.device.type} ({machine}, {torch.get_num_threads()} threads), {kind}{many}"


def start_runtime(config: TrainingConfig, processes: Processes | None = None) -> Runtime:
    """The device and precision that the settings ask for, or an error when this machine has them not.

    Without `processes` the work is for one alone.
    """
    if processes is None:
        if rank_info().count > 1:
            error = ConfigError(
                "this runs in one process; only pretrain, finetune and resume run in many",
                hint="give the command without torchrun",
            )
            error.is_shared = True
            raise error
        processes = ALONE
    if config.deterministic:
        _repeat_exactly()
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not processes.is_alone:
        name = _own_gpu(processes)
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
        # It builds a plan for every new shape, tens of milliseconds each: good for batches of one shape alone.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return Runtime(device, precision, processes, config.fsdp and not processes.is_alone)


def _repeat_exactly() -> None:
    """Make torch add numbers up in one order, for the rest of the program."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_mem_efficient_sdp(False)  # these two go their own way on the way back
    torch.backends.cuda.enable_cudnn_sdp(False)


@contextmanager
def cudnn_attention() -> Iterator[None]:
    """While all batches have one shape: attention by cuDNN too, unless numbers must come out the same bits."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(not torch.are_deterministic_algorithms_enabled())
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def _own_gpu(processes: Processes) -> str:
    """The GPU that is this process's among those of its machine."""
    place, most = processes.info, torch.cuda.device_count()
    if place.local_count > most:
        raise ConfigError(
            f"{place.local_count} processes on one machine need as many GPUs, and this one has {most}",
            hint=f"start {most} processes, or set training.device=cpu",
        )
    torch.cuda.set_device(place.local_rank)
    return f"cuda:{place.local_rank}"


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
    """Make torch's chance a function of these numbers.

    As torch.manual_seed does, but at every step: so devices that are not there are not asked, which takes it long.
    """
    seed = seed_for(*numbers)
    torch.default_generator.manual_seed(seed)
    for seed_device in _device_seeds():
        seed_device(seed)


@cache
def _device_seeds() -> list[Callable[[int], object]]:
    found: list[Callable[[int], object]] = [torch.cuda.manual_seed_all] if torch.cuda.is_available() else []
    return found + ([torch.mps.manual_seed] if torch.backends.mps.is_available() else [])


def generator_for(*numbers: int) -> torch.Generator:
    """A generator of its own that is a function of these numbers."""
    return torch.Generator().manual_seed(seed_for(*numbers))


class StopSignal:
    """Whether somebody asked the run to stop."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def graceful_shutdown() -> Iterator[StopSignal]:
    """Turn the first SIGINT or SIGTERM into a wish that the loop answers; a second one stops at once.

    Under torchrun, which sends one more of its own, only its patience ends the wait.
    """
    wish = StopSignal()
    before: dict[int, Any] = {}

    def on_signal(number: int, frame: object) -> None:
        wish.signal = number
        for kept, handler in before.items() if not rank_info().is_launched else ():
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
    """Bytes of memory this process has used at most.

    Linux tells it of the program alone in /proc; `getrusage` would count what the parent held when it started us.
    """
    try:
        lines = Path("/proc/self/status").read_text("ascii", "replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        import resource

        usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return usage if platform.system() == "Darwin" else usage * 1024
