"""Beginning a run, alone or as one of many processes, or taking up one's own that broke off."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headstart.checkpoint import has_checkpoint
from headstart.config import RunConfig
from headstart.errors import RunError
from headstart.training.callbacks import Event
from headstart.training.distributed import Processes
from headstart.training.launch import Place
from headstart.training.runtime import Runtime
from headstart.workflows.run import RunFolder, RunInfo, Trained, load_trained

OnEvent = Callable[[Event], None]
SCRATCH = "scratch"  # the base that is none


def heard(processes: Processes, on_event: OnEvent) -> OnEvent:
    """The listener, on the main process alone: one bar for all."""
    return on_event if processes.is_main else lambda event: None


@contextmanager
def begun(
    path: Path, config: RunConfig, inputs: dict[str, Any], runtime: Runtime, base: str = ""
) -> Iterator[tuple[RunFolder, RunInfo | None]]:
    """A new run folder, held, and None; or that of this very run and what is known of it.

    Only processes that torchrun started, which may start them again, find their own run; to anybody else an
    existing folder is in the way. `base` is the fingerprint of what is started from.
    """
    processes = runtime.processes
    versions = {name: version(name) for name in ("headstart", "torch")}
    processes.agree({**config.model_dump(), "base": base, "version of": versions})
    found = processes.from_main(lambda: _own(path, config, inputs, processes.place))
    folder = RunFolder(path, processes) if found else RunFolder.create(path, processes)
    known = RunInfo.from_dict(json.loads(found), str(path)) if found else None
    with folder, processes.minding():
        yield folder, known


def _own(path: Path, config: RunConfig, inputs: dict[str, Any], place: Place) -> str:
    """The description of the run in `path` if it is the one that is to begin here, and may be taken up; else nothing."""
    if not place.may_take_up or not (path / "run.json").is_file():
        return ""
    info = RunFolder(path).info()
    # A translator's second vocabulary is as large as its tokenizer became; the settings do not say it.
    learnt = {"body": {"source_vocabulary": info.config.body.source_vocabulary}} if info.pair else {}
    if info.config != config.with_(learnt) or any(
        info.inputs.get(name) != given for name, given in inputs.items()
    ):
        raise RunError(f"{path} holds a run with other settings", hint="choose another --out")
    return json.dumps(info.to_dict())


def base_for(folder: RunFolder, info: RunInfo, processes: Processes) -> Trained | None:
    """The base that a stopped run needs to begin again; None when it had none, or has a checkpoint to go on from."""
    base = info.inputs.get("base", SCRATCH)
    if base == SCRATCH:
        return None
    has_state = processes.from_main(lambda: str(has_checkpoint(folder.checkpoints))) == "True"
    with processes.together():
        return None if has_state else load_trained(base)
