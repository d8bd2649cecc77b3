"""From trained arms to verdicts: intervals, paired tests, mistakes, and the files that show them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headstart.atomic_io import write_json, write_text
from headstart.config import RunConfig
from headstart.data.audit import Audit, audit, token_counts
from headstart.data.dataset import Dataset, Example
from headstart.data.tokenizer import Tokenizer
from headstart.evaluation.statistics import adjust, first_epoch_reaching, interval, paired_test
from headstart.inference.loaded_model import LoadedModel
from headstart.objectives.base import Objective
from headstart.plots.curves import accuracy_curves, draw_curves, draw_label_efficiency, label_efficiency
from headstart.plots.style import save_figure
from headstart.reports.pages import render_comparison
from headstart.results import (
    Arm,
    ArmKind,
    Comparison,
    Interval,
    Mistake,
    PairedTest,
    SeedResult,
    TransferReport,
    plain,
)
from headstart.training.runtime import start_runtime
from headstart.workflows.finetune_defaults import DatasetFacts
from headstart.workflows.run_dir import collect_provenance

MISTAKES = 10
ARMS: tuple[ArmKind, ...] = ("classical", "scratch", "frozen", "fine-tuned")
OPTIONAL_ARMS: tuple[ArmKind, ...] = ("ensemble",)  # trained only when asked for
FROZEN_RATE = 10.0  # a head alone bears, and needs, a higher learning rate than a whole model


@dataclass(frozen=True)
class Plan:
    """One arm: how its models start, and with which settings they train."""

    name: str
    kind: ArmKind
    config: RunConfig
    objective: Objective
    tokenizer: Tokenizer
    trained: LoadedModel | None = None
    base: str = ""
    control: str = ""  # the arm that differs in one thing alone: from scratch, or for an ensemble its members
    members: str = ""  # the arm whose models an ensemble is made of
    is_recommended: bool = False  # whether it follows the settings that its base recommends
    configure: Callable[[DatasetFacts], RunConfig] | None = None  # the settings for another number of labels

    def config_for(self, dataset: Dataset) -> RunConfig:
        """The settings with which this arm learns from a dataset."""
        if self.configure is None:
            return self.config
        return self.configure(DatasetFacts.of(dataset, self.tokenizer))


def conclude(
    inputs: dict[str, Any],
    whole: Dataset,
    judged: Sequence[Example],
    truth: np.ndarray,
    scored: str,
    budgets: list[int],
    plans: list[Plan],
    results: dict[tuple[str, int], list[SeedResult]],
    transfers: dict[str, TransferReport | None],
    notes: list[str],
    started: float,
) -> Comparison:
    """All arms side by side, tested against each other, with the audit and the provenance."""
    mark = inputs["mark"] if inputs["mark"] is not None else _mark(plans, results, max(budgets))
    arms = [
        _arm(plan, budget, results[plan.name, budget], truth, mark, transfers)
        for budget in budgets
        for plan in plans
    ]
    neural = next((plan for plan in plans if plan.kind != "classical"), plans[0])
    return Comparison(
        data=Path(inputs["data"]).name,
        scored_split=scored,
        scored_count=len(truth),
        classes=whole.classes,
        truth=truth.tolist(),
        label_budgets=budgets,
        epochs=neural.config.training.max_epochs or 0.0,
        target_accuracy=mark,
        arms=arms,
        tests=_tests(arms, truth),
        mistakes=_mistakes(arms, whole.classes, judged, truth, max(budgets)),
        audit=_audit(whole, neural).to_dict(),
        settings={plan.name: plan.config.model_dump() for plan in plans if plan.kind != "classical"},
        notes=notes,
        provenance=collect_provenance(
            start_runtime(neural.config.training), inputs["seeds"], started, inputs["command"]
        ),
    )


def _mark(plans: list[Plan], results: dict[tuple[str, int], list[SeedResult]], budget: int) -> float:
    """The accuracy to pass, unless one is given: where scratch ends on valid, which a head start should reach sooner."""
    kind = next(
        (kind for kind in ("scratch", "fine-tuned", "frozen") if any(p.kind == kind for p in plans)), None
    )
    ends = [
        result.curve[-1].accuracy
        for plan in plans
        if plan.kind == kind and kind is not None
        for result in results[plan.name, budget]
        if result.curve
    ]
    return round(float(np.mean(ends)), 4) if ends else 0.0


def _correct(arm_results: list[SeedResult], truth: np.ndarray) -> np.ndarray:
    return np.array([np.array(result.predictions) == truth for result in arm_results])  # (seeds, N)


def _arm(
    plan: Plan,
    budget: int,
    found: list[SeedResult],
    truth: np.ndarray,
    mark: float,
    transfers: dict[str, TransferReport | None],
) -> Arm:
    def over_seeds(name: str) -> Interval:
        return interval([getattr(result, name) for result in found])

    return Arm(
        name=plan.name,
        kind=plan.kind,
        labels=budget,
        results=found,
        accuracy=interval([result.accuracy for result in found], _correct(found, truth)),
        macro_f1=over_seeds("macro_f1"),
        leak_free_accuracy=over_seeds("leak_free_accuracy"),
        calibration_error=over_seeds("calibration_error"),
        base=plan.base,
        control=plan.control,
        transfer=transfers.get(plan.name),
        epochs_to_target=[
            first_epoch_reaching(result.curve, mark)
            for result in found
            if plan.kind not in ("classical", "ensemble")  # these have no epochs
        ],
    )


def _tests(arms: list[Arm], truth: np.ndarray) -> list[PairedTest]:
    """Every arm against its twin and against classical, and fine-tuned bases against each other, at each budget,
    adjusted for their number; a base without a twin against those of the others.
    """
    tests = []
    for place, arm in enumerate(arms):
        for number, other in enumerate(arms):
            is_control = (
                other.name == arm.control if arm.control else bool(arm.base) and other.kind == "scratch"
            )
            is_yardstick = is_control or (other.kind == "classical" and arm.kind != "classical")
            is_rival = arm.kind == other.kind == "fine-tuned" and number < place
            if (is_yardstick or is_rival) and other.labels == arm.labels:
                correct = _correct(arm.results, truth), _correct(other.results, truth)
                tests.append(paired_test(arm.name, other.name, arm.labels, *correct))
    return adjust(tests)


def _mistakes(
    arms: list[Arm], classes: list[str], examples: Sequence[Example], truth: np.ndarray, budget: int
) -> list[Mistake]:
    """Texts that every seed of the best neural arm gets wrong, the most confident first."""
    neural = [arm for arm in arms if arm.kind != "classical" and arm.labels == budget]
    if not neural:
        return []
    best = max(neural, key=lambda arm: arm.accuracy.mean)
    wrong = np.asarray(~_correct(best.results, truth).any(axis=0))
    sure = np.mean([result.confidences for result in best.results], axis=0)
    worst = [int(index) for index in np.argsort(-np.where(wrong, sure, -1.0)) if wrong[index]][:MISTAKES]
    return [
        Mistake(
            arm=best.name,
            text=examples[index].text,
            label=examples[index].label or "",
            predicted=classes[best.results[0].predictions[index]],
            confidence=float(sure[index]),
            origin=examples[index].origin,
        )
        for index in worst
    ]


def _audit(whole: Dataset, plan: Plan) -> Audit:
    """The audit with token lengths as the first neural arm reads them."""
    tokens = {split: token_counts(plan.tokenizer, whole.texts(split)) for split in whole.splits}
    return audit(whole, tokens, plan.config.training.max_length)


def write_comparison(out: Path, comparison: Comparison) -> None:
    """JSON, pictures and, last, the report: it is there only when all the rest is."""
    write_json(out / "comparison.json", plain(comparison))
    figures = {"curves": draw_curves(accuracy_curves(comparison))}
    if efficiency := label_efficiency(comparison):
        figures["label-efficiency"] = draw_label_efficiency(efficiency, comparison.scored_split)
    for name, figure in figures.items():
        for kind in ("png", "svg"):
            save_figure(figure, out / f"{name}.{kind}")
    write_text(out / "report.html", render_comparison(comparison))
