"""Pretrained bases, shipped or packaged by the user: where they are, and whether their files are intact."""

import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

from headstart.atomic_io import file_hash
from headstart.errors import RunError

BASE = "base.json"  # the description of a packaged base
CHECKSUMS = "checksums.json"  # of every other file in its folder
FOLDERS = "HEADSTART_BASES"  # the variable that names more folders of bases


def base_folders() -> list[Path]:
    """The folders that hold bases: those of the user first."""
    own = [Path(folder) for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]
    return [*own, Path(str(resources.files("headstart"))) / "bases"]


def shipped_bases() -> dict[str, Path]:
    """The bases by name."""
    found: dict[str, Path] = {}
    for folder in base_folders():
        for item in sorted(folder.glob("*")):
            if (item / BASE).is_file():
                found.setdefault(item.name, item)
    return dict(sorted(found.items()))


def describe_base(path: Path) -> dict[str, Any]:
    """The description of a base."""
    try:
        found = json.loads((path / BASE).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path / BASE} cannot be read: {error}", hint=REPAIR) from None
    if not isinstance(found, dict) or not {"name", "language", "parameters", "title", "scores"} <= set(found):
        raise RunError(f"{path / BASE} does not describe a base", hint=REPAIR)
    return found


REPAIR = "install headstart again, or copy the base again"


def check_base(path: Path) -> None:
    """Raise an error unless every file of a packaged base exists and has its checksum."""
    try:
        checksums = json.loads((path / CHECKSUMS).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path / CHECKSUMS} cannot be read: {error}", hint=REPAIR) from None
    if not isinstance(checksums, dict) or not {BASE, "run.json"} <= set(checksums):
        raise RunError(f"{path / CHECKSUMS} does not list the files of a base", hint=REPAIR)
    for name, checksum in checksums.items():
        if not (path / name).is_file():
            raise RunError(f"the base {path.name} lacks its file {name}", hint=REPAIR)
        if file_hash(path / name) != checksum:
            raise RunError(f"the base {path.name} is damaged: {name} has changed", hint=REPAIR)
