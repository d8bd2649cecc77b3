"""The served runs by name; a run that is still training is loaded once it is finished."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.errors import HeadstartError, RunError, nearest
from headstart.inference.loaded_model import load_model
from headstart.pretrained import shipped_bases
from headstart.serving.batcher import Batcher, BatchStats
from headstart.serving.limits import Limits, http_error
from headstart.serving.model_worker import ModelWorker
from headstart.serving.progress import Progress
from headstart.serving.schema import Ability
from headstart.serving.state import Metrics
from headstart.workflows.compare import is_comparison
from headstart.workflows.run_dir import RunDir

MAX_NAME_LENGTH = 200


@dataclass(frozen=True)
class ReadyModel:
    """A model in memory."""

    name: str
    worker: ModelWorker
    batcher: Batcher


class ServedRun:
    """One served folder: a run, finished or not, or a comparison."""

    def __init__(self, name: str, path: Path):
        self.name, self.path = name, path
        self.is_comparison = is_comparison(path)
        self.progress = Progress(path / "log.jsonl")
        self.model: ReadyModel | None = None
        self.lock = threading.Lock()
        self.describe()

    def describe(self) -> dict[str, Any]:
        """Kind and status, read from the folder."""
        has_report = (self.path / "report.html").is_file()
        if self.is_comparison:
            kind, objective, status = "compare", None, "finished" if has_report else "running"
        else:
            info = RunDir.open(self.path).info()
            kind, objective, status = info.config.job, info.config.objective.name, info.status
        return {
            "name": self.name,
            "kind": kind,
            "status": status,
            "objective": objective,
            "has_report": has_report,
        }

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

    def __init__(
        self,
        runs: Sequence[str],
        limits: Limits,
        metrics: Metrics | None = None,
        precision: str | None = None,
    ):
        self.limits, self.precision = limits, precision
        self.metrics = Metrics() if metrics is None else metrics
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
            self.load(run)

    def load(self, run: ServedRun) -> ReadyModel | None:
        """The model of a run, loaded if it is finished; None while it trains."""
        with run.lock:
            if run.model is None and not run.is_comparison and run.describe()["status"] == "finished":
                worker = ModelWorker(load_model(str(run.path)), self.limits, self.precision)
                batcher = Batcher(
                    worker.run_batch,
                    max_batch_tokens=self.limits.max_batch_tokens,
                    max_queued_tokens=self.limits.max_queued_tokens,
                    max_streams=self.limits.max_streams,
                    num_threads=worker.num_threads,
                    name=f"run {run.name}",
                    on_batch=self._count_batches(run.name),
                )
                self.metrics.queued_tokens.labels(run.name).set_function(lambda: batcher.queued_tokens)
                self.metrics.streams.labels(run.name).set_function(lambda: batcher.num_streams)
                run.model = ReadyModel(run.name, worker, batcher.start())
            return run.model

    def _count_batches(self, name: str) -> Callable[[BatchStats], None]:
        texts, tokens = self.metrics.texts.labels(name), self.metrics.tokens.labels(name)
        sizes = self.metrics.batch_texts.labels(name)

        def count(stats: BatchStats) -> None:
            texts.inc(stats.num_items)
            tokens.inc(stats.tokens)
            sizes.observe(stats.num_items)

        return count

    def try_load(self, run: ServedRun) -> ReadyModel | None:
        """As `load`, with an HTTP error that does not name the folder."""
        try:
            return self.load(run)
        except HeadstartError as error:
            raise http_error(503, f"{run.name} cannot be loaded", hint="try again later") from error

    def describe(self, run: ServedRun) -> dict[str, Any]:
        """As `ServedRun.describe`, with an HTTP error that does not name the folder."""
        try:
            return run.describe()
        except HeadstartError as error:
            raise http_error(
                503, f"the folder of {run.name} cannot be read", hint="try again later"
            ) from error

    def run(self, name: str) -> ServedRun:
        """The run called `name`."""
        if name not in self.runs:
            raise http_error(
                404, "no run of that name is served", hint=nearest(name[:MAX_NAME_LENGTH], self.runs)
            )
        return self.runs[name]

    def find(self, ability: Ability, name: str | None) -> ReadyModel:
        """The model called `name`, or the first one with this ability."""
        if name is None:
            for run in self.runs.values():
                model = self.try_load(run)
                if model is not None and not model.worker.why_not(ability):
                    return model
            raise http_error(409, f"no run that is served can {ability}", hint=_HINTS[ability])
        run = self.run(name)
        if run.is_comparison:
            raise http_error(409, f"{name} is a comparison and answers nothing", hint="name a run")
        model = self.try_load(run)
        if model is None:
            raise http_error(409, f"{name} is still training", hint="GET /v1/runs shows its progress")
        reason = model.worker.why_not(ability)
        if reason:
            raise http_error(409, f"{name} cannot {ability}: it {reason}", hint=_HINTS[ability])
        return model

    def close(self) -> None:
        """Stop every batcher."""
        for model in self.models:
            model.batcher.close()


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


_HINTS: dict[Ability, str] = {
    "classify": "serve a run made by `headstart finetune`",
    "embed": "serve a base or a classifier",
    "attention": "serve a run with a causal or bidirectional body",
    "generate": "serve a base pretrained with --objective causal-lm",
    "translate": "serve a run that was trained to translate",
}
