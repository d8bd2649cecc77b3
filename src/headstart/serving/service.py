"""What every endpoint is given: the runs, the bounds, the counts, and the wish to stop."""

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headstart.serving.batcher import BatchDone
from headstart.serving.bounds import Bounds
from headstart.serving.counters import Counters, Gauge
from headstart.serving.library import Library
from headstart.serving.log import Log

TICKET_SECONDS = 3600.0

Answer = TypeVar("Answer")


@dataclass
class Gate:
    """Who is inside, and whether anybody may still come in."""

    under_way: int = 0
    is_stopping: bool = False


class OneByOne:
    """Work that is done on a thread, one piece after the other."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self.waiting = 0

    async def run(self, work: Callable[..., Answer], *given: Any) -> Answer:
        """What `work` gives, once it is its turn."""
        self.waiting += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(work, *given)
        finally:
            self.waiting -= 1


@dataclass
class Service:
    """One server's state."""

    library: Library
    bounds: Bounds
    counters: Counters
    log: Log
    token: str | None = None
    hosts: frozenset[str] = frozenset()  # names by which a client may call us; empty = any
    gate: Gate = field(default_factory=Gate)
    planning: OneByOne = field(default_factory=OneByOne)

    def is_token(self, given: bytes) -> bool:
        """Whether a client knows the token; how long the answer takes says nothing."""
        return self.token is not None and _same(given, self.token.encode())

    def ticket(self, name: str, now: float | None = None) -> str:
        """A word that opens one report for an hour or two: a frame cannot send the token."""
        return self._tickets(name, time.time() if now is None else now)[0]

    def is_ticket(self, name: str, given: str, now: float | None = None) -> bool:
        """Whether `given` opens the report of `name`."""
        words = self._tickets(name, time.time() if now is None else now)
        return any([_same(given.encode(), word.encode()) for word in words])

    def _tickets(self, name: str, now: float) -> list[str]:
        assert self.token is not None
        hours = (int(now / TICKET_SECONDS), int(now / TICKET_SECONDS) - 1)
        return [
            hmac.new(self.token.encode(), f"report {hour} {name}".encode(), "sha256").hexdigest()
            for hour in hours
        ]


def _same(given: bytes, known: bytes) -> bool:
    """Equality in constant time, whatever the two lengths are."""
    return hmac.compare_digest(hashlib.sha256(given).digest(), hashlib.sha256(known).digest())


def make_service(
    runs: Sequence[str],
    bounds: Bounds,
    log: Log,
    *,
    token: str | None = None,
    hosts: frozenset[str] = frozenset(),
    precision: str | None = None,
) -> Service:
    """A service over these runs, none of which is in memory yet; each is read in its own precision unless told."""
    counters = Counters()

    def count(name: str, done: BatchDone) -> None:
        counters.texts.add(done.items, run=name)
        counters.tokens.add(done.cost, run=name)
        counters.batches.add(done.items, run=name)

    service = Service(Library(runs, bounds, count, precision), bounds, counters, log, token, hosts)

    def each(name: str) -> dict[tuple[tuple[str, str], ...], float]:
        entries = service.library.entries.values()
        return {
            (("run", entry.name),): float(getattr(entry.batcher, name)) for entry in entries if entry.batcher
        }

    counters.gauges += [
        Gauge(
            "headstart_requests_under_way",
            "Requests being answered.",
            lambda: {(): float(service.gate.under_way)},
        ),
        Gauge("headstart_queued_tokens", "Tokens of work that wait, by run.", lambda: each("queued")),
        Gauge("headstart_streams", "Texts being written, by run.", lambda: each("flowing")),
    ]
    return service
