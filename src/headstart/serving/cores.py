"""The cores of a machine, shared by the batches that are read at one time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

WORTH = 2e8  # operations of a text from which several cores save more than waiting for each other costs
SIDE_BY_SIDE = 2  # batches of one run: while one thread is in Python, the other multiplies


class Cores:
    """Gives large texts that are read alone every core, batches side by side an equal part, and small texts one core."""

    def __init__(self) -> None:
        self.count = torch.get_num_threads()
        self._busy, self._lock = 0, threading.Lock()

    @property
    def workers(self) -> int:
        """How many batches of one run may be read at a time."""
        return min(SIDE_BY_SIDE, self.count)

    @contextmanager
    def share(self, operations: float) -> Iterator[None]:
        """Read texts of so many operations each with the part of the cores that is left to them."""
        with self._lock:
            self._busy += 1
            own = max(1, self.count // self._busy) if operations >= WORTH else 1
        torch.set_num_threads(own)  # of this thread
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1


CORES = Cores()
