"""The events of a training run, and what receives them: a JSONL log, TensorBoard files, a progress bar."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from headstart.atomic_io import write_text, writing
from headstart.errors import ConfigError
from headstart.reports.formatting import format_duration


@dataclass(frozen=True)
class StepDone:
    """A few steps were taken; loss and accuracy are means over them."""

    step: int
    epoch: float
    progress: float
    loss: float
    accuracy: float
    learning_rate: float
    tokens: int
    tokens_per_second: float
    padding: float
    seconds: float
    seconds_left: float
    losses: dict[str, float]


@dataclass(frozen=True)
class Evaluated:
    """The model was evaluated on the validation part."""

    step: int
    epoch: float
    values: dict[str, float]
    is_best: bool


@dataclass(frozen=True)
class Saved:
    """Everything up to `step` is safe on disk."""

    step: int


@dataclass(frozen=True)
class Stage:
    """Something other than training is under way; `done` of `total` where that is known."""

    name: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True)
class Note:
    """Something the user should know, in words."""

    text: str


Event = StepDone | Evaluated | Saved | Stage | Note
OnEvent = Callable[[Event], None]


def ignore_event(event: Event) -> None:
    """A listener that does nothing."""


def call_all(*listeners: OnEvent) -> OnEvent:
    """One listener that passes each event to several."""

    def listen(event: Event) -> None:
        for each in listeners:
            each(event)

    return listen


SCALARS = ("loss", "accuracy", "learning_rate", "tokens_per_second", "padding")  # of a step, for TensorBoard


class RunLog:
    """The run's JSONL log; a resume drops the entries after the step that was saved."""

    def __init__(self, path: Path, from_step: int):
        self.path, lines = path, []
        if from_step and path.exists():
            for line in path.read_text("utf-8", errors="replace").splitlines():
                with suppress(ValueError):  # the line that was being written when the run was killed
                    if json.loads(line).get("step", 0) <= from_step:
                        lines.append(line)
        write_text(path, "".join(line + "\n" for line in lines))
        with writing(path):
            self._handle = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def __call__(self, event: Event) -> None:
        """Append an event."""
        if not isinstance(event, StepDone | Evaluated):
            return
        content = {"event": "step", **event.__dict__}
        if isinstance(event, Evaluated):
            content = {"event": "evaluation", "step": event.step, "epoch": event.epoch, **event.values}
        with writing(self.path):
            self._handle.write(json.dumps(content) + "\n")
            self._handle.flush()

    def sync(self) -> None:
        """Make the log so far as durable as the checkpoint that is about to be written."""
        with writing(self.path):
            os.fsync(self._handle.fileno())

    def close(self) -> None:
        """Close the file."""
        self._handle.close()


class TensorBoardLog:
    """Writes the trainer's events to `path`; needs the extra `tensorboard`."""

    def __init__(self, path: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "training.tensorboard is set, but the package tensorboard is not installed",
                hint="pip install 'headstart[tensorboard]', or leave the setting out",
            ) from None
        self._writer: Any = SummaryWriter(str(path))

    def __call__(self, event: Event) -> None:
        """Write an event."""
        if isinstance(event, StepDone):
            for name in SCALARS:
                self._writer.add_scalar(f"train/{name}", getattr(event, name), event.step)
        elif isinstance(event, Evaluated):
            for name, value in event.values.items():
                self._writer.add_scalar(f"valid/{name}", value, event.step)

    def close(self) -> None:
        """Close the files."""
        self._writer.close()


class ProgressBar:
    """Shows events on standard error: as a progress bar in a terminal, else as lines."""

    def __init__(self, quiet: bool = False):
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[text]}"),
            console=self.console,
            transient=True,
            disable=quiet or not self.console.is_terminal,
        )
        self.task = self.progress.add_task("starting", total=None, text="")
        self.title, self.last_stage = "training", ""

    def __enter__(self) -> "ProgressBar":
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, StepDone):
            speed, left = f"{event.tokens_per_second:,.0f} tokens/s", format_duration(event.seconds_left)
            text = f"loss {event.loss:.3f}  {speed}  padding {event.padding:.0%}  {left} left"
            self.progress.update(self.task, description=self.title, completed=event.progress, total=1, text=text)
        elif isinstance(event, Evaluated):
            values = "  ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in event.values.items())
            best = "  [green]best so far[/green]" if event.is_best else ""
            when = f"{escape(self.title)}: epoch {event.epoch:5.2f}, step {event.step:6d}"
            self.console.print(f"  {when}  {values}{best}")
        elif isinstance(event, Stage):
            self.title = event.name if ", seed" in event.name else "training"
            total = event.total or None
            self.progress.update(self.task, description=event.name, completed=event.done, total=total, text="")
            if event.name != self.last_stage:
                self.note(event.name)
            self.last_stage = event.name
        elif isinstance(event, Note):
            self.note(event.text)

    def note(self, text: str) -> None:
        """Print a line."""
        self.console.print(f"[dim]·[/dim] {escape(text)}")
