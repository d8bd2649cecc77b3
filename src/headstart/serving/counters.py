"""What the server counts, as the text that Prometheus reads."""

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

Labels = tuple[tuple[str, str], ...]
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Counter:
    """A number that only grows, for each set of labels."""

    kind = "counter"

    def __init__(self, name: str, words: str):
        self.name, self.words = name, words
        self._values: dict[Labels, float] = {}
        self._lock = threading.Lock()

    def add(self, amount: float = 1.0, **labels: str) -> None:
        """Count up."""
        key = tuple(labels.items())
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + amount

    def value(self, **labels: str) -> float:
        """What was counted under exactly these labels."""
        return self._values.get(tuple(labels.items()), 0.0)

    def lines(self) -> list[str]:
        """One line for each set of labels."""
        with self._lock:
            found = list(self._values.items())
        return [f"{self.name}{_labels(key)} {_number(value)}" for key, value in found]


class Gauge:
    """Numbers that are looked up when they are asked for."""

    kind = "gauge"

    def __init__(self, name: str, words: str, read: Callable[[], Mapping[Labels, float]]):
        self.name, self.words, self.read = name, words, read

    def lines(self) -> list[str]:
        """One line for each set of labels."""
        return [f"{self.name}{_labels(key)} {_number(value)}" for key, value in self.read().items()]


class Histogram:
    """How often a value fell below each of some bounds, for each set of labels."""

    kind = "histogram"

    def __init__(self, name: str, words: str, bounds: tuple[float, ...]):
        self.name, self.words, self.bounds = name, words, bounds
        self._found: dict[Labels, tuple[list[int], float]] = {}
        self._lock = threading.Lock()

    def add(self, value: float, **labels: str) -> None:
        """Count one value."""
        place = next((index for index, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        key = tuple(labels.items())
        with self._lock:
            counts, total = self._found.get(key, ([0] * (len(self.bounds) + 1), 0.0))
            counts[place] += 1
            self._found[key] = (counts, total + value)

    def lines(self) -> list[str]:
        """Buckets that hold all below them, the sum and the count."""
        with self._lock:
            found = [(key, list(counts), total) for key, (counts, total) in self._found.items()]
        lines = []
        for key, counts, total in found:
            below = 0
            for bound, count in zip((*self.bounds, float("inf")), counts, strict=True):
                below += count
                edge = (("le", "+Inf" if bound == float("inf") else _number(bound)),)
                lines.append(f"{self.name}_bucket{_labels(key + edge)} {below}")
            lines.append(f"{self.name}_sum{_labels(key)} {_number(total)}")
            lines.append(f"{self.name}_count{_labels(key)} {below}")
        return lines


class Counters:
    """Everything that one server counts."""

    def __init__(self) -> None:
        self.requests = Counter("headstart_requests_total", "Requests answered, by endpoint and status.")
        self.gone = Counter("headstart_clients_gone_total", "Requests whose client left before the answer.")
        self.seconds = Histogram("headstart_request_seconds", "Seconds from request to answer.", SECONDS)
        self.texts = Counter("headstart_texts_total", "Texts read, by run.")
        self.tokens = Counter("headstart_tokens_total", "Tokens of work, by run.")
        self.batches = Histogram("headstart_batch_texts", "Texts read together, by run.", SIZES)
        self.gauges: list[Gauge] = [
            Gauge("headstart_memory_bytes", "Memory that the server holds.", lambda: {(): own_memory()})
        ]

    def text(self) -> str:
        """All of it as Prometheus reads it."""
        lines: list[str] = []
        shown: tuple[Counter | Gauge | Histogram, ...]
        shown = (self.requests, self.gone, self.seconds, self.texts, self.tokens, self.batches, *self.gauges)
        for each in shown:
            lines += [f"# HELP {each.name} {each.words}", f"# TYPE {each.name} {each.kind}", *each.lines()]
        return "\n".join(lines) + "\n"


def own_memory() -> float:
    """Bytes of memory that this process holds; 0 where the system does not say."""
    own = Path("/proc/self/statm")
    return float(own.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") if own.is_file() else 0.0


def _labels(key: Labels) -> str:
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in key)
    return f"{{{inner}}}" if inner else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
