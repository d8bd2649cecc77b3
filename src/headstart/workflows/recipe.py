"""Recipes: a TOML file that describes how a base is trained from raw text, stage by stage, and the training of its stages.

All stages are validated before the first one starts. A finished stage is not trained again, a stopped one is resumed,
and a recipe that differs from the one that a folder was started with is refused.
"""

import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from headstart.atomic_io import write_json, write_with, writing
from headstart.config import (
    BUDGETS,
    MACHINE_SETTINGS,
    PATH_SETTINGS,
    DataConfig,
    RunConfig,
    Section,
    TrainingConfig,
    load_preset,
    load_toml,
    merge,
    parse,
)
from headstart.data.built_in import SOURCES
from headstart.data.documents import MixtureComponent
from headstart.errors import ConfigError, HeadstartError, RunError, pick
from headstart.inference.loaded_model import (
    RECIPE,
    SCRATCH,
    LoadedModel,
    RunInfo,
    RunInputs,
    absolute_paths,
    load_model,
)
from headstart.pretrained import shipped_bases
from headstart.quantization import compact
from headstart.training.callbacks import Note, OnEvent, ignore_event
from headstart.training.launch import require_single_process
from headstart.workflows.distill import DistillationSetup
from headstart.workflows.finetune import Finetuned, FinetuneJob, finetune
from headstart.workflows.finetune_defaults import finetune_config
from headstart.workflows.pretrain import Pretrained, PretrainJob, pretrain, pretrain_config, pretrain_inputs
from headstart.workflows.run_dir import RunDir

FORMAT = 2  # of recipe.json
STAGES = "stages"
TEXT = "text of the recipe"
SECTIONS = ("model", "tokenizer", "objective", "optimizer", "lr_schedule", "training", "data")
Settings = dict[str, Any]


class CarryConfig(Section):
    """How the weights of a finished stage are stored, without the optimizer's state."""

    form: Literal["float32", "bfloat16", "int8"] = "bfloat16"
    shard_mib: float = Field(12.0, gt=0, description="MiB that one file holds at most")


class TextConfig(Section):
    """A text that stages may read."""

    path: str
    text_column: str = ""
    documents: Literal["", "auto", "line", "paragraph"] = ""


class StageSettings(Section):
    """Settings by section, for all stages or for one."""

    model: Settings = Field(default_factory=dict)
    objective: Settings = Field(default_factory=dict)
    optimizer: Settings = Field(default_factory=dict)
    lr_schedule: Settings = Field(default_factory=dict)
    training: Settings = Field(default_factory=dict)
    data: Settings = Field(default_factory=dict)


class StageConfig(StageSettings):
    """One stage; settings that it leaves out come from the recipe, then from the preset."""

    name: str
    kind: Literal["pretrain", "finetune"] = "pretrain"
    mix: dict[str, float] = Field(default_factory=dict, description="text = weight")
    table: str = ""  # of labelled texts, for `finetune`
    base: str = ""  # an earlier stage to continue from, or "scratch"; empty = the previous stage
    teacher: str = ""  # an earlier stage, a run or a shipped base; several are separated by commas
    unlabelled: list[str] = Field(default_factory=list, description="texts that the teachers of a finetune label")


class RecipeConfig(StageSettings):
    """A recipe as its file has it; each text and stage is parsed by itself, so that errors name it."""

    title: str
    language: str = ""
    note: str = ""
    preset: str | None = None  # none = the base's, or tiny
    base: str = ""  # to continue from; empty = from scratch
    tokenizer_texts: list[str] = Field(
        default_factory=list, description="that a new tokenizer is trained on; none = all pretraining texts"
    )
    tokenizer: Settings = Field(default_factory=dict)
    carry: CarryConfig = CarryConfig()
    finetune_defaults: StageSettings = Field(
        StageSettings(), description="recommended settings for fine-tuning the base"
    )
    texts: dict[str, Any] = Field(default_factory=dict)
    stages: list[Any] = Field(default_factory=list)

    @property
    def recommended(self) -> Settings:
        """The sections of `finetune_defaults` that are not empty."""
        return {name: content for name, content in self.finetune_defaults.model_dump().items() if content}


# Defaults of a finetune stage. They do not depend on the data, because a recipe is fixed.
STAGE_DEFAULTS: Settings = {
    "optimizer": {"learning_rate": 1e-4, "weight_decay": 0.01},
    "lr_schedule": {"name": "linear", "warmup_ratio": 0.1},
    "data": {"truncation_side": "start"},
    "training": {
        "max_epochs": 10.0,
        "max_length": 512,
        "tokens_per_batch": 16384,
        "batch_size": 32,
        "linear_probe": False,
    },
}


@dataclass(frozen=True)
class Stage:
    """A stage with its resolved settings and texts."""

    number: int
    config: StageConfig
    settings: Settings
    mix: list[MixtureComponent]
    table: str
    base: "Stage | None"  # to continue from; None = the recipe's base, or from scratch
    teachers: "list[Stage | str]"
    unlabelled: list[MixtureComponent]

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.number:02d}-{self.config.name}"

    @property
    def is_finetuning(self) -> bool:
        """Whether it trains on labels."""
        return self.config.kind == "finetune"

    def teacher(self, stages: Path) -> list[str] | None:
        """The paths of its teachers; `stages` is the folder of the earlier stages."""
        return [each if isinstance(each, str) else str(stages / each.folder) for each in self.teachers] or None


@dataclass(frozen=True)
class Recipe:
    """A recipe with the paths of its texts."""

    config: RecipeConfig
    texts: dict[str, TextConfig]
    stages: list[Stage]
    tokenizer_texts: dict[str, MixtureComponent]


def read_recipe(content: Mapping[str, Any], root: Path, over: Mapping[str, Any], scale: float) -> Recipe:
    """The recipe with its texts under `root`, settings `over` its own, and every budget times `scale`."""
    config = parse(RecipeConfig, content, "the recipe")
    if not config.stages:
        raise ConfigError("the recipe has no stages", hint="add a [[stages]] with a name and a mix")
    texts = {name: parse(TextConfig, text, f"texts.{name}") for name, text in config.texts.items()}
    given = [parse(StageConfig, stage, f"stage {number}") for number, stage in enumerate(config.stages, start=1)]
    names = [stage.name for stage in given]
    for name in names:
        if name in (*SECTIONS, SCRATCH) or not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,99}", name):
            hint = "use at most 100 small letters, digits and hyphens, and no name of a section of settings"
            raise ConfigError(f"a stage cannot be called {name!r}", hint=hint)
    if len(set(names)) < len(names):
        raise ConfigError("two stages have the same name", hint="give each stage a name of its own")
    for section in over:
        pick(dict.fromkeys((*SECTIONS, *names)), section, "section or stage")
    if config.base and (fresh := next((stage.name for stage in given if stage.base == SCRATCH), None)):
        raise ConfigError(
            f"stage {fresh} cannot start from scratch in a recipe with a base, which has another tokenizer",
            hint="leave out the recipe's base, or write a separate recipe for that stage",
        )
    if given[0].kind != "pretrain" and not config.base:
        raise ConfigError(f"the first stage, {names[0]}, has no base to start from", hint="pretrain one before it")
    found = {
        name: MixtureComponent(locate(text.path, root), 1.0, text.text_column, text.documents)
        for name, text in texts.items()
    }
    preset = "tiny" if not config.base else load_model(config.base, with_weights=False).info.config.preset
    budgets = load_preset(config.preset or preset)
    stages: list[Stage] = []
    for number, stage in enumerate(given, start=1):
        stage = stage.model_copy(update={"teacher": str(over.get(stage.name, {}).get("teacher", stage.teacher))})
        settings = _stage_settings(number, config, stage, root, over)
        settings = _scaled(settings, budgets.get(stage.kind, {}), scale)
        stages.append(_stage(number, stage, settings, found, stages, root))
    read = config.tokenizer_texts or list(dict.fromkeys(name for stage in given for name in stage.mix))
    return Recipe(config, texts, stages, {name: pick(found, name, TEXT) for name in read})


def locate(name: str, root: Path) -> str:
    """The path of a text under `root`; a built-in name stays as it is."""
    if name in SOURCES:
        return name
    path = root / name
    if not path.exists():
        raise ConfigError(
            f"the recipe reads {name}, which is not in {root}", hint="--data-root names the folder that holds its texts"
        )
    return str(path)


def _stage_settings(
    number: int, config: RecipeConfig, stage: StageConfig, root: Path, over: Mapping[str, Any]
) -> Settings:
    """The stage's settings over those of the recipe, below those of the user."""
    own = {name: getattr(stage, name) for name in SECTIONS if getattr(stage, name, {})}
    # The recipe's objective, optimizer and training are those of pretraining.
    common_to = SECTIONS if stage.kind == "pretrain" else ("model", "data")
    common = {name: getattr(config, name) for name in common_to if getattr(config, name)}
    settings = merge(STAGE_DEFAULTS if stage.kind == "finetune" else {}, merge(common, own))
    general = {key: over[key] for key in SECTIONS if key in over}
    if stage.kind == "finetune":
        general.pop("objective", None)
    of_stage: Settings = {}
    for name, value in over.get(stage.name, {}).items():
        section, _, key = name.partition(".")
        if name == "teacher":
            continue
        if section not in SECTIONS or not key:
            raise ConfigError(
                f"--set {stage.name}.{name} names no setting of the stage",
                hint=f"write --set {stage.name}.training.max_minutes=3",
            )
        of_stage.setdefault(section, {})[key] = value
    settings = merge(merge(settings, general), of_stage)
    if "seed" not in {**stage.training, **of_stage.get("training", {})}:
        seed = {**config.training, **over.get("training", {})}.get("seed", 0)
        first = parse(TrainingConfig, {"seed": seed}, f"the training of stage {stage.name}").seed
        # Each stage has another seed, so that none reads its texts in the order of the previous one.
        settings = merge(settings, {"training": {"seed": first + number - 1}})
    data = parse(DataConfig, settings.get("data", {}))
    paths = {key: [locate(name, root) for name in names] for key in PATH_SETTINGS if (names := getattr(data, key))}
    return merge(settings, {"data": paths})


def _stage(
    number: int,
    stage: StageConfig,
    settings: Settings,
    texts: Mapping[str, MixtureComponent],
    before: list[Stage],
    root: Path,
) -> Stage:
    """The stage with its texts, its base and its teachers."""
    is_finetuning = stage.kind == "finetune"
    if stage.unlabelled and not (is_finetuning and stage.teacher):
        raise ConfigError(
            f"stage {stage.name} has unlabelled texts and no teacher to label them",
            hint="name a teacher in a stage of kind finetune",
        )
    if is_finetuning == bool(stage.mix) or is_finetuning != bool(stage.table):
        wanted = "a table and no mix" if is_finetuning else "a mix and no table"
        raise ConfigError(f"stage {stage.name} of kind {stage.kind} needs {wanted}", hint="see docs/bases.md")
    if stage.base == SCRATCH and is_finetuning:
        raise ConfigError(
            f"stage {stage.name} of kind finetune cannot start from scratch", hint="add a pretraining stage before it"
        )
    earlier: dict[str, Stage | None] = {each.config.name: each for each in before}
    base = before[-1] if before else None
    if stage.base:
        base = pick({**earlier, SCRATCH: None}, stage.base, "earlier stage")
    mix = [replace(pick(texts, name, TEXT), weight=weight) for name, weight in stage.mix.items()]
    unlabelled = [pick(texts, name, TEXT) for name in stage.unlabelled]
    teachers = _teachers(stage.teacher, before, root)
    table = locate(stage.table, root) if is_finetuning else ""
    return Stage(number, stage, settings, mix, table, base, teachers, unlabelled)


def _teachers(names: str, before: list[Stage], root: Path) -> list[Stage | str]:
    """Earlier stages, shipped bases, and runs by their paths, relative to the working directory or to `root`."""
    found: list[Stage | str] = []
    named = [name.strip() for name in names.split(",") if name.strip()]
    if len(set(named)) < len(named):
        raise ConfigError("one teacher is named twice", hint="name each teacher once")
    for name in named:
        stage = next((each for each in before if each.config.name == name), None)
        known = name in shipped_bases() or Path(name).exists()
        if stage is None and not known and not (root / name).exists():
            raise ConfigError(
                f"the teacher {name} is neither an earlier stage nor a shipped base nor a run, here or in {root}",
                hint="--set STAGE.teacher=RUN names another",
            )
        found.append(stage or (name if known else str(root / name)))
    return found


def _scaled(settings: Settings, preset: Mapping[str, Any], scale: float) -> Settings:
    """The settings with their budget, or that of the preset, multiplied by `scale`."""
    if scale == 1:
        return settings
    training = parse(TrainingConfig, merge(preset, settings).get("training", {}))
    name = next((name for name in BUDGETS if getattr(training, name) is not None), None)
    if name is None:
        return settings
    budget = getattr(training, name) * scale
    if name in ("max_steps", "max_tokens"):
        budget = max(1, round(budget))
    return merge(settings, {"training": {name: budget}})


def resolve_stages(recipe: Recipe) -> list[RunConfig]:
    """The settings of every stage, which inherit from its base; an error names its stage."""
    start = load_model(recipe.config.base, with_weights=False) if recipe.config.base else None
    runs: dict[int, LoadedModel] = {}
    for stage in recipe.stages:
        base = start if stage.base is None else runs[stage.base.number]
        try:
            teachers = [
                load_model(each, with_weights=False) if isinstance(each, str) else runs[each.number]
                for each in stage.teachers
            ]
            if stage.is_finetuning:
                config, objective = finetune_config(base, recipe.config.preset, stage.settings)
            else:
                teaching = DistillationSetup(teachers, []) if teachers else None
                config, objective = pretrain_config(recipe.config.preset, stage.settings, base, teaching)
        except HeadstartError as error:
            error.problem = f"stage {stage.config.name}: {error.problem}"
            raise
        # Later stages need the settings of this one before it is trained, but no tokenizer and no weights.
        info = RunInfo(config, "finished", 0, list(config.data.label_map), "", RunInputs(), {})
        nothing: Any = None
        runs[stage.number] = LoadedModel(stage.config.name, info, objective, nothing, {}, np.zeros(0, np.uint64))
    _check_finetune_defaults(recipe.config, runs[len(runs)])
    return [run.info.config for run in runs.values()]


def _check_finetune_defaults(config: RecipeConfig, base: LoadedModel) -> None:
    """Refuse recommended settings that are invalid for the base, or that each user has to choose."""
    personal = {f"training.{key}" for key in (*MACHINE_SETTINGS, "seed")}
    personal |= {f"data.{key}" for key in DataConfig.model_fields if key != "truncation_side"}
    given = [f"{section}.{key}" for section, content in config.recommended.items() for key in content]
    try:
        if name := next((name for name in given if name in personal), None):
            raise ConfigError(f"every user chooses {name} for their own run", hint=f"leave out {name}")
        finetune_config(base, config.preset, config.recommended)
    except HeadstartError as error:
        raise ConfigError(f"the recipe's [finetune_defaults]: {error.problem}", hint=error.hint) from None


def describe(recipe: Recipe, configs: list[RunConfig]) -> dict[str, Any]:
    """All of a recipe that determines the training, JSON-able and independent of where its texts are."""
    texts = {name: text.model_dump() for name, text in recipe.texts.items()}
    stages = {}
    for stage, config in zip(recipe.stages, configs, strict=True):
        read = {name: texts[name] for name in (*stage.config.mix, *stage.config.unlabelled)}
        own = stage.config.model_dump(include={"kind", "mix", "table", "base", "teacher", "unlabelled"})
        stages[stage.folder] = {**own, "texts": read, "settings": _comparable(config)}
    return {
        "base": recipe.config.base,
        "tokenizer_texts": {name: texts[name] for name in recipe.tokenizer_texts},
        "carry": recipe.config.carry.model_dump(),
        "stages": stages,
    }


def _comparable(config: RunConfig) -> dict[str, Any]:
    """The settings that determine the training; other datasets by name, not by path."""
    content: dict[str, Any] = json.loads(config.model_dump_json())
    content["training"] = {name: value for name, value in content["training"].items() if name not in MACHINE_SETTINGS}
    for key in PATH_SETTINGS:
        content["data"][key] = [Path(name).name for name in content["data"][key]]
    return content


def run_recipe(
    recipe: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    last_stage: int | None = None,
    scale: float = 1.0,
    settings: Mapping[str, Any] | None = None,
    on_event: OnEvent = ignore_event,
) -> Pretrained | Finetuned | None:
    """Train a base by a recipe file, from texts under `data`; None when stages after `last_stage` are left.

    The same call resumes the recipe, also in a folder that was copied from another machine.
    """
    require_single_process("a recipe")
    if not 0 < scale < math.inf:
        raise ConfigError(f"a budget times {scale:g} trains nothing", hint="--budget-scale 0.1 means a tenth")
    given: Settings = {
        "recipe": load_toml(Path(recipe), "recipe", "--recipe"),
        "settings": dict(settings or {}),
        "scale": scale,
    }
    ready = read_recipe(given["recipe"], Path(data), given["settings"], scale)
    if last_stage is not None and not 1 <= last_stage <= len(ready.stages):
        raise ConfigError(f"there is no stage {last_stage}", hint=f"stages go from 1 to {len(ready.stages)}")
    path = Path(out)
    others = [item.name for item in path.glob("*") if item.name != STAGES and not item.name.startswith(".")]
    if others and not is_recipe(path):
        raise RunError(f"{path} is not empty", hint="choose another --out")
    configs = resolve_stages(ready)
    resolved = describe(ready, configs)
    with writing(path):
        (path / STAGES).mkdir(parents=True, exist_ok=True)
    with RunDir(path) as folder:
        if is_recipe(path) and (changes := list(_differences(_read_request(path)["resolved"], resolved))):
            raise RunError(
                f"{path} was started with another recipe: {'; '.join(changes[:3])}"
                + (f"; and {len(changes) - 3} more" if len(changes) > 3 else ""),
                hint="choose a new --out for the changed recipe, or undo the changes",
            )
        place = {"data": str(Path(data).resolve()), "text": Path(recipe).read_text("utf-8")}
        write_json(path / RECIPE, {"format": FORMAT, **given, **place, "resolved": resolved})
        return _train_stages(folder, ready, configs, last_stage, on_event)


def resume_recipe(path: Path, on_event: OnEvent) -> Pretrained | Finetuned | None:
    """Resume a recipe to its last stage; None when it was finished before."""
    if (path / "run.json").is_file():
        return None
    given = _read_request(path)
    with RunDir(path) as folder:
        recipe = read_recipe(given["recipe"], Path(given["data"]), given["settings"], given["scale"])
        return _train_stages(folder, recipe, resolve_stages(recipe), None, on_event)


def is_recipe(path: Path) -> bool:
    """Whether a folder holds a recipe."""
    return (path / RECIPE).is_file()


def _read_request(path: Path) -> dict[str, Any]:
    """The content of a folder's recipe.json."""
    try:
        known = json.loads((path / RECIPE).read_text("utf-8"))
        return {name: known[name] for name in ("recipe", "settings", "scale", "data", "resolved")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{path / RECIPE} cannot be read: {error!r}",
            hint="remove it and run the recipe again; finished stages are not trained again",
        ) from None


def _differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """Where two nested dicts differ, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        words = ("absent" if each is None else "there" if isinstance(each, dict) else repr(each) for each in (old, new))
        was, now = words
        yield f"{name} was {was} and is now {now}"


def _train_stages(
    folder: RunDir, recipe: Recipe, configs: list[RunConfig], last_stage: int | None, on_event: OnEvent
) -> Pretrained | Finetuned | None:
    path, defaults = folder.path, recipe.config.recommended
    if (path / "run.json").is_file():
        if (info := folder.info()).finetune_defaults != defaults:  # no training depends on them
            folder.write_info(replace(info, finetune_defaults=defaults))
        return _result(folder)
    wanted = recipe.stages[:last_stage]
    for stage, config in zip(wanted, configs, strict=False):
        run = path / STAGES / stage.folder
        base = recipe.config.base if stage.base is None else str(path / STAGES / stage.base.folder)
        on_event(Note(f"stage {stage.number} of {len(recipe.stages)}: {stage.config.name}"))
        if (run / "run.json").is_file():
            _resume_stage(run, stage, recipe, config, base, on_event)
        else:
            _start_stage(run, stage, recipe, base, on_event)
        compact(run, recipe.config.carry.form, recipe.config.carry.shard_mib)
    if len(wanted) < len(recipe.stages):
        on_event(Note(f"stages {len(wanted) + 1} to {len(recipe.stages)} are left"))
        return None
    last = path / STAGES / recipe.stages[-1].folder
    for item in sorted(last.iterdir()):
        if item.is_file() and item.name != "run.json" and not item.name.startswith("."):
            write_with(path / item.name, partial(shutil.copyfile, item))
    # Written last: now the recipe is finished.
    folder.write_info(replace(RunDir(last).info(), finetune_defaults=defaults))
    return _result(folder)


def _start_stage(run: Path, stage: Stage, recipe: Recipe, base: str, on_event: OnEvent) -> None:
    teacher = stage.teacher(run.parent)
    common: Settings = {"preset": recipe.config.preset, "settings": stage.settings, "on_event": on_event}
    if stage.is_finetuning:
        finetune(base, stage.table, run, teacher=teacher, unlabelled=stage.unlabelled, **common)
    else:
        corpora = None if base or teacher else list(recipe.tokenizer_texts.values())
        pretrain(stage.mix, run, base=base or None, teacher=teacher, tokenizer_corpora=corpora, adapts=False, **common)


def _resume_stage(run: Path, stage: Stage, recipe: Recipe, config: RunConfig, base: str, on_event: OnEvent) -> None:
    """Resume a stage, which may have been copied from another machine, unless it is finished."""
    from headstart.workflows.resume import resume_run

    info = RunDir.open(run).info()
    weights = [each.weight for each in info.inputs.mix]
    if _comparable(info.config) != _comparable(config) or weights != [each.weight for each in stage.mix]:
        raise RunError(
            f"{run} was trained with other settings than the recipe's stage {stage.number}",
            hint="use the recipe and the --set that it was started with, or a new --out",
        )
    if info.status == "finished":
        return
    # The texts or the stages may have moved, so their current paths are written.
    if stage.is_finetuning:
        now = RunInputs(data=absolute_paths([stage.table])[0], base=absolute_paths([base])[0])
    else:
        now = pretrain_inputs(stage.mix, base or None, [] if base else list(recipe.tokenizer_texts.values()))
    if teaching := DistillationSetup.load(stage.teacher(run.parent), stage.unlabelled, with_weights=False):
        now = teaching.add_to(now)
    moved = info.config.with_({"data": {"exclude_eval_texts_of": config.data.exclude_eval_texts_of}})
    RunDir(run).write_info(replace(info, config=moved, inputs=replace(now, fingerprint=info.inputs.fingerprint)))
    resume_run(run, on_event)


def _result(folder: RunDir) -> Pretrained | Finetuned:
    is_finetuning = folder.info().config.job == "finetune"
    return FinetuneJob.read_result(folder) if is_finetuning else PretrainJob.read_result(folder)
