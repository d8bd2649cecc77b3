"""The processes that train one model together: what they tell each other, and how an error of one ends them all.

A single process sends nothing to itself. Several use the default group of torch.distributed: before training it waits for
hours, because one process may tokenise a corpus while the others wait; `start` makes it anew for training, where minutes
of silence are an error.
"""

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from headstart.errors import ConfigError, HeadstartError, LostError, Stopped
from headstart.training.launch import RankInfo, cores, rank_info, set_tcp_timeouts

PREPARATION = timedelta(hours=24)  # how long one process may work while the others wait, before training
RENDEZVOUS = timedelta(minutes=10)  # for all processes to start
VANISHED = 600.0  # seconds without an answer after which another machine is lost, before training

T = TypeVar("T")


@contextmanager
def peer_errors() -> Iterator[None]:
    """Turn torch's errors about a process that cannot be reached into one sentence."""
    words = ("gloo", "Connection", "connection", "Socket", "NCCL", "Timed out", "Broken pipe", "ProcessGroup")
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not any(word in str(error) for word in words):
            raise
        raise LostError(
            "another process of this run has died or fallen silent",
            hint="the run is complete up to its newest checkpoint: `headstart resume` continues from there",
        ) from error


@dataclass(frozen=True)
class Failure:
    """An error of one process, as it travels to the others."""

    kind: type[HeadstartError]
    problem: str
    hint: str

    @staticmethod
    def of(error: HeadstartError) -> "Failure":
        """The description of an error."""
        return Failure(type(error), str(error), error.hint)

    def error(self, prefix: str = "") -> HeadstartError:
        """The error that every process raises."""
        error = self.kind(prefix + self.problem, hint=self.hint)
        error.is_shared = True
        return error


class Processes:
    """The processes of a run, and which of them this one is."""

    def __init__(self, info: RankInfo | None = None):
        self.info = info or RankInfo()
        self.rank, self.count = self.info.rank, self.info.count
        self._names: list[str] = []

    @property
    def is_alone(self) -> bool:
        """Whether there are no others."""
        return self.count == 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    @property
    def seed_offset(self) -> tuple[int, ...]:
        """Numbers that make this process's random draws differ from the others'; none for the main process."""
        return () if self.is_main else (self.rank,)

    # --- Python objects ---------------------------------------------------------------------------------------------

    def all_gather(self, value: T) -> list[T]:
        """The value of every process, by rank."""
        if self.is_alone:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def broadcast(self, work: Callable[[], T]) -> T:
        """What `work` returns on the main process, or the error that it raises there, on every process."""
        if self.is_alone:
            return work()
        sent: list[Any] = [None]
        if self.is_main:
            try:
                sent[0] = work()
            except HeadstartError as error:
                sent[0] = Failure.of(error)
        dist.broadcast_object_list(sent, src=0)
        if isinstance(sent[0], Failure):
            raise sent[0].error()
        return sent[0]

    @contextmanager
    def raise_on_all(self) -> Iterator[None]:
        """Work that each process does by itself; the error of any of them is raised by all."""
        failure: Failure | None = None
        try:
            yield
        except HeadstartError as error:
            if self.is_alone or error.is_shared:
                raise
            failure = Failure.of(error)
        for rank, each in enumerate(self.all_gather(failure)):
            if each is not None:
                raise each.error(f"process {rank}: " if rank else "")

    def assert_equal(self, content: Any, what: str = "settings") -> None:
        """Raise an error if this process was given other content than the main one."""
        mains = self.broadcast(lambda: content)
        with self.raise_on_all():
            if content != mains:
                raise ConfigError(
                    f"{socket.gethostname()} was started with other {what} than the main process: "
                    f"{_difference(mains, content)}",
                    hint="give the same command on each machine",
                )

    def main_first(self, work: Callable[[], T]) -> T:
        """Do `work` on the main process, then on one process of each machine, then on the rest: they find it done."""
        if self.is_alone:
            return work()
        found: list[T] = []
        for group in range(3):
            with self.raise_on_all():
                if group == (0 if self.is_main else 1 if self.info.local_rank == 0 else 2):
                    found.append(work())
        return found[0]

    # --- Numbers and tensors ----------------------------------------------------------------------------------------

    def start(self, device: torch.device, minutes: float) -> None:
        """Prepare for training on `device`: from now on a collective that waits longer than `minutes` is an error."""
        if self.is_alone:
            return
        dist.destroy_process_group()
        has_nccl = device.type == "cuda" and dist.is_nccl_available()
        _init_group(self.info, timedelta(minutes=minutes), "cpu:gloo,cuda:nccl" if has_nccl else "gloo")

    def all_reduce(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """The sum of each number over all processes; a name that some lack counts as zero there."""
        if self.is_alone:
            return dict(numbers)
        while True:
            unknown = [name for name in numbers if name not in self._names]
            row = [float(len(unknown)), *(float(numbers.get(name, 0)) for name in self._names)]
            sums = torch.tensor(row, dtype=torch.float64)
            dist.all_reduce(sums)
            if not sums[0]:
                return dict(zip(self._names, sums[1:].tolist(), strict=True))
            self._names += sorted({name for names in self.all_gather(unknown) for name in names})

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> Iterator[tuple[str, Tensor]]:
        """The main process's named tensors on every process, one at a time."""
        assert (tensors is not None) == self.is_main
        if self.is_alone:
            yield from (tensors or {}).items()
            return
        known = tensors or {}
        for name, shape, dtype in self.broadcast(lambda: [(k, t.shape, t.dtype) for k, t in known.items()]):
            tensor = known[name].cpu().contiguous() if self.is_main else torch.empty(shape, dtype=dtype)
            dist.broadcast(tensor, src=0)
            yield name, tensor


def _difference(one: Any, other: Any, where: str = "") -> str:
    """The first difference between two JSON-able values, in words."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            if one.get(key) != other.get(key):
                return _difference(one.get(key), other.get(key), f"{where}.{key}" if where else str(key))
    return f"{where or 'it'} is {other!r}, not {one!r}"


ALONE = Processes()
# A group that is destroyed together with the DDP module that uses it waits for itself (torch 2.13), so all are retained.
_groups: list[Any] = []


@contextmanager
def init_processes() -> Iterator[Processes]:
    """The processes that torchrun started for this run, or a single one."""
    info = rank_info()
    if info.count == 1:
        yield Processes(info)
        return
    _end_with_parent()
    os.environ.setdefault("RAYON_NUM_THREADS", str(max(1, cores() // info.local_count)))  # of the tokenizers
    with peer_errors():
        _init_group(info, PREPARATION)
        set_tcp_timeouts(VANISHED)
        processes = Processes(info)
        try:
            yield processes
        except (Stopped, HeadstartError) as error:
            if getattr(error, "is_shared", True):
                _destroy_group(processes)
            raise
        _destroy_group(processes)


def _init_group(info: RankInfo, timeout: timedelta, backend: str = "gloo") -> None:
    """Make the default process group; its keys in the store are new to all processes."""
    store = _store(info)
    fresh = PrefixStore(_fresh_prefix(store, info), store)
    dist.init_process_group(backend, store=fresh, rank=info.rank, world_size=info.count, timeout=timeout)
    _groups.append(dist.group.WORLD)


def _destroy_group(processes: Processes) -> None:
    processes.all_gather(None)  # all have finished
    dist.destroy_process_group()


@lru_cache(maxsize=1)
def _store(info: RankInfo) -> Store:
    """The key-value store of all processes; without torchrun the main process serves it until it ends."""
    return next(rendezvous("env://", info.rank, info.count, timeout=RENDEZVOUS))[0]


def _fresh_prefix(store: Store, info: RankInfo) -> str:
    """A key prefix that these processes agree on: after a restart, torchrun's store still holds the keys of before.

    The main process publishes a new prefix; another process takes it once the main process has answered its own new key.
    """
    own, prefix = uuid4().hex, ""
    if info.rank == 0:
        store.set("prefix", own)
        for rank in range(1, info.count):
            other = store.get(f"{own}/{rank}").decode()  # waits for it
            store.set(f"{own}/{other}", "")
        return own
    deadline = time.monotonic() + RENDEZVOUS.total_seconds()
    while not (prefix and store.check([f"{prefix}/{own}"])):
        if time.monotonic() > deadline:
            raise dist.DistStoreError("Timed out: the main process did not start")
        time.sleep(0.02)
        prefix = store.get("prefix").decode()  # perhaps that of an earlier attempt
        store.set(f"{prefix}/{info.rank}", own)
    return prefix


def _end_with_parent() -> None:
    """Ask Linux for a SIGTERM when torchrun dies, so that no process is left behind."""
    if sys.platform != "linux" or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != parent:  # it died in between
        os.kill(os.getpid(), signal.SIGTERM)
