"""Atomic writes: a file or a folder is written under another name, synced and renamed. And SHA-256 hashes."""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from headstart.errors import RunError


def _sync(path: Path) -> None:
    """Make what was written to a file, or the renames inside a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the operating system about `path` into a RunError with a hint."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        hint = {
            "No space left on device": "free some space or write elsewhere with --out, then `headstart resume` the run",
            "Permission denied": "choose a folder that you may write to with --out",
            "Read-only file system": "choose a folder that you may write to with --out",
        }.get(reason, "choose another place with --out")
        raise RunError(f"cannot write {path}: {reason}", hint=hint) from error


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A new name beside `path` that is renamed to it at the end, or removed after an error.

    The name is random, because processes of two machines or containers may have the same number.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid4().hex[:12]}.part")
        try:
            yield temporary
            os.replace(temporary, path)
        except BaseException:
            if temporary.is_dir():
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                temporary.unlink(missing_ok=True)
            raise
        _sync(path.parent)


def write_with(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a file beside `path`, sync it and rename it into place."""
    with _replacing(path) as temporary:
        write(temporary)
        _sync(temporary)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file at `path` in one step."""
    write_with(path, lambda temporary: temporary.write_bytes(content))


def write_text(path: Path, content: str) -> None:
    """Replace the text file at `path` in one step."""
    write_bytes(path, content.encode("utf-8"))


def write_json(path: Path, content: Any) -> None:
    """Replace the JSON file at `path` in one step."""
    write_text(path, json.dumps(finite(content), ensure_ascii=False, indent=2) + "\n")


def finite(value: Any) -> Any:
    """A JSON-able value in which NaN and infinite numbers are None, because strict JSON has neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def refuse_existing(path: Path) -> None:
    """Refuse to overwrite anything."""
    if path.exists() or path.is_symlink():
        raise RunError(f"{path} exists already, and is left as it is", hint="choose another --out")


def write_folder(path: Path, fill: Callable[[Path], Any]) -> None:
    """Let `fill` write into a folder beside `path`, sync every file, then rename it to the new name `path`."""
    with _replacing(path) as temporary:
        temporary.mkdir()
        fill(temporary)
        for file in temporary.rglob("*"):
            if file.is_file():
                _sync(file)
        _sync(temporary)


def write_folder_once(path: Path, fill: Callable[[Path], Any]) -> None:
    """As `write_folder`, unless `path` exists; of several concurrent writers the first one wins."""
    try:
        write_folder(path, fill)
    except RunError:
        if not path.is_dir():
            raise


def file_hash(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def content_hash(content: Any) -> str:
    """The SHA-256 of a JSON-able value, the same whatever the order of its keys."""
    text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
