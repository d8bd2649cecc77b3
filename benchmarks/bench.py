"""What the speed benchmarks share: interleaved repeats, the machine's own ceiling, and tables with their provenance."""

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "accelerate", "tokenizers", "numpy")


@dataclass(frozen=True)
class Rate:
    """Work a second over interleaved repeats: the median, the lowest and the highest."""

    middle: float
    low: float
    high: float
    repeats: int

    @staticmethod
    def of(found: Sequence[float]) -> "Rate":
        """The rates of some repeats as one."""
        return Rate(statistics.median(found), min(found), max(found), len(found))

    def shown(self) -> str:
        """The median with its spread."""
        return f"{number(self.middle)} ({number(self.low)} to {number(self.high)})"


@dataclass
class Sheet:
    """One benchmark's outcome: tables for readers, rows for programs."""

    name: str
    title: str
    what: str  # a paragraph: what was measured, how, and on which side what is done
    tables: list[tuple[str, list[str], list[list[str]]]] = field(default_factory=list)  # title, head, lines
    rows: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def write(self, folder: Path, began: float) -> None:
        """Put NAME.md and NAME.json into the folder."""
        parts = [f"# {self.title}", "", "| | |", "|---|---|"]
        parts += [f"| {key} | {value} |" for key, value in provenance(began).items()]
        parts += ["", self.what]
        for title, head, lines in self.tables:
            parts += ["", f"## {title}", ""] if title else [""]
            parts += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
            parts += ["| " + " | ".join(line) + " |" for line in lines]
        parts += ["", *self.notes] if self.notes else []
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.md").write_text("\n".join(parts) + "\n", "utf-8")
        content = {"provenance": provenance(began), **self.rows}
        (folder / f"{self.name}.json").write_text(json.dumps(content, indent=1, default=asdict) + "\n", "utf-8")
        print("\n".join(parts))


def provenance(began: float) -> dict[str, str]:
    """Where the numbers come from; a path to data is written as $DATA."""
    import torch

    from headstart.workflows.run_dir import commit

    data = [word for word in sys.argv[1:] if "cls-books-fr" in word or "fr-corpus" in word]
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    for word in data:
        command = command.replace(shlex.quote(word), f"$DATA/{Path(word).name}")
    found = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return {
        "command": f"`{command}`",
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "machine": f"{processor()}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f} at the end",
        "versions": f"Python {platform.python_version()}, {found}",
        "took": f"{time.monotonic() - began:.0f} s",
    }


def version(package: str) -> str:
    """Its version, or that it is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def interleaved(ways: Mapping[str, Callable[[], float]], repeats: int, seconds: float = 200.0) -> dict[str, Rate]:
    """The rates that each way gives when it is called, alternately; no round starts after `seconds`."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    began = time.monotonic()
    for _ in range(repeats):
        for name, way in ways.items():
            found[name].append(way())
        if time.monotonic() - began > seconds:
            break
    return {name: Rate.of(rates) for name, rates in found.items()}


class Clock:
    """By the wall; or the processor's own time, which other work on a shared machine disturbs least (one thread)."""

    now: Callable[[], float] = staticmethod(time.perf_counter)


def rate_of(work: Callable[[], float]) -> float:
    """What `work` says it did, a second."""
    start = Clock.now()
    done = work()
    return done / (Clock.now() - start)


@dataclass(frozen=True)
class Ceiling:
    """What the machine does at most: GFLOP/s of a large matrix product, GB/s of a large copy (read and written)."""

    float32: float
    bfloat16: float
    copy: float

    def shown(self) -> str:
        """In words."""
        return (
            f"The machine's ceiling in this run: {self.float32:.0f} GFLOP/s for a float32 matrix product "
            f"(bfloat16: {self.bfloat16:.0f}), {self.copy:.1f} GB/s for a large copy."
        )


def ceiling(repeats: int = 5) -> Ceiling:
    """The machine's ceiling: the medians of a few alternating tries."""
    import torch

    size = 2048
    left, right = torch.randn(size, size), torch.randn(size, size)
    low = left.bfloat16(), right.bfloat16()
    source = torch.randn(2**25)
    target = torch.empty_like(source)

    def products(one: Any, other: Any) -> float:
        one @ other
        return 2 * size**3 / 1e9

    def copied() -> float:
        target.copy_(source)
        return 2 * source.numel() * 4 / 1e9

    ways = {
        "float32": lambda: rate_of(lambda: products(left, right)),
        "bfloat16": lambda: rate_of(lambda: products(*low)),
        "copy": lambda: rate_of(copied),
    }
    interleaved(ways, 1)  # warm
    return Ceiling(**{name: rate.middle for name, rate in interleaved(ways, repeats).items()})


def steps_of(trainer: Any) -> Callable[[int], int]:
    """Steps of a trainer, over as many epochs as they take; says how many tokens they read."""

    def endless() -> Any:
        while True:
            yield from trainer.batches()

    made = endless()

    def steps(count: int) -> int:
        before = trainer.state.tokens
        for _ in range(count):
            trainer.step(next(made))
        return trainer.state.tokens - before

    return steps


def number(value: float) -> str:
    """A number with about three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def reached(ratio: float, target: float) -> str:
    """The ratio, and whether the target is met."""
    return f"{ratio:.2f} ({'at least' if ratio >= target else 'wanted'} {target:g})"


def options(description: str | None, **defaults: Any) -> argparse.Namespace:
    """What every benchmark takes: --out, --threads, --repeats, and its own; a default of None must be given."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--threads", type=int, default=0, help="0 = as many as there are cores")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    for name, default in defaults.items():
        if default is None:
            parser.add_argument(name)
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    found = parser.parse_args()
    import torch

    if found.clock == "cpu":
        Clock.now = staticmethod(time.process_time)
        found.threads = 1
    if found.threads:
        torch.set_num_threads(found.threads)
    return found
