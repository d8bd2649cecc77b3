"""A run's events as a progress bar, or as plain lines where there is no terminal; results as JSON."""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from headstart.atomic_io import finite
from headstart.reports.formatting import format_duration
from headstart.training.callbacks import Evaluated, Event, Note, Stage, StepDone


class Listener:
    """Shows events on standard error while a workflow runs; a quiet one shows nothing."""

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
        match event:
            case StepDone():
                self._show_step(event)
            case Evaluated():
                self._show_evaluation(event)
            case Stage():
                self._show_stage(event)
            case Note():
                self.note(event.text)

    def note(self, text: str) -> None:
        """Print a line."""
        self.console.print(f"[dim]·[/dim] {escape(text)}")

    def _show_step(self, event: StepDone) -> None:
        text = (
            f"loss {event.loss:.3f}  {event.tokens_per_second:,.0f} tokens/s  padding {event.padding:.0%}  "
            f"{format_duration(event.seconds_left)} left"
        )
        self.progress.update(self.task, description=self.title, completed=event.progress * 100, total=100, text=text)

    def _show_evaluation(self, event: Evaluated) -> None:
        values = "  ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in event.values.items())
        best = "  [green]best so far[/green]" if event.is_best else ""
        self.console.print(f"  {escape(self.title)}: epoch {event.epoch:5.2f}, step {event.step:6d}  {values}{best}")

    def _show_stage(self, event: Stage) -> None:
        self.title = event.name if ", seed" in event.name else "training"
        self.progress.update(
            self.task, description=event.name, completed=event.done, total=event.total or None, text=""
        )
        if event.name != self.last_stage:
            self.last_stage = event.name
            self.note(event.name)


def print_tables(tables: Iterable[Any], lines: Iterable[str]) -> None:
    """Tables of rich, then lines of text."""
    console = Console(highlight=False)
    for table in tables:
        console.print(table)
    for line in lines:
        console.print(line, soft_wrap=True)


def print_json(result: Any, compact: bool = False) -> None:
    """A result as JSON on standard output; what is not a number is null."""
    content = _as_json_values(result)
    sys.stdout.write(json.dumps(finite(content), ensure_ascii=False, indent=None if compact else 2, default=str) + "\n")


def _as_json_values(result: Any) -> Any:
    if isinstance(result, list):
        return [_as_json_values(each) for each in result]
    return asdict(result) if is_dataclass(result) and not isinstance(result, type) else result
