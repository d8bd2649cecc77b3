"""Weights and training states as safetensors with checksums, written so that a kill at any moment loses nothing."""

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

NUM_CHECKPOINTS = 2  # that stay on disk: the newest, and the one before in case the newest is incomplete


def _write(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write tensors; an error of the operating system is raised as OSError, which safetensors hides."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(contiguous, str(path), metadata)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def save_weights(path: Path, weights: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Replace the weights at `path` in one step; `metadata` goes into the file's header."""
    write_with(path, lambda part: _write(weights, part, metadata))


def load_weights(path: Path) -> dict[str, Tensor]:
    """The weights at `path`."""
    try:
        return load_file(str(path))
    except FileNotFoundError:
        raise RunError(
            f"no weights at {path}", hint="is this a finished run? `headstart resume` finishes one"
        ) from None
    except (SafetensorError, OSError) as error:
        raise RunError(
            f"the weights at {path} cannot be read: {error}", hint="the file is incomplete: train it again"
        ) from None


def save_checkpoint(folder: Path, step: int, parts: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> None:
    """Write `folder`/step-N with every part as safetensors and the state, then remove the oldest checkpoints."""

    def fill(part: Path) -> None:
        for name, tensors in parts.items():
            _write(tensors, part / f"{name}.safetensors")
        write_json(part / "state.json", state)
        write_json(part / "checksums.json", {file.name: file_hash(file) for file in sorted(part.iterdir())})

    target = folder / f"step-{step:09d}"
    if target.exists():  # the same step saved twice has the same bytes
        if _is_complete(target):
            return
        shutil.rmtree(target)
    write_folder(target, fill)
    for old in _checkpoints(folder)[:-NUM_CHECKPOINTS]:
        shutil.rmtree(old, ignore_errors=True)


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def _is_complete(path: Path) -> bool:
    try:
        sums = json.loads((path / "checksums.json").read_text("utf-8"))
        return bool(sums) and all(file_hash(path / name) == value for name, value in sums.items())
    except (OSError, ValueError):
        return False


def has_checkpoint(folder: Path) -> bool:
    """Whether there is a complete checkpoint."""
    return any(_is_complete(path) for path in _checkpoints(folder))


def load_checkpoint(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]] | None:
    """The parts and the state of the newest complete checkpoint; None when there is none."""
    for path in reversed(_checkpoints(folder)):
        if _is_complete(path):
            parts = {file.stem: load_file(str(file)) for file in path.glob("*.safetensors")}
            return parts, json.loads((path / "state.json").read_text("utf-8"))
    return None
