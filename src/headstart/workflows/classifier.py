"""A classifier: built from a base, trained on a task's rows, and marked."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headstart.config import ModelConfig, RunConfig
from headstart.data.augmentation import training_loader
from headstart.data.decontamination import seen_before
from headstart.evaluation.metrics import METRICS, score
from headstart.inference.loaded_model import LoadedModel
from headstart.models.heads import ClassHead
from headstart.models.model import HeadSpec, Model, build_model, reordered, transfer
from headstart.objectives.base import Objective
from headstart.objectives.classification import HEAD_SETTINGS
from headstart.results import Score, Transfer
from headstart.training.callbacks import Event
from headstart.training.evaluate import marked_places, predict_probabilities
from headstart.training.linear_probe import fit_head
from headstart.training.runtime import Runtime, StopSignal, seed_everything
from headstart.training.trainer import Evaluation, Trainer
from headstart.workflows.labelled import Task

HEAD = "class"  # what the head of a classifier is called


def make_classifier(
    config: RunConfig, objective: Objective, task: Task, trained: LoadedModel | None, runtime: Runtime
) -> tuple[Model, Transfer | None]:
    """A classifier with the base's backbone, and an account of every weight; all weights are random without a base.

    The base's head is reused where `keeps_head` says so. With `training.linear_probe` a new head on a base is trained
    on the frozen backbone first.
    """
    seed_everything(config.training.seed, 0, 3)
    heads = objective.heads(config.model, task.tokenizer.size, len(task.classes))
    if trained is None:
        return build_model(config.model, task.tokenizer.size, heads), None
    if keeps_head(config, objective, task.classes, trained):
        model = build_model(config.model, task.tokenizer.size, heads)
        weights = reordered(trained.weights, HEAD, trained.info.classes, task.classes)
        return model, transfer(weights, model, with_base_heads=True)
    model, moved = swap_heads(trained, heads, config.model, reset_layers=config.training.reinit_top_layers)
    head = model.heads[HEAD]
    if config.training.linear_probe and isinstance(head, ClassHead):
        fit_head(model, head, objective, task.rows["train"], task.tokenizer, runtime)
    return model, moved


def swap_heads(
    base: LoadedModel,
    heads: Mapping[str, HeadSpec],
    config: ModelConfig | None = None,
    *,
    reset_layers: int = 0,
) -> tuple[Model, Transfer]:
    """A new model with the base's body under new heads, and an account of every weight.

    `config` changes settings of the body that shape no weight, such as dropout. The top `reset_layers` layers start fresh.
    """
    model = build_model(config or base.info.config.model, base.tokenizer.size, heads)
    return model, transfer(base.weights, model, reset_layers=reset_layers)


def keeps_head(
    config: RunConfig, objective: Objective, classes: Sequence[str], trained: LoadedModel | None
) -> bool:
    """Whether a base's own head goes on: it names these very classes, and reads as the run's head does.

    Above blocks that start fresh it would read what it has never seen, so there it starts fresh as well.
    """
    training, own = config.training, _head_for(classes, trained)
    is_wanted = training.head_init == "reuse" and not training.reinit_top_layers
    return is_wanted and own is not None and _form(own) == _form(_head(config, objective, classes))


def misfit(
    config: RunConfig, objective: Objective, classes: Sequence[str], trained: LoadedModel | None
) -> str:
    """Why a base's head for these very classes does not go on although it may; nothing when there is nothing to tell."""
    training, own = config.training, _head_for(classes, trained)
    if own is None or training.head_init != "reuse" or keeps_head(config, objective, classes, trained):
        return ""
    if training.reinit_top_layers:
        return "the base's head names the same classes, and starts fresh above the fresh blocks"
    new = _form(_head(config, objective, classes))
    wanted = " ".join(
        f"--set objective.{HEAD_SETTINGS[key]}={value}"
        for key, value in _form(own).items()
        if new[key] != value
    )
    return (
        f"the base's head names the same classes but reads otherwise, so it starts fresh; {wanted} keeps it"
    )


def _head_for(classes: Sequence[str], trained: LoadedModel | None) -> HeadSpec | None:
    """The base's head if it names these classes, in any order."""
    is_same = trained is not None and sorted(trained.info.classes) == sorted(classes)
    return trained.specs.get(HEAD) if trained is not None and is_same else None


def _head(config: RunConfig, objective: Objective, classes: Sequence[str]) -> HeadSpec:
    return objective.heads(config.model, 0, len(classes))[HEAD]


def _form(head: HeadSpec) -> dict[str, Any]:
    """What a head's weights are made for; dropout is none of it."""
    return {key: value for key, value in head.settings.items() if key != "dropout"}


def make_trainer(
    model: Model,
    objective: Objective,
    task: Task,
    config: RunConfig,
    runtime: Runtime,
    on_event: Callable[[Event], None] = lambda event: None,
    stop: StopSignal | None = None,
    *,
    is_head_new: bool = False,
) -> Trainer:
    """A trainer over the task's training rows, evaluated on the validation rows.

    With a new head the weights before the first step are never the ones to keep.
    """
    training = config.training
    texts = task.dataset.texts("train")
    loader = training_loader(task.rows["train"], texts, task.tokenizer, training, config.data)
    chosen = marked_places(len(task.rows["valid"]), training.eval_subset_size)
    truth = np.array(task.dataset.targets("valid"))[chosen]
    rows = [task.rows["valid"][place] for place in chosen]

    def marks(model: Model) -> Evaluation:
        found = predict_probabilities(
            model, objective, rows, task.tokenizer, runtime, runtime.eval_batch_tokens
        )
        values = {name: METRICS[name](truth, found) for name in ("accuracy", "macro_f1", "loss")}
        return Evaluation(values, rank=values["accuracy"] - 1e-6 * min(values["loss"], 100.0))

    start = not is_head_new
    return Trainer(model, objective, loader, task.tokenizer, config, runtime, marks, on_event, stop, start)


def score_rows(
    model: Model,
    objective: Objective,
    task: Task,
    split: str,
    config: RunConfig,
    runtime: Runtime,
    seen: np.ndarray,
) -> Score:
    """The marks on one split, with the leak-free twin."""
    probabilities = predict_probabilities(
        model, objective, task.rows[split], task.tokenizer, runtime, runtime.eval_batch_tokens
    )
    was_seen = seen_before(task.dataset.hashes(split), seen)
    return score(np.array(task.dataset.targets(split)), probabilities, task.classes, was_seen, split)
