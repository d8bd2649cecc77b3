"""Hyperparameter search: optuna proposes settings, and every trial fine-tunes the base with them.

optuna's journal holds the trials. A proposal depends on the earlier trials and the seed only, and the current trial
writes checkpoints, so a search that was killed continues to the same result.
"""

import json
import math
import shutil
import time
import tomllib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from headstart.atomic_io import content_hash, write_json, write_text, writing
from headstart.config import RunConfig, merge
from headstart.data.augmentation import check_bpe_dropout
from headstart.data.datasets import require_classes
from headstart.data.subsets import balanced_subset, merge_folds, stratified_folds
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, Diverged, RunError, pick
from headstart.inference.loaded_model import SCRATCH, LoadedModel, absolute_paths, load_model, with_absolute_paths
from headstart.results import Provenance, plain
from headstart.training.callbacks import Evaluated, Event, Note, OnEvent, Stage, ignore_event
from headstart.training.launch import require_single_process
from headstart.training.runtime import StopSignal, graceful_shutdown, seed_for, start_runtime
from headstart.workflows.compare_cells import Fold, make_folds, start_fit, write_request
from headstart.workflows.finetune import choose_tokenizer, data_fingerprint, load_labelled, make_task
from headstart.workflows.finetune_defaults import DatasetFacts, describe, finetune_config, uses_recommendation
from headstart.workflows.run_dir import RunDir, collect_provenance, command_line

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.trial import FrozenTrial

Settings = dict[str, dict[str, Any]]  # by section and key
Dim: TypeAlias = "CategoricalDistribution | FloatDistribution | IntDistribution"
Space: TypeAlias = Mapping[str, Dim]  # by section.key

DEFAULT_TRIALS = 20
RANDOM_TRIALS = 8  # random trials before the sampler learns from them
EVALUATIONS = 10  # evaluations of one fold that the pruner may see
METRICS: dict[str, Literal["maximize", "minimize"]] = {
    "accuracy": "maximize", "macro_f1": "maximize", "loss": "minimize",
}  # fmt: skip
PRUNERS = dict.fromkeys(("median", "hyperband", "none"))
# What matters most when a base is fine-tuned on few labels. A rate of 0 disables a method.
DEFAULT_SPACE = (
    "optimizer.learning_rate=3e-5:3e-3:log",
    "optimizer.weight_decay=1e-3:0.3:log",
    "optimizer.layerwise_lr_decay=0.6:1.0",
    "optimizer.head_lr_multiplier=1.0:20.0:log",
    "lr_schedule.warmup_ratio=0.0:0.3",
    "training.max_epochs=3:20:int",
    "training.batch_size=8,16,32,64",
    "training.token_cutoff=0.0:0.3",
    "model.dropout=0.05:0.4",
    "objective.label_smoothing=0.0:0.2",
    "objective.r_drop_alpha=0.0,0.5,1.0,3.0",
)
JOURNAL = "trials.log"
STUDY = "headstart"  # hyperband assigns brackets by this name and the trial's number
FORM = "write section.key=low:high, optionally with :log or :int after it, or section.key=a,b,c"


# --- The search space -----------------------------------------------------------------------------------------------


def parse_dim(text: str) -> tuple[str, Dim]:
    """The setting that a `--search` argument names, and its range or choices."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    name, _, content = (part.strip() for part in text.partition("="))
    is_range = ":" in content
    values = [_parse_value(part.strip()) for part in content.split(":" if is_range else ",")]
    low, high, *flags = values if is_range else (0, 1)
    if name.count(".") != 1 or not content:
        problem = "names no setting to search"
    elif not is_range and len(set(values)) < 2:
        problem = "has fewer than two choices; --set fixes a value"
    elif not (_is_number(low) and _is_number(high)) or not {"log", "int"}.issuperset(flags):
        problem = "is not a range of numbers"
    elif not low < high:
        problem = "is an empty range: the lower end comes first"
    elif "log" in flags and low <= 0:
        problem = "has no logarithm at 0: start above 0, or leave out :log"
    elif not is_range:
        return name, CategoricalDistribution(values)
    elif "int" in flags:
        return name, IntDistribution(round(low), round(high), log="log" in flags)
    else:
        return name, FloatDistribution(float(low), float(high), log="log" in flags)
    raise ConfigError(f"--search {text!r} {problem}", hint=FORM)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def make_space(search: Iterable[str], search_only: bool, fixed: Mapping[str, Any]) -> list[str]:
    """The dimensions that the user named and, without `search_only`, the default ones; never a setting in `fixed`."""
    named = {parse_dim(text)[0]: text.strip() for text in search}
    default = {} if search_only else {parse_dim(text)[0]: text for text in DEFAULT_SPACE}
    given = {f"{section}.{key}" for section, content in fixed.items() for key in content}
    if both := given & set(named):
        raise ConfigError(f"{min(both)} is both set and searched", hint="leave out --set or --search for it")
    if given & {"training.max_steps", "training.max_tokens", "training.max_minutes"}:
        default.pop("training.max_epochs", None)
    space = [text for name, text in {**default, **named}.items() if name not in given]
    if not space:
        raise ConfigError("there is nothing to search", hint=f"add --search: {FORM}")
    return space


def nearest_value(dim: Dim, value: Any) -> Any:
    """The value of a dimension that is nearest to `value`; its first one when none is near."""
    if hasattr(dim, "choices"):
        if value in dim.choices or not all(map(_is_number, (value, *dim.choices))):
            return value if value in dim.choices else dim.choices[0]
        return min(dim.choices, key=lambda choice: abs(choice - value))
    bounded = min(max(value, dim.low), dim.high) if _is_number(value) else dim.low
    return type(dim.low)(round(bounded) if isinstance(dim.low, int) else bounded)


def nest(values: Mapping[str, Any]) -> Settings:
    """Values by `section.key` as settings."""
    nested: Settings = {}
    for name, value in values.items():
        section, key = name.split(".")
        nested.setdefault(section, {})[key] = value
    return nested


def default_point(config: RunConfig, space: Space) -> dict[str, Any]:
    """The point of the search space that is nearest to the settings of `config`."""
    sections = {name: name.split(".") for name in space}
    own = {name: getattr(getattr(config, section), key, 0.0) for name, (section, key) in sections.items()}
    return {name: nearest_value(dim, own[name]) for name, dim in space.items()}


def to_toml(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Settings as a TOML file that `--config` reads."""

    def encode(value: Any) -> str:  # TOML equals JSON but for tables and one character
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{encode(str(name))} = {encode(each)}" for name, each in value.items()) + "}"
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

    lines = []
    for section, content in settings.items():
        lines += [f"[{section}]", *(f"{key} = {encode(value)}" for key, value in content.items()), ""]
    return "\n".join(lines)


# --- The request and the result -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TuneInputs:
    """The request for a search, as tune.json holds it."""

    base: str
    data: str
    folds: int | None
    search: list[str]
    metric: str
    pruner: str
    preset: str | None
    settings: Settings

    @property
    def over_defaults(self) -> Settings:
        """The settings over those of a search: a trial is scored after its last epoch."""
        return merge({"training": {"checkpoint_selection": "last"}}, self.settings)


@dataclass(frozen=True)
class Budget:
    """When a search ends."""

    trials: int | None  # None = only the minutes count
    minutes: float | None


@dataclass(frozen=True)
class TrialResult:
    """One point of the search space, and the score of the models trained with it."""

    number: int
    state: str  # "finished", "pruned" or "failed"
    value: float | None  # the mean over folds after the last epoch, or the last value before the trial ended early
    values: dict[str, Any]  # of the settings, by section.key
    intermediate: dict[str, float]  # by tenths of the training of a fold: the mean over folds until then
    folds: list[float]
    seconds: float
    reason: str = ""  # of a failure

    @staticmethod
    def of(trial: "FrozenTrial") -> "TrialResult":
        """A trial of optuna's study."""
        steps, attributes = trial.intermediate_values, trial.user_attrs
        last = None if trial.last_step is None else steps[trial.last_step]
        return TrialResult(
            number=trial.number,
            state={"COMPLETE": "finished", "PRUNED": "pruned"}.get(trial.state.name, "failed"),
            value=trial.value if trial.state.name == "COMPLETE" else last,
            values=trial.params,
            intermediate={str(step): value for step, value in sorted(steps.items())},
            folds=attributes.get("folds", []),
            seconds=round(sum(attributes.get("seconds", [])), 2),
            reason=attributes.get("reason", ""),
        )


@dataclass(frozen=True)
class Tuned:
    """A finished search. The value of `best` is optimistic: the trial was chosen by it."""

    path: Path
    metric: str
    direction: str
    scored: str
    texts: int
    best: TrialResult
    default: TrialResult  # the first trial, with the default settings
    settings: Settings  # as best.toml holds them
    search: list[str]
    trials: list[TrialResult]
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
    search_only: bool = False,
    metric: str = "accuracy",
    pruner: str = "median",
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    on_event: OnEvent = ignore_event,
) -> Tuned:
    """Search the settings with which BASE is fine-tuned best on DATA, scored on valid or over folds, never on test.

    The same call on the same folder continues the search.
    """
    _check_requirements()
    pick(METRICS, metric, "metric")
    pick(PRUNERS, pruner, "pruner")
    for name, number in (("trials", trials), ("minutes", minutes)):
        if number is not None and number <= 0:
            raise ConfigError(f"--{name} {number} allows no trial", hint=f"give --{name} a number above 0")
    fixed = json.loads(json.dumps(with_absolute_paths(settings)))
    space = make_space(search, search_only, fixed)
    base, data = absolute_paths([base, data])
    inputs = TuneInputs(base, data, folds, space, metric, pruner, preset, fixed)
    path, default = Path(out), DEFAULT_TRIALS if minutes is None else None
    with RunDir(path) if is_search(path) else RunDir.create(path):
        return _run_search(path, inputs, Budget(trials or default, minutes), on_event)


def is_search(path: Path) -> bool:
    """Whether a folder holds a search."""
    return (path / "tune.json").is_file()


def resume_tune(path: Path, on_event: OnEvent) -> Tuned | None:
    """Continue a search; None when it is finished."""
    _check_requirements()
    if (path / "result.json").exists():
        return None
    content = json.loads((path / "tune.json").read_text("utf-8"))
    with RunDir(path):
        return _run_search(path, TuneInputs(**content["inputs"]), Budget(**content["budget"]), on_event)


def _check_requirements() -> None:
    require_single_process("a search")
    try:
        import optuna
    except ImportError:
        raise ConfigError("a search needs the optuna package", hint="pip install 'headstart[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)


# --- The study ------------------------------------------------------------------------------------------------------


def _open_study(path: Path, metric: str, pruner: str, num_folds: int) -> "Study":
    """The study in the folder's journal, created when it is missing."""
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    class Journal(JournalFileBackend):
        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            with writing(path / JOURNAL):
                super().append_logs(logs)

    for lock in path.glob(f"{JOURNAL}.lock*"):  # of a killed process; the run directory has a lock of its own
        lock.unlink()
    with writing(path / JOURNAL), open(path / JOURNAL, "a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)  # drops a line that was written in part
    most = EVALUATIONS * num_folds
    pruners: dict[str, optuna.pruners.BasePruner] = {
        "median": optuna.pruners.MedianPruner(n_startup_trials=RANDOM_TRIALS, n_warmup_steps=2, n_min_trials=3),
        "hyperband": optuna.pruners.HyperbandPruner(min_resource=2, max_resource=most, reduction_factor=3),
        "none": optuna.pruners.NopPruner(),
    }
    return optuna.create_study(
        storage=JournalStorage(Journal(str(path / JOURNAL))),
        pruner=pruners[pruner],
        direction=METRICS[metric],
        study_name=STUDY,
        load_if_exists=True,
    )


def _ended_trials(study: "Study") -> list[TrialResult]:
    return [TrialResult.of(trial) for trial in study.trials if trial.state.is_finished()]


def _next_trial(study: "Study", space: Space, first: Mapping[str, Any], seed: int) -> "Trial":
    """The trial that a stop interrupted, or a new one, which is written to the journal in one piece."""
    import optuna
    from optuna.trial import TrialState, create_trial

    trials = study.trials
    if not trials or trials[-1].state.is_finished():
        values = dict(first)
        if trials:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                sampler = optuna.samplers.TPESampler(
                    seed=seed_for(seed, len(trials)) % 2**32, multivariate=True, n_startup_trials=RANDOM_TRIALS
                )
            draft = optuna.create_study(sampler=sampler, direction=study.direction)
            draft.add_trials(trials)
            values = draft.ask(dict(space)).params
        study.add_trial(create_trial(state=TrialState.RUNNING, params=values, distributions=dict(space)))
        trials = study.trials
    return optuna.Trial(study, trials[-1]._trial_id)  # optuna has no public way to continue a trial


# --- Running trials -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Search:
    """All that the trials of a search share."""

    path: Path
    inputs: TuneInputs
    space: Space
    config: RunConfig  # of the default settings
    base: LoadedModel | None
    tokenizer: Tokenizer
    folds: list[Fold]
    study: "Study"
    on_event: OnEvent

    def run(self, budget: Budget, stop: StopSignal) -> None:
        """Run trials until the budget is spent. A trial that is running when the minutes are over is finished."""
        checkpoints = self.path / "checkpoints"
        while True:
            ended = _ended_trials(self.study)
            is_over = budget.minutes is not None and sum(trial.seconds for trial in ended) >= 60 * budget.minutes
            if (budget.trials is not None and len(ended) >= budget.trials) or (is_over and ended):
                break
            (self.path / "result.json").unlink(missing_ok=True)  # of fewer trials
            self.on_event(Stage(f"trial {len(ended)}", len(ended), budget.trials or 0))
            self._run_trial(checkpoints, stop)
            shutil.rmtree(checkpoints, ignore_errors=True)
            trial = _ended_trials(self.study)[-1]
            value = "–" if trial.value is None else f"{trial.value:.4f}"
            self.on_event(Note(f"trial {trial.number} {trial.state}: {self.inputs.metric} {value}"))
        shutil.rmtree(checkpoints, ignore_errors=True)  # of a last trial that ended before the search was killed

    def _run_trial(self, checkpoints: Path, stop: StopSignal) -> None:
        from optuna import TrialPruned
        from optuna.trial import TrialState

        first = default_point(self.config, self.space)
        trial = _next_trial(self.study, self.space, first, self.config.training.seed)
        folds, state, value = list(trial.user_attrs.get("folds", [])), TrialState.COMPLETE, None
        try:
            while len(folds) < len(self.folds):
                folds.append(self._train_fold(trial, folds, checkpoints, stop))
                trial.set_user_attr("folds", folds)
            value = sum(folds) / len(folds)
            if math.isnan(value):
                raise Diverged(f"the {self.inputs.metric} is not a number")
        except TrialPruned:
            state = TrialState.PRUNED
        except (Diverged, ConfigError) as error:  # ConfigError: the values cannot be combined
            state, value = TrialState.FAIL, None
            trial.set_user_attr("reason", error.problem)
        self.study.tell(trial, value, state)

    def _train_fold(self, trial: "Trial", folds: list[float], checkpoints: Path, stop: StopSignal) -> float:
        """The metric of one model after its last epoch; raises TrialPruned when the pruner ends the trial."""
        from optuna import TrialPruned

        number, fold, metric = len(folds), self.folds[len(folds)], self.inputs.metric
        settings = merge(self.inputs.over_defaults, nest(trial.params))
        facts = DatasetFacts.of(fold.dataset, self.tokenizer)
        config, objective = finetune_config(self.base, self.inputs.preset, settings, data=facts)
        reported = set(self.study.trials[trial.number].intermediate_values)  # by this trial before a stop, too

        def report(event: Event) -> None:
            if not isinstance(event, Evaluated):
                self.on_event(event)
            elif event.step > 0:
                step = number * EVALUATIONS + int(EVALUATIONS * trainer.progress + 1e-9)
                if step not in reported:
                    reported.add(step)
                    trial.report((sum(folds) + event.values[metric]) / (number + 1), step)
                if step < len(self.folds) * EVALUATIONS and trial.should_prune():
                    raise TrialPruned

        task = make_task(fold.dataset, self.tokenizer, config)
        identity = {"trial": trial.number, "fold": [number, folds]}
        trainer, _, save = start_fit(config, objective, task, self.base, checkpoints, identity, stop, report)
        try:
            trainer.run(save)
        finally:
            seconds = trial.user_attrs.get("seconds", [])[:number]
            trial.set_user_attr("seconds", [*seconds, trainer.state.seconds])
        return trainer.state.curve[-1][metric]

    def conclude(self, provenance: Provenance) -> Tuned:
        """Write the best settings as TOML, the trials as figures, and result.json last."""
        from headstart.plots.style import save_figure
        from headstart.plots.trials import draw_trials

        trials = _ended_trials(self.study)
        if not any(trial.state == "finished" for trial in trials):
            raise RunError(
                f"no trial of {self.path} finished", hint="search smaller learning rates, or allow more trials"
            )
        best = trials[self.study.best_trial.number]
        found = Tuned(
            path=self.path,
            metric=self.inputs.metric,
            direction=METRICS[self.inputs.metric],
            scored=f"{len(self.folds)} folds" if len(self.folds) > 1 else self.folds[0].split,
            texts=sum(len(fold.examples) for fold in self.folds),
            best=best,
            default=trials[0],
            settings=merge(self.inputs.settings, nest(best.values)),
            search=self.inputs.search,
            trials=trials,
            provenance=provenance,
        )
        write_text(self.path / "best.toml", to_toml(found.settings))
        figure = draw_trials(plain(found))
        for suffix in ("png", "svg"):
            save_figure(figure, self.path / f"trials.{suffix}")
        write_json(self.path / "result.json", {**plain(found), "path": ""})
        return found


def _run_search(path: Path, inputs: TuneInputs, budget: Budget, on_event: OnEvent) -> Tuned:
    started, command = time.time(), command_line()
    space = dict(map(parse_dim, inputs.search))
    base = None if inputs.base == SCRATCH else load_model(inputs.base)
    settings = inputs.over_defaults
    config, _ = finetune_config(base, inputs.preset, settings)
    first = default_point(config, space)
    for name, dim in space.items():  # refuses a value that a setting cannot have, before anything is trained
        for value in dim.choices if hasattr(dim, "choices") else (dim.low, dim.high):
            finetune_config(base, inputs.preset, merge(settings, nest({**first, name: value})))
    folds = _make_folds(inputs, config, on_event)
    dataset = folds[0].dataset  # with its held-out part, it has every text
    facts = DatasetFacts.of(dataset, None if base is None else base.tokenizer)
    config, objective = finetune_config(base, inputs.preset, settings, data=facts)
    tokenizer = choose_tokenizer(config, dataset, base, on_event)
    if config.training.bpe_dropout or "training.bpe_dropout" in space:
        check_bpe_dropout(tokenizer, dataset.texts("train"))
    fingerprints = {
        "data": content_hash([data_fingerprint(fold.dataset) for fold in folds]),
        "base": content_hash(base.info.to_dict()) if base is not None else "",
    }
    request = {"inputs": asdict(inputs), "fingerprints": fingerprints, "budget": asdict(budget), "command": command}
    command = write_request(path / "tune.json", "search", request)["command"]
    searched = merge(settings, nest(dict.fromkeys(space)))
    if base is not None and uses_recommendation(base, facts, config, objective, searched):
        on_event(Note(f"settings recommended by {base.name}: {describe(config, searched)}"))
    for text in inputs.search:
        on_event(Note(f"searching {text}"))
    study = _open_study(path, inputs.metric, inputs.pruner, len(folds))
    search = Search(path, inputs, space, config, base, tokenizer, folds, study, on_event)
    with graceful_shutdown() as stop:
        search.run(budget, stop)
    seeds = [config.training.seed]
    return search.conclude(collect_provenance(start_runtime(config.training), seeds, started, command))


def _make_folds(inputs: TuneInputs, config: RunConfig, on_event: OnEvent) -> list[Fold]:
    """What trials train on and are scored on; with folds, `data.train_size` limits the labels of all folds together."""
    if inputs.folds is None:
        dataset = load_labelled(inputs.data, config, on_event=on_event)
        require_classes(dataset, "tune")
        return make_folds(dataset, None)[0]
    dataset = load_labelled(inputs.data, config.with_({"data": {"train_size": None}}), on_event=on_event)
    require_classes(dataset, "tune")
    if config.data.train_size is not None:
        pool = merge_folds(stratified_folds(dataset, inputs.folds))
        dataset = balanced_subset(pool, config.data.train_size, config.training.seed)
    return make_folds(dataset, inputs.folds)[0]
