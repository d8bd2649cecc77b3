"""What a reader of a comparison must know beside its numbers."""

from collections.abc import Mapping
from typing import Any

from headstart.results import SeedResult
from headstart.workflows.arms import Part
from headstart.workflows.conclude import FROZEN_RATE, Plan

PARTS = {"start": "its beginning", "end": "its end", "both": "both its ends"}


def _reading(neural: list[Plan]) -> str:
    """How much of a text each arm reads, in words; arms that read alike are named together."""
    alike: dict[str, list[str]] = {}
    for plan in neural:
        length, keep = plan.config.training.max_length, plan.config.data.truncation_side
        words = f"at most {length} tokens of a text ({PARTS[keep]} when it is longer)"
        alike.setdefault(words, []).append(plan.name)
    if len(alike) == 1:
        return f"neural arms read {next(iter(alike))}"
    return "; ".join(f"{' and '.join(names)} read {words}" for words, names in alike.items())


def notes_before(parts: list[Part], plans: list[Plan], inputs: Mapping[str, Any]) -> list[str]:
    """What is known before anything is trained."""
    notes = []
    if len(parts) > 1:
        notes.append(
            f"train and valid were put together and cut into {len(parts)} folds; every text is scored by a model that "
            "held it out, after its last epoch, and all arms have the same folds"
        )
        notes.append(
            "models of different folds share most of their training texts, so the intervals speak of new seeds and "
            "texts, not of new training sets"
        )
        if any(plan.trained is None and plan.kind != "classical" for plan in plans):
            notes.append("vocabularies were learnt without labels from all folds' texts, or came with a base")
    elif parts[0].scored == "valid":
        notes.append(
            "there is no test split, so the last epoch is scored on valid and nothing is selected on it"
        )
    else:
        notes.append("each neural model keeps its best epoch on valid; test is read once, at the end")
    neural = [plan for plan in plans if plan.kind != "classical"]
    if neural and len(neural) < len(plans):
        notes.append(f"{_reading(neural)}; the classical baseline reads it whole")
    recipes = {
        plan.config.model_dump_json(include={"optimizer", "lr_schedule", "training"})
        for plan in plans
        if plan.kind == "fine-tuned"
    }
    if len(recipes) > 1:
        notes.append("the bases train with settings of their own, so budgets differ: see settings")
    notes += _recommendation_notes(plans)
    if any(plan.kind == "frozen" for plan in plans):
        notes.append(f"frozen arms train the head alone, at {FROZEN_RATE:g} times the learning rate")
    classes = parts[0].dataset.classes
    kept = sorted(
        {
            plan.base
            for plan in plans
            if plan.trained and plan.trained.can_reuse_head(plan.config, plan.objective, classes)
        }
    )
    if kept:
        notes.append(
            f"arms of {' and '.join(kept)} begin with the base's own head, which names the same classes, and so with what "
            "its own stages learnt of them"
        )
    if any(plan.kind == "ensemble" for plan in plans):
        notes.append(
            "an ensemble is one model made of all seeds of its arm: its interval speaks of texts, not of seeds"
        )
    notes += [
        f"{name} has settings of its own and no arm from scratch: it differs from the other arms in body, tokenizer and "
        "settings too, not in its start alone"
        for name, own in zip(inputs["names"], inputs["own_settings"], strict=True)
        if own
    ]
    return notes


def _recommendation_notes(plans: list[Plan]) -> list[str]:
    """Which bases train with the settings that they recommend."""
    bases = sorted({plan.base for plan in plans if plan.is_recommended})
    rest = "arms from scratch use the defaults for random weights, so they differ in more than their start"
    return [f"{base} uses its recommended settings; {rest}" for base in bases]


def notes_after(plans: list[Plan], results: dict[tuple[str, int], list[SeedResult]]) -> list[str]:
    """Which arms are scored as their base came, because no epoch was better on valid."""
    notes = []
    for plan in plans:
        if plan.kind != "fine-tuned" or plan.config.training.checkpoint_selection != "best":
            continue
        for (name, budget), found in results.items():
            bests = [max(each.curve, key=lambda at: (at.accuracy, -at.loss)) for each in found if each.curve]
            still = sum(best.step == 0 for best in bests)
            if name == plan.name and still:
                notes.append(
                    f"{still} of {len(found)} seeds of {name} with {budget:,} labels are best on valid before the first "
                    f"step, so there {plan.base} is scored as it came"
                )
    return notes
