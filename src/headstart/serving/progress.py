"""The learning curves in the log of a run, which may still be growing."""

import json
import threading
from pathlib import Path
from typing import Any

from headstart.atomic_io import finite

MAX_POINTS = 4096  # of a curve in memory; of more, every other one is dropped
MAX_RESPONSE_POINTS = 512  # of a curve in one response
READ_BYTES = 2**20  # at a time

STEP_KEYS = ("step", "epoch", "progress", "loss", "accuracy", "learning_rate", "tokens_per_second")


class Curve:
    """Points of a metric, thinned out as they grow in number; the newest one always stays."""

    def __init__(self) -> None:
        self.points: list[dict[str, Any]] = []
        self._newest: dict[str, Any] | None = None
        self._stride, self._count = 1, 0

    def add(self, point: dict[str, Any]) -> None:
        """Add a point; after a resume, the new point of a step replaces the old one."""
        while self.points and self.points[-1]["step"] >= point["step"]:
            self.points.pop()
        self._newest = point
        if self._count % self._stride == 0:
            self.points.append(point)
        self._count += 1
        if len(self.points) > MAX_POINTS:
            self.points = self.points[::2]
            self._stride *= 2

    @property
    def newest(self) -> dict[str, Any] | None:
        """The last point added."""
        return self._newest

    def after(self, step: int) -> list[dict[str, Any]]:
        """At most a few hundred points after `step`, evenly spaced, including the newest."""
        points = [point for point in self.points if point["step"] > step]
        if self._newest is not None and self._newest["step"] > step and points[-1:] != [self._newest]:
            points.append(self._newest)
        stride = -(-len(points) // MAX_RESPONSE_POINTS)
        return points if stride <= 1 else [*points[:-1:stride], points[-1]]


class Progress:
    """The log of a run so far."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self.steps, self.evaluations = Curve(), Curve()
        self.seconds_left: float | None = None
        self._offset, self._partial_line = 0, b""

    def read(self, after: int = -1) -> dict[str, Any]:
        """The points after step `after`, and the progress of the run."""
        with self._lock:
            self._update()
            last = self.steps.newest
            return {
                "progress": last["progress"] if last else None,
                "seconds_left": self.seconds_left,
                "steps": self.steps.after(after),
                "evaluations": self.evaluations.after(after),
            }

    def _update(self) -> None:
        try:
            with open(self.path, "rb") as handle:
                handle.seek(0, 2)
                if handle.tell() < self._offset:  # a resume has truncated the log
                    self._reset()
                handle.seek(self._offset)
                while chunk := handle.read(READ_BYTES):
                    self._offset += len(chunk)
                    *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
                    for line in lines:
                        self._add(line)
        except FileNotFoundError:  # nothing is logged yet
            self._reset()

    def _add(self, line: bytes) -> None:
        try:
            entry = finite(json.loads(line))
            point = {"step": int(entry["step"])}
        except (ValueError, KeyError, TypeError):  # cut off when the run was killed
            return
        if entry.get("event") == "step":
            self.steps.add({**point, **{key: entry.get(key) for key in STEP_KEYS[1:]}})
            self.seconds_left = entry.get("seconds_left")
        elif entry.get("event") == "evaluation":
            values = {key: value for key, value in entry.items() if isinstance(value, int | float)}
            epoch = values.pop("epoch", None)
            values.pop("step", None)
            self.evaluations.add({**point, "epoch": epoch, "values": values})
