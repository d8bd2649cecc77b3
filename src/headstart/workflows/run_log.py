"""What happens in a run, written down as it happens."""

import json
import os
from pathlib import Path

from headstart.atomic_io import write_text, writing
from headstart.training.callbacks import Evaluated, Event, StepDone


class RunLog:
    """The run's JSONL log; after a resume it goes on from the step that was saved."""

    def __init__(self, path: Path, from_step: int):
        self.path = path
        kept = []
        if path.exists():
            for line in path.read_text("utf-8", errors="replace").splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:  # the line being written when the run died
                    continue
                if entry.get("step", 0) <= from_step and from_step > 0:
                    kept.append(line)
        write_text(path, "".join(line + "\n" for line in kept))
        with writing(path):
            self._handle = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def __call__(self, event: Event) -> None:
        """Write an event down."""
        if isinstance(event, StepDone):
            content = {"event": "step", **event.__dict__}
        elif isinstance(event, Evaluated):
            content = {"event": "evaluation", "step": event.step, "epoch": event.epoch, **event.values}
        else:
            return
        with writing(self.path):
            self._handle.write(json.dumps(content) + "\n")
            self._handle.flush()

    def sync(self) -> None:
        """Make what was written last as long as the checkpoint that is about to be written."""
        with writing(self.path):
            os.fsync(self._handle.fileno())

    def close(self) -> None:
        """Let go of the file."""
        self._handle.close()
