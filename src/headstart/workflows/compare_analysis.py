"""From the results of a comparison to its report: intervals, paired tests, mistakes and notes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headstart.atomic_io import write_json, write_text
from headstart.data.audit import audit, token_counts
from headstart.data.datasets import Dataset
from headstart.evaluation.statistics import adjust, first_epoch_reaching, interval, paired_test
from headstart.plots.curves import accuracy_curves, draw_curves, draw_label_efficiency, label_efficiency
from headstart.plots.style import save_figure
from headstart.reports.comparison import render_comparison
from headstart.results import Comparison, Mistake, PairedTest, SeedResult, TransferReport, VariantResult, plain
from headstart.training.runtime import start_runtime
from headstart.workflows.compare_cells import Fold, Variant
from headstart.workflows.run_dir import collect_provenance

MAX_MISTAKES = 10
FROZEN_RATE = 10.0  # times the learning rate: a head that trains without its backbone needs more
SIDES = {"start": "its beginning", "end": "its end", "both": "both its ends"}
Results = dict[tuple[str, int], list[SeedResult]]  # by name of the variant and label budget


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

    @property
    def truth(self) -> np.ndarray:
        """The classes of all scored texts (N,)."""
        return np.concatenate([fold.dataset.targets(fold.split) for fold in self.folds])

    @property
    def neural(self) -> list[Variant]:
        """The variants that train a neural network."""
        return [variant for variant in self.variants if variant.kind != "classical"]


def analyze(
    experiment: Experiment, results: Results, transfers: Mapping[str, TransferReport | None], started: float
) -> Comparison:
    """All variants side by side, tested against each other, with the audit and the provenance."""
    inputs, variants, truth = experiment.inputs, experiment.variants, experiment.truth
    budget = max(experiment.budgets)
    target = inputs.target_accuracy
    if target is None:
        target = _default_target(variants, results, budget)
    arms = [
        _variant_result(variant, labels, results[variant.name, labels], truth, target, transfers)
        for labels in experiment.budgets
        for variant in variants
    ]
    first = (experiment.neural or variants)[0]
    dataset = experiment.dataset
    tokens = {split: token_counts(first.tokenizer, dataset.texts(split)) for split in dataset.splits}
    return Comparison(
        data=Path(inputs.data).name,
        scored_split=experiment.folds[0].split if inputs.folds is None else f"{inputs.folds} folds",
        scored_count=len(truth),
        classes=dataset.classes,
        truth=truth.tolist(),
        label_budgets=experiment.budgets,
        epochs=first.config.training.max_epochs or 0.0,
        target_accuracy=target,
        arms=arms,
        tests=_paired_tests(arms, truth),
        mistakes=_mistakes([arm for arm in arms if arm.labels == budget], experiment),
        audit=audit(dataset, tokens, first.config.training.max_length).to_dict(),
        settings={variant.name: variant.config.model_dump() for variant in experiment.neural},
        notes=[*experiment.notes, *_design_notes(experiment), *_selection_notes(variants, results)],
        provenance=collect_provenance(start_runtime(first.config.training), inputs.seeds, started, inputs.command),
    )


def _default_target(variants: Sequence[Variant], results: Results, labels: int) -> float:
    """The final validation accuracy from scratch, which a pretrained base should reach earlier."""
    for kind in ("scratch", "fine-tuned", "frozen"):
        if names := [variant.name for variant in variants if variant.kind == kind]:
            curves = [result.curve for name in names for result in results[name, labels] if result.curve]
            finals = [curve[-1].accuracy for curve in curves]
            return round(float(np.mean(finals)), 4) if finals else 0.0
    return 0.0


def _correct(results: Sequence[SeedResult], truth: np.ndarray) -> np.ndarray:
    return np.array([np.array(result.predictions) == truth for result in results])  # (seeds, N)


def _variant_result(
    variant: Variant,
    labels: int,
    results: list[SeedResult],
    truth: np.ndarray,
    target: float,
    transfers: Mapping[str, TransferReport | None],
) -> VariantResult:
    has_epochs = variant.kind not in ("classical", "ensemble")
    return VariantResult(
        name=variant.name,
        kind=variant.kind,
        labels=labels,
        results=results,
        accuracy=interval([result.accuracy for result in results], _correct(results, truth)),
        macro_f1=interval([result.macro_f1 for result in results]),
        leak_free_accuracy=interval([result.leak_free_accuracy for result in results]),
        calibration_error=interval([result.calibration_error for result in results]),
        base=variant.base_name,
        control=variant.control,
        transfer=transfers.get(variant.name),
        epochs_to_target=[first_epoch_reaching(result.curve, target) for result in results if has_epochs],
    )


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
    worst = [int(index) for index in np.argsort(-np.where(wrong, confidence, -1.0)) if wrong[index]]
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


def _design_notes(experiment: Experiment) -> list[str]:
    """What a reader must know besides the numbers, known before anything is trained."""
    folds, variants, neural = experiment.folds, experiment.variants, experiment.neural
    kinds = {variant.kind for variant in variants}
    notes = []
    if len(folds) > 1:
        notes += [
            f"train and valid were put together and split into {len(folds)} folds; every text is scored by a model that "
            "held it out, after its last epoch, and all arms have the same folds",
            "models of different folds share most of their training texts, so the intervals are for new seeds and texts, "
            "not for new training sets",
        ]
        if any(variant.base is None for variant in neural):
            notes.append("vocabularies were learned without labels from the texts of all folds, or came with a base")
    elif folds[0].split == "valid":
        notes.append("there is no test split, so the last epoch is scored on valid and nothing is selected on it")
    else:
        notes.append("each neural model is the best of its epochs on valid; test is read once, at the end")
    if neural and len(neural) < len(variants):
        notes.append(f"{_reading_lengths(neural)}; the classical baseline reads whole texts")
    training = {
        variant.config.model_dump_json(include={"optimizer", "lr_schedule", "training"})
        for variant in variants
        if variant.kind == "fine-tuned"
    }
    if len(training) > 1:
        notes.append("the bases train with settings of their own, so budgets differ: see settings")
    notes += [
        f"{base} uses its recommended settings; arms from scratch use the defaults for random weights, so they differ in "
        "more than their start"
        for base in sorted({variant.base_name for variant in variants if variant.is_recommended})
    ]
    if "frozen" in kinds:
        notes.append(f"frozen arms train the head only, at {FROZEN_RATE:g} times the learning rate")
    classes = experiment.dataset.classes
    reused = sorted(
        {
            variant.base_name
            for variant in variants
            if variant.base and variant.base.can_reuse_head(variant.config, variant.objective, classes)
        }
    )
    if reused:
        notes.append(
            f"arms of {' and '.join(reused)} start with the base's own head, which has the same classes, and so with what "
            "its own stages learned of them"
        )
    if "ensemble" in kinds:
        notes.append("an ensemble is one model made of all seeds of its arm: its interval is for texts, not for seeds")
    notes += [
        f"{name} has settings of its own and no arm from scratch: it differs from the other arms in model, tokenizer and "
        "settings too, not in its start only"
        for name, own in zip(experiment.inputs.names, experiment.inputs.own_settings, strict=True)
        if own
    ]
    return notes


def _reading_lengths(neural: Sequence[Variant]) -> str:
    """How much of a text each variant reads, in words; variants that read alike are named together."""
    names: dict[str, list[str]] = {}
    for variant in neural:
        length, side = variant.config.training.max_length, variant.config.data.truncation_side
        words = f"at most {length} tokens of a text ({SIDES[side]} when it is longer)"
        names.setdefault(words, []).append(variant.name)
    if len(names) == 1:
        return f"neural arms read {next(iter(names))}"
    return "; ".join(f"{' and '.join(alike)} read {words}" for words, alike in names.items())


def _selection_notes(variants: Sequence[Variant], results: Results) -> list[str]:
    """Which variants are scored without a training step, because no epoch was better on valid."""
    selecting = {
        variant.name: variant
        for variant in variants
        if variant.kind == "fine-tuned" and variant.config.training.checkpoint_selection == "best"
    }
    notes = []
    for (name, labels), found in results.items():
        if name not in selecting:
            continue
        curves = [result.curve for result in found if result.curve]
        bests = [max(curve, key=lambda point: (point.accuracy, -point.loss)) for curve in curves]
        if untrained := sum(best.step == 0 for best in bests):
            notes.append(
                f"{untrained} of {len(found)} seeds of {name} with {labels:,} labels are best on valid before the first "
                f"step, so there {selecting[name].base_name} is scored without training"
            )
    return notes
