"""Weights in files of 8, 16 or 32 bits, split into shards, each with a checksum."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.atomic_io import file_hash, write_json
from headstart.checkpoint import load_weights, save_weights
from headstart.errors import ConfigError, RunError

FORMAT = 1
INDEX = "weights.json"  # written last: the shards are complete when it exists
WEIGHTS_FILE = "model.safetensors"  # the weights as training writes them
FORMS = ("float32", "bfloat16", "int8")
MIB = 2**20
HEADER_BYTES = 256  # at most, of one tensor in a shard's header
ROW_SEPARATOR = "@"  # between a matrix's name and the first row of a piece
SCALE = ":scale"
SMALLEST, LARGEST = 2.0**-14, 2.0**15  # float16 has its full precision between them


def quantize(rows: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as integers from -127 to 127, and the scale of each row, in float16 where that is exact enough."""
    flat = rows.float().flatten(1)  # (N, D)
    largest = flat.abs().amax(dim=1)  # (N,)
    scale = torch.where(largest == 0, 127.0, largest) / 127
    half = scale.half()
    half = torch.where(half.float() < scale, (half.view(torch.int16) + 1).view(torch.float16), half)  # rounded up
    if len(scale) and scale.min() >= SMALLEST and scale.max() <= LARGEST:
        scale = half
    return torch.round(flat / scale.float()[:, None]).to(torch.int8).view(rows.shape), scale


def dequantize(whole: Tensor, scale: Tensor) -> Tensor:
    """The matrix that `quantize` was given, to 8 bits."""
    return (whole.float().flatten(1) * scale.float()[:, None]).view(whole.shape)


def as_stored(weights: Mapping[str, Tensor], form: str) -> dict[str, Tensor]:
    """The weights as they are read after being stored in this form."""
    return {name: _decoded(_encoded(weight, form)) for name, weight in weights.items()}


def _encoded(weight: Tensor, form: str) -> dict[str, Tensor]:
    """The tensors that encode a weight, by the suffix of their name; vectors have 16 bits under int8."""
    if not weight.is_floating_point() or form == "float32":
        return {"": weight}
    if form == "bfloat16":
        return {"": weight.to(torch.bfloat16)}
    if weight.ndim < 2:
        largest = float(weight.abs().max()) if weight.numel() else 0.0
        return {"": weight.half() if largest == 0 or SMALLEST <= largest <= LARGEST else weight.float()}
    whole, scale = quantize(weight)
    return {"": whole, SCALE: scale}


def _decoded(parts: Mapping[str, Tensor]) -> Tensor:
    if SCALE in parts:
        return dequantize(parts[""], parts[SCALE])
    return parts[""].float() if parts[""].is_floating_point() else parts[""]


def store_weights(folder: Path, weights: Mapping[str, Tensor], form: str, shard_mib: float) -> None:
    """Write the weights into `folder` as shards of at most `shard_mib` MiB, and their index."""
    if form not in FORMS:
        raise ConfigError(f"weights are not stored as {form!r}", hint=f"choose from {', '.join(FORMS)}")
    shards: list[dict[str, Tensor]] = [{}]
    room, most = shard_mib * MIB, shard_mib * MIB
    for name, parts, size in _pieces(weights, form, most):
        if size > room:
            shards.append({})
            room = most
        shards[-1].update({f"{name}{ending}": tensor for ending, tensor in parts.items()})
        room -= size
    files = {}
    for number, shard in enumerate(shards, start=1):
        path = folder / f"weights-{number:05d}-of-{len(shards):05d}.safetensors"
        save_weights(path, shard)
        files[path.name] = file_hash(path)
    write_json(folder / INDEX, {"format": FORMAT, "form": form, "files": files})


def _pieces(weights: Mapping[str, Tensor], form: str, most: float) -> Iterator[tuple[str, dict[str, Tensor], int]]:
    """Each weight's tensors with their bytes; a matrix larger than a shard is split into pieces of rows."""
    for name, weight in weights.items():
        own = weight.detach().cpu()
        parts = _encoded(own, form)
        size = _bytes(parts)
        if size <= most:
            yield name, parts, size
            continue
        count = len(own) if own.ndim else 1
        rows = int((most - 2 * HEADER_BYTES) // (sum(part.nbytes for part in parts.values()) / count))
        if rows < 1:
            raise ConfigError(f"a row of {name} is larger than a shard may be", hint="allow larger shards")
        for start in range(0, count, rows):
            piece = {ending: part[start : start + rows] for ending, part in parts.items()}
            yield f"{name}{ROW_SEPARATOR}{start}", piece, _bytes(piece)


def _bytes(parts: Mapping[str, Tensor]) -> int:
    return sum(part.nbytes + HEADER_BYTES for part in parts.values())


def compact(folder: Path, form: str, shard_mib: float) -> None:
    """Replace a run's training weights by their compact form; a second call changes nothing."""
    if not (folder / INDEX).exists():
        store_weights(folder, load_weights(folder / WEIGHTS_FILE), form, shard_mib)
    (folder / WEIGHTS_FILE).unlink(missing_ok=True)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a run in 32 bits, however they are stored; damage is an error."""
    if not (folder / INDEX).exists():
        return load_weights(folder / WEIGHTS_FILE)
    index = _index(folder)
    found: dict[str, dict[int, dict[str, Tensor]]] = {}
    for file, checksum in index["files"].items():
        verify_file(folder / file, checksum)
        for key, tensor in load_weights(folder / file).items():
            plain = key.removesuffix(SCALE)
            name, _, start = plain.partition(ROW_SEPARATOR)
            found.setdefault(name, {}).setdefault(int(start or 0), {})[key.removeprefix(plain)] = tensor
    return {name: _together([_decoded(pieces[at]) for at in sorted(pieces)]) for name, pieces in found.items()}


def _together(pieces: list[Tensor]) -> Tensor:
    return torch.cat(pieces) if len(pieces) > 1 else pieces[0]


def stored_bytes(folder: Path) -> int:
    """Bytes of a run's weights on disk."""
    names = _index(folder)["files"] if (folder / INDEX).exists() else [WEIGHTS_FILE]
    return sum((folder / name).stat().st_size for name in names)


def _index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX).read_text("utf-8"))
        if index["format"] > FORMAT:
            raise RunError(f"{folder / INDEX} was written by a newer headstart", hint="upgrade headstart")
        return {**index, "files": dict(index["files"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder / INDEX} cannot be read: {error!r}", hint="copy the folder again") from None


def verify_file(path: Path, checksum: str) -> None:
    """Raise an error unless the file exists with exactly the bytes that were written."""
    if not path.is_file():
        raise RunError(f"{path} is missing", hint="copy the folder again, whole")
    if file_hash(path) != checksum:
        raise RunError(
            f"{path} is damaged: its checksum is not the one it was written with", hint="copy the file again"
        )
