"""The machine that a run uses: processes, device, precision, random seeds, and signals to stop."""

import os
import platform
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from headstart import fast
from headstart.config import TrainingConfig
from headstart.errors import ConfigError
from headstart.training.launch import RankInfo, rank_info, require_single_process

T = TypeVar("T")


class Processes:
    """The processes of a run: a single one, which sends nothing. `distributed.ProcessGroup` is several."""

    def __init__(self, info: RankInfo):
        self.info, self.rank, self.count = info, info.rank, info.count
        self.is_main, self.is_alone = info.rank == 0, info.count == 1
        self.may_resume = info.may_resume  # True = the same command as before resumes its unfinished run

    def all_gather(self, value: T) -> list[T]:
        """The value of every process, by rank."""
        return [value]

    def broadcast(self, work: Callable[[], T]) -> T:
        """What `work` returns on the main process, or the error that it raises there, on every process."""
        return work()

    def raise_on_all(self) -> AbstractContextManager[None]:
        """Work that each process does by itself; the error of any of them is raised by all."""
        return nullcontext()

    def assert_equal(self, content: Any, what: str = "settings") -> None:
        """Raise an error if this process was given other content than the main one."""

    def main_first(self, work: Callable[[], T]) -> T:
        """Do `work` on the main process, then on one process of each machine, then on the rest: they find it done."""
        return work()

    def start(self, device: torch.device, minutes: float) -> None:
        """Prepare for training on `device`: from now on a collective that waits longer than `minutes` is an error."""

    def all_reduce(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """The sum of each number over all processes; a name that some lack counts as zero there."""
        return dict(numbers)

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> Iterable[tuple[str, Tensor]]:
        """The main process's named tensors on every process, one at a time."""
        return (tensors or {}).items()


ALONE = Processes(RankInfo())


def init_processes() -> AbstractContextManager[Processes]:
    """The processes that torchrun started for this run, or a single one."""
    if "RANK" not in os.environ:
        return nullcontext(ALONE)
    from headstart.training.distributed import init_group

    return init_group()


@dataclass(frozen=True)
class Runtime:
    """Device, precision and processes of a run."""

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
        """The context of evaluations; under FSDP2 training uses what they gather, so tensors stay ordinary ones."""
        return torch.no_grad() if self.is_sharded else torch.inference_mode()

    @property
    def eval_batch_tokens(self) -> int:
        """Tokens of a forward pass in evaluations, padding included: as many as suit a CPU's cache, or a GPU."""
        return 1024 if self.device.type == "cpu" else 16384

    @property
    def eval_max_padding(self) -> int | None:
        """Most padding of a text in evaluations: on a CPU each token costs time, on a GPU each forward pass."""
        return 32 if self.device.type == "cpu" else None

    def shard(self, count: int) -> list[tuple[int, bool]]:
        """Which of `count` items this process computes, and whether each is its own, so that all count once.

        A sharded model needs the same number of forward passes in each process, so some repeat the first item.
        """
        rank, processes = self.processes.rank, self.processes.count
        own = [(number, True) for number in range(rank, count, processes)]
        rounds = -(-count // processes) if self.is_sharded else len(own)
        return own + [(0, False)] * (rounds - len(own))

    def describe(self) -> str:
        """The machine in words."""
        words = f"{self.device.type} ({platform.processor() or platform.machine()}, {torch.get_num_threads()} threads)"
        if self.device.type == "cuda":
            words = torch.cuda.get_device_name(self.device)
        many = "" if self.processes.is_alone else f", {self.processes.count} processes"
        return f"{words}, {str(self.precision).removeprefix('torch.')}{many}{' (sharded)' if self.is_sharded else ''}"


def start_runtime(config: TrainingConfig, processes: Processes | None = None) -> Runtime:
    """The device and precision of the settings, or an error when this machine does not have them.

    Without `processes` this must be a single process.
    """
    if processes is None:
        if "RANK" in os.environ:
            require_single_process("this command")
        processes = ALONE
    fast.set_enabled(config.fast)
    if config.deterministic:  # sums in one order, for the rest of the program
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.enable_mem_efficient_sdp(False)  # their backward passes are not deterministic
        torch.backends.cuda.enable_cudnn_sdp(False)
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not processes.is_alone:
        from headstart.training.distributed import own_gpu

        name = own_gpu(processes.info)
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        problem = f"this machine cannot use device {name!r}: {str(error).splitlines()[0]}"
        raise ConfigError(problem, hint="set training.device=auto") from None
    if config.precision in ("auto", "bf16"):
        may_use = device.type == "cuda" or config.precision == "bf16"
        precision = torch.bfloat16 if may_use and has_bfloat16(device) else torch.float32
    else:
        precision = getattr(torch, config.precision)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        # It plans for tens of milliseconds at every new shape: good for batches of one shape only.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return Runtime(device, precision, processes, config.fsdp and not processes.is_alone)


@contextmanager
def cudnn_attention() -> Iterator[None]:
    """While this lasts, attention may use cuDNN, for batches of one shape; never in deterministic runs."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(not torch.are_deterministic_algorithms_enabled())
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device has bfloat16 arithmetic, which is faster than float32 then."""
    if device.type == "cuda":
        found: bool = torch.cuda.is_bf16_supported(including_emulation=False)
        return found
    return device.type == "cpu" and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def seed_for(*numbers: int) -> int:
    """One seed from several numbers, the same on every machine and in every version."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = ((state ^ number) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state & 0x7FFFFFFFFFFFFFFF


def seed_everything(*numbers: int) -> None:
    """Seed torch from these numbers, on the devices that are there: torch.manual_seed takes too long for every step."""
    seed = seed_for(*numbers)
    torch.default_generator.manual_seed(seed)
    has_cuda, has_mps = _available_devices()
    if has_cuda:
        torch.cuda.manual_seed_all(seed)
    if has_mps:
        torch.mps.manual_seed(seed)


@cache
def _available_devices() -> tuple[bool, bool]:
    return torch.cuda.is_available(), torch.backends.mps.is_available()


def generator_for(*numbers: int) -> torch.Generator:
    """A random generator seeded from these numbers."""
    return torch.Generator().manual_seed(seed_for(*numbers))


@dataclass
class StopSignal:
    """The signal to stop that was received, if any."""

    signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def graceful_shutdown() -> Iterator[StopSignal]:
    """Record the first SIGINT or SIGTERM for the training loop; a second one stops at once.

    torchrun sends a second one itself, so under torchrun every signal is only recorded, and torchrun's timeout ends a
    run that does not stop.
    """
    stop = StopSignal()
    handlers: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: object) -> None:
        stop.signal = number
        if not rank_info().is_launched:
            restore()

    with suppress(ValueError):  # signals are the main thread's alone
        for number in (signal.SIGINT, signal.SIGTERM):
            handlers[number] = signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        restore()


def peak_memory() -> int:
    """The most bytes of memory that this process has used.

    Linux has it in /proc for the program alone; `getrusage` would count the parent's memory at our start.
    """
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text("ascii", "replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage if platform.system() == "Darwin" else usage * 1024
