"""GPUs and CPUs by name: memory, arithmetic and bandwidth, from `devices.toml`, and how much of these they reach."""

import re
import tomllib
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, get_close_matches
from importlib import resources

import torch

from headstart.errors import ConfigError
from headstart.planning.workload import Device

_TABLE = tomllib.loads((resources.files("headstart.planning") / "devices.toml").read_text("utf-8"))
DEVICES = {name: Device(name, kind=kind, **row) for kind, rows in _TABLE.items() for name, row in rows.items()}

# Words in product names that do not distinguish one device from another.
_NOISE = re.compile(r"nvidia|geforce|tesla|amd|instinct|apple|graphics|rtx|gtx|sxm\d?|pcie|hbm\d?e?|[^a-z0-9]")
_MEMORY = re.compile(r"(\d+)\s*gi?b\b")


def _core(name: str) -> str:
    """The letters and digits that distinguish a device: "RTX 3060 12GB" is 3060."""
    return _NOISE.sub("", _MEMORY.sub("", name.lower()))


def find_device(name: str) -> Device:
    """The device that a loosely written name means ("rtx3060", "RTX 3060 12GB"); an error offers the nearest."""
    core, memory = _core(name), _MEMORY.search(name.lower())
    candidates = [device for device in DEVICES.values() if _core(device.name) == core]
    if not candidates:
        cores = {_core(device): device for device in reversed(DEVICES)}
        near = get_close_matches(core, cores, n=1, cutoff=0.5)
        offer = f"did you mean {cores[near[0]]!r}? " if near else ""
        hint = f"{offer}`headstart plan` without --gpu lists all {len(DEVICES)} devices"
        raise ConfigError(f"no GPU is called {name!r}", hint=hint)

    def distance(device: Device) -> tuple[float, float]:
        memory_difference = abs(device.memory_gib - int(memory[1])) if memory else 0.0
        return memory_difference, -SequenceMatcher(None, device.name.lower(), name.lower()).ratio()

    return min(candidates, key=distance)


def this_gpu() -> Device:
    """This machine's first GPU with its real memory; one that is not in the table is guessed from its processors."""
    properties = torch.cuda.get_device_properties(0)
    memory = properties.total_memory / 2**30
    try:
        return replace(find_device(properties.name), memory_gib=memory)
    except ConfigError:
        rate = 0.15 * properties.multi_processor_count
        return Device(properties.name, memory, rate, 4 * rate, 500, properties.major >= 8)


@dataclass(frozen=True)
class Efficiency:
    """The fraction of its stated rates that a kind of device reaches."""

    matmul: float  # of the matrix rate, by products of large matrices
    half_width: float  # inner size at which a product reaches half of that
    half_rows: float  # rows of logits at which it does so
    attention: float  # of the matrix rate, by fused attention
    bandwidth: float  # of the bandwidth, by element-wise work
    passes: float  # reads and writes of each saved byte of activations in a step
    logit_bytes: float  # traffic for one logit
    random: float  # seconds for one random number of dropout
    launch: float  # seconds of the host for one operation


# An H200 multiplies large matrices at 0.69 of its stated rate. Apple's GPUs were not measured: a launch is assumed to
# cost their host as much as an H200's.
EFFICIENCIES = {
    "cpu": Efficiency(0.67, 20, 28, 0.3, 0.9, 5.0, 14, 1.5e-9, 32e-6),
    "cuda": Efficiency(0.69, 75, 256, 0.35, 0.8, 8.0, 132, 0.0, 19.5e-6),
    "mps": Efficiency(0.6, 200, 128, 0.3, 0.7, 6.0, 70, 0.0, 19.5e-6),
}
# Compiled steps have the same matrix products and few passes over what lies between them.
COMPILED = replace(EFFICIENCIES["cuda"], passes=3.0)
COMPILED_TEXTS = replace(COMPILED, launch=38e-6)  # of any size: the host computes every shape again
