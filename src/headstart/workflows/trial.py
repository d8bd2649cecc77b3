"""One trial of a search: values that are asked for, models trained with them, and marks on the way."""

import json
import math
import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headstart.atomic_io import content_hash, write_json
from headstart.config import RunConfig, merge
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, Diverged
from headstart.inference.loaded_model import LoadedModel
from headstart.training.callbacks import Evaluated, Event
from headstart.training.runtime import StopSignal, seed_for, start_runtime
from headstart.workflows.compare_cells import FitState, Fold, TextEncoder
from headstart.workflows.finetune import FinetuneJob, data_fingerprint
from headstart.workflows.finetune_defaults import DatasetFacts, finetune_config
from headstart.workflows.search import Row, as_settings, standing

if TYPE_CHECKING:
    from optuna import Study
    from optuna import Trial as Asked

STARTUP = 8  # trials at random before the sampler learns from them
PARTS = 10  # marks of one fold that a trial is judged by on its way
METRICS: dict[str, Literal["maximize", "minimize"]] = {
    "accuracy": "maximize",
    "macro_f1": "maximize",
    "loss": "minimize",
}


def _median(most: int) -> Any:
    from optuna.pruners import MedianPruner

    return MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=2, n_min_trials=3)


def _hyperband(most: int) -> Any:
    from optuna.pruners import HyperbandPruner

    return HyperbandPruner(min_resource=2, max_resource=most, reduction_factor=3)


def _never(most: int) -> Any:
    from optuna.pruners import NopPruner

    return NopPruner()


PRUNERS: dict[str, Callable[[int], Any]] = {"median": _median, "hyperband": _hyperband, "none": _never}


@dataclass(frozen=True)
class Trial:
    """One set of values, and the marks of the models trained with it."""

    number: int
    state: str  # "finished", "pruned" (given up early) or "failed", which has a reason
    value: float | None  # the mean over folds after the last epoch; of a pruned trial, its last mark
    values: dict[str, Any]  # by section.key
    marks: dict[str, float]  # on the way: tenths of the work of a fold -> the mean so far
    folds: list[float]
    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class Job:
    """All that a trial needs."""

    path: Path
    inputs: dict[str, Any]
    rows: list[Row]
    config: RunConfig
    base: LoadedModel | None
    tokenizer: Tokenizer
    parts: list[Fold]
    encoder: TextEncoder
    on_event: Callable[[Event], None]

    @property
    def begun(self) -> Path:
        """What the finished folds of the trial under way gave."""
        return self.path / "trial.json"

    @property
    def checkpoints(self) -> Path:
        """The training state of its fold under way."""
        return self.path / "checkpoints"

    @property
    def seed(self) -> int:
        """The seed of the search and of every model in it."""
        return self.config.training.seed

    @property
    def sign(self) -> int:
        """1 when more is better."""
        return 1 if METRICS[self.inputs["metric"]] == "maximize" else -1


def read_trials(path: Path) -> list[Trial]:
    """The trials that were run, in order."""
    files = sorted((path / "trials").glob("[0-9]*.json"))
    return [Trial(**json.loads(file.read_text("utf-8"))) for file in files]


def _study(job: Job, history: list[Trial]) -> "Study":
    """A study in memory with these trials; what it asks next depends on them and on the seed alone."""
    import optuna
    from optuna.trial import TrialState, create_trial

    states = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed_for(job.seed, len(history)) % 2**32, multivariate=True, n_startup_trials=STARTUP
        )
    study = optuna.create_study(
        sampler=sampler,
        pruner=PRUNERS[job.inputs["prune"]](PARTS * len(job.parts)),
        direction=METRICS[job.inputs["metric"]],
        study_name="headstart",  # hyperband draws its brackets by name
    )
    for trial in history:
        study.add_trial(
            create_trial(
                state=states[trial.state],
                value=None if trial.state == "failed" else trial.value,
                params=trial.values,
                distributions={row.name: row.distribution() for row in job.rows},
                intermediate_values={int(step): mark for step, mark in trial.marks.items()},
            )
        )
    return study


class _GivenUp(Exception):
    """A trial that is worse than others were at this point."""


@dataclass
class _Way:
    """How far a trial has come; what it holds goes to disk and comes back."""

    trial: str  # the hash of its number, its values and the search
    folds: list[float] = field(default_factory=list)
    marks: dict[str, float] = field(default_factory=dict)
    earlier: float = 0.0  # seconds before a stop
    start: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds that the trial has taken, over all its sittings."""
        return self.earlier + time.monotonic() - self.start

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"trial": self.trial, "folds": self.folds, "marks": self.marks, "seconds": self.seconds}

    def take_up(self, content: dict[str, Any], asked: "Asked") -> None:
        """Go on from what `to_dict` gave, and tell the study the marks that it does not know yet."""
        for step, value in content["marks"].items():
            if step not in self.marks:
                self.marks[step] = math.nan if value is None else value
                asked.report(self.marks[step], int(step))
        self.folds = [math.nan if value is None else value for value in content["folds"]]
        self.earlier = content["seconds"]


def run_trial(job: Job, history: list[Trial], stop: StopSignal) -> Trial:
    """The next trial, run; the first one takes the settings as they stand, and one that was begun goes on."""
    study = _study(job, history)
    if not history:
        study.enqueue_trial(standing(job.config, job.rows))
    asked = study.ask({row.name: row.distribution() for row in job.rows})
    values = {row.name: asked.params[row.name] for row in job.rows}
    way = _Way(content_hash([len(history), values, job.inputs]))
    if (content := _read_begun(job, way.trial)) is not None:
        way.take_up(content, asked)
    state, reason = "finished", ""
    try:
        for number in range(len(way.folds), len(job.parts)):
            found = _fit(job, values, number, asked, way, stop)
            way.folds.append(found)
            write_json(job.begun, way.to_dict())
    except _GivenUp:
        state = "pruned"
    except (Diverged, ConfigError) as error:  # or its values do not go together
        state, reason = "failed", str(error)
    value = list(way.marks.values())[-1] if way.marks else None
    if state == "finished":
        value = sum(way.folds) / len(way.folds)
    return Trial(len(history), state, value, values, way.marks, way.folds, round(way.seconds, 2), reason)


def _read_begun(job: Job, trial: str) -> dict[str, Any] | None:
    """What finished folds of this very trial gave, if it was begun before."""
    if not job.begun.exists():
        return None
    content = json.loads(job.begun.read_text("utf-8"))
    return content if content["trial"] == trial else None


def drop_begun(job: Job) -> None:
    """Take away what a trial kept on its way."""
    job.begun.unlink(missing_ok=True)
    shutil.rmtree(job.checkpoints, ignore_errors=True)


def _fit(job: Job, values: dict[str, Any], number: int, asked: "Asked", way: _Way, stop: StopSignal) -> float:
    """The mark of one model after its last epoch; raises _GivenUp when the pruner has seen enough."""
    part = job.parts[number]
    over = merge(merge({"training": {"checkpoint_selection": "last"}}, job.inputs["settings"]), as_settings(values))
    facts = DatasetFacts.of(part.dataset, job.tokenizer)
    config, objective = finetune_config(job.base, job.inputs["preset"], over, data=facts)
    task = job.encoder.encode(part.dataset, job.tokenizer, config)
    finetuning = FinetuneJob(config, start_runtime(config.training), base=job.base)
    model, moved = finetuning.build_model(task)
    metric, last = job.inputs["metric"], len(job.parts) - 1

    def listen(event: Event) -> None:
        if not isinstance(event, Evaluated):
            job.on_event(event)
            return
        if event.step == 0:
            return
        step = number * PARTS + int(PARTS * trainer.progress + 1e-9)
        if str(step) in way.marks:
            return
        way.marks[str(step)] = (sum(way.folds) + event.values[metric]) / (len(way.folds) + 1)
        asked.report(way.marks[str(step)], step)
        if (number, step) != (last, (last + 1) * PARTS) and asked.should_prune():
            raise _GivenUp

    finetuning.on_event = listen
    trainer = finetuning.make_trainer(model, objective, finetuning.training_data(task), moved, stop)
    state = FitState(job.checkpoints, lambda: _identity(job, config, part, number, way))
    if (content := state.load(trainer)) is not None:
        way.take_up(content, asked)
    trainer.run(lambda: state.save(trainer, way.to_dict()))
    return trainer.state.curve[-1][metric]


def _identity(job: Job, config: RunConfig, part: Fold, number: int, way: _Way) -> dict[str, Any]:
    """All that a fold's model and its marks depend on."""
    trained = job.base
    return {
        "trial": way.trial,
        "settings": config.model_dump(),
        "base": content_hash(trained.info.to_dict()) if trained is not None else "",
        "tokenizer": job.tokenizer.fingerprint,
        "data": data_fingerprint(part.dataset),
        "fold": [number, way.folds],
    }
