"""The training state of one fit among many, kept until the fit is finished; no other fit ever goes on from it."""

import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from headstart.atomic_io import content_hash
from headstart.checkpoint import load_checkpoint, save_checkpoint
from headstart.training.trainer import Trainer


class FitState:
    """Where a fit keeps its state, and all that it depends on; fits that follow each other share a folder."""

    def __init__(self, folder: Path, identity: Callable[[], Any]):
        self.folder, self._identity = folder, identity

    @cached_property
    def mark(self) -> str:
        """The hash of all that the fit depends on; made when it is needed, for most fits end before they save."""
        return content_hash(self._identity())

    def take_up(self, trainer: Trainer) -> dict[str, Any] | None:
        """Go on from the newest whole state of this very fit and give what was kept beside; else clear the folder."""
        found = load_checkpoint(self.folder)
        if found is None or found[1].get("fit") != self.mark:
            self.drop()
            return None
        parts, content = found
        trainer.load(parts, content["training"])
        return content["beside"]

    def save(self, trainer: Trainer, beside: dict[str, Any] | None = None) -> None:
        """Write a checkpoint from which the fit goes on bit for bit."""
        content = {"fit": self.mark, "training": trainer.state.to_dict(), "beside": beside or {}}
        save_checkpoint(self.folder, trainer.state.step, trainer.parts(), content)

    def drop(self) -> None:
        """Take the state away, and whatever else is in its folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
