"""Where the processes of a run meet before they train: torchrun's store, into which each may put words.

A store has no clock: one may wait in it for hours while another prepares a corpus, as long as that one shows
signs of life.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from threading import Event, Thread
from typing import Any
from uuid import uuid4

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from headstart.errors import LostError
from headstart.training.launch import Place
from headstart.training.patience import limit

LONGEST_PAUSE = 0.25  # seconds between two looks for a word
PULSE = 5.0  # seconds between two signs of life
SILENCE = 120.0  # seconds without one after which a process is lost, before training
JOINING = 600.0  # seconds for all processes to come
LOST = 600.0  # seconds without an answer of the store after which its machine is lost
CHUNK = 4 * 2**20  # bytes of one value in the store, which takes 8 MiB at most


class Meeting:
    """A corner of the store that belongs to these processes and to this time."""

    def __init__(self, place: Place, name: str):
        with minding():
            store = _store(place)
            corner = _meet(PrefixStore(name, store), place)
            self.store = PrefixStore(corner, store)
            self._pulse = _Pulse(PrefixStore(corner, store.clone()), place.rank)
            limit(int(os.environ["MASTER_PORT"]), LOST)
        self._pulse.start()

    def end(self) -> None:
        """Show no more signs of life."""
        self._pulse.over.set()

    def put(self, key: str, word: str) -> None:
        """Leave a word."""
        content = json.dumps(word)  # plain letters, so that it may be cut anywhere
        pieces = [content[at : at + CHUNK] for at in range(0, len(content), CHUNK)]
        with minding():
            for number, piece in enumerate(pieces):
                self.store.set(f"{key}/{number}", piece)
            self.store.set(key, str(len(pieces)))

    def take(self, key: str, rank: int) -> str:
        """The word that process `rank` leaves, once it is there."""
        with minding():
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
def _store(place: Place) -> Any:
    """The store of all processes; where there is no torchrun to hold it, the main process does until its end."""
    return next(rendezvous("env://", place.rank, place.count))[0]


def _meet(store: Store, place: Place) -> str:
    """A corner of the store that is new to all processes: the store may be older than they are, with old words in it.

    The main process puts up a new name; it is good for those whose own new name it answers.
    """
    own, end = uuid4().hex, time.monotonic() + JOINING
    if place.rank == 0:
        store.set("corner", own)
        for rank in range(1, place.count):
            _until(partial(store.check, [f"{own}/{rank}"]), end, f"process {rank}")
            store.set(f"{own}/good for {store.get(f'{own}/{rank}').decode()}", "")
        return own
    found: list[str] = []

    def is_good() -> bool:
        if not store.check(["corner"]):
            return False
        found[:] = [store.get("corner").decode()]
        store.set(f"{found[0]}/{place.rank}", own)
        return store.check([f"{found[0]}/good for {own}"])

    _until(is_good, end, "the main process")
    return found[0]


def _until(condition: Callable[[], bool], end: float, who: str) -> None:
    while not condition():
        if time.monotonic() > end:
            raise LostError(f"{who} did not come", hint="see what it said on its own machine")
        time.sleep(0.05)


@contextmanager
def minding() -> Iterator[None]:
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
