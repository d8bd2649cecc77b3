"""Run one command and print as JSON which files of the package its calls cross: python -m tests.helpers.walk COMMAND ..."""

import importlib
import json
import pkgutil
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import headstart
from headstart.cli.app import main

ROOT = Path(headstart.__file__).parent


def import_everything() -> None:
    """Import all modules beforehand: what runs at import time is not part of a command's way."""
    for module in pkgutil.walk_packages([str(ROOT)], "headstart."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):  # an extra that is not installed
                importlib.import_module(module.name)


def walk(arguments: Sequence[str]) -> tuple[list[str], int]:
    """The files that a command's calls enter, in the order of first entry, and how often control passes from one
    file of the command line or the workflows to another.
    """
    files: dict[str, None] = {}
    hops, last = 0, ""

    def record(frame, event, _argument):
        nonlocal hops, last
        path = frame.f_code.co_filename
        if event != "call" or not (path.startswith(str(ROOT)) and path.endswith(".py")):
            return
        file = Path(path).relative_to(ROOT).as_posix()
        files.setdefault(file)
        if file.startswith(("cli/", "workflows/")) and file != last:
            hops, last = hops + 1, file

    sys.argv = ["headstart", *arguments]
    threading.setprofile(record)
    sys.setprofile(record)
    try:
        main()
    except SystemExit as done:
        if done.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(files), hops


if __name__ == "__main__":
    import_everything()
    files, hops = walk(sys.argv[1:])
    print(json.dumps({"files": files, "hops": hops}), file=sys.stderr)
