"""A run's log as curves, read on from where the last look ended: the run may be writing it."""

import json
import threading
from pathlib import Path
from typing import Any

from headstart.files import finite

KEPT = 4096  # points of a curve in memory; of more, every other is dropped
SENT = 512  # points of a curve in one answer
CHUNK = 2**20  # bytes read at a time

STEP_KEYS = ("step", "epoch", "progress", "loss", "accuracy", "learning_rate", "tokens_per_second")


class Curve:
    """Points of which ever fewer are kept as they grow many; the newest always is."""

    def __init__(self) -> None:
        self.points: list[dict[str, Any]] = []
        self._newest: dict[str, Any] | None = None
        self._every, self._seen = 1, 0

    def add(self, point: dict[str, Any]) -> None:
        """One more point; a step that a resume took again replaces what was known of it."""
        while self.points and self.points[-1]["step"] >= point["step"]:
            self.points.pop()
        self._newest = point
        if self._seen % self._every == 0:
            self.points.append(point)
        self._seen += 1
        if len(self.points) > KEPT:
            self.points = self.points[::2]
            self._every *= 2

    @property
    def newest(self) -> dict[str, Any] | None:
        """The last point added."""
        return self._newest

    def after(self, step: int) -> list[dict[str, Any]]:
        """At most a few hundred points beyond `step`, evenly spread, the newest among them."""
        found = [point for point in self.points if point["step"] > step]
        if self._newest is not None and self._newest["step"] > step and found[-1:] != [self._newest]:
            found.append(self._newest)
        every = -(-len(found) // SENT)
        return found if every <= 1 else [*found[:-1:every], found[-1]]


class Progress:
    """What a run's log says so far."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self.steps, self.evaluations = Curve(), Curve()
        self.seconds_left: float | None = None
        self._offset, self._rest = 0, b""

    def look(self, after: int = -1) -> dict[str, Any]:
        """The curves beyond step `after`, and how far the run is."""
        with self._lock:
            self._read()
            last = self.steps.newest
            return {
                "progress": last["progress"] if last else None,
                "seconds_left": self.seconds_left,
                "steps": self.steps.after(after),
                "evaluations": self.evaluations.after(after),
            }

    def _read(self) -> None:
        try:
            with open(self.path, "rb") as handle:
                handle.seek(0, 2)
                if handle.tell() < self._offset:  # a resume cut the log back
                    self._begin()
                handle.seek(self._offset)
                while chunk := handle.read(CHUNK):
                    self._offset += len(chunk)
                    *lines, self._rest = (self._rest + chunk).split(b"\n")
                    for line in lines:
                        self._take(line)
        except FileNotFoundError:  # nothing was logged yet
            self._begin()

    def _take(self, line: bytes) -> None:
        try:
            entry = finite(json.loads(line))
            point = {"step": int(entry["step"])}
        except (ValueError, KeyError, TypeError):  # torn by a kill
            return
        if entry.get("event") == "step":
            self.steps.add({**point, **{key: entry.get(key) for key in STEP_KEYS[1:]}})
            self.seconds_left = entry.get("seconds_left")
        elif entry.get("event") == "evaluation":
            values = {key: value for key, value in entry.items() if isinstance(value, int | float)}
            epoch = values.pop("epoch", None)
            values.pop("step", None)
            self.evaluations.add({**point, "epoch": epoch, "values": values})
