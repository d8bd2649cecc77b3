"""Weights and training states as safetensors with checksums, written so that a kill at any moment loses nothing."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from headstart.atomic_io import file_hash, write_folder, write_json, write_with
from headstart.errors import RunError

NUM_CHECKPOINTS = 2  # on disk: the newest, and the one before in case the newest is incomplete
WEIGHTS_FILE = "model.safetensors"  # as training writes them
SHARD_INDEX = "weights.json"  # of quantized weights, which headstart.quantization writes
SHARD_FORMAT = 1
ROW_SEPARATOR = "@"  # in a shard: between a matrix's name and the first row of a piece
SCALE = ":scale"  # in a shard: the suffix of the scales of an int8 matrix

Weights = dict[str, Tensor]


def _write(tensors: Weights, path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write tensors; safetensors hides an OSError of the operating system, so it is raised again."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(contiguous, str(path), metadata)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def save_weights(path: Path, weights: Weights, metadata: dict[str, str] | None = None) -> None:
    """Replace the weights at `path` in one step; `metadata` goes into the file's header."""
    write_with(path, lambda part: _write(weights, part, metadata))


def load_weights(path: Path) -> Weights:
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


# --- The weights of a run -------------------------------------------------------------------------------------------


def read_weights(folder: Path) -> Weights:
    """The weights of a run in float32, from one file or from quantized shards, whose checksums must match."""
    if not (folder / SHARD_INDEX).exists():
        return load_weights(folder / WEIGHTS_FILE)
    found: dict[str, dict[int, dict[str, Tensor]]] = {}
    for file, checksum in read_shard_index(folder).items():
        verify_file(folder / file, checksum)
        for key, tensor in load_weights(folder / file).items():
            plain = key.removesuffix(SCALE)
            name, _, start = plain.partition(ROW_SEPARATOR)
            found.setdefault(name, {}).setdefault(int(start or 0), {})[key.removeprefix(plain)] = tensor
    weights = {name: [decode(pieces[at]) for at in sorted(pieces)] for name, pieces in found.items()}
    return {name: torch.cat(pieces) if len(pieces) > 1 else pieces[0] for name, pieces in weights.items()}


def decode(parts: Mapping[str, Tensor]) -> Tensor:
    """A stored weight in float32; integers with a scale for each row are dequantized."""
    whole = parts[""]
    if SCALE in parts:
        return (whole.float().flatten(1) * parts[SCALE].float()[:, None]).view(whole.shape)
    return whole.float() if whole.is_floating_point() else whole


def read_shard_index(folder: Path) -> dict[str, str]:
    """The shards of a run's weights, and their checksums."""
    path = folder / SHARD_INDEX
    try:
        index = json.loads(path.read_text("utf-8"))
        if index["format"] > SHARD_FORMAT:
            raise RunError(f"{path} was written by a newer headstart", hint="upgrade headstart")
        return dict(index["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} cannot be read: {error!r}", hint="copy the folder again") from None


def verify_file(path: Path, checksum: str) -> None:
    """Raise an error unless the file exists and has this checksum."""
    if not path.is_file():
        raise RunError(f"{path} is missing", hint="copy the folder again, whole")
    if file_hash(path) != checksum:
        raise RunError(
            f"{path} is damaged: its checksum is not the one it was written with", hint="copy the file again"
        )


# --- Training states ------------------------------------------------------------------------------------------------


def save_checkpoint(folder: Path, step: int, parts: dict[str, Weights], state: dict[str, Any]) -> None:
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
    return any(map(_is_complete, _checkpoints(folder)))


def load_checkpoint(folder: Path) -> tuple[dict[str, Weights], dict[str, Any]] | None:
    """The parts and the state of the newest complete checkpoint; None when there is none."""
    path = next((path for path in reversed(_checkpoints(folder)) if _is_complete(path)), None)
    if path is None:
        return None
    parts = {file.stem: load_file(str(file)) for file in path.glob("*.safetensors")}
    return parts, json.loads((path / "state.json").read_text("utf-8"))
