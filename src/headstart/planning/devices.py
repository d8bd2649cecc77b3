"""Machines by name: memory, arithmetic and bandwidth, as their makers state them.

float32 and low (dense fp16 or bf16 with matrix units) are TFLOP/s, bandwidth is GB/s, memory is GiB.
"""

import re
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches

from headstart.errors import ConfigError


@dataclass(frozen=True)
class Device:
    """A GPU or a CPU on which a run could train."""

    name: str
    memory: float
    float32: float
    low: float
    bandwidth: float
    has_bfloat16: bool
    kind: str = "cuda"  # what torch calls it: cuda, mps, cpu

    @property
    def precision(self) -> str:
        """What headstart computes in there unless told: bfloat16 on a GPU that has it."""
        return "bfloat16" if self.has_bfloat16 and self.kind == "cuda" else "float32"

    @property
    def can_compile(self) -> bool:
        """Whether torch compiles steps for it, given a C compiler: triton knows GPUs from Volta on."""
        return self.kind == "cuda" and self.name not in OLD

    @property
    def link(self) -> float:
        """GB/s each way between two such devices of one machine: NVLink or its like, else the PCIe of its time."""
        if self.kind == "cpu":
            return 5.0  # through the machine's own memory, as gloo does it
        return LINKS.get(self.name, 25.0 if self.has_bfloat16 else 12.0)

    def matrix_rate(self, precision: str) -> float:
        """Operations a second of large matrix products; float32 ones use TF32 units where there are any."""
        if precision == "bfloat16":
            return 1e12 * (self.low if self.has_bfloat16 else self.float32 / 2)
        is_ampere = self.has_bfloat16 and self.kind == "cuda"
        return 1e12 * (max(self.float32, self.low / 2) if is_ampere else self.float32)

    @property
    def usable(self) -> float:
        """Bytes that a run may fill: a desktop, the system or the host takes the rest."""
        return {"cuda": 0.96, "mps": 0.7, "cpu": 0.85}[self.kind] * self.memory * 2**30


# GB/s each way over NVLink, Infinity Fabric or PCIe 5; PCIe 4 (25) or 3 (12) where nothing is said.
LINKS = {
    "Tesla V100 16GB": 150.0,
    "Tesla V100 32GB": 150.0,
    "A100 40GB": 300.0,
    "A100 80GB": 300.0,
    "H100 PCIe": 50.0,
    "H100 SXM": 450.0,
    "H200": 450.0,
    "B200": 900.0,
    "MI250X": 200.0,
    "MI300X": 448.0,
    "RTX 5070": 50.0,
    "RTX 5080": 50.0,
    "RTX 5090": 50.0,
}

OLD = ("GTX 1050 Ti", "GTX 1060", "GTX 1070", "GTX 1080 Ti", "Tesla K80", "Tesla P100")  # before Volta

_ROWS: list[Device] = [
    Device("GTX 1050 Ti", 4, 2.1, 2.1, 112, False),
    Device("GTX 1060", 6, 4.4, 4.4, 192, False),
    Device("GTX 1070", 8, 6.5, 6.5, 256, False),
    Device("GTX 1080 Ti", 11, 11.3, 11.3, 484, False),
    Device("GTX 1650", 4, 3.0, 6.0, 128, False),
    Device("GTX 1660 Ti", 6, 5.4, 10.9, 288, False),
    Device("Tesla K80", 12, 4.1, 4.1, 240, False),
    Device("Tesla P100", 16, 9.3, 18.7, 732, False),
    Device("Tesla T4", 15, 8.1, 65, 320, False),
    Device("Tesla V100 16GB", 16, 15.7, 125, 900, False),
    Device("Tesla V100 32GB", 32, 15.7, 125, 900, False),
    Device("RTX 2060", 6, 6.5, 52, 336, False),
    Device("RTX 2070", 8, 7.5, 60, 448, False),
    Device("RTX 2080 Ti", 11, 13.4, 108, 616, False),
    Device("Titan RTX", 24, 16.3, 130, 672, False),
    Device("RTX 3050", 8, 9.1, 36, 224, True),
    Device("RTX 3060", 12, 12.7, 51, 360, True),
    Device("RTX 3060 Ti", 8, 16.2, 65, 448, True),
    Device("RTX 3070", 8, 20.3, 81, 448, True),
    Device("RTX 3080", 10, 29.8, 119, 760, True),
    Device("RTX 3090", 24, 35.6, 142, 936, True),
    Device("RTX 4060", 8, 15.1, 60, 272, True),
    Device("RTX 4060 Ti 16GB", 16, 22.1, 88, 288, True),
    Device("RTX 4070", 12, 29.1, 117, 504, True),
    Device("RTX 4080", 16, 48.7, 195, 717, True),
    Device("RTX 4090", 24, 82.6, 330, 1008, True),
    Device("RTX 5070", 12, 30.9, 123, 672, True),
    Device("RTX 5080", 16, 56.3, 225, 960, True),
    Device("RTX 5090", 32, 104.8, 419, 1792, True),
    Device("A10", 24, 31.2, 125, 600, True),
    Device("A16", 16, 4.5, 18, 200, True),
    Device("A40", 48, 37.4, 150, 696, True),
    Device("RTX A4000", 16, 19.2, 77, 448, True),
    Device("RTX A6000", 48, 38.7, 155, 768, True),
    Device("RTX 6000 Ada", 48, 91.1, 364, 960, True),
    Device("L4", 24, 30.3, 121, 300, True),
    Device("L40S", 48, 91.6, 362, 864, True),
    Device("A100 40GB", 40, 19.5, 312, 1555, True),
    Device("A100 80GB", 80, 19.5, 312, 2039, True),
    Device("H100 PCIe", 80, 51, 756, 2000, True),
    Device("H100 SXM", 80, 67, 989, 3350, True),
    Device("H200", 139, 67, 989, 4800, True),
    Device("B200", 180, 75, 2250, 8000, True),
    Device("MI210", 64, 22.6, 181, 1638, True),
    Device("MI250X", 64, 23.9, 191, 1638, True),  # one of its two halves, as torch sees it
    Device("MI300X", 192, 163, 1307, 5300, True),
    Device("Apple M1", 8, 2.6, 2.6, 68, False, "mps"),
    Device("Apple M1 Pro", 16, 5.2, 5.2, 200, False, "mps"),
    Device("Apple M1 Max", 32, 10.4, 10.4, 400, False, "mps"),
    Device("Apple M2", 8, 3.6, 3.6, 100, False, "mps"),
    Device("Apple M2 Max", 32, 13.6, 13.6, 400, False, "mps"),
    Device("Apple M2 Ultra", 64, 27.2, 27.2, 800, False, "mps"),
    Device("Apple M3", 8, 3.5, 3.5, 100, False, "mps"),
    Device("Apple M3 Max", 36, 14.2, 14.2, 400, False, "mps"),
    Device("Apple M4", 16, 4.3, 4.3, 120, False, "mps"),
    Device("CPU 2 cores", 8, 0.264, 0.264, 30, False, "cpu"),
    Device("CPU 4 cores", 16, 0.4, 0.4, 40, False, "cpu"),
    Device("CPU 8 cores", 32, 0.8, 0.8, 50, False, "cpu"),
    Device("CPU 16 cores", 64, 1.6, 1.6, 80, False, "cpu"),
    Device("CPU 64 cores", 256, 5.0, 5.0, 200, False, "cpu"),
]
DEVICES: dict[str, Device] = {device.name: device for device in _ROWS}

# Words that sellers put around the name, which tell no device from another.
_NOISE = re.compile(
    r"nvidia|geforce|tesla|amd|instinct|apple|graphics|rtx|gtx|sxm\d?|pcie|hbm\d?e?|[^a-z0-9]"
)
_MEMORY = re.compile(r"(\d+)\s*gi?b\b")


def _core(name: str) -> str:
    """The letters and digits that tell a device from others: "RTX 3060 12GB" is 3060."""
    return _NOISE.sub("", _MEMORY.sub("", name.lower()))


def find_device(name: str) -> Device:
    """The device that a loosely written name means ("rtx3060", "RTX 3060 12GB"), or an error that offers the nearest."""
    core, memory = _core(name), _MEMORY.search(name.lower())
    alike = [device for device in _ROWS if _core(device.name) == core]
    if not alike:
        near = get_close_matches(core, [_core(device.name) for device in _ROWS], n=1, cutoff=0.5)
        found = next((device.name for device in _ROWS if near and _core(device.name) == near[0]), "")
        offer = f"did you mean {found!r}? " if found else ""
        raise ConfigError(
            f"no GPU is called {name!r}",
            hint=f"{offer}`headstart plan` without --gpu lists all {len(DEVICES)} devices",
        )

    def distance(device: Device) -> tuple[float, float]:
        apart = abs(device.memory - int(memory[1])) if memory else 0.0
        return apart, -SequenceMatcher(None, device.name.lower(), name.lower()).ratio()

    return min(alike, key=distance)


def cpu_like(cores: int) -> Device:
    """The plain CPU of the table whose number of cores is nearest to `cores`."""
    rows = [device for device in _ROWS if device.kind == "cpu"]
    return min(rows, key=lambda device: abs(int(device.name.split()[1]) - cores))
