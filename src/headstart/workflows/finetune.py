"""A base trained on a few labels, under a new head or its own; or its twin from scratch."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from headstart.atomic_io import content_hash
from headstart.config import BUDGETS, RunConfig, load_preset, resolve
from headstart.data.augmentation import check_dropout
from headstart.data.dataset import Dataset
from headstart.data.documents import Corpora
from headstart.errors import ConfigError, RunError
from headstart.inference.loaded_model import Classifier, LoadedModel, RunInfo, load_model
from headstart.models.model import count_parameters
from headstart.objectives import make_objective
from headstart.objectives.base import Objective
from headstart.results import Score, Transfer, plain, with_nan
from headstart.training.callbacks import Event, Note, Stage
from headstart.training.distributed import init_processes
from headstart.training.runtime import Runtime, graceful_shutdown, start_runtime
from headstart.workflows.classifier import (
    keeps_head,
    make_classifier,
    make_trainer,
    misfit,
    score_rows,
)
from headstart.workflows.diagnostics import (
    Baseline,
    explain_difference,
    is_better,
    train_baseline,
    warn_of_baseline,
    warn_of_undertraining,
)
from headstart.workflows.finetune_defaults import (
    REFERENCE,
    DatasetFacts,
    HeadStart,
    describe,
    finetune_defaults,
    fits_recommendation,
    has_own_budget,
)
from headstart.workflows.labelled import Task, data_fingerprint, load_labelled, make_task
from headstart.workflows.plan import announce
from headstart.workflows.pretrain import fit_length
from headstart.workflows.run_dir import (
    SCRATCH,
    RunDir,
    absolute_paths,
    base_of,
    broadcast_tokenizer,
    collect_provenance,
    main_only,
    start_run,
    with_absolute_paths,
)
from headstart.workflows.teaching import Teaching, make_teaching, teaching_of
from headstart.workflows.tokenizers import check_tokenizer, choose_tokenizer

if TYPE_CHECKING:
    from headstart.workflows.translate import FinishedTranslator


@dataclass(frozen=True)
class Finetuned:
    """A finished classifier and its marks on the validation part."""

    path: Path
    score: Score
    curve: list[dict[str, float]]
    best_epoch: float
    transfer: Transfer | None
    parameters: int
    seconds: float
    baseline: Score | None = None  # of TF-IDF + linear SVM, trained on the same texts
    comparison: str = ""  # whether the validation texts can tell the two apart
    warnings: list[str] = field(default_factory=list)
    classifier: Classifier = "network"  # what the run answers with


def finetune(
    base: str,
    data: str,
    out: str | Path,
    *,
    pair: str | None = None,
    teacher: str | Sequence[str] | None = None,
    unlabelled: Corpora | None = None,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> "Finetuned | FinishedTranslator":
    """Train a classifier on DATA, from BASE (a run folder or a shipped base's name) or from `scratch`.

    With a `pair` of languages ("en-de") DATA holds texts and their translations, and a translator is trained.
    A `teacher` (a run, or "RUN1,RUN2") is a classifier whose answers count beside the labels; it also labels the
    texts of the `unlabelled` corpora. Under torchrun all its processes train one model together.
    """
    if pair is not None:
        from headstart.workflows.translate import train_translator

        if teacher is not None or unlabelled:
            raise ConfigError("translators have no teachers here", hint="leave --distill-from or --pair out")
        return train_translator(base, data, pair, out, preset=preset, settings=settings, on_event=on_event)
    with init_processes() as processes:
        listen = main_only(processes, on_event)
        with processes.raise_on_all():
            trained = None if base == SCRATCH else load_model(base)
            given = with_absolute_paths(settings)
            # A wrong setting is refused before the data is read, and what was read then decides the defaults.
            draft, objective = finetune_config(trained, preset, given)
            teaching = make_teaching(teacher, unlabelled)
            source = LabelledData.load(data, draft, objective, teaching, listen)
            whose = trained or teaching
            facts = DatasetFacts.of(
                source.dataset, None if whose is None else whose.tokenizer, len(source.pseudo_labelled)
            )
            config, objective = finetune_config(trained, preset, given, data=facts)
            if trained is None and config.training.reinit_top_layers:
                raise ConfigError(
                    "from scratch every block starts fresh", hint="leave training.reinit_top_layers out"
                )
            runtime = start_runtime(config.training, processes)
        inputs = dict(zip(("data", "base"), absolute_paths([data, base]), strict=True))
        inputs |= teaching.inputs() if teaching is not None else {}
        with start_run(Path(out), config, inputs, runtime, trained) as (folder, known):
            if known is not None:
                return resume_finetune(folder, known, runtime, listen)
            for line in _explain_settings(trained, facts, config, objective, given):
                listen(Note(line))
            return _run(folder, config, objective, inputs, trained, teaching, runtime, None, listen, source)


def resume_finetune(
    folder: RunDir, info: RunInfo, runtime: Runtime, on_event: Callable[[Event], None]
) -> Finetuned:
    """Go on with an unfinished run; the folder is held by the caller."""
    if info.status == "finished":
        return read_finetuned(folder)
    trained = base_of(folder, info)
    with runtime.processes.raise_on_all():
        teaching = teaching_of(info.inputs)
    objective = make_objective(info.config.objective)
    return _run(folder, info.config, objective, info.inputs, trained, teaching, runtime, info, on_event)


def read_finetuned(folder: RunDir) -> Finetuned:
    """What a finished run found."""
    result = folder.result()
    names = [name for name in Finetuned.__dataclass_fields__ if name in result]
    return TypeAdapter(Finetuned).validate_python(
        {name: with_nan(result[name], name) for name in names} | {"path": folder.path}
    )


@dataclass(frozen=True)
class LabelledData:
    """The labelled texts of a run, and unlabelled ones that its teachers label."""

    dataset: Dataset
    pseudo_labelled: list[str]

    @staticmethod
    def load(
        data: str,
        config: RunConfig,
        objective: Objective,
        teaching: Teaching | None,
        on_event: Callable[[Event], None],
    ) -> "LabelledData":
        """Read what the settings ask for."""
        dataset = load_labelled(data, config, on_event=on_event)
        return LabelledData(dataset, [] if teaching is None else teaching.texts(dataset, objective, config))

    @property
    def fingerprint(self) -> str:
        """A hash of every text and label."""
        own = data_fingerprint(self.dataset)
        return content_hash([own, self.pseudo_labelled]) if self.pseudo_labelled else own


def uses_recommendation(
    trained: LoadedModel,
    facts: DatasetFacts,
    config: RunConfig,
    objective: Objective,
    given: Mapping[str, Any],
) -> bool:
    """Whether a run uses the settings that its base recommends, or those of them that the user does not set."""
    recommended = trained.info.finetune_defaults
    alike = not trained.info.classes or keeps_head(config, objective, facts.classes, trained)
    is_left = any(set(content) - set(given.get(section, {})) for section, content in recommended.items())
    return is_left and fits_recommendation(recommended, facts, alike)


def _explain_settings(
    trained: LoadedModel | None,
    facts: DatasetFacts,
    config: RunConfig,
    objective: Objective,
    given: Mapping[str, Any],
) -> Iterator[str]:
    """Which settings were chosen, and from what."""
    words = describe(config, given)
    if trained is not None and uses_recommendation(trained, facts, config, objective, given):
        yield f"settings recommended by {trained.name}: {words}"
    elif not has_own_budget(config.preset) and words:
        yield (
            f"settings for {facts.texts:,} texts in {len(facts.classes)} classes, "
            f"{facts.mean_tokens:.0f} tokens a text: {words}"
        )


def finetune_config(
    trained: LoadedModel | None,
    preset: str | None,
    settings: Mapping[str, Any],
    *,
    data: DatasetFacts | None = None,
    is_control: bool = False,
) -> tuple[RunConfig, Objective]:
    """The run's settings; a base brings its own body and tokenizer, of which only dropout may be changed.

    A pooler may be added: it starts fresh, as a head does. Defaults follow the `data` (a reference set until it is
    read). A base's recommendation goes over them where it fits the data. A control has the base's shape and random
    weights.
    """
    name = preset or ("tiny" if trained is None else trained.info.config.preset)
    over: Mapping[str, Any] = settings
    recommended: Mapping[str, Mapping[str, Any]] = {}
    if trained is not None:
        recommended = {} if is_control else trained.info.finetune_defaults
        over = _over_base(trained, name, recommended, settings)
    try:
        config = resolve("finetune", name, recommended, over)
    except ConfigError:  # the user's settings win where the two exclude each other
        recommended = {section: content for section, content in recommended.items() if section != "training"}
        config = resolve("finetune", name, recommended, over)
    objective = make_objective(config.objective)
    _check_objective(objective)
    facts = data or REFERENCE
    classes = facts.classes if data is not None or trained is None else trained.info.classes
    settled = config.with_({"model": objective.resolve_backbone(config.model).model_dump()})
    reused = not is_control and keeps_head(settled, objective, classes, trained)
    alike = reused or (trained is not None and not trained.info.classes)
    if trained is not None and data is not None and not fits_recommendation(recommended, data, alike):
        recommended = {}
        over = _over_base(trained, name, recommended, settings)
    defaults: dict[str, Any] = {}
    if not has_own_budget(name):
        start: HeadStart = (
            "scratch" if trained is None or is_control else "reused-head" if reused else "new-head"
        )
        defaults = finetune_defaults(facts, settled.model, start)
        fixed = {**recommended.get("training", {}), **settings.get("training", {})}
        if any(key in fixed for key in (*BUDGETS, "eval_subset_size")):
            defaults["training"]["eval_steps"] = None  # its spacing is for the rule's own budget
    config = resolve("finetune", name, recommended, over, defaults=defaults)
    objective = make_objective(config.objective)
    config = config.with_({"model": objective.resolve_backbone(config.model).model_dump()})
    _check_reset(config)
    return fit_length(config, settings), objective


def _check_reset(config: RunConfig) -> None:
    """Refuse more fresh blocks than there are."""
    if config.training.reinit_top_layers > config.model.num_layers:
        raise ConfigError(
            f"training.reinit_top_layers {config.training.reinit_top_layers} is more than the {config.model.num_layers} blocks there are",
            hint=f"set it to {config.model.num_layers} or less; one or two is usual",
        )


def _over_base(
    trained: LoadedModel,
    preset: str,
    recommended: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """The user's settings with the base's body and tokenizer, once all that is asked of them fits."""
    own = trained.info.config
    if settings.get("tokenizer", {}).get("type") is not None:
        check_tokenizer(trained, settings["tokenizer"]["type"])
    usual = load_preset(preset).get("finetune", {}).get("model", {})
    wanted = {**usual, **recommended.get("model", {}), **settings.get("model", {})}
    for key, value in wanted.items():
        is_free = "dropout" in key or (key == "pooler" and value is True)
        if value != "auto" and not is_free and getattr(own.model, key, value) != value:
            raise ConfigError(
                f"model.{key} of {trained.name} is {getattr(own.model, key)}, not {value}",
                hint="a base's shape is fixed; fine-tune from scratch to change it",
            )
    body = {**own.model.model_dump(), **{key: value for key, value in wanted.items() if value != "auto"}}
    return {**settings, "model": body, "tokenizer": own.tokenizer.model_dump()}


def _check_objective(objective: Objective) -> None:
    """Refuse an objective that learns from no labels."""
    if objective.reads == "translations":
        raise ConfigError(
            f"{objective.name} needs to know the languages of DATA",
            hint="add --pair SOURCE-TARGET, such as en-de",
        )
    if objective.reads != "texts":
        raise ConfigError(
            f"{objective.name} reads no labels, so it cannot fine-tune", hint="use `headstart pretrain`"
        )


def _run(
    folder: RunDir,
    config: RunConfig,
    objective: Objective,
    inputs: dict[str, Any],
    trained: LoadedModel | None,
    teaching: Teaching | None,
    runtime: Runtime,
    known: RunInfo | None,
    on_event: Callable[[Event], None],
    source: LabelledData | None = None,
) -> Finetuned:
    started, processes = time.time(), runtime.processes
    with processes.raise_on_all():
        source = source or LabelledData.load(inputs["data"], config, objective, teaching, on_event)
        dataset, fingerprint = source.dataset, source.fingerprint
    processes.assert_equal({"labelled texts": fingerprint}, "data")
    if known is not None:
        tokenizer = folder.tokenizer(known)
        with processes.raise_on_all():
            if known.inputs["fingerprint"] != fingerprint:
                raise RunError(
                    f"the data of {folder.path} has changed since the run began", hint="put the old rows back"
                )
    elif trained is None and teaching is not None:
        tokenizer = teaching.tokenizer
    else:
        tokenizer = broadcast_tokenizer(
            processes, lambda: choose_tokenizer(config, dataset, trained, on_event)
        )
    if teaching is not None:
        dataset = teaching.add(dataset, source.pseudo_labelled, tokenizer, config, runtime, on_event)
    with processes.raise_on_all():
        check_dropout(tokenizer, dataset.texts("train"), config.training)
    task = make_task(dataset, tokenizer, config, on_event)
    tokens = sum(len(row.tokens) for row in task.rows["train"])
    with processes.raise_on_all():
        announce(config, runtime, tokenizer.size, len(task.classes), tokens, on_event)
    model, moved = make_classifier(config, objective, task, trained, runtime)
    inputs = {**inputs, "fingerprint": fingerprint}
    info = known or _begin(folder, config, inputs, task, trained, teaching, moved, runtime)
    processes.start(runtime.device, config.training.ddp_timeout_minutes)
    if moved is not None:
        on_event(Note(f"from {inputs['base']}: {moved.summary()}"))
        if why := misfit(config, objective, task.classes, trained):
            on_event(Note(why))
    on_event(Note(f"{count_parameters(model):,} parameters; {len(dataset.train):,} texts to learn from"))
    asked = objective if teaching is None else teaching.objective(objective, config, runtime)
    with graceful_shutdown() as stop:
        is_new = info.transfer is None or not Transfer(**info.transfer).kept_head
        trainer = make_trainer(model, asked, task, config, runtime, on_event, stop, is_head_new=is_new)
        folder.train(trainer, known is not None, on_event)
    seen = folder.fingerprints()
    marks = trainer.strategy.read(
        lambda model: score_rows(model, objective, task, "valid", config, runtime, seen)
    )
    best = next(
        (p["epoch"] for p in trainer.state.curve if p["step"] == trainer.state.best_step), trainer.epochs_done
    )
    carried = Transfer(**info.transfer) if info.transfer else None
    warnings = trainer.strategy.read(
        lambda model: warn_of_undertraining(model, objective, task, config, runtime)
    )
    baseline: Baseline | None = None
    comparison = ""
    with processes.raise_on_all():
        if processes.is_main:
            on_event(Stage("training the TF-IDF baseline"))
            baseline = train_baseline(source.dataset, config.training.seed)
    if baseline is not None:
        comparison = explain_difference(marks, baseline.score)
        warnings = [*warn_of_baseline(marks, baseline.score, inputs["base"], inputs["data"]), *warnings]
        if config.training.keep_winner and not is_better(marks, baseline.score):
            baseline.model.save(folder.path)
            info, marks = replace(info, classifier="tfidf"), baseline.score
    finished = Finetuned(
        path=folder.path,
        score=marks,
        baseline=None if baseline is None else baseline.score,
        comparison=comparison,
        warnings=warnings,
        classifier=info.classifier,
        curve=trainer.state.curve,
        best_epoch=best if config.training.checkpoint_selection == "best" else trainer.epochs_done,
        transfer=carried,
        parameters=count_parameters(model),
        seconds=trainer.state.seconds,
    )
    provenance = plain(
        collect_provenance(runtime, [config.training.seed], started, info.provenance["command"])
    )
    folder.finish(
        info, trainer, {**plain(finished), "path": "", "steps": trainer.state.step, "provenance": provenance}
    )
    return finished


def _begin(
    folder: RunDir,
    config: RunConfig,
    inputs: dict[str, Any],
    task: Task,
    trained: LoadedModel | None,
    teaching: Teaching | None,
    moved: Transfer | None,
    runtime: Runtime,
) -> RunInfo:
    """Write all that a resume needs, run.json last: from then on the run can be taken up."""
    info = RunInfo(
        config=config,
        status="running",
        vocab_size=task.tokenizer.size,
        classes=task.classes,
        tokenizer_fingerprint=task.tokenizer.fingerprint,
        inputs=inputs,
        provenance=plain(collect_provenance(runtime, [config.training.seed])),
        transfer=plain(moved) if moved is not None else None,
    )
    seen = [task.dataset.hashes("train"), *(each.train_fingerprints for each in (trained, teaching) if each)]
    with runtime.processes.raise_on_all():
        if runtime.processes.is_main:
            task.tokenizer.save(folder.path)
            folder.write_fingerprints(seen)
            folder.write_info(info)
    return info
