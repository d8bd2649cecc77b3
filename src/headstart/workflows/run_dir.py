"""A run directory: its lock, description, checkpoints, result and provenance."""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np

from headstart.atomic_io import write_bytes, write_json, write_text, writing
from headstart.checkpoint import WEIGHTS_FILE, load_checkpoint, save_checkpoint, save_weights
from headstart.errors import RunError, Stopped
from headstart.inference.loaded_model import (
    FINGERPRINTS,
    RUN_INFO,
    SOURCE_TOKENIZER,
    RunInfo,
    Tokenizers,
    array_bytes,
    check_is_run,
    read_tokenizers,
)
from headstart.models.model import describe_transfer
from headstart.results import Provenance, TransferReport
from headstart.training.callbacks import OnEvent, RunLog, TensorBoardLog, call_all
from headstart.training.runtime import ALONE, Processes, Runtime
from headstart.training.trainer import Trainer

try:
    import fcntl
except ImportError:  # not on Linux or macOS
    fcntl = None  # type: ignore[assignment]

# --- The lock -------------------------------------------------------------------------------------------------------

LOCK = ".lock"
LOCK_TIMEOUT = 5.0  # seconds; a subprocess of a killed run (`git`) holds its lock for a moment longer
MARKER_FILES = (RUN_INFO, "compare.json", "tune.json")  # each makes a directory worth keeping
DATA = "data"  # the folder of a run's texts, where they were given from Python
# Files that a run may leave next to its lock when it is killed before it has a description.
STALE_FILES = (
    LOCK, "tokenizer.json", "source-tokenizer.json", "roles.json", "dict.txt", "sentencepiece.model", FINGERPRINTS,
    DATA,
)  # fmt: skip


class RunLock:
    """An exclusive lock on a run directory. A directory that we created is removed if the run never started."""

    def __init__(self, path: Path):
        self.path = path
        self._lock: Any = None
        self._is_new = False
        self._existed = False  # the user's own empty directory, which stays

    def create(self) -> None:
        """Create the directory of a new run, or accept an empty one."""
        check_free(self.path)
        self._is_new, self._existed = True, self.path.is_dir() and not (self.path / LOCK).exists()
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def acquire(self) -> None:
        """Take the lock; a second process gets an error and changes nothing."""
        deadline = monotonic() + LOCK_TIMEOUT
        while not self._try():
            if monotonic() > deadline:
                raise RunError(
                    f"{self.path} is being trained by another process",
                    hint="wait for it, stop it, or choose another --out",
                )
            sleep(0.05)
        if self._is_new:
            try:
                check_free(self.path)  # once more: another process may have worked there until now
            except RunError:
                self._close()
                raise

    def _try(self) -> bool:
        if fcntl is None:  # no such locks on this system
            return True
        with writing(self.path):
            if self._is_new:  # another process may have removed its directory
                self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / LOCK, "a")  # noqa: SIM115 open until the lock is released
        with suppress(OSError):  # another process holds it, or has removed it with its directory
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(self._lock.fileno()), os.stat(self.path / LOCK)):
                return True
        self._close()
        return False

    def release(self) -> None:
        """Release the lock; the directory of a new run that never started is removed first."""
        if self._is_new and has_no_run(self.path):
            shutil.rmtree(self.path, ignore_errors=True)
            if self._existed:
                self.path.mkdir(exist_ok=True)
        self._close()

    def _close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def check_free(path: Path) -> None:
    """Refuse a path that holds anything but what a killed run of ours left behind."""
    if path.is_file():
        raise RunError(f"{path} is a file, not a directory for a run", hint="choose another --out")
    names = [item.name for item in path.iterdir()] if path.is_dir() else []
    if names and not has_no_run(path):
        raise RunError(
            f"{path} already holds a run",
            hint=f"`headstart resume {shlex.quote(str(path))}` continues it; or choose another --out",
        )
    stale = {name for name in names if name in STALE_FILES or (name.startswith(".") and name.endswith(".part"))}
    if names and (LOCK not in names or stale < set(names)):  # without a lock the files are the user's own
        raise RunError(f"{path} is not empty", hint="choose another --out")


def has_no_run(path: Path) -> bool:
    """Whether a directory holds no run, comparison or search."""
    return not any((path / name).exists() for name in MARKER_FILES)


# --- The directory --------------------------------------------------------------------------------------------------


class RunDir:
    """A run on disk, locked by one process; of several that train together only the main one touches it."""

    def __init__(self, path: Path, processes: Processes = ALONE):
        self.path, self.processes = path, processes
        self._lock = RunLock(path)

    @staticmethod
    def create(path: Path, processes: Processes = ALONE) -> "RunDir":
        """A new, empty run directory; an existing one is never touched."""
        run_dir = RunDir(path, processes)
        processes.broadcast(run_dir._lock.create)
        return run_dir

    @staticmethod
    def open(path: Path, processes: Processes = ALONE) -> "RunDir":
        """An existing run directory."""
        processes.broadcast(lambda: check_is_run(path))
        return RunDir(path, processes)

    def __enter__(self) -> "RunDir":
        self.processes.broadcast(self._lock.acquire)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self.processes.is_main:
            self._lock.release()
        if isinstance(error, Stopped):
            error.again = f"headstart resume {shlex.quote(str(self.path))}"

    @property
    def checkpoints(self) -> Path:
        """The directory of training states, which exists until the run is finished."""
        return self.path / "checkpoints"

    def write_info(self, info: RunInfo) -> None:
        """Write run.json."""
        write_json(self.path / RUN_INFO, info.to_dict())

    def write_start(self, info: RunInfo, tokenizers: Tokenizers, hashes: Sequence[np.ndarray]) -> None:
        """Write all that a resume needs, run.json last; `hashes` are those of the training texts."""
        tokenizer, source = tokenizers
        with self.processes.raise_on_all():
            if self.processes.is_main:
                tokenizer.save(self.path)
                if source is not None:
                    source.save(self.path, SOURCE_TOKENIZER)
                unique = np.unique(np.concatenate(hashes).astype(np.uint64))
                write_bytes(self.path / FINGERPRINTS, array_bytes(unique))
                self.write_info(info)

    def info(self) -> RunInfo:
        """The contents of run.json."""
        return self.processes.broadcast(lambda: RunInfo.read(self.path))

    def tokenizers(self, info: RunInfo) -> Tokenizers:
        """The run's tokenizers, which must be those that it was trained with."""
        return self.processes.broadcast(lambda: read_tokenizers(self.path, info))

    def train(self, trainer: Trainer, is_resumed: bool, on_event: OnEvent) -> None:
        """Train inside this directory: load the saved state, log, write checkpoints, and select the final weights."""
        is_main, raise_on_all = self.processes.is_main, self.processes.raise_on_all
        if is_resumed:
            found = load_checkpoint(self.checkpoints) if is_main else None
            state = self.processes.broadcast(lambda: found and found[1])
            if state is not None:
                trainer.load(found and found[0], state)
        logs: list[RunLog | TensorBoardLog] = []
        with raise_on_all():
            if is_main:
                log = RunLog(self.path / "log.jsonl", trainer.state.step)
                logs.append(log)
                if trainer.config.training.tensorboard:
                    logs.append(TensorBoardLog(self.path / "tensorboard"))

        def save() -> None:
            """Write a checkpoint from which training continues bit for bit, in any number of processes."""
            parts = trainer.parts()
            with raise_on_all():
                if is_main:
                    log.sync()  # a checkpoint never outlives the log up to it
                    save_checkpoint(self.checkpoints, trainer.state.step, parts, trainer.state.to_dict())

        trainer.on_event = call_all(*logs, on_event)
        try:
            trainer.run(save)
        finally:
            for each in logs:
                each.close()
        trainer.finish()

    def finish(self, info: RunInfo, trainer: Trainer, result: dict[str, Any], started: float) -> None:
        """Write weights, result and report, set the status to finished, and remove the training state."""
        weights = trainer.strategy.whole(trainer.model.state_dict())
        seeds, command = [info.config.training.seed], info.provenance["command"]
        result["provenance"] = asdict(collect_provenance(trainer.runtime, seeds, started, command))
        with self.processes.raise_on_all():
            if not self.processes.is_main:
                return
            from headstart.reports.pages import render_run  # needs matplotlib, which takes long to load

            save_weights(self.path / WEIGHTS_FILE, weights)
            write_json(self.path / "result.json", result)
            transfer = describe_transfer(TransferReport(**info.transfer)) if info.transfer else ""
            page = render_run(self.path.name, result, info.config.model_dump(), transfer)
            write_text(self.path / "report.html", page)
            found = {name: result[name] for name in ("classifier", "thresholds") if name in result}
            self.write_info(replace(info, status="finished", **found))
            shutil.rmtree(self.checkpoints, ignore_errors=True)

    def result(self) -> dict[str, Any]:
        """The contents of result.json of a finished run."""
        return self.processes.broadcast(lambda: json.loads((self.path / "result.json").read_text("utf-8")))


# --- Provenance -----------------------------------------------------------------------------------------------------

PACKAGES = ("headstart", "torch", "tokenizers", "numpy", "scikit-learn")


def collect_provenance(
    runtime: Runtime, seeds: list[int], started: float | None = None, command: str = ""
) -> Provenance:
    """The provenance of what started at `started` (seconds since the epoch, default now) and ends now."""
    start = time.time() if started is None else started
    when, seconds = datetime.fromtimestamp(start, UTC).isoformat(timespec="seconds"), round(time.time() - start, 1)
    return Provenance(command or command_line(), commit(), versions(), runtime.describe(), when, seconds, seeds)


def command_line() -> str:
    """The running command, as one could type it again."""
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    return shlex.join(["headstart" if name == "__main__.py" else name, *sys.argv[1:]])


def commit() -> str:
    """The commit of headstart's own checkout, with `-dirty` when files differ from it; empty outside a checkout."""
    own = Path(__file__)

    def git(*words: str) -> str:
        command = ["git", "-C", str(own.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    with suppress(OSError, subprocess.SubprocessError):
        git("ls-files", "--error-unmatch", own.name)  # an error where it is installed inside another checkout
        return git("describe", "--always", "--dirty", "--abbrev=12")
    return ""


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that numbers depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    return found
