"""A recipe gone through before its first stage: what would stop a later one is told while nothing is lost."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from headstart.config import RunConfig
from headstart.data.apart import apart_hashes
from headstart.data.portion import Portion
from headstart.errors import ConfigError, DataError, HeadstartError
from headstart.objectives.base import Objective
from headstart.objectives.table import make_objective
from headstart.training.processes import ALONE
from headstart.training.runtime import start_runtime
from headstart.workflows.classifier import check_passes
from headstart.workflows.finetune import finetune_config
from headstart.workflows.labelled import load_labelled
from headstart.workflows.pretrain import pretrain_config
from headstart.workflows.recipe import Recipe, Stage
from headstart.workflows.run import RunFolder, RunInfo, Trained, load_trained
from headstart.workflows.teaching import Teaching

NEW = "the tokenizer that the recipe learns"


def rehearse(recipe: Recipe, stages: Path) -> None:
    """Go through settings, texts, tables and teachers of every stage that has not begun in the folder `stages`."""
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
                before = _stand_in(stage, info.config, info.classes, start)
            else:
                before = _go_through(stage, recipe, start, known, opened)
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
    stage: Stage, recipe: Recipe, start: Trained | None, known: dict[int, Trained], opened: set[Any]
) -> Trained:
    preset, classes = recipe.config.preset, list[str]()
    teachers = [
        load_trained(each, with_weights=False) if isinstance(each, str) else known[each.number]
        for each in stage.teachers
    ]
    if len({teacher.name for teacher in teachers}) < len(teachers):
        raise ConfigError("one teacher is named twice", hint="name each once")
    teaching = Teaching(teachers, stage.unlabelled) if teachers else None
    objective: Objective
    if stage.config.kind == "finetune":
        config, objective = finetune_config(start, preset, stage.settings)
        runtime = start_runtime(config.training, ALONE)
        check_passes(objective, config, runtime)
        if config.data.label_pattern:  # to look for it in every text takes minutes
            classes = sorted(config.data.classes)
        else:
            classes = load_labelled(stage.table, config).classes
        if teaching is not None:
            teaching.check(objective, config, classes or None)
        texts = stage.unlabelled
    else:
        config, objective = pretrain_config(preset, stage.settings, start, teaching)
        start_runtime(config.training, ALONE)
        if teaching is not None:
            teaching.check(objective, config)
        texts = [*stage.mix, *(recipe.tokenizer_texts if start is None and teaching is None else [])]
    for text in texts:
        place = (text.corpus, text.text_column, text.documents, config.data.text_column)
        if place not in opened:
            _check_text(text, config)
            opened.add(place)
    made = _stand_in(stage, config, classes, start or (teaching.teachers[0] if teaching else None))
    if teaching is not None and NEW not in (made.tokenizer.fingerprint, teaching.tokenizer.fingerprint):
        teaching.check_student(made.tokenizer)
    return made


def _check_text(text: Portion, config: RunConfig) -> None:
    """Refuse a text of which not even the first document can be read."""
    if next(iter(text.open(config.data)), None) is None:
        raise DataError(f"{Path(text.corpus).name} holds no text", hint="take it out of the recipe")


def _stand_in(stage: Stage, config: RunConfig, classes: list[str], whose: Trained | None) -> Trained:
    """What is known of a stage's run before it is there: all but its tokens and weights."""
    split_by: Any = SimpleNamespace(fingerprint=NEW) if whose is None else whose.tokenizer
    info = RunInfo(config, "finished", 0, classes, split_by.fingerprint, {}, {})
    return Trained(
        stage.config.name,
        info,
        make_objective(config.objective),
        cast(Any, split_by),
        {},
        np.zeros(0, np.uint64),
    )
