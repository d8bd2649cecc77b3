"""What a server serves and counts: its runs by name, their models and learning curves, its metrics and its token."""

import hmac
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from headstart.atomic_io import finite
from headstart.errors import HeadstartError, RunError, nearest
from headstart.inference.loaded_model import load_model
from headstart.pretrained import shipped_bases
from headstart.serving.model_worker import ModelWorker
from headstart.serving.schema import Ability, Limits, StepPoint, http_error
from headstart.workflows.compare import is_comparison
from headstart.workflows.run_dir import RunDir

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SIGNATURE_SECONDS = 3600  # a signed URL is valid for one to two of these
MAX_NAME_LENGTH = 200
MAX_POINTS = 4096  # of a curve in memory
MAX_RESPONSE_POINTS = 512  # of a curve in one response
HINTS: dict[Ability, str] = {
    "classify": "serve a run made by `headstart finetune`",
    "embed": "serve a base or a classifier",
    "attention": "serve a run with a causal or bidirectional backbone",
    "generate": "serve a base pretrained with --objective causal-lm",
    "translate": "serve a run that was trained to translate",
}

disable_created_metrics()


class Metrics:
    """The Prometheus metrics of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "headstart", "registry": self.registry}
        run = ["run"]
        self.requests = Counter("requests_total", "Requests answered.", ["endpoint", "status"], **own)
        self.clients_gone = Counter("clients_gone_total", "Clients that left before the response.", **own)
        self.seconds = Histogram(
            "request_seconds", "Seconds from request to response.", ["endpoint"], buckets=SECONDS, **own
        )
        self.texts = Counter("texts_total", "Texts processed.", run, **own)
        self.tokens = Counter("tokens_total", "Tokens of work.", run, **own)
        self.batch_texts = Histogram("batch_texts", "Texts in a batch.", run, buckets=BATCH_SIZES, **own)
        self.in_flight = Gauge("requests_under_way", "Requests in flight.", **own)
        self.queued_tokens = Gauge("queued_tokens", "Tokens of work that wait.", run, **own)
        self.streams = Gauge("streams", "Texts being generated.", run, **own)
        Gauge("memory_bytes", "Resident memory of the server.", **own).set_function(resident_memory)

    def count_batch(self, run: str, num_texts: int, num_tokens: int) -> None:
        """Count a batch of a run."""
        self.texts.labels(run).inc(num_texts)
        self.tokens.labels(run).inc(num_tokens)
        self.batch_texts.labels(run).observe(num_texts)

    def watch(self, model: ModelWorker) -> None:
        """Report what waits for a model."""
        self.queued_tokens.labels(model.name).set_function(lambda: model.batcher.queued_tokens)
        self.streams.labels(model.name).set_function(lambda: model.streams.num_streams)


def resident_memory() -> float:
    """Bytes of resident memory of this process; 0 where the system does not tell."""
    statm = Path("/proc/self/statm")
    return float(statm.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.is_file() else 0.0


# --- learning curves


def read_progress(path: Path, after: int = -1) -> dict[str, Any]:
    """The points after step `after` in the log of a run, which may still train, and its progress."""
    try:
        status = path.stat()
        steps, evaluations, seconds_left = _read_log(path, status.st_size, status.st_mtime_ns)
    except FileNotFoundError:  # nothing is logged yet
        steps, evaluations, seconds_left = [], [], None
    return {
        "progress": steps[-1]["progress"] if steps else None,
        "seconds_left": seconds_left,
        "steps": _thin([point for point in steps if point["step"] > after], MAX_RESPONSE_POINTS),
        "evaluations": _thin([point for point in evaluations if point["step"] > after], MAX_RESPONSE_POINTS),
    }


Points = list[dict[str, Any]]


@lru_cache(maxsize=64)
def _read_log(path: Path, size: int, changed: int) -> tuple[Points, Points, float | None]:
    """The points of steps and of evaluations, and the seconds left; read again when the file has changed."""
    steps: Points = []
    evaluations: Points = []
    seconds_left = None
    with open(path, "rb") as lines:
        for line in lines:
            try:
                entry = finite(json.loads(line))
                event, step, epoch = entry["event"], int(entry["step"]), entry.get("epoch")
            except (ValueError, KeyError, TypeError):  # cut off when the run was killed
                continue
            if event == "step":
                seconds_left = entry.get("seconds_left")
                points, point = steps, {key: entry.get(key) for key in StepPoint.model_fields}
            elif event == "evaluation":
                numbers = {key: value for key, value in entry.items() if isinstance(value, int | float)}
                values = {key: value for key, value in numbers.items() if key not in ("step", "epoch")}
                points, point = evaluations, {"step": step, "epoch": epoch, "values": values}
            else:
                continue
            while points and points[-1]["step"] >= step:  # a resume repeats the steps since its checkpoint
                points.pop()
            points.append(point)
    return _thin(steps, MAX_POINTS), _thin(evaluations, MAX_POINTS), seconds_left


def _thin(points: Points, most: int) -> Points:
    """About `most` points at most, evenly spaced, including the newest."""
    stride = -(-len(points) // most)
    return points if stride <= 1 else [*points[:-1:stride], points[-1]]


# --- runs and their models


class ServedRun:
    """One served folder: a run, finished or not, or a comparison."""

    def __init__(self, name: str, path: Path):
        self.name, self.path = name, path
        self.report_path, self.log_path = path / "report.html", path / "log.jsonl"
        self.is_comparison = is_comparison(path)
        self.model: ModelWorker | None = None
        self.lock = threading.Lock()
        self.read()

    def read(self) -> dict[str, str | None]:
        """Name, kind, status and objective, as the folder has them."""
        if self.is_comparison:
            status = "finished" if self.report_path.is_file() else "running"
            return {"name": self.name, "kind": "compare", "status": status, "objective": None}
        info = RunDir.open(self.path).info()
        objective = info.config.objective.name
        return {"name": self.name, "kind": info.config.job, "status": info.status, "objective": objective}


@contextmanager
def hide_folder(problem: str) -> Iterator[None]:
    """Turn a problem with a folder into an HTTP error that does not name the folder."""
    try:
        yield
    except HeadstartError as error:
        raise http_error(503, problem, hint="try again later") from error


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


class AppState:
    """One server: its runs in the order of the command line, its limits, its metrics and its token."""

    def __init__(
        self,
        runs: Sequence[str],
        limits: Limits,
        logger: logging.Logger,
        token: str | None = None,
        hosts: frozenset[str] = frozenset(),  # accepted names in the Host header; empty = any
        log_texts: bool = False,
        precision: str | None = None,
    ):
        self.limits, self.logger, self.token, self.hosts = limits, logger, token, hosts
        self.log_texts, self.precision, self.metrics = log_texts, precision, Metrics()
        self.in_flight = self.queued_plans = 0
        self.is_stopping = False
        self.plan_executor = ThreadPoolExecutor(1, "plans")
        self.metrics.in_flight.set_function(lambda: self.in_flight)
        self.runs: dict[str, ServedRun] = {}
        for argument in runs:
            name, path = _parse_run(argument)
            if name in self.runs:
                raise RunError(f"two runs are called {name!r}", hint=f"give one another name: OTHER={path}")
            self.runs[name] = ServedRun(name, path)

    @property
    def models(self) -> list[ModelWorker]:
        """The models in memory."""
        return [run.model for run in self.runs.values() if run.model is not None]

    def load_all(self) -> None:
        """Load every finished run."""
        for run in self.runs.values():
            self.load(run)

    def load(self, run: ServedRun) -> ModelWorker | None:
        """The model of a run, loaded if the run is finished; None while it trains."""
        with run.lock:
            if run.model is None and not run.is_comparison and run.read()["status"] == "finished":
                trained, count = load_model(str(run.path)), partial(self.metrics.count_batch, run.name)
                run.model = ModelWorker(trained, self.limits, self.precision, run.name, count)
                self.metrics.watch(run.model)
            return run.model

    def run(self, name: str) -> ServedRun:
        """The run called `name`."""
        if name not in self.runs:
            hint = nearest(name[:MAX_NAME_LENGTH], self.runs)
            raise http_error(404, "no run of that name is served", hint=hint)
        return self.runs[name]

    def find(self, ability: Ability, name: str | None) -> ModelWorker:
        """The model called `name`, or the first one with this ability."""
        for run in self.runs.values() if name is None else [self.run(name)]:
            if run.is_comparison:
                problem, hint = f"{run.name} is a comparison and answers nothing", "name a run"
                continue
            with hide_folder(f"{run.name} cannot be loaded"):
                model = self.load(run)
            if model is None:
                problem, hint = f"{run.name} is still training", "GET /v1/runs shows its progress"
            elif obstacle := model.obstacles[ability]:
                problem, hint = f"{run.name} cannot {ability}: it {obstacle}", HINTS[ability]
            else:
                return model
        if name is None:
            problem, hint = f"no run that is served can {ability}", HINTS[ability]
        raise http_error(409, problem, hint=hint)

    def sign_report(self, name: str, now: float | None = None) -> str:
        """The signature that opens the report of `name` for an hour or two: a frame cannot send the token."""
        period = int((time.time() if now is None else now) // SIGNATURE_SECONDS)
        return hmac.new((self.token or "").encode(), f"report {period} {name}".encode(), "sha256").hexdigest()

    def is_signature(self, name: str, candidate: str, now: float | None = None) -> bool:
        """Whether `candidate` is a valid signature for the report of `name`."""
        now = time.time() if now is None else now
        valid = [self.sign_report(name, period) for period in (now, now - SIGNATURE_SECONDS)]
        return any([hmac.compare_digest(candidate.encode(), signature.encode()) for signature in valid])

    def close(self) -> None:
        """Start no more work."""
        self.plan_executor.shutdown(wait=False, cancel_futures=True)
        for model in self.models:
            model.batcher.close()
            model.streams.close()
