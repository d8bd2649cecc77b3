"""GPUs and CPUs by name: memory, arithmetic and bandwidth, from `devices.toml`."""

import re
import tomllib
from difflib import SequenceMatcher, get_close_matches
from importlib import resources

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
        raise ConfigError(
            f"no GPU is called {name!r}", hint=f"{offer}`headstart plan` without --gpu lists all {len(DEVICES)} devices"
        )

    def distance(device: Device) -> tuple[float, float]:
        memory_difference = abs(device.memory_gib - int(memory[1])) if memory else 0.0
        return memory_difference, -SequenceMatcher(None, device.name.lower(), name.lower()).ratio()

    return min(candidates, key=distance)
