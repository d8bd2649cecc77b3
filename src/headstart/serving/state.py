"""What the routes and the middleware of one server share: models, limits, metrics, secrets."""

import hashlib
import hmac
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from starlette.requests import Request

from headstart.serving.limits import Limits

if TYPE_CHECKING:  # loads torch
    from headstart.serving.registry import ModelRegistry

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SIGNATURE_SECONDS = 3600  # a signed URL is valid for one to two of these

disable_created_metrics()


class Metrics:
    """The Prometheus metrics of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "headstart_requests_total",
            "Requests answered, by endpoint and status.",
            ["endpoint", "status"],
            registry=registry,
        )
        self.clients_gone = Counter(
            "headstart_clients_gone_total",
            "Requests whose client disconnected before the response.",
            registry=registry,
        )
        self.seconds = Histogram(
            "headstart_request_seconds",
            "Seconds from request to response.",
            ["endpoint"],
            buckets=SECONDS,
            registry=registry,
        )
        self.texts = Counter("headstart_texts_total", "Texts processed, by run.", ["run"], registry=registry)
        self.tokens = Counter("headstart_tokens_total", "Tokens of work, by run.", ["run"], registry=registry)
        self.batch_texts = Histogram(
            "headstart_batch_texts",
            "Texts in a batch, by run.",
            ["run"],
            buckets=BATCH_SIZES,
            registry=registry,
        )
        self.in_flight = Gauge("headstart_requests_under_way", "Requests in flight.", registry=registry)
        self.queued_tokens = Gauge(
            "headstart_queued_tokens", "Tokens of work that wait, by run.", ["run"], registry=registry
        )
        self.streams = Gauge(
            "headstart_streams", "Texts being generated, by run.", ["run"], registry=registry
        )
        memory = Gauge("headstart_memory_bytes", "Resident memory of the server.", registry=registry)
        memory.set_function(resident_memory)


def resident_memory() -> float:
    """Bytes of resident memory of this process; 0 where the system does not tell."""
    statm = Path("/proc/self/statm")
    return float(statm.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.is_file() else 0.0


@dataclass
class AppState:
    """The state of one server."""

    registry: "ModelRegistry"
    limits: Limits
    metrics: Metrics
    logger: logging.Logger
    token: str | None = None
    hosts: frozenset[str] = frozenset()  # accepted names in the Host header; empty = any
    log_texts: bool = False
    in_flight: int = 0
    is_stopping: bool = False
    queued_plans: int = 0
    plan_executor: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "plans"))

    def __post_init__(self) -> None:
        self.metrics.in_flight.set_function(lambda: self.in_flight)

    def is_token(self, candidate: str) -> bool:
        """Whether a client knows the token; compared in constant time."""
        assert self.token is not None
        return _equal(candidate, self.token)

    def sign_report(self, name: str, now: float | None = None) -> str:
        """The signature that opens the report of `name` for an hour or two: a frame cannot send the token."""
        return self._signatures(name, now)[0]

    def is_signature(self, name: str, candidate: str, now: float | None = None) -> bool:
        """Whether `candidate` is a valid signature for the report of `name`."""
        return any([_equal(candidate, signature) for signature in self._signatures(name, now)])

    def _signatures(self, name: str, now: float | None) -> list[str]:
        assert self.token is not None
        period = int((time.time() if now is None else now) / SIGNATURE_SECONDS)
        return [
            hmac.new(self.token.encode(), f"report {each} {name}".encode(), "sha256").hexdigest()
            for each in (period, period - 1)
        ]

    def close(self) -> None:
        """Stop every worker."""
        self.plan_executor.shutdown(wait=False, cancel_futures=True)
        self.registry.close()


def _equal(candidate: str, secret: str) -> bool:
    """Equality in constant time, whatever the two lengths are."""
    digests = [
        hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest() for text in (candidate, secret)
    ]
    return hmac.compare_digest(*digests)


def state_of(request: Request) -> AppState:
    """The state of the server that handles a request."""
    state: AppState = request.app.state.server
    return state
