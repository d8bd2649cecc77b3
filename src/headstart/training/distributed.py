"""The processes that train one model together: finding each other, agreeing, and adding up.

Before training, words (settings, problems, a tokenizer) go through torchrun's store, where one may wait for
hours while another prepares a corpus; in training all goes through a process group, where silence is an error.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache, partial
from threading import Event, Thread
from typing import Any
from uuid import uuid4

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,  # type: ignore[attr-defined]
    Store,
    rendezvous,
)

from headstart import errors
from headstart.errors import ConfigError, HeadstartError, LostError, Stopped
from headstart.training.launch import RankInfo, cores, limit, rank_info

LONGEST_PAUSE = 0.25  # seconds between two looks for a word
PULSE = 5.0  # seconds between two signs of life
SILENCE = 120.0  # seconds without one after which a process is lost, before training
JOINING = 600.0  # seconds for all processes to come
LOST = 600.0  # seconds without an answer of the store after which its machine is lost
CHUNK = 4 * 2**20  # bytes of one value in the store, which takes 8 MiB at most


class Meeting:
    """A corner of the store that belongs to these processes and to this time."""

    def __init__(self, info: RankInfo, name: str):
        with peer_errors():
            store = _store(info)
            corner = _meet(PrefixStore(name, store), info)
            self.store = PrefixStore(corner, store)
            self._pulse = _Pulse(PrefixStore(corner, store.clone()), info.rank)
            limit(int(os.environ["MASTER_PORT"]), LOST)
        self._pulse.start()

    def end(self) -> None:
        """Show no more signs of life."""
        self._pulse.over.set()

    def put(self, key: str, word: str) -> None:
        """Leave a word."""
        content = json.dumps(word)  # plain letters, so that it may be cut anywhere
        pieces = [content[at : at + CHUNK] for at in range(0, len(content), CHUNK)]
        with peer_errors():
            for number, piece in enumerate(pieces):
                self.store.set(f"{key}/{number}", piece)
            self.store.set(key, str(len(pieces)))

    def take(self, key: str, rank: int) -> str:
        """The word that process `rank` leaves, once it is there."""
        with peer_errors():
            self._wait_for(key, rank)
            pieces = [self.store.get(f"{key}/{number}") for number in range(int(self.store.get(key)))]
        return json.loads(b"".join(pieces))

    def _wait_for(self, key: str, rank: int) -> None:
        """Wait for a word as long as its sender shows signs of life."""
        heard, since, pause = b"", time.monotonic(), 0.005
        while not self.store.check([key]):  # asked again and again: torch's own wait hears no signals
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            if pause < LONGEST_PAUSE:
                continue
            sign = self.store.get(f"alive/{rank}") if self.store.check([f"alive/{rank}"]) else b""
            if sign != heard:
                heard, since = sign, time.monotonic()
            if time.monotonic() - since > SILENCE:
                raise LostError(
                    f"nothing was heard of process {rank} for {SILENCE:.0f} seconds",
                    hint="see what it said on its own machine, and start the run again",
                )


class _Pulse(Thread):
    """Signs of life in the store, so that a process that works for long is told from one that is gone."""

    def __init__(self, store: Store, rank: int):
        super().__init__(daemon=True)
        self.store, self.rank, self.over = store, rank, Event()

    def run(self) -> None:
        beat = 0
        while not self.over.wait(PULSE if beat else 0):
            beat += 1
            try:
                self.store.set(f"alive/{self.rank}", str(beat))
            except RuntimeError:  # the store is gone, and the main thread will find out
                return


@lru_cache(maxsize=1)
def _store(info: RankInfo) -> Any:
    """The store of all processes; where there is no torchrun to hold it, the main process does until its end."""
    return next(rendezvous("env://", info.rank, info.count))[0]


def _meet(store: Store, info: RankInfo) -> str:
    """A corner of the store that is new to all processes: the store may be older than they are, with old words in it.

    The main process puts up a new name; it is good for those whose own new name it answers.
    """
    own, end = uuid4().hex, time.monotonic() + JOINING
    if info.rank == 0:
        store.set("corner", own)
        for rank in range(1, info.count):
            _until(partial(store.check, [f"{own}/{rank}"]), end, f"process {rank}")
            store.set(f"{own}/good for {store.get(f'{own}/{rank}').decode()}", "")
        return own
    found: list[str] = []

    def is_good() -> bool:
        if not store.check(["corner"]):
            return False
        found[:] = [store.get("corner").decode()]
        store.set(f"{found[0]}/{info.rank}", own)
        return store.check([f"{found[0]}/good for {own}"])

    _until(is_good, end, "the main process")
    return found[0]


def _until(condition: Callable[[], bool], end: float, who: str) -> None:
    while not condition():
        if time.monotonic() > end:
            raise LostError(f"{who} did not come", hint="see what it said on its own machine")
        time.sleep(0.05)


@contextmanager
def peer_errors() -> Iterator[None]:
    """Work that needs other processes: one that is lost on the way is told in a sentence."""
    try:
        yield
    except RuntimeError as error:
        if not _tells_of_others(error):
            raise
        raise LostError(
            "another process of this run has died or fallen silent",
            hint="the run is whole up to its newest checkpoint: `headstart resume` goes on from there",
        ) from error


def _tells_of_others(error: RuntimeError) -> bool:
    """Whether an error of torch is about a process that cannot be reached."""
    if isinstance(error, dist.DistError):
        return True
    words = ("gloo", "Connection", "connection", "Socket", "NCCL", "Timed out", "Broken pipe", "ProcessGroup")
    return any(word in str(error) for word in words)


class Processes:
    """The processes of a run, and which of them this one is; alone, everything here is done at once."""

    def __init__(self, info: RankInfo | None = None, meeting: Meeting | None = None):
        self.info = info or RankInfo()
        self.rank, self.count = self.info.rank, self.info.count
        self._met, self._round = meeting, 0
        self._names: list[str] = []
        self._has_group = False

    @property
    def _meeting(self) -> Meeting:
        assert self._met is not None, "those who are alone meet nobody"
        return self._met

    @property
    def is_alone(self) -> bool:
        """Whether there are no others."""
        return self.count == 1

    @property
    def is_main(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    @property
    def seed_offset(self) -> tuple[int, ...]:
        """What makes this process's chance another than that of its neighbours; nothing for the main one."""
        return () if self.is_main else (self.rank,)

    # Words.

    def all_gather(self, word: str) -> list[str]:
        """What every process says, in order of rank; returns when all have spoken."""
        if self.is_alone:
            return [word]
        if self._has_group:
            return self._gather(word)
        self._round += 1
        self._meeting.put(f"{self._round}/{self.rank}", word)
        return [self._meeting.take(f"{self._round}/{rank}", rank) for rank in range(self.count)]

    def broadcast(self, work: Callable[[], str]) -> str:
        """What `work` gives on the main process, or the problem that it met there, on every process."""
        if self.is_alone:
            return work()
        said = ""
        if self.is_main:
            try:
                said = _sealed(work())
            except HeadstartError as error:
                said = _sealed(error)
        return _opened(self._hand_on(said))

    def _hand_on(self, word: str) -> str:
        """The main process's word on every process."""
        if self._has_group:
            return self._gather(word)[0]
        self._round += 1
        if self.is_main:
            self._meeting.put(f"{self._round}/main", word)
            return word
        return self._meeting.take(f"{self._round}/main", 0)

    @contextmanager
    def raise_on_all(self) -> Iterator[None]:
        """Work that each process does by itself; a problem of any of them becomes the problem of all."""
        problem: HeadstartError | None = None
        try:
            yield
        except HeadstartError as error:
            if self.is_alone or error.is_shared:
                raise
            problem = error
        if self.is_alone:
            return
        for rank, said in enumerate(self.all_gather("" if problem is None else _sealed(problem))):
            if said:
                try:
                    _opened(said)
                except HeadstartError as error:
                    if rank > 0:
                        error.args = (f"process {rank}: {error}",)
                    raise

    def assert_equal(self, content: Any, what: str = "settings") -> None:
        """Refuse to start when another process was given something else than the main one."""
        own = json.dumps(content, sort_keys=True, ensure_ascii=False)
        mains = self.broadcast(lambda: own)
        with self.raise_on_all():
            if own != mains:
                raise ConfigError(
                    f"{socket.gethostname()} was started with other {what} than the main process: "
                    f"{_difference(json.loads(mains), content)}",
                    hint="give the same command on each machine",
                )

    def main_first(self, work: Callable[[], Any]) -> Any:
        """Do `work` on the main process, then on one process of each machine, then on all: later ones find it done."""
        found = None
        for turn in range(3):
            with self.raise_on_all():
                if turn == self._turn:
                    found = work()
            if self.is_alone:
                break
        return found

    @property
    def _turn(self) -> int:
        return 0 if self.is_main else 1 if self.info.local_rank == 0 else 2

    def barrier(self) -> None:
        """Wait until all are done; the main process, which may hold the store, goes last."""
        if self.is_alone:
            return
        self.all_gather("")
        if not self.is_main:
            self._meeting.put(f"left/{self.rank}", "")
        for rank in range(1, self.count) if self.is_main else ():
            self._meeting.take(f"left/{rank}", rank)

    # Numbers and tensors.

    def start(self, device: torch.device, minutes: float) -> None:
        """Make the process group through which tensors go; a collective that waits longer than `minutes` is an error."""
        if self.is_alone:
            return
        both = device.type == "cuda" and dist.is_nccl_available()
        with peer_errors():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if both else "gloo",
                store=PrefixStore("group", self._meeting.store),
                rank=self.rank,
                world_size=self.count,
                timeout=timedelta(minutes=minutes),
            )
        self._has_group = True
        _groups.append(dist.group.WORLD)

    def _gather(self, word: str) -> list[str]:
        """Every process's word, through the group."""
        own = torch.tensor(list(word.encode("utf-8")), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
        dist.all_gather(sizes, torch.tensor([len(own)]))
        longest = max(1, *(int(size) for size in sizes))
        rows = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.count)]
        dist.all_gather(rows, torch.cat((own, torch.zeros(longest - len(own), dtype=torch.uint8))))
        return [
            bytes(row[: int(size)].tolist()).decode("utf-8") for row, size in zip(rows, sizes, strict=True)
        ]

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
            told = {name for said in self.all_gather(json.dumps(unknown)) for name in json.loads(said)}
            self._names += sorted(told - set(self._names))

    def all_reduce_array(self, array: np.ndarray) -> np.ndarray:
        """The sum of an array over all processes."""
        if self.is_alone:
            return array
        whole = torch.from_numpy(array)
        dist.all_reduce(whole)
        return whole.numpy()

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> Iterator[tuple[str, Tensor]]:
        """The main process's named tensors on every process, one at a time."""
        assert (tensors is not None) == self.is_main
        if self.is_alone:
            yield from (tensors or {}).items()
            return

        def listed() -> str:
            rows = (tensors or {}).items()
            return json.dumps(
                [[name, list(row.shape), str(row.dtype).removeprefix("torch.")] for name, row in rows]
            )

        for name, shape, kind in json.loads(self.broadcast(listed)):
            tensor = (
                tensors[name].cpu() if tensors is not None else torch.empty(shape, dtype=getattr(torch, kind))
            )
            tensor = tensor.contiguous()
            dist.broadcast(tensor, src=0)
            yield name, tensor

    @contextmanager
    def peer_errors(self) -> Iterator[None]:
        """Work that exchanges tensors: a process that is lost on the way is told in a sentence."""
        if self.is_alone:
            yield
            return
        with peer_errors():
            yield


def _sealed(content: str | HeadstartError) -> str:
    if isinstance(content, str):
        return json.dumps({"value": content})
    kind = type(content).__name__
    return json.dumps({"kind": kind, "problem": str(content), "hint": content.hint})


def _opened(said: str) -> str:
    content = json.loads(said)
    if "kind" not in content:
        return content["value"]
    error = getattr(errors, content["kind"], HeadstartError)(content["problem"], hint=content["hint"])
    error.is_shared = True
    raise error


def _difference(one: Any, other: Any, where: str = "") -> str:
    """The first place at which two JSON-able values differ, in words."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            if one.get(key) != other.get(key):
                return _difference(one.get(key), other.get(key), f"{where}.{key}" if where else str(key))
    return f"{where or 'it'} is {other!r}, not {one!r}"


ALONE = Processes()
_joined = 0  # how often this program has joined: each time gets its own corner of the store
# Groups are kept for ever: one that is taken down with the DDP that uses it waits for itself (torch 2.13).
_groups: list[Any] = []


@contextmanager
def init_processes() -> Iterator[Processes]:
    """The processes that torchrun started for this run; alone when it did not."""
    global _joined
    info = rank_info()
    if info.count == 1:
        yield Processes(info)
        return
    _joined += 1
    _end_with_parent()
    os.environ.setdefault("RAYON_NUM_THREADS", str(max(1, cores() // info.local_count)))  # of the tokenizers
    meeting = Meeting(info, f"headstart/{_joined}")
    processes = Processes(info, meeting)
    try:
        yield processes
        processes.barrier()
        if dist.is_initialized():
            dist.destroy_process_group()
    except (Stopped, HeadstartError) as error:
        if getattr(error, "is_shared", True):
            processes.barrier()
        raise
    finally:
        meeting.end()


def _end_with_parent() -> None:
    """Ask Linux for a SIGTERM when torchrun dies, so that no process is left behind."""
    if sys.platform != "linux" or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != parent:  # it died in between
        os.kill(os.getpid(), signal.SIGTERM)
