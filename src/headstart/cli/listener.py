"""A run's events as a progress bar, or as plain lines where there is no terminal."""

import json
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from headstart.reports.formatting import format_duration
from headstart.training.callbacks import Evaluated, Event, Note, Saved, Stage, StepDone


class Listener:
    """Shows events on standard error while a workflow runs; quiet, it shows nothing."""

    def __init__(self, quiet: bool = False):
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[told]}"),
            console=self.console,
            transient=True,
            disable=quiet or not self.console.is_terminal,
        )
        self.task = self.progress.add_task("starting", total=None, told="")
        self.title = "training"
        self.last_stage = ""

    def __enter__(self) -> "Listener":
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        shown: dict[type, Callable[[Any], None]] = {
            StepDone: self._step,
            Evaluated: self._evaluated,
            Stage: self._stage,
            Note: lambda note: self.console.print(f"[dim]·[/dim] {_plain(note.text)}"),
            Saved: lambda saved: None,
        }
        shown[type(event)](event)

    def _step(self, event: StepDone) -> None:
        told = (
            f"loss {event.loss:.3f}  {event.tokens_per_second:,.0f} tokens/s  padding {event.padding:.0%}  "
            f"{format_duration(event.seconds_left)} left"
        )
        self.progress.update(
            self.task, description=self.title, completed=event.progress * 100, total=100, told=told
        )

    def _evaluated(self, event: Evaluated) -> None:
        values = "  ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in event.values.items())
        best = "  [green]best so far[/green]" if event.is_best else ""
        self.console.print(
            f"  {_plain(self.title)}: epoch {event.epoch:5.2f}, step {event.step:6d}  {values}{best}"
        )

    def _stage(self, event: Stage) -> None:
        total = event.total or None
        self.title = event.name if ", seed" in event.name else "training"
        self.progress.update(self.task, description=event.name, completed=event.done, total=total, told="")
        if event.name != self.last_stage:
            self.last_stage = event.name
            self.console.print(f"[dim]·[/dim] {_plain(event.name)}")


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def print_json(result: Any) -> None:
    """A result as JSON on standard output; what is not a number is null."""
    from headstart.atomic_io import finite
    from headstart.results import plain

    sys.stdout.write(json.dumps(finite(plain(result)), ensure_ascii=False, indent=2, default=str) + "\n")
