"""GPUs and CPUs by name: memory, arithmetic and bandwidth, from `devices.toml`."""

import re
import tomllib
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from importlib import resources

from headstart.errors import ConfigError


@dataclass(frozen=True)
class Device:
    """A GPU or a CPU on which a run could train."""

    name: str
    memory_gib: float
    float32_tflops: float
    half_tflops: float  # dense float16 or bfloat16
    bandwidth_gbs: float
    bfloat16: bool
    kind: str = "cuda"  # the name that torch has for it: cuda, mps, cpu
    link_gbs: float | None = None  # each way between two such devices of one machine; None = as the PCIe of its time
    compiles: bool = True  # whether triton supports it, if it is a GPU

    @property
    def default_precision(self) -> str:
        """The precision of `training.precision=auto`: bfloat16 on a GPU that has it."""
        return "bfloat16" if self.bfloat16 and self.kind == "cuda" else "float32"

    @property
    def can_compile(self) -> bool:
        """Whether torch compiles training steps for it, given a C compiler."""
        return self.kind == "cuda" and self.compiles

    @property
    def link(self) -> float:
        """GB/s each way between two such devices of one machine."""
        if self.kind == "cpu":
            return 5.0  # gloo copies through the machine's own memory
        return self.link_gbs or (25.0 if self.bfloat16 else 12.0)

    @property
    def usable_bytes(self) -> float:
        """Bytes that a run may use; a desktop, the system or the host needs the rest."""
        return {"cuda": 0.96, "mps": 0.7, "cpu": 0.85}[self.kind] * self.memory_gib * 2**30

    def matmul_flops(self, precision: str) -> float:
        """Operations per second of large matrix products; float32 uses TF32 units where there are any."""
        if precision == "bfloat16":
            return 1e12 * (self.half_tflops if self.bfloat16 else self.float32_tflops / 2)
        has_tf32 = self.bfloat16 and self.kind == "cuda"
        return 1e12 * (max(self.float32_tflops, self.half_tflops / 2) if has_tf32 else self.float32_tflops)


def _read_devices() -> dict[str, Device]:
    table = tomllib.loads((resources.files("headstart.planning") / "devices.toml").read_text("utf-8"))
    return {name: Device(name, kind=kind, **row) for kind, rows in table.items() for name, row in rows.items()}


DEVICES: dict[str, Device] = _read_devices()

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


def cpu_like(cores: int) -> Device:
    """The CPU of the table whose number of cores is nearest to `cores`."""
    rows = [device for device in DEVICES.values() if device.kind == "cpu"]
    return min(rows, key=lambda device: abs(int(device.name.split()[1]) - cores))
