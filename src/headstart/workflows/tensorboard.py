"""A run's events as TensorBoard files, for those who watch their runs there."""

from pathlib import Path
from typing import Any

from headstart.errors import ConfigError
from headstart.training.callbacks import Evaluated, Event, StepDone

STEP_MARKS = ("loss", "accuracy", "learning_rate", "tokens_per_second", "padding")


class TensorBoardLog:
    """Writes what the loop tells to `path`; needs the extra `tensorboard`."""

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
        """Write an event down."""
        if isinstance(event, StepDone):
            for name in STEP_MARKS:
                self._writer.add_scalar(f"train/{name}", getattr(event, name), event.step)
        elif isinstance(event, Evaluated):
            for name, value in event.values.items():
                self._writer.add_scalar(f"valid/{name}", value, event.step)

    def close(self) -> None:
        """Let go of the files."""
        self._writer.close()
