"""What the pretraining is worth: classical, scratch, frozen and fine-tuned arms at equal budget over several seeds.

The result of every trained model is written when it is finished, and the current one has checkpoints as any run has, so
a comparison that was stopped can be resumed.
"""

import json
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from headstart.atomic_io import content_hash, write_json, write_text
from headstart.config import BUDGETS, RunConfig, merge, resolve
from headstart.data.audit import audit, token_counts
from headstart.data.augmentation import check_bpe_dropout
from headstart.data.datasets import Dataset, load_dataset, require_classes
from headstart.data.documents import open_documents
from headstart.data.subsets import balanced_subset, exclude_evaluation_texts
from headstart.errors import ConfigError, Stopped, pick
from headstart.evaluation.statistics import adjust, first_epoch_reaching, interval, paired_test
from headstart.inference.loaded_model import LoadedModel, absolute_paths, load_model, with_absolute_paths
from headstart.objectives import make_objective
from headstart.planning.workload import count_flops, make_workload
from headstart.plots.curves import accuracy_curves, draw_curves, draw_label_efficiency, label_efficiency
from headstart.plots.style import save_figure
from headstart.reports.comparison import render_comparison
from headstart.reports.formatting import render
from headstart.results import (
    ArmKind,
    Comparison,
    Mistake,
    PairedTest,
    SeedResult,
    TransferReport,
    VariantResult,
    comparison_from,
    plain,
)
from headstart.training.callbacks import Note, OnEvent, Stage, ignore_event
from headstart.training.launch import require_single_process
from headstart.training.runtime import graceful_shutdown, start_runtime
from headstart.workflows.compare_cells import (
    CellResult,
    Configure,
    Fold,
    Variant,
    combine_folds,
    ensemble,
    make_folds,
    train_cell,
    write_request,
)
from headstart.workflows.finetune import choose_tokenizer, data_fingerprint
from headstart.workflows.finetune_defaults import DatasetFacts, finetune_config, uses_recommendation
from headstart.workflows.pretrain import learn_tokenizer, pretrain
from headstart.workflows.run_dir import RunDir, collect_provenance, command_line

ARMS: tuple[ArmKind, ...] = ("classical", "scratch", "frozen", "fine-tuned")
OPTIONAL_ARMS: tuple[ArmKind, ...] = ("ensemble",)
FROZEN = {"training": {"freeze_backbone": True, "reinit_top_layers": 0, "gradual_unfreezing_epochs": None}}
FROZEN_RATE = 10.0  # times the learning rate: a head that trains without its backbone needs more
DEFAULT_TOKENS = 5_000_000  # that the first objective reads, when no budget is given
MAX_MISTAKES = 10
SIDES = {"start": "its beginning", "end": "its end", "both": "both its ends"}
Settings = Mapping[str, Any]
Results = dict[tuple[str, int], list[SeedResult]]  # by name of the variant and label budget
Transfers = dict[str, TransferReport | None]  # by name of the variant


@dataclass(frozen=True)
class ComparisonInputs:
    """The request for a comparison, as compare.json holds it."""

    data: str
    bases: list[str]
    names: list[str]  # of the bases
    own_settings: list[dict[str, Any]]  # of the bases
    seeds: list[int]
    labels: list[int] | None
    folds: int | None
    arms: list[str]
    preset: str | None
    settings: dict[str, Any]
    target_accuracy: float | None
    command: str


@dataclass(frozen=True)
class Experiment:
    """Everything that a comparison trains."""

    inputs: ComparisonInputs
    dataset: Dataset
    folds: list[Fold]
    all_labels: int  # that every fold has to learn from
    budgets: list[int]
    variants: list[Variant]
    notes: list[str]  # of the data

    @cached_property
    def truth(self) -> np.ndarray:
        """The classes of all scored texts (N,)."""
        return np.concatenate([fold.targets for fold in self.folds])

    @property
    def neural(self) -> list[Variant]:
        """The variants that train a neural network."""
        return [variant for variant in self.variants if variant.kind != "classical"]


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
    on_event: OnEvent = ignore_event,
) -> Comparison:
    """Train every arm with every seed at every label budget, and report what differs beyond chance.

    With `folds`, train and valid are put together and every text is held out once; test is not read. `bases` may map
    each base to settings of its own, which override the common ones. A base with such settings is an extra model: it
    has no arm from scratch and is tested against those of the others.
    """
    require_single_process("a comparison")
    for name in arms:
        pick(dict.fromkeys((*ARMS, *OPTIONAL_ARMS)), name, "arm")
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
    fingerprints = {
        "data": data_fingerprint(experiment.dataset),
        "bases": [content_hash(base.info.to_dict()) for base in bases],
    }
    write_request(out / "compare.json", "comparison", {"inputs": asdict(inputs), "fingerprints": fingerprints})
    results, transfers = _train_all(out, experiment, on_event)
    comparison = _analyze(experiment, results, transfers, started)
    write_comparison(out, comparison)
    return comparison


def _plan_experiment(inputs: ComparisonInputs, bases: list[LoadedModel], on_event: OnEvent) -> Experiment:
    """Everything to train, checked before the first model is trained."""
    config, _ = finetune_config(bases[0] if bases else None, inputs.preset, inputs.settings)
    dataset = load_dataset(inputs.data, config.data, with_test=inputs.folds is None)
    require_classes(dataset, "compare")
    if config.data.exclude_eval_texts_of:
        dataset = exclude_evaluation_texts(dataset, config.data.exclude_eval_texts_of)
    folds, scored = make_folds(dataset, inputs.folds)
    all_labels = min(len(fold.dataset.train) for fold in folds)
    budgets = inputs.labels or [config.data.train_size or all_labels]
    for seed in (inputs.seeds[0], inputs.seeds[-1]):
        config.with_({"training": {"seed": seed}})
    subsets = {all_labels: folds[0].dataset}
    for budget in {*budgets} - {all_labels}:
        subsets[budget] = balanced_subset(folds[0].dataset, budget, inputs.seeds[0])
    variants = _make_variants(bases, inputs, scored, subsets[max(budgets)], folds[0].split, on_event)
    if not variants:
        raise ConfigError("there is nothing to train: these arms need a base", hint="add --base RUN, or other --arms")
    if "ensemble" in inputs.arms:
        if len(inputs.seeds) < 2 or all(variant.kind != "ensemble" for variant in variants):
            raise ConfigError(
                "an ensemble is of the seeds of a fine-tuned base",
                hint="add --base RUN and the arm fine-tuned, with two seeds or more",
            )
        if {*budgets} != {all_labels}:
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
    shared, preset, arms = merge(last, inputs.settings), inputs.preset, inputs.arms
    starts: list[tuple[LoadedModel | None, Settings]] = list(zip(bases, inputs.own_settings, strict=True))
    if all(own for _, own in starts):
        starts = [(None, {}), *starts]
    variants: list[Variant] = []
    controls: dict[tuple[str, str], str] = {}  # by model and tokenizer
    for base, own in starts:
        settings = merge(shared, own)
        tokenizer = choose_tokenizer(finetune_config(base, preset, settings)[0], scored, base, on_event)
        facts = DatasetFacts.of(largest, tokenizer)
        scratch = partial(_configure, base, preset, shared, is_control=True)
        frozen = partial(_configure, base, preset, merge(settings, FROZEN), rate=FROZEN_RATE)
        tuned = partial(_configure, base, preset, settings)
        shape = (scratch(facts).model.model_dump_json(), tokenizer.fingerprint)
        if not variants and "classical" in arms:
            variants.append(Variant("classical", "classical", None, tokenizer, scratch(facts), scratch))
        if "scratch" in arms and shape not in controls and not own:
            controls[shape] = "scratch" if not controls or base is None else f"scratch like {base.name}"
            variants.append(Variant(controls[shape], "scratch", None, tokenizer, scratch(facts), scratch))
        if base is None:
            continue
        config, control = tuned(facts), "" if own else controls.get(shape, "")
        recommended = uses_recommendation(base, facts, config, make_objective(config.objective), settings)
        kinds: list[tuple[ArmKind, Configure, str]] = [("frozen", frozen, control), ("fine-tuned", tuned, control)]
        if "fine-tuned" in arms:
            kinds.append(("ensemble", tuned, f"{base.name} fine-tuned"))
        for kind, configure, against in kinds:
            if kind in arms:
                name, resolved = f"{base.name} {kind}", configure(facts)
                variants.append(Variant(name, kind, base, tokenizer, resolved, configure, against, recommended))
    return variants


def _configure(
    base: LoadedModel | None,
    preset: str | None,
    settings: Settings,
    facts: DatasetFacts,
    *,
    is_control: bool = False,
    rate: float = 1.0,
) -> RunConfig:
    """The settings of a variant for its dataset; `rate` multiplies the learning rate."""
    config, _ = finetune_config(base, preset, settings, data=facts, is_control=is_control)
    return config.with_({"optimizer": {"learning_rate": config.optimizer.learning_rate * rate}})


def _train_all(out: Path, experiment: Experiment, on_event: OnEvent) -> tuple[Results, Transfers]:
    """The results of every variant and its transferred weights; what is on disk is not trained again."""
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
    checkpoints = RunDir(out).checkpoints
    models: dict[tuple[str, int, int], list[CellResult]] = {}
    transfers: Transfers = {}
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
                cell = train_cell(variant, folds[number], labels, seed, checkpoints, stop, on_event)
                cell.save(path)
                shutil.rmtree(checkpoints, ignore_errors=True)
                if stop:
                    raise Stopped(stop.signal or 0)
            models.setdefault((variant.name, budget, seed), []).append(cell)
            transfers[variant.name] = cell.transfer
    shutil.rmtree(checkpoints, ignore_errors=True)  # of a last cell that was saved before the comparison was killed
    for variant in experiment.variants:
        for budget in experiment.budgets if variant.kind == "ensemble" else []:
            members = [models[variant.control, budget, seed] for seed in seeds]
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
    on_event: OnEvent = ignore_event,
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
    costs = {}
    for name in objectives:
        config = resolve("pretrain", preset, merge(shared, {"objective": {"name": name}}))
        costs[name] = count_flops(make_workload(config, "cpu", "float32")).training
    tokenizer = folder / "tokenizer"
    if not (tokenizer / "tokenizer.json").exists():  # one for all bases, so that only the objective differs
        config = resolve("pretrain", preset, shared)
        texts = [open_documents(corpus, config.data) for corpus in corpora]
        learn_tokenizer(config.tokenizer, texts, on_event).save(tokenizer)
    budgets = {name: round(costs[objectives[0]] * tokens / cost) for name, cost in costs.items()}
    bases = {name: folder / "bases" / name for name in budgets}
    try:
        for name, budget in budgets.items():
            on_event(Note(f"{name}: {budget:,} tokens for the operations of {tokens:,} of {objectives[0]}"))
            if (bases[name] / "run.json").exists():
                resume(bases[name], on_event)
                continue
            own = {
                "objective": {"name": name},
                "training": {"max_tokens": budget},
                "tokenizer": {"type": str(tokenizer.resolve())},
            }
            pretrain(corpora, bases[name], preset=preset, settings=merge(shared, own), on_event=on_event)
        write_json(folder / "objectives.json", {"tokens": budgets})
        compared = folder / "compare"
        if is_comparison(compared):
            return resume_compare(compared, on_event) or read_comparison(compared)
        paths = [str(base) for base in bases.values()]
        return compare(data, paths, compared, settings=settings, on_event=on_event, **comparing)
    except Stopped as stopped:
        stopped.again = command_line()  # which makes the bases that are left, and the comparison
        raise


# --- Analysis: intervals, paired tests, mistakes and notes ----------------------------------------------------------


def _analyze(experiment: Experiment, results: Results, transfers: Transfers, started: float) -> Comparison:
    """All variants side by side, tested against each other, with the audit and the provenance."""
    inputs, variants, dataset = experiment.inputs, experiment.variants, experiment.dataset
    largest = max(experiment.budgets)
    target = inputs.target_accuracy
    if target is None:
        target = _default_target(variants, results, largest)
    arms = [
        _variant_result(variant, budget, results[variant.name, budget], transfers, experiment.truth, target)
        for budget in experiment.budgets
        for variant in variants
    ]
    first = (experiment.neural or variants)[0]
    tokens = {split: token_counts(first.tokenizer, dataset.texts(split)) for split in dataset.splits}
    return Comparison(
        data=Path(inputs.data).name,
        scored_split=experiment.folds[0].split if inputs.folds is None else f"{inputs.folds} folds",
        scored_count=len(experiment.truth),
        classes=dataset.classes,
        truth=experiment.truth.tolist(),
        label_budgets=experiment.budgets,
        epochs=first.config.training.max_epochs or 0.0,
        target_accuracy=target,
        arms=arms,
        tests=_paired_tests(arms, experiment.truth),
        mistakes=_mistakes([arm for arm in arms if arm.labels == largest], experiment),
        audit=audit(dataset, tokens, first.config.training.max_length).to_dict(),
        settings={variant.name: variant.config.model_dump() for variant in experiment.neural},
        notes=[*experiment.notes, *_design_notes(experiment), *_selection_notes(variants, results)],
        provenance=collect_provenance(start_runtime(first.config.training), inputs.seeds, started, inputs.command),
    )


def _variant_result(
    variant: Variant, budget: int, models: list[SeedResult], transfers: Transfers, truth: np.ndarray, target: float
) -> VariantResult:
    has_epochs = variant.kind not in ("classical", "ensemble")
    scores = ("macro_f1", "leak_free_accuracy", "calibration_error")
    return VariantResult(
        name=variant.name,
        kind=variant.kind,
        labels=budget,
        results=models,
        accuracy=interval([model.accuracy for model in models], _correct(models, truth)),
        **{name: interval([getattr(model, name) for model in models]) for name in scores},
        base=variant.base_name,
        control=variant.control,
        transfer=transfers.get(variant.name),
        epochs_to_target=[first_epoch_reaching(model.curve, target) for model in models if has_epochs],
    )


def _default_target(variants: Sequence[Variant], results: Results, budget: int) -> float:
    """The final validation accuracy from scratch, which a pretrained base should reach earlier."""
    for kind in ("scratch", "fine-tuned", "frozen"):
        models = [model for each in variants if each.kind == kind for model in results[each.name, budget]]
        if finals := [model.curve[-1].accuracy for model in models if model.curve]:
            return round(float(np.mean(finals)), 4)
    return 0.0


def _correct(results: Sequence[SeedResult], truth: np.ndarray) -> np.ndarray:
    return np.array([np.array(result.predictions) == truth for result in results])  # (seeds, N)


def _paired_tests(arms: Sequence[VariantResult], truth: np.ndarray) -> list[PairedTest]:
    """Every arm against its control and against classical, and fine-tuned bases against each other, at each budget,
    adjusted for their number; a base without a control against those of the others.
    """
    tests = []
    for index, arm in enumerate(arms):
        for number, other in enumerate(arms):
            is_control = other.name == arm.control if arm.control else bool(arm.base) and other.kind == "scratch"
            is_baseline = is_control or (other.kind == "classical" and arm.kind != "classical")
            is_alternative = arm.kind == other.kind == "fine-tuned" and number < index
            if (is_baseline or is_alternative) and other.labels == arm.labels:
                correct = _correct(arm.results, truth), _correct(other.results, truth)
                tests.append(paired_test(arm.name, other.name, arm.labels, *correct))
    return adjust(tests)


def _mistakes(arms: Sequence[VariantResult], experiment: Experiment) -> list[Mistake]:
    """Texts that every seed of the best neural arm gets wrong, the most confident first."""
    neural = [arm for arm in arms if arm.kind != "classical"]
    if not neural:
        return []
    best = max(neural, key=lambda arm: arm.accuracy.mean)
    wrong = np.asarray(~_correct(best.results, experiment.truth).any(axis=0))
    confidence = np.mean([result.confidences for result in best.results], axis=0)
    worst = sorted(map(int, np.flatnonzero(wrong)), key=lambda index: -confidence[index])
    examples = [example for fold in experiment.folds for example in fold.examples]
    return [
        Mistake(
            arm=best.name,
            text=examples[index].text,
            label=examples[index].label or "",
            predicted=experiment.dataset.classes[best.results[0].predictions[index]],
            confidence=float(confidence[index]),
            origin=examples[index].origin,
        )
        for index in worst[:MAX_MISTAKES]
    ]


def _design_notes(experiment: Experiment) -> list[str]:
    """What a reader must know besides the numbers, known before anything is trained."""
    folds, variants, neural = experiment.folds, experiment.variants, experiment.neural
    tuned = [variant.config for variant in variants if variant.kind == "fine-tuned"]
    budgets = {config.model_dump_json(include={"optimizer", "lr_schedule", "training"}) for config in tuned}
    reads: dict[tuple[int, str], list[str]] = {}  # names of variants by how much of a text they read
    for variant in neural:
        part = variant.config.training.max_length, SIDES[variant.config.data.truncation_side]
        reads.setdefault(part, []).append(variant.name)
    classes = experiment.dataset.classes
    text = render(
        "comparison_notes.txt",
        folds=len(folds),
        split=folds[0].split,
        learns_vocabulary=any(variant.base is None for variant in neural),
        has_baseline=0 < len(neural) < len(variants),
        reads=reads,
        has_own_budgets=len(budgets) > 1,
        recommended=sorted({variant.base_name for variant in variants if variant.is_recommended}),
        kinds={variant.kind for variant in variants},
        frozen_rate=FROZEN_RATE,
        reused=sorted({variant.base_name for variant in neural if variant.can_reuse_head(classes)}),
        own=[name for name, own in zip(experiment.inputs.names, experiment.inputs.own_settings, strict=True) if own],
    )
    return text.splitlines()


def _selection_notes(variants: Sequence[Variant], results: Results) -> list[str]:
    """Which variants are scored without a training step, because no epoch was better on valid."""
    selecting = {v.name: v for v in variants if v.kind == "fine-tuned"}
    notes = []
    for (name, labels), found in results.items():
        if name in selecting and selecting[name].config.training.checkpoint_selection == "best":
            curves = [result.curve for result in found if result.curve]
            bests = [max(curve, key=lambda point: (point.accuracy, -point.loss)) for curve in curves]
            if untrained := sum(best.step == 0 for best in bests):
                notes.append(
                    f"{untrained} of {len(found)} seeds of {name} with {labels:,} labels are best on valid before the "
                    f"first step, so there {selecting[name].base_name} is scored without training"
                )
    return notes


def write_comparison(out: Path, comparison: Comparison) -> None:
    """JSON, figures and, last, the report: it exists only when all the rest does."""
    write_json(out / "comparison.json", plain(comparison))
    figures = {"curves": draw_curves(accuracy_curves(comparison))}
    if efficiency := label_efficiency(comparison):
        figures["label-efficiency"] = draw_label_efficiency(efficiency, comparison.scored_split)
    for name, figure in figures.items():
        for suffix in ("png", "svg"):
            save_figure(figure, out / f"{name}.{suffix}")
    write_text(out / "report.html", render_comparison(comparison))
