"""One model saved: weights as safetensors with checksums, written so that a kill at any moment loses nothing."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from headstart.atomic_io import file_hash, write_folder, write_json, write_with
from headstart.errors import RunError

KEPT = 2  # checkpoints that stay on disk: the newest, and the one before in case the newest is torn


def _own(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _write(tensors: dict[str, Tensor], path: Path, notes: dict[str, str] | None = None) -> None:
    """Write tensors; what the operating system says of it comes as an OSError, whatever safetensors makes of it."""
    try:
        save_file(_own(tensors), str(path), notes)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def save_weights(path: Path, weights: dict[str, Tensor], notes: dict[str, str] | None = None) -> None:
    """Replace the weights at `path` in one step; `notes` go into the file's head."""
    write_with(path, lambda beside: _write(weights, beside, notes))


def load_weights(path: Path) -> dict[str, Tensor]:
    """The weights at `path`."""
    try:
        return load_file(str(path))
    except FileNotFoundError:
        raise RunError(
            f"no weights at {path}", hint="is this a finished run? `headstart resume` goes on with one"
        ) from None
    except (SafetensorError, OSError) as error:
        raise RunError(
            f"the weights at {path} cannot be read: {error}", hint="the file is torn: train it again"
        ) from None


def save_checkpoint(
    folder: Path, step: int, parts: dict[str, dict[str, Tensor]], state: dict[str, Any]
) -> None:
    """Write `folder`/step-N with every part as safetensors and the state, then drop the oldest ones."""

    def fill(beside: Path) -> None:
        for name, tensors in parts.items():
            _write(tensors, beside / f"{name}.safetensors")
        write_json(beside / "state.json", state)
        write_json(
            beside / "checksums.json", {file.name: file_hash(file) for file in sorted(beside.iterdir())}
        )

    target = folder / f"step-{step:09d}"
    if target.exists():  # the same step saved twice holds the same bytes, unless it is torn
        if _is_whole(target):
            return
        shutil.rmtree(target)
    write_folder(target, fill)
    for old in _all(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def _is_whole(path: Path) -> bool:
    try:
        sums = json.loads((path / "checksums.json").read_text("utf-8"))
        return bool(sums) and all(file_hash(path / name) == value for name, value in sums.items())
    except (OSError, ValueError):
        return False


def has_checkpoint(folder: Path) -> bool:
    """Whether there is a checkpoint that is whole."""
    return any(_is_whole(path) for path in _all(folder))


def load_checkpoint(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]] | None:
    """The newest checkpoint that is whole, as parts and state; None when there is none."""
    for path in reversed(_all(folder)):
        if _is_whole(path):
            parts = {file.stem: load_file(str(file)) for file in path.glob("*.safetensors")}
            return parts, json.loads((path / "state.json").read_text("utf-8"))
    return None
