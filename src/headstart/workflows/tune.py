"""A search for the settings that fine-tune a base best, trial by trial; it can be stopped anywhere and go on.

Every trial is a file of its own, and what comes next is a function of those files and the seed; the trial under way
keeps its finished folds and its training state. A search that was killed ends as if it never had been.
"""

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headstart.atomic_io import content_hash, write_json, write_text
from headstart.config import RunConfig, merge
from headstart.data.augmentation import check_bpe_dropout
from headstart.data.datasets import Dataset, balanced_subset, merge_folds, stratified_folds
from headstart.errors import ConfigError, RunError, Stopped, pick
from headstart.inference.loaded_model import SCRATCH, LoadedModel, absolute_paths, load_model, with_absolute_paths
from headstart.results import Provenance, plain
from headstart.training.callbacks import Event, Note, Stage
from headstart.training.launch import require_single_process
from headstart.training.runtime import StopSignal, graceful_shutdown, start_runtime
from headstart.workflows.compare_cells import Fold, TextEncoder, make_folds
from headstart.workflows.finetune import choose_tokenizer, data_fingerprint, load_labelled
from headstart.workflows.finetune_defaults import DatasetFacts, describe, finetune_config, uses_recommendation
from headstart.workflows.run_dir import RunDir, collect_provenance, command_line
from headstart.workflows.search import Row, as_settings, make_space, parse_row, standing, to_toml
from headstart.workflows.trial import METRICS, PRUNERS, Job, Trial, drop_begun, read_trials, run_trial

TRIALS = 20  # unless told, or minutes are


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
    provenance: Provenance


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
    require_single_process("a search")
    _need_optuna()
    pick(METRICS, metric, "metric to tune by")
    pick(PRUNERS, prune, "way to prune")
    for name, number in (("trials", trials), ("minutes", minutes)):
        if number is not None and number <= 0:
            raise ConfigError(f"{name} {number} search nothing", hint=f"give --{name} a number above 0")
    fixed = json.loads(json.dumps(with_absolute_paths(settings)))
    inputs = {
        "base": absolute_paths([base])[0],
        "data": absolute_paths([data])[0],
        "folds": folds,
        "search": [row.words for row in make_space(search, only, fixed)],
        "metric": metric,
        "prune": prune,
        "preset": preset,
        "settings": fixed,
    }
    path = Path(out)
    with RunDir(path) if is_search(path) else RunDir.create(path):
        return _run(path, inputs, {"trials": trials, "minutes": minutes}, on_event)


def is_search(path: Path) -> bool:
    """Whether a folder holds a search."""
    return (path / "tune.json").is_file()


def resume_tune(path: Path, on_event: Callable[[Event], None]) -> Tuned | None:
    """Go on with a search; None when it was finished before."""
    require_single_process("a search")
    _need_optuna()
    if (path / "result.json").exists():
        return None
    known = json.loads((path / "tune.json").read_text("utf-8"))
    with RunDir(path):
        return _run(path, known["inputs"], known["budget"], on_event)


def _need_optuna() -> None:
    try:
        import optuna
    except ImportError:
        raise ConfigError("a search needs the optuna package", hint="pip install 'headstart[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def _run(path: Path, inputs: dict[str, Any], budget: dict[str, Any], on_event: Callable[[Event], None]) -> Tuned:
    started = time.time()
    rows = [parse_row(words) for words in inputs["search"]]
    trained = None if inputs["base"] == SCRATCH else load_model(inputs["base"])
    settings = merge({"training": {"checkpoint_selection": "last"}}, inputs["settings"])
    draft, _ = finetune_config(trained, inputs["preset"], settings)
    _check(rows, trained, inputs["preset"], settings, draft)
    parts = _parts(inputs, draft, on_event)
    first = parts[0].dataset  # which, whatever it holds out, holds every text
    facts = DatasetFacts.of(first, None if trained is None else trained.tokenizer)
    config, objective = finetune_config(trained, inputs["preset"], settings, data=facts)
    tokenizer = choose_tokenizer(config, first, trained, on_event)
    if any(row.name == "training.bpe_dropout" for row in rows) or config.training.bpe_dropout:
        check_bpe_dropout(tokenizer, first.texts("train"))
    known = _begin(path, inputs, budget, parts, trained)
    job = Job(path, inputs, rows, config, trained, tokenizer, parts, TextEncoder(), on_event)
    searched = merge(settings, as_settings({row.name: None for row in rows}))
    if trained is not None and uses_recommendation(trained, facts, config, objective, searched):
        on_event(Note(f"settings recommended by {trained.name}: {describe(config, searched)}"))
    for line in _announcement(config, rows):
        on_event(Note(line))
    try:
        with graceful_shutdown() as stop:
            _search(job, budget, stop)
    except Stopped as stopped:
        stopped.again = f"headstart resume {shlex.quote(str(path))}"
        raise
    seeds = [config.training.seed]
    provenance = collect_provenance(start_runtime(config.training), seeds, started, known["command"])
    return _conclude(job, provenance)


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
    rows: list[Row], trained: LoadedModel | None, preset: str | None, settings: Mapping[str, Any], config: RunConfig
) -> None:
    """A value that the settings cannot take is told before anything is trained."""
    for row in rows:
        for value in row.samples:
            own = {**standing(config, rows), row.name: value}
            finetune_config(trained, preset, merge(settings, as_settings(own)))


def _parts(inputs: dict[str, Any], config: RunConfig, on_event: Callable[[Event], None]) -> list[Fold]:
    """What trials learn from and are marked on; `data.train_size` with folds cuts them from that many labels alone."""
    if inputs["folds"] is None:
        return make_folds(load_labelled(inputs["data"], config, on_event=on_event), None)[0]
    open_labels = config.with_({"data": {"train_size": None}})
    dataset = load_labelled(inputs["data"], open_labels, on_event=on_event)
    if config.data.train_size is not None:
        pool: Dataset = merge_folds(stratified_folds(dataset, inputs["folds"]))
        dataset = balanced_subset(pool, config.data.train_size, config.training.seed)
    return make_folds(dataset, inputs["folds"])[0]


def _begin(
    path: Path, inputs: dict[str, Any], budget: dict[str, Any], parts: list[Fold], trained: LoadedModel | None
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
                raise RunError(f"the {name} of {path} changed since the search began", hint="put the old back")
        content["command"] = known["command"]
    write_json(path / "tune.json", content)
    return content


def _search(job: Job, budget: dict[str, Any], stop: StopSignal) -> None:
    """Trials until the budget is spent; one that is under way when the minutes are over is finished."""
    most = budget["trials"] or (TRIALS if budget["minutes"] is None else None)
    while True:
        history = read_trials(job.path)
        spent = sum(trial.seconds for trial in history) / 60
        is_over = budget["minutes"] is not None and spent >= budget["minutes"]
        if (most is not None and len(history) >= most) or (is_over and history):
            drop_begun(job)  # of a last trial that was written down before the search died
            return
        (job.path / "result.json").unlink(missing_ok=True)  # that of fewer trials
        job.on_event(Stage(f"trial {len(history)}", len(history), most or 0))
        trial = run_trial(job, history, stop)
        write_json(job.path / "trials" / f"{trial.number:05d}.json", asdict(trial))
        drop_begun(job)
        told = "–" if trial.value is None else f"{trial.value:.4f}"
        job.on_event(Note(f"trial {trial.number} {trial.state}: {job.inputs['metric']} {told}"))


def _conclude(job: Job, provenance: Provenance) -> Tuned:
    """The best settings as TOML, the trials as JSON and as a picture; result.json comes last."""
    from headstart.plots.style import save_figure
    from headstart.plots.trials import draw_trials, trials_data

    trials, sign = read_trials(job.path), job.sign
    finished = [trial for trial in trials if trial.state == "finished"]
    if not finished:
        raise RunError(
            f"no trial of {job.path} reached its end", hint="search smaller learning rates, or give more trials"
        )
    best = max(finished, key=lambda trial: sign * (trial.value or 0.0))  # the first of equals
    settings = merge(job.inputs["settings"], as_settings(best.values))
    found = Tuned(
        path=job.path,
        metric=job.inputs["metric"],
        direction=METRICS[job.inputs["metric"]],
        scored=f"{len(job.parts)} folds" if len(job.parts) > 1 else job.parts[0].split,
        texts=sum(len(part.examples) for part in job.parts),
        best=best,
        standing=trials[0],
        settings=settings,
        search=job.inputs["search"],
        trials=trials,
        provenance=provenance,
    )
    write_text(job.path / "best.toml", to_toml(settings))
    figure = draw_trials(trials_data(plain(found)))
    for kind in ("png", "svg"):
        save_figure(figure, job.path / f"trials.{kind}")
    write_json(job.path / "result.json", {**plain(found), "path": ""})
    return found
