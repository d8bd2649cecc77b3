"""What the pretraining is worth: classical, scratch, frozen and fine-tuned arms at equal budget over several seeds.

The result of every trained model is written when it is finished, and the current one has checkpoints as any run has, so
a comparison that was stopped can be resumed.
"""

import json
import re
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headstart.atomic_io import content_hash, write_json
from headstart.config import BUDGETS, RunConfig, merge, resolve
from headstart.data.augmentation import check_bpe_dropout
from headstart.data.datasets import Dataset, balanced_subset, exclude_evaluation_texts, load_dataset
from headstart.data.documents import open_documents
from headstart.errors import ConfigError, RunError, Stopped, nearest
from headstart.inference.loaded_model import LoadedModel, absolute_paths, load_model, with_absolute_paths
from headstart.objectives import make_objective
from headstart.planning.workload import count_flops, make_workload
from headstart.results import ArmKind, Comparison, TransferReport, comparison_from
from headstart.training.callbacks import Event, Note, Stage
from headstart.training.launch import require_single_process
from headstart.training.runtime import graceful_shutdown
from headstart.workflows.compare_analysis import (
    FROZEN_RATE,
    ComparisonInputs,
    Experiment,
    Results,
    analyze,
    write_comparison,
)
from headstart.workflows.compare_cells import (
    CellResult,
    TextEncoder,
    Variant,
    combine_folds,
    ensemble,
    make_folds,
    train_cell,
)
from headstart.workflows.finetune import choose_tokenizer, data_fingerprint
from headstart.workflows.finetune_defaults import DatasetFacts, finetune_config, uses_recommendation
from headstart.workflows.pretrain import pretrain
from headstart.workflows.run_dir import RunDir, command_line
from headstart.workflows.tokenize_corpus import learn_tokenizer

ARMS: tuple[ArmKind, ...] = ("classical", "scratch", "frozen", "fine-tuned")
OPTIONAL_ARMS: tuple[ArmKind, ...] = ("ensemble",)
FROZEN = {"training": {"freeze_backbone": True, "reinit_top_layers": 0, "gradual_unfreezing_epochs": None}}
DEFAULT_TOKENS = 5_000_000  # that the first objective reads, when no budget is given
OnEvent = Callable[[Event], None]
Settings = Mapping[str, Any]


def compare(
    data: str,
    bases: Sequence[str] | Mapping[str, Settings] = (),
    out: str | Path = "runs/compare",
    *,
    seeds: int = 3,
    first_seed: int = 0,
    labels: Sequence[int] | None = None,
    folds: int | None = None,
    arms: Sequence[str] = ARMS,
    preset: str | None = None,
    settings: Settings | None = None,
    target_accuracy: float | None = None,
    on_event: OnEvent = lambda event: None,
) -> Comparison:
    """Train every arm with every seed at every label budget, and report what differs beyond chance.

    With `folds`, train and valid are put together and every text is held out once; test is not read. `bases` may map
    each base to settings of its own, which override the common ones. A base with such settings is an extra model: it
    has no arm from scratch and is tested against those of the others.
    """
    require_single_process("a comparison")
    for name in arms:
        if name not in (*ARMS, *OPTIONAL_ARMS):
            raise ConfigError(f"no arm is called {name!r}", hint=nearest(name, (*ARMS, *OPTIONAL_ARMS)))
    if seeds < 1:
        raise ConfigError(f"{seeds} seeds train nothing", hint="--seeds 3 or more separates luck from difference")
    own = bases if isinstance(bases, Mapping) else {}
    given = with_absolute_paths(json.loads(json.dumps(dict(settings or {}))))
    if (tokenizer := given.get("tokenizer", {}).get("type")) is not None:
        given["tokenizer"]["type"] = absolute_paths([tokenizer])[0]
    inputs = ComparisonInputs(
        data=absolute_paths([data])[0],
        bases=absolute_paths(list(bases)),
        names=_short_names(list(bases)),
        own_settings=[dict(own.get(base, {})) for base in bases],
        seeds=list(range(first_seed, first_seed + seeds)),
        labels=sorted(set(labels)) if labels else None,
        folds=folds,
        arms=list(arms),
        preset=preset,
        settings=given,
        target_accuracy=target_accuracy,
        command=command_line(),
    )
    with RunDir.create(Path(out)) as folder:
        return _run_comparison(folder.path, inputs, on_event)


def is_comparison(path: Path) -> bool:
    """Whether a folder holds a comparison."""
    return (path / "compare.json").is_file()


def resume_compare(path: Path, on_event: OnEvent) -> Comparison | None:
    """Resume a comparison; None when it was finished before."""
    require_single_process("a comparison")
    if (path / "report.html").exists():
        return None
    with RunDir(path):
        content = json.loads((path / "compare.json").read_text("utf-8"))
        return _run_comparison(path, ComparisonInputs(**content["inputs"]), on_event)


def read_comparison(path: Path) -> Comparison:
    """The result of a finished comparison."""
    return comparison_from(json.loads((path / "comparison.json").read_text("utf-8")))


def _short_names(bases: Sequence[str]) -> list[str]:
    """A short name for each base, as much of its path as is needed to distinguish it from the others."""
    paths = [Path(base).resolve() if Path(base).exists() else Path(base) for base in bases]
    for depth in range(1, 1 + max((len(path.parts) for path in paths), default=1)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise ConfigError("one base is given twice", hint="name each --base once")


def _run_comparison(out: Path, inputs: ComparisonInputs, on_event: OnEvent) -> Comparison:
    started = time.time()
    bases = [replace(load_model(path), name=name) for path, name in zip(inputs.bases, inputs.names, strict=True)]
    experiment = _plan_experiment(inputs, bases, on_event)
    _write_inputs(out, experiment, bases)
    results, transfers = _train_all(out, experiment, on_event)
    comparison = analyze(experiment, results, transfers, started)
    write_comparison(out, comparison)
    return comparison


def _plan_experiment(inputs: ComparisonInputs, bases: list[LoadedModel], on_event: OnEvent) -> Experiment:
    """Everything to train, checked before the first model is trained."""
    config, _ = finetune_config(bases[0] if bases else None, inputs.preset, inputs.settings)
    dataset = load_dataset(inputs.data, config.data, with_test=inputs.folds is None)
    if config.data.exclude_eval_texts_of:
        dataset = exclude_evaluation_texts(dataset, config.data.exclude_eval_texts_of)
    folds, scored = make_folds(dataset, inputs.folds)
    all_labels = min(len(fold.dataset.train) for fold in folds)
    budgets = inputs.labels or [config.data.train_size or all_labels]
    for seed in (inputs.seeds[0], inputs.seeds[-1]):
        config.with_({"training": {"seed": seed}})
    for budget in budgets:
        if budget != all_labels:
            balanced_subset(folds[0].dataset, budget, inputs.seeds[0])
    largest = folds[0].dataset
    if max(budgets) != all_labels:
        largest = balanced_subset(largest, max(budgets), 0)
    variants = _make_variants(bases, inputs, scored, largest, folds[0].split, on_event)
    if not variants:
        raise ConfigError("there is nothing to train: these arms need a base", hint="add --base RUN, or other --arms")
    has_ensemble = any(variant.kind == "ensemble" for variant in variants)
    if "ensemble" in inputs.arms and (len(inputs.seeds) < 2 or not has_ensemble):
        raise ConfigError(
            "an ensemble is of the seeds of a fine-tuned base",
            hint="add --base RUN and the arm fine-tuned, with two seeds or more",
        )
    if has_ensemble and any(budget != all_labels for budget in budgets):
        raise ConfigError(
            "each seed draws its own labels, so their ensemble would learn from more than the budget",
            hint="leave out --train-size, or the arm ensemble",
        )
    for variant in variants:
        if variant.kind != "classical" and variant.config.training.bpe_dropout:
            check_bpe_dropout(variant.tokenizer, folds[0].dataset.texts("train"))
    return Experiment(inputs, dataset, folds, all_labels, budgets, variants, scored.notes)


def _make_variants(
    bases: list[LoadedModel], inputs: ComparisonInputs, scored: Dataset, largest: Dataset, split: str, on_event: OnEvent
) -> list[Variant]:
    """The variants, in the order of the report; their settings are those for the `largest` label budget."""
    last: Settings = {"training": {"checkpoint_selection": "last"}} if split == "valid" else {}
    shared, preset = merge(last, inputs.settings), inputs.preset
    starts: list[tuple[LoadedModel | None, Settings]] = list(zip(bases, inputs.own_settings, strict=True))
    if all(own for _, own in starts):
        starts = [(None, {}), *starts]
    variants: list[Variant] = []
    controls: dict[tuple[str, str], str] = {}  # by model and tokenizer
    for base, own in starts:
        settings = merge(shared, own)
        tokenizer = choose_tokenizer(finetune_config(base, preset, settings)[0], scored, base, on_event)
        facts = DatasetFacts.of(largest, tokenizer)
        scratch = _configure(base, preset, shared, is_control=True)
        frozen = _configure(base, preset, merge(settings, FROZEN), rate=FROZEN_RATE)
        tuned = _configure(base, preset, settings)
        shape = (scratch(facts).model.model_dump_json(), tokenizer.fingerprint)
        if not variants and "classical" in inputs.arms:
            variants.append(Variant("classical", "classical", None, tokenizer, scratch(facts), scratch))
        if "scratch" in inputs.arms and shape not in controls and not own:
            name = "scratch" if not controls or base is None else f"scratch like {base.name}"
            variants.append(Variant(name, "scratch", None, tokenizer, scratch(facts), scratch))
            controls[shape] = name
        if base is None:
            continue
        config = tuned(facts)
        is_recommended = uses_recommendation(base, facts, config, make_objective(config.objective), settings)
        control = "" if own else controls.get(shape, "")
        kinds: list[tuple[ArmKind, Callable[[DatasetFacts], RunConfig]]] = [("frozen", frozen), ("fine-tuned", tuned)]
        for kind, configure in kinds:
            if kind in inputs.arms:
                name = f"{base.name} {kind}"
                variants.append(
                    Variant(name, kind, base, tokenizer, configure(facts), configure, control, "", is_recommended)
                )
        if "ensemble" in inputs.arms and "fine-tuned" in inputs.arms:
            name, members = f"{base.name} ensemble", f"{base.name} fine-tuned"
            variants.append(Variant(name, "ensemble", base, tokenizer, config, tuned, members, members))
    return variants


def _configure(
    base: LoadedModel | None, preset: str | None, settings: Settings, *, is_control: bool = False, rate: float = 1.0
) -> Callable[[DatasetFacts], RunConfig]:
    """The settings of a variant as a function of its dataset; `rate` multiplies the learning rate."""

    def configure(facts: DatasetFacts) -> RunConfig:
        config, _ = finetune_config(base, preset, settings, data=facts, is_control=is_control)
        return config.with_({"optimizer": {"learning_rate": config.optimizer.learning_rate * rate}})

    return configure


def _write_inputs(out: Path, experiment: Experiment, bases: list[LoadedModel]) -> None:
    """Write compare.json, or check that a resumed comparison reads the same data and bases."""
    path = out / "compare.json"
    found = {
        "fingerprint": data_fingerprint(experiment.dataset),
        "bases": [content_hash(base.info.to_dict()) for base in bases],
    }
    if path.exists():
        known = json.loads(path.read_text("utf-8"))
        for name, what in (("fingerprint", "data"), ("bases", "bases")):
            if known[name] != found[name]:
                raise RunError(
                    f"the {what} of {out} changed since the comparison started",
                    hint=f"restore the old {what}, or choose another --out",
                )
    write_json(path, {"inputs": asdict(experiment.inputs), **found})


def _train_all(
    out: Path, experiment: Experiment, on_event: OnEvent
) -> tuple[Results, dict[str, TransferReport | None]]:
    """The results of every variant by name and budget, and its transferred weights; what is on disk is not trained again."""
    seeds, folds, all_labels = experiment.inputs.seeds, experiment.folds, experiment.all_labels
    cells = [
        (variant, budget, seed, number)
        for budget in experiment.budgets
        for seed in seeds
        for variant in experiment.variants
        if variant.kind != "ensemble"
        and not (variant.kind == "classical" and seed != seeds[0] and budget == all_labels)
        for number in range(len(folds))
    ]
    encoder, checkpoints = TextEncoder(), RunDir(out).checkpoints
    models: dict[tuple[str, int, int], list[CellResult]] = {}
    transfers: dict[str, TransferReport | None] = {}
    try:
        with graceful_shutdown() as stop:
            for done, (variant, budget, seed, number) in enumerate(cells):
                fold = f", fold {number + 1}" if len(folds) > 1 else ""
                on_event(Stage(f"{variant.name}, {budget} labels{fold}, seed {seed}", done, len(cells)))
                slug = re.sub(r"[^\w.-]+", "-", variant.name) + "-" + content_hash(variant.name)[:6]
                name = f"{slug}-{budget}-{seed}" + (f"-{number}" if len(folds) > 1 else "")
                path = out / "arms" / f"{name}.json"
                cell = CellResult.load(path)
                if cell is None:
                    labels = None if budget == all_labels else budget
                    cell = train_cell(variant, folds[number], labels, seed, encoder, checkpoints, stop, on_event)
                    cell.save(path)
                    shutil.rmtree(checkpoints, ignore_errors=True)
                    if stop:
                        raise Stopped(stop.signal or 0)
                models.setdefault((variant.name, budget, seed), []).append(cell)
                transfers[variant.name] = cell.transfer
    except Stopped as stopped:
        stopped.again = f"headstart resume {shlex.quote(str(out))}"
        raise
    shutil.rmtree(checkpoints, ignore_errors=True)  # of a last cell that was saved before the comparison was killed
    for variant in experiment.variants:
        for budget in experiment.budgets if variant.kind == "ensemble" else []:
            members = [models[variant.members, budget, seed] for seed in seeds]
            models[variant.name, budget, seeds[0]] = [ensemble(same) for same in zip(*members, strict=True)]
    results: Results = {}
    for (name, budget, seed), by_fold in models.items():
        results.setdefault((name, budget), []).append(combine_folds(by_fold, folds, seed))
    return results, transfers


def compare_objectives(
    data: str,
    corpora: Sequence[str],
    objectives: Sequence[str],
    out: str | Path,
    *,
    preset: str = "tiny",
    tokens: int = DEFAULT_TOKENS,
    settings: Settings | None = None,
    pretraining: Settings | None = None,
    on_event: OnEvent = lambda event: None,
    **comparing: Any,
) -> Comparison:
    """Pretrain a base with each objective on the same corpus at equal operations, and compare how they transfer.

    The first objective reads `tokens` tokens; each other as many as cost the same. `settings` are those of fine-tuning,
    `pretraining` those of the bases. Called again after a stop, it resumes.
    """
    from headstart.workflows.resume import resume

    folder, shared = Path(out), dict(pretraining or {})
    if len(set(objectives)) < 2:
        raise ConfigError("a comparison needs two objectives", hint="--objectives causal-lm,masked-lm")
    if any(name in shared.get("training", {}) for name in BUDGETS):
        raise ConfigError("each objective's budget follows from --tokens", hint="leave the other budgets out")

    def base_settings(objective: str, **more: Settings) -> dict[str, Any]:
        own: dict[str, Settings] = {"objective": {"name": objective}, **more}
        return {key: {**shared.get(key, {}), **own.get(key, {})} for key in {**shared, **own}}

    costs = {}
    for name in objectives:
        config = resolve("pretrain", preset, base_settings(name))
        costs[name] = count_flops(make_workload(config, "cpu", "float32")).training
    budgets = {name: round(costs[objectives[0]] * tokens / cost) for name, cost in costs.items()}
    tokenizer = folder / "tokenizer"
    if not (tokenizer / "tokenizer.json").exists():  # one for all bases, so that only the objective differs
        config = resolve("pretrain", preset, shared)
        texts = [open_documents(corpus, config.data) for corpus in corpora]
        learn_tokenizer(config.tokenizer, texts, on_event).save(tokenizer)
    bases = {name: folder / "bases" / name for name in budgets}
    try:
        for name, budget in budgets.items():
            on_event(Note(f"{name}: {budget:,} tokens for the operations of {tokens:,} of {objectives[0]}"))
            if (bases[name] / "run.json").exists():
                resume(bases[name], on_event)
                continue
            own = base_settings(name, training={"max_tokens": budget}, tokenizer={"type": str(tokenizer.resolve())})
            pretrain(corpora, bases[name], preset=preset, settings=own, on_event=on_event)
        write_json(folder / "objectives.json", {"tokens": budgets})
        compared = folder / "compare"
        if is_comparison(compared):
            return resume_compare(compared, on_event) or read_comparison(compared)
        paths = [str(base) for base in bases.values()]
        return compare(data, paths, compared, settings=settings, on_event=on_event, **comparing)
    except Stopped as stopped:
        stopped.again = command_line()  # which makes the bases that are left, and the comparison
        raise
