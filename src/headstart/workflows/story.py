"""Where a number comes from: command, commit, versions, machine."""

import platform
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from headstart.results import Story
from headstart.training.runtime import Runtime

PACKAGES = ("headstart", "torch", "tokenizers", "numpy", "scikit-learn")


def command_line() -> str:
    """The command that is running, as one could type it again."""
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    if name == "__main__.py":
        name = "headstart"
    return shlex.join([name, *sys.argv[1:]])


def commit() -> str:
    """The commit of headstart's own checkout, marked when files differ from it; empty outside a checkout."""
    own = Path(__file__)

    def ask(*words: str) -> "subprocess.CompletedProcess[str]":
        command = ["git", "-C", str(own.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10)

    try:
        if ask(
            "ls-files", "--error-unmatch", own.name
        ).returncode:  # installed inside somebody else's checkout
            return ""
        found = ask("describe", "--always", "--dirty", "--abbrev=12")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def versions() -> dict[str, str]:
    """The versions of Python and of what the numbers depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    return found


def tell_story(runtime: Runtime, seeds: list[int], started: float | None = None, command: str = "") -> Story:
    """The story of what began at `started` (seconds since the epoch) by `command` (the one that runs) and ends now."""
    start = time.time() if started is None else started
    return Story(
        command=command or command_line(),
        commit=commit(),
        versions=versions(),
        machine=runtime.describe(),
        started=datetime.fromtimestamp(start, UTC).isoformat(timespec="seconds"),
        seconds=round(time.time() - start, 1),
        seeds=seeds,
    )
