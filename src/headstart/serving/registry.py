"""What a server serves and counts: its runs by name, their models, its metrics and its token."""

import hashlib
import hmac
import logging
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from headstart.errors import HeadstartError, RunError, nearest
from headstart.inference.loaded_model import load_model
from headstart.pretrained import shipped_bases
from headstart.serving.batcher import Batcher, StreamPool
from headstart.serving.model_worker import ModelWorker
from headstart.serving.progress import Progress
from headstart.serving.schema import Ability, Limits, http_error
from headstart.workflows.compare import is_comparison
from headstart.workflows.run_dir import RunDir

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SIGNATURE_SECONDS = 3600  # a signed URL is valid for one to two of these
MAX_NAME_LENGTH = 200
HINTS: dict[Ability, str] = {
    "classify": "serve a run made by `headstart finetune`",
    "embed": "serve a base or a classifier",
    "attention": "serve a run with a causal or bidirectional backbone",
    "generate": "serve a base pretrained with --objective causal-lm",
    "translate": "serve a run that was trained to translate",
}

M = TypeVar("M", Counter, Gauge, Histogram)

disable_created_metrics()


class Metrics:
    """The Prometheus metrics of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        new = partial(_new_metric, self.registry)
        self.requests = new(Counter, "requests_total", "Requests answered.", "endpoint", "status")
        self.clients_gone = new(Counter, "clients_gone_total", "Clients that left before the response.")
        self.seconds = new(
            Histogram, "request_seconds", "Seconds from request to response.", "endpoint", buckets=SECONDS
        )
        self.texts = new(Counter, "texts_total", "Texts processed.", "run")
        self.tokens = new(Counter, "tokens_total", "Tokens of work.", "run")
        self.batch_texts = new(Histogram, "batch_texts", "Texts in a batch.", "run", buckets=BATCH_SIZES)
        self.in_flight = new(Gauge, "requests_under_way", "Requests in flight.")
        self.queued_tokens = new(Gauge, "queued_tokens", "Tokens of work that wait.", "run")
        self.streams = new(Gauge, "streams", "Texts being generated.", "run")
        memory = new(Gauge, "memory_bytes", "Resident memory of the server.")
        memory.set_function(resident_memory)


def _new_metric(registry: CollectorRegistry, kind: type[M], name: str, text: str, *labels: str, **options: Any) -> M:
    return kind(f"headstart_{name}", text, labels, registry=registry, **options)


def resident_memory() -> float:
    """Bytes of resident memory of this process; 0 where the system does not tell."""
    statm = Path("/proc/self/statm")
    return float(statm.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.is_file() else 0.0


class ReadyModel:
    """A model in memory."""

    def __init__(self, name: str, worker: ModelWorker, limits: Limits, metrics: Metrics):
        self.name, self.worker = name, worker
        texts, tokens = metrics.texts.labels(name), metrics.tokens.labels(name)
        sizes = metrics.batch_texts.labels(name)

        def count(num_items: int, num_tokens: int) -> None:
            texts.inc(num_items)
            tokens.inc(num_tokens)
            sizes.observe(num_items)

        self.batcher = Batcher(
            worker.run_batch,
            max_batch_tokens=limits.max_batch_tokens,
            max_queued_tokens=limits.max_queued_tokens,
            num_threads=worker.num_threads,
            name=f"run {name}",
            on_batch=count,
        )
        self.streams = StreamPool(limits.max_streams, f"run {name}, streams")
        metrics.queued_tokens.labels(name).set_function(lambda: self.batcher.queued_tokens)
        metrics.streams.labels(name).set_function(lambda: self.streams.num_streams)


class ServedRun:
    """One served folder: a run, finished or not, or a comparison."""

    def __init__(self, name: str, path: Path):
        self.name, self.path = name, path
        self.is_comparison = is_comparison(path)
        self.progress = Progress(path / "log.jsonl")
        self.model: ReadyModel | None = None
        self.lock = threading.Lock()
        self.read()

    def read(self) -> dict[str, Any]:
        """Kind and status, as the folder has them."""
        has_report = (self.path / "report.html").is_file()
        if self.is_comparison:
            kind, objective, status = "compare", None, "finished" if has_report else "running"
        else:
            info = RunDir.open(self.path).info()
            kind, objective, status = info.config.job, info.config.objective.name, info.status
        found = {"name": self.name, "kind": kind, "status": status, "objective": objective}
        return found | {"has_report": has_report}

    def describe(self) -> dict[str, Any]:
        """As `read`, but an error does not name the folder."""
        try:
            return self.read()
        except HeadstartError as error:
            problem = f"the folder of {self.name} cannot be read"
            raise http_error(503, problem, hint="try again later") from error

    def report(self) -> bytes:
        """The HTML report of the run or comparison."""
        try:
            return (self.path / "report.html").read_bytes()
        except OSError:
            raise http_error(
                404, f"{self.name} has no report yet", hint="it is written when the run is finished"
            ) from None


class ModelRegistry:
    """All served runs, in the order of the command line."""

    def __init__(self, runs: Sequence[str], limits: Limits, precision: str | None = None):
        self.limits, self.precision, self.metrics = limits, precision, Metrics()
        self.runs: dict[str, ServedRun] = {}
        for argument in runs:
            name, path = _parse_run(argument)
            if name in self.runs:
                raise RunError(f"two runs are called {name!r}", hint=f"give one another name: OTHER={path}")
            self.runs[name] = ServedRun(name, path)

    @property
    def models(self) -> list[ReadyModel]:
        """The models in memory."""
        return [run.model for run in self.runs.values() if run.model is not None]

    @property
    def is_complete(self) -> bool:
        """Whether every run is in memory."""
        return all(run.model is not None or run.is_comparison for run in self.runs.values())

    def load_all(self) -> None:
        """Load every finished run."""
        for run in self.runs.values():
            self._load(run)

    def _load(self, run: ServedRun) -> ReadyModel | None:
        with run.lock:
            if run.model is None and not run.is_comparison and run.read()["status"] == "finished":
                worker = ModelWorker(load_model(str(run.path)), self.limits, self.precision)
                run.model = ReadyModel(run.name, worker, self.limits, self.metrics)
            return run.model

    def try_load(self, run: ServedRun) -> ReadyModel | None:
        """The model of a run, loaded if it is finished; None while it trains. An HTTP error does not name the folder."""
        try:
            return self._load(run)
        except HeadstartError as error:
            raise http_error(503, f"{run.name} cannot be loaded", hint="try again later") from error

    def run(self, name: str) -> ServedRun:
        """The run called `name`."""
        if name not in self.runs:
            hint = nearest(name[:MAX_NAME_LENGTH], self.runs)
            raise http_error(404, "no run of that name is served", hint=hint)
        return self.runs[name]

    def find(self, ability: Ability, name: str | None) -> ReadyModel:
        """The model called `name`, or the first one with this ability."""
        if name is None:
            for run in self.runs.values():
                model = self.try_load(run)
                if model is not None and not model.worker.why_not(ability):
                    return model
            raise http_error(409, f"no run that is served can {ability}", hint=HINTS[ability])
        run = self.run(name)
        if run.is_comparison:
            raise http_error(409, f"{name} is a comparison and answers nothing", hint="name a run")
        model = self.try_load(run)
        if model is None:
            raise http_error(409, f"{name} is still training", hint="GET /v1/runs shows its progress")
        if reason := model.worker.why_not(ability):
            raise http_error(409, f"{name} cannot {ability}: it {reason}", hint=HINTS[ability])
        return model


def _parse_run(argument: str) -> tuple[str, Path]:
    """The name and folder of NAME=FOLDER, of a folder, or of a shipped base."""
    shipped = shipped_bases()
    if argument in shipped:
        return argument, shipped[argument]
    name, sign, path = argument.partition("=")
    if sign and not Path(argument).exists():
        folder = shipped.get(path, Path(path))
    else:
        folder = Path(argument)
        name = folder.resolve().name
    if not is_comparison(folder):
        RunDir.open(folder)
    if not name or len(name) > MAX_NAME_LENGTH or "/" in name or not name.isprintable():
        raise RunError(f"a run cannot be served under the name {name!r}", hint="give it one: NAME=FOLDER")
    return name, folder


@dataclass
class AppState:
    """The state of one server."""

    registry: ModelRegistry
    logger: logging.Logger
    token: str | None = None
    hosts: frozenset[str] = frozenset()  # accepted names in the Host header; empty = any
    log_texts: bool = False
    in_flight: int = 0
    is_stopping: bool = False
    queued_plans: int = 0
    plan_executor: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "plans"))

    def __post_init__(self) -> None:
        self.limits, self.metrics = self.registry.limits, self.registry.metrics
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
        """Start no more work."""
        self.plan_executor.shutdown(wait=False, cancel_futures=True)
        for model in self.registry.models:
            model.batcher.close()
            model.streams.close()


def _equal(candidate: str, secret: str) -> bool:
    """Equality in constant time, whatever the two lengths are."""
    digests = [hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest() for text in (candidate, secret)]
    return hmac.compare_digest(*digests)
