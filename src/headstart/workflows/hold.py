"""A folder for one process at a time: taken when nothing is in it, and taken away again when nothing came of it."""

import os
import shlex
import shutil
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from headstart.atomic_io import writing
from headstart.errors import RunError

LOCK = ".lock"
# Seconds: what a killed run had just started (a `git` on its way to begin) keeps its lock for a moment longer.
LETTING_GO = 5.0
# What makes a folder worth keeping: a run's description, a comparison's, a search's.
WORTH = ("run.json", "compare.json", "tune.json")
# What a run that was killed before it had a description may leave beside its lock.
LEFTOVERS = (
    LOCK, "tokenizer.json", "source-tokenizer.json", "roles.json", "dict.txt", "sentencepiece.model", "seen.npy",
)  # fmt: skip


def check_free(path: Path) -> None:
    """Refuse a place where anything is but what a killed run of ours left behind."""
    if path.is_file():
        raise RunError(f"{path} is a file, not a place for a run", hint="choose another --out")
    if not path.is_dir():
        return
    is_ours = is_bare(path) and (path / LOCK).exists()  # without it they are somebody's own files
    if all(is_ours and _is_leftover(item) for item in path.iterdir()):
        return
    if is_bare(path):
        raise RunError(f"{path} is not empty", hint="choose another --out")
    raise RunError(
        f"{path} already holds a run",
        hint=f"`headstart resume {shlex.quote(str(path))}` goes on with it; or choose another --out",
    )


def is_bare(path: Path) -> bool:
    """Whether a folder holds nothing of worth yet."""
    return not any((path / name).exists() for name in WORTH)


def _is_leftover(path: Path) -> bool:
    return path.name in LEFTOVERS or (path.name.startswith(".") and path.name.endswith(".part"))


class Hold:
    """The lock on a folder; for a new run also the right to take the folder away."""

    def __init__(self, path: Path):
        self.path = path
        self._lock: Any = None
        self._is_new = False
        self._was_there = False  # somebody's own empty folder, which stays

    def make(self) -> str:
        """Make the folder of a new run, or take one in which nothing is; returns nothing that has to be told."""
        check_free(self.path)
        self._is_new, self._was_there = True, self.path.is_dir() and not (self.path / LOCK).exists()
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        return ""

    def take(self) -> str:
        """Hold the folder; a second process is told so, and does nothing to it."""
        patience = monotonic() + LETTING_GO
        while not self._try():
            if monotonic() > patience:
                raise RunError(
                    f"{self.path} is being trained by another process",
                    hint="wait for it, stop it, or choose another --out",
                )
            sleep(0.05)
        if self._is_new:
            try:
                check_free(self.path)  # again: another may have been at work until now
            except RunError:
                self._let_go()
                raise
        return ""

    def _try(self) -> bool:
        try:
            import fcntl
        except ImportError:  # no such locks on this system
            return True
        with writing(self.path):
            if self._is_new:
                self.path.mkdir(parents=True, exist_ok=True)
            try:
                lock = open(self.path / LOCK, "a")  # noqa: SIM115 held until the run is let go
            except FileNotFoundError:
                if not self._is_new:
                    raise
                return False  # another has just taken its folder away
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock.fileno()), os.stat(self.path / LOCK)):
                self._lock = lock
                return True
        except OSError:  # another holds it, or has taken it away with its folder
            pass
        lock.close()
        return False

    def release(self) -> None:
        """Let the folder go; that of a new run of which nothing came is taken away first."""
        if self._is_new and is_bare(self.path):
            if self._was_there:
                for item in sorted(self.path.iterdir(), key=lambda item: item.name == LOCK):  # the lock last
                    shutil.rmtree(item) if item.is_dir() else item.unlink(missing_ok=True)
            else:
                shutil.rmtree(self.path, ignore_errors=True)
        self._let_go()

    def _let_go(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
