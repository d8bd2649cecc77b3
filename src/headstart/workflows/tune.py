"""A search for the settings that fine-tune a base best, trial by trial; it can be stopped anywhere and go on.

Every trial is a file of its own, and what comes next is a function of those files and the seed: a search that was
killed ends as if it never had been.
"""

import json
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headstart.config import RunConfig, merge
from headstart.data.example import Dataset
from headstart.data.folds import all_folds, cut_folds
from headstart.data.splits import take_labels
from headstart.errors import ConfigError, RunError, Stopped, pick
from headstart.files import content_hash, write_json, write_text
from headstart.results import Story, plain
from headstart.training.events import Evaluated, Event, Note, Stage
from headstart.training.runtime import StopWish, seed_for, start_runtime, stopping_gently
from headstart.workflows.arms import Encoder, Part, fold_parts, whole_part
from headstart.workflows.conclude import Plan
from headstart.workflows.finetune import (
    SCRATCH,
    choose_tokenizer,
    data_fingerprint,
    finetune_config,
    load_labelled,
    make_classifier,
    make_trainer,
)
from headstart.workflows.pretrain import absolute
from headstart.workflows.run import RunFolder, Trained, load_trained
from headstart.workflows.search import Row, as_settings, make_space, parse_row, standing, to_toml
from headstart.workflows.story import command_line, tell_story

if TYPE_CHECKING:
    from optuna import Study
    from optuna import Trial as Asked

TRIALS = 20  # unless told, or minutes are
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
class Tuned:
    """A finished search; `best` is the best of many on the texts it was chosen on, so its value flatters."""

    path: Path
    metric: str
    direction: str
    scored: str
    texts: int
    best: Trial
    standing: Trial  # the settings as they stood, which are the first trial
    settings: dict[str, dict[str, Any]]  # what best.toml holds
    search: list[str]
    trials: list[Trial]
    story: Story


def tune(
    base: str,
    data: str,
    out: str | Path,
    *,
    trials: int | None = None,
    minutes: float | None = None,
    folds: int | None = None,
    search: Sequence[str] = (),
    only: bool = False,
    metric: str = "accuracy",
    prune: str = "median",
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Tuned:
    """Search the settings with which BASE learns DATA best, marked on valid or over folds; test is not read.

    Called again with the same arguments, it goes on with the trials that are there.
    """
    _need_optuna()
    pick(METRICS, metric, "metric to tune by")
    pick(PRUNERS, prune, "way to prune")
    for name, number in (("trials", trials), ("minutes", minutes)):
        if number is not None and number <= 0:
            raise ConfigError(f"{name} {number} search nothing", hint=f"give --{name} a number above 0")
    fixed = json.loads(json.dumps(dict(settings or {})))
    inputs = {
        "base": absolute([base])[0] if base != SCRATCH else base,
        "data": absolute([data])[0],
        "folds": folds,
        "search": [row.words for row in make_space(search, only, fixed)],
        "metric": metric,
        "prune": prune,
        "preset": preset,
        "settings": fixed,
    }
    path = Path(out)
    folder = RunFolder(path) if is_search(path) else RunFolder.create(path)
    try:
        with folder:
            return _run(path, inputs, {"trials": trials, "minutes": minutes}, on_event)
    finally:
        if not is_search(path):
            folder.remove_if_bare()


def is_search(path: Path) -> bool:
    """Whether a folder holds a search."""
    return (path / "tune.json").is_file()


def resume_tune(path: Path, on_event: Callable[[Event], None]) -> Tuned | None:
    """Go on with a search; None when it was finished before."""
    _need_optuna()
    if (path / "result.json").exists():
        return None
    known = json.loads((path / "tune.json").read_text("utf-8"))
    with RunFolder(path):
        return _run(path, known["inputs"], known["budget"], on_event)


def _need_optuna() -> None:
    try:
        import optuna
    except ImportError:
        raise ConfigError("a search needs the optuna package", hint="pip install 'headstart[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def _run(
    path: Path, inputs: dict[str, Any], budget: dict[str, Any], on_event: Callable[[Event], None]
) -> Tuned:
    started = time.time()
    rows = [parse_row(words) for words in inputs["search"]]
    trained = None if inputs["base"] == SCRATCH else load_trained(inputs["base"])
    settings = merge({"training": {"keep": "last"}}, inputs["settings"])
    config, objective = finetune_config(trained, inputs["preset"], settings)
    _check(rows, trained, inputs["preset"], settings, config)
    parts = _parts(inputs, config, on_event)
    first = parts[0].dataset  # which, whatever it holds out, holds every text
    plan = Plan(
        "tune", "fine-tuned", config, objective, choose_tokenizer(config, first, trained, on_event), trained
    )
    known = _begin(path, inputs, budget, parts, trained)
    encoder = Encoder([example for examples in first.splits.values() for example in examples])
    job = _Job(path, inputs, rows, plan, parts, encoder, on_event)
    for line in _announcement(config, rows):
        on_event(Note(line))
    try:
        with stopping_gently() as stop:
            _search(job, budget, stop)
    except Stopped as stopped:
        stopped.again = f"headstart resume {shlex.quote(str(path))}"
        raise
    seeds = [config.training.seed]
    story = tell_story(start_runtime(config.training), seeds, started, known["command"])
    return _conclude(job, story)


def _announcement(config: RunConfig, rows: list[Row]) -> Iterator[str]:
    """What is searched, and where the first trial cannot take the settings as they stand."""
    for row in rows:
        yield f"searching {row.words}"
    for name, value in standing(config, rows).items():
        section, key = name.split(".")
        own = getattr(getattr(config, section), key, value)
        if own != value:
            yield f"trial 0 takes {name}={value}, the nearest to the {own} of the settings that is searched"


def _check(
    rows: list[Row],
    trained: Trained | None,
    preset: str | None,
    settings: Mapping[str, Any],
    config: RunConfig,
) -> None:
    """A value that the settings cannot take is told before anything is trained."""
    for row in rows:
        for value in row.samples:
            own = {**standing(config, rows), row.name: value}
            finetune_config(trained, preset, merge(settings, as_settings(own)))


def _parts(inputs: dict[str, Any], config: RunConfig, on_event: Callable[[Event], None]) -> list[Part]:
    """What trials learn from and are marked on; `data.labels` with folds cuts them from that many labels alone."""
    if inputs["folds"] is None:
        return whole_part(load_labelled(inputs["data"], config, on_event=on_event))
    open_labels = config.with_({"data": {"labels": None}})
    dataset = load_labelled(inputs["data"], open_labels, on_event=on_event)
    if config.data.labels is not None:
        pool: Dataset = all_folds(cut_folds(dataset, inputs["folds"]))
        dataset = take_labels(pool, config.data.labels, config.training.seed)
    return fold_parts(dataset, inputs["folds"])[0]


def _begin(
    path: Path, inputs: dict[str, Any], budget: dict[str, Any], parts: list[Part], trained: Trained | None
) -> dict[str, Any]:
    """Write down what is searched, or check that a search taken up again is the same one."""
    marks = {
        "data": content_hash([data_fingerprint(part.dataset) for part in parts]),
        "base": content_hash(trained.info.to_dict()) if trained is not None else "",
    }
    content = {"inputs": inputs, "fingerprints": marks, "budget": budget, "command": command_line()}
    if is_search(path):
        known = json.loads((path / "tune.json").read_text("utf-8"))
        other = [name for name in inputs if known["inputs"].get(name) != inputs[name]]
        if other:
            raise RunError(
                f"{path} holds a search with another {' and '.join(other)}",
                hint="run the very same command to go on with it, or choose another --out",
            )
        for name, mark in marks.items():
            if known["fingerprints"][name] != mark:
                raise RunError(
                    f"the {name} of {path} changed since the search began", hint="put the old back"
                )
        content["command"] = known["command"]
    write_json(path / "tune.json", content)
    return content


@dataclass(frozen=True)
class _Job:
    """All that a trial needs."""

    path: Path
    inputs: dict[str, Any]
    rows: list[Row]
    plan: Plan
    parts: list[Part]
    encoder: Encoder
    on_event: Callable[[Event], None]

    @property
    def seed(self) -> int:
        return self.plan.config.training.seed

    @property
    def sign(self) -> int:
        return 1 if METRICS[self.inputs["metric"]] == "maximize" else -1


def _history(path: Path) -> list[Trial]:
    """The trials that were run, in order."""
    files = sorted((path / "trials").glob("[0-9]*.json"))
    return [Trial(**json.loads(file.read_text("utf-8"))) for file in files]


def _search(job: _Job, budget: dict[str, Any], stop: StopWish) -> None:
    """Trials until the budget is spent; one that is under way when the minutes are over is finished."""
    most = budget["trials"] or (TRIALS if budget["minutes"] is None else None)
    while True:
        history = _history(job.path)
        spent = sum(trial.seconds for trial in history) / 60
        is_over = budget["minutes"] is not None and spent >= budget["minutes"]
        if (most is not None and len(history) >= most) or (is_over and history):
            return
        (job.path / "result.json").unlink(missing_ok=True)  # that of fewer trials
        job.on_event(Stage(f"trial {len(history)}", len(history), most or 0))
        trial = _try(job, history, stop)
        write_json(job.path / "trials" / f"{trial.number:05d}.json", asdict(trial))
        told = "–" if trial.value is None else f"{trial.value:.4f}"
        job.on_event(Note(f"trial {trial.number} {trial.state}: {job.inputs['metric']} {told}"))


def _study(job: _Job, history: list[Trial]) -> "Study":
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


def _try(job: _Job, history: list[Trial], stop: StopWish) -> Trial:
    """The next trial, run; the first one takes the settings as they stand."""
    study, start = _study(job, history), time.monotonic()
    if not history:
        study.enqueue_trial(standing(job.plan.config, job.rows))
    asked = study.ask({row.name: row.distribution() for row in job.rows})
    values = {row.name: asked.params[row.name] for row in job.rows}
    marks: dict[str, float] = {}
    folds: list[float] = []
    state, reason = "finished", ""
    try:
        for number in range(len(job.parts)):
            folds.append(_fit(job, values, number, asked, folds, marks, stop))
    except _GivenUp:
        state = "pruned"
    except (RunError, ConfigError) as error:  # it diverged, or its values do not go together
        state, reason = "failed", str(error)
    value = list(marks.values())[-1] if marks else None
    if state == "finished":
        value = sum(folds) / len(folds)
    seconds = round(time.monotonic() - start, 2)
    return Trial(len(history), state, value, values, marks, folds, seconds, reason)


def _fit(
    job: _Job,
    values: dict[str, Any],
    number: int,
    asked: "Asked",
    before: list[float],
    marks: dict[str, float],
    stop: StopWish,
) -> float:
    """The mark of one model after its last epoch; raises _GivenUp when the pruner has seen enough."""
    part = job.parts[number]
    over = merge(merge({"training": {"keep": "last"}}, job.inputs["settings"]), as_settings(values))
    config, objective = finetune_config(job.plan.trained, job.inputs["preset"], over)
    task = job.encoder.task(part.dataset, replace(job.plan, config=config))
    runtime = start_runtime(config.training)
    model, _ = make_classifier(config, objective, task, job.plan.trained)
    metric, last = job.inputs["metric"], len(job.parts) - 1

    def listen(event: Event) -> None:
        if not isinstance(event, Evaluated):
            job.on_event(event)
            return
        if event.step == 0:
            return
        step = number * PARTS + int(PARTS * trainer.progress + 1e-9)
        if str(step) in marks:
            return
        marks[str(step)] = (sum(before) + event.values[metric]) / (len(before) + 1)
        asked.report(marks[str(step)], step)
        if (number, step) != (last, (last + 1) * PARTS) and asked.should_prune():
            raise _GivenUp

    trainer = make_trainer(model, objective, task, config, runtime, listen, stop)
    trainer.run()
    return trainer.state.curve[-1][metric]


def _conclude(job: _Job, story: Story) -> Tuned:
    """The best settings as TOML, the trials as JSON and as a picture; result.json comes last."""
    from headstart.views.figure import save_figure
    from headstart.views.trials import draw_trials, trials_data

    trials, sign = _history(job.path), job.sign
    finished = [trial for trial in trials if trial.state == "finished"]
    if not finished:
        raise RunError(
            f"no trial of {job.path} reached its end",
            hint="search smaller learning rates, or give more trials",
        )
    best = max(finished, key=lambda trial: sign * (trial.value or 0.0))  # the first of equals
    settings = merge(job.inputs["settings"], as_settings(best.values))
    found = Tuned(
        path=job.path,
        metric=job.inputs["metric"],
        direction=METRICS[job.inputs["metric"]],
        scored=f"{len(job.parts)} folds" if len(job.parts) > 1 else job.parts[0].scored,
        texts=sum(len(part.examples) for part in job.parts),
        best=best,
        standing=trials[0],
        settings=settings,
        search=job.inputs["search"],
        trials=trials,
        story=story,
    )
    write_text(job.path / "best.toml", to_toml(settings))
    figure = draw_trials(trials_data(plain(found)))
    for kind in ("png", "svg"):
        save_figure(figure, job.path / f"trials.{kind}")
    write_json(job.path / "result.json", {**plain(found), "path": ""})
    return found
