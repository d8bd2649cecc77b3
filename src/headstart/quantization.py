"""Weights in 8, 16 or 32 bits, written as shards with checksums. `headstart.checkpoint.read_weights` reads them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from headstart.atomic_io import file_hash, write_json
from headstart.checkpoint import (
    ROW_SEPARATOR,
    SCALE,
    SHARD_FORMAT,
    SHARD_INDEX,
    WEIGHTS_FILE,
    Weights,
    decode,
    load_weights,
    read_shard_index,
    save_weights,
)  # fmt: skip
from headstart.errors import ConfigError

FORMS = ("float32", "bfloat16", "int8")
MIB = 2**20
HEADER_BYTES = 256  # at most, of one tensor in a shard's header
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


def as_stored(weights: Mapping[str, Tensor], form: str) -> Weights:
    """The weights as they are read after being stored in this form."""
    return {name: decode(encode(weight, form)) for name, weight in weights.items()}


def encode(weight: Tensor, form: str) -> Weights:
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


def store_weights(folder: Path, weights: Mapping[str, Tensor], form: str, shard_mib: float) -> None:
    """Write the weights into `folder` as shards of at most `shard_mib` MiB, and their index last."""
    if form not in FORMS:
        raise ConfigError(f"weights are not stored as {form!r}", hint=f"choose from {', '.join(FORMS)}")
    shards: list[Weights] = [{}]
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
    write_json(folder / SHARD_INDEX, {"format": SHARD_FORMAT, "form": form, "files": files})


def _pieces(weights: Mapping[str, Tensor], form: str, most: float) -> Iterator[tuple[str, Weights, int]]:
    """Each weight's tensors with their bytes; a matrix larger than a shard is split into pieces of rows."""
    for name, weight in weights.items():
        own = weight.detach().cpu()
        parts = encode(own, form)
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
    if not (folder / SHARD_INDEX).exists():
        store_weights(folder, load_weights(folder / WEIGHTS_FILE), form, shard_mib)
    (folder / WEIGHTS_FILE).unlink(missing_ok=True)


def stored_bytes(folder: Path) -> int:
    """Bytes of a run's weights on disk."""
    names = read_shard_index(folder) if (folder / SHARD_INDEX).exists() else [WEIGHTS_FILE]
    return sum((folder / name).stat().st_size for name in names)
