"""A recipe gone through before its first stage: what would stop a later one is told while nothing is lost."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from headstart.config import RunConfig
from headstart.data.decontamination import apart_hashes
from headstart.data.portion import Portion
from headstart.errors import ConfigError, DataError, HeadstartError
from headstart.objectives.base import Objective
from headstart.objectives.table import make_objective
from headstart.training.processes import ALONE
from headstart.training.runtime import Runtime, start_runtime
from headstart.workflows.finetune import finetune_config
from headstart.workflows.labelled import load_labelled
from headstart.workflows.pretrain import pretrain_config
from headstart.workflows.recipe import Recipe, Stage
from headstart.workflows.run import RunFolder, RunInfo, Trained, load_trained
from headstart.workflows.teaching import Teaching

NEW = "the tokenizer that the recipe learns"


def rehearse(recipe: Recipe, stages: Path, last_stage: int | None = None) -> None:
    """Go through settings, texts, tables and teachers of every stage that has not begun in the folder `stages`.

    Those after `last_stage` may be meant for another machine, so that their devices are not asked for.
    """
    base = load_trained(recipe.config.base, with_weights=False) if recipe.config.base else None
    known: dict[int, Trained] = {}
    read: list[list[str]] = [[]]
    opened: set[Any] = set()
    before = base
    for stage in recipe.stages:
        start = before
        if stage.base or stage.is_fresh:
            start = known[stage.base.number] if stage.base else None
        with _told(stage):
            if (stages / stage.folder / "run.json").is_file():
                info = RunFolder(stages / stage.folder).info()
                before = _stand_in(
                    stage, info.config, info.classes, SimpleNamespace(fingerprint=info.fingerprint)
                )
            else:
                before = _go_through(stage, recipe, start, known, opened, last_stage)
                apart = before.info.config.data.apart
                if apart not in read:  # which takes its time
                    apart_hashes(apart)
                    read.append(apart)
        known[stage.number] = before


@contextmanager
def _told(stage: Stage) -> Iterator[None]:
    try:
        yield
    except HeadstartError as error:
        if not str(error).startswith("stage "):
            error.args = (f"stage {stage.config.name}: {error}",)
        raise


def _go_through(
    stage: Stage,
    recipe: Recipe,
    start: Trained | None,
    known: dict[int, Trained],
    opened: set[Any],
    last_stage: int | None,
) -> Trained:
    preset, classes = recipe.config.preset, list[str]()
    teachers = [
        load_trained(each, with_weights=False) if isinstance(each, str) else known[each.number]
        for each in stage.teachers
    ]
    if len({teacher.name for teacher in teachers}) < len(teachers):
        raise ConfigError("one teacher is named twice", hint="name each once")
    if any(teacher.tokenizer.fingerprint == NEW for teacher in teachers):  # which may be the others' too
        unknown: Any = SimpleNamespace(fingerprint=NEW)
        teachers = [replace(teacher, tokenizer=unknown) for teacher in teachers]
    teaching = Teaching(teachers, stage.unlabelled) if teachers else None
    is_here = last_stage is None or stage.number <= last_stage
    objective: Objective
    if stage.config.kind == "finetune":
        config, objective = finetune_config(start, preset, stage.settings)
        if is_here:
            _runtime(config)
        classes = load_labelled(stage.table, config).classes
        if teaching is not None:
            is_known = bool(classes) and all(teacher.info.classes for teacher in teachers)
            teaching.check(objective, config, classes if is_known else None)
        texts = stage.unlabelled
    else:
        config, objective = pretrain_config(preset, stage.settings, start, teaching)
        if is_here:
            _runtime(config)
        if teaching is not None:
            teaching.check(objective, config)
        texts = [*stage.mix, *(recipe.tokenizer_texts if start is None and teaching is None else [])]
    for text in texts:
        place = (text.corpus, text.text_column, text.documents, config.data.text_column)
        if place not in opened:
            _check_text(text, config)
            opened.add(place)
    whose = start or (teaching.teachers[0] if teaching else None)
    made = _stand_in(stage, config, classes, whose.tokenizer if whose else SimpleNamespace(fingerprint=NEW))
    if teaching is not None and NEW not in (made.tokenizer.fingerprint, teaching.tokenizer.fingerprint):
        teaching.check_student(made.tokenizer)
    return made


def _check_text(text: Portion, config: RunConfig) -> None:
    """Refuse a text of which not even the first document can be read."""
    if next(iter(text.open(config.data)), None) is None:
        raise DataError(f"{Path(text.corpus).name} holds no text", hint="take it out of the recipe")


def _runtime(config: RunConfig) -> Runtime:
    """Where the stage would be trained; what holds for the rest of the program is not asked for."""
    return start_runtime(config.training.model_copy(update={"deterministic": False}), ALONE)


def _stand_in(stage: Stage, config: RunConfig, classes: list[str], split_by: Any) -> Trained:
    """What is known of a stage's run before it is there: all but its tokens and weights."""
    info = RunInfo(config, "finished", 0, classes, split_by.fingerprint, {}, {})
    return Trained(
        stage.config.name,
        info,
        make_objective(config.objective),
        cast(Any, split_by),
        {},
        np.zeros(0, np.uint64),
    )
