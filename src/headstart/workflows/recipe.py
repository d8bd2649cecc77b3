"""A recipe: a file that says how a base is made from raw text, stage by stage, and the training of its stages.

All stages are validated before the first one starts. Finished stages are kept, a stopped one is resumed, and a recipe
that differs from the one a folder was started with is refused.
"""

import json
import math
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
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
    Job,
    RunConfig,
    Section,
    TrainingConfig,
    load_preset,
    load_toml,
    merge,
    parse,
)
from headstart.data.datasets import SOURCES
from headstart.data.documents import MixtureComponent
from headstart.errors import ConfigError, HeadstartError, RunError, Stopped, pick
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
from headstart.quantization import FORMS, compact
from headstart.training.callbacks import Event, Note
from headstart.training.launch import require_single_process
from headstart.workflows.distill import DistillationSetup
from headstart.workflows.finetune import Finetuned, FinetuneJob, finetune
from headstart.workflows.finetune_defaults import finetune_config
from headstart.workflows.pretrain import Pretrained, PretrainJob, pretrain, pretrain_config, pretrain_inputs
from headstart.workflows.run_dir import RunDir

FORMAT = 2  # of recipe.json
STAGES = "stages"
SECTIONS = ("model", "tokenizer", "objective", "optimizer", "lr_schedule", "training", "data")
Settings = dict[str, Any]
OnEvent = Callable[[Event], None]


class CarryConfig(Section):
    """How the weights of a finished stage are kept; the optimiser's state is left behind."""

    form: str = Field("bfloat16", description="float32, bfloat16 or int8")
    shard_mib: float = Field(12.0, gt=0, description="MiB that one file holds at most")


class TextConfig(Section):
    """A text that stages may read."""

    path: str
    text_column: str = ""
    documents: Literal["", "auto", "line", "paragraph"] = ""


class Said(Section):
    """Settings of a run by section, as a recipe says them for all stages and for one."""

    model: Settings = Field(default_factory=dict)
    objective: Settings = Field(default_factory=dict)
    optimizer: Settings = Field(default_factory=dict)
    lr_schedule: Settings = Field(default_factory=dict)
    training: Settings = Field(default_factory=dict)
    data: Settings = Field(default_factory=dict)


class StageConfig(Said):
    """One training; what it does not say, the recipe or the preset says."""

    name: str
    kind: Literal["pretrain", "finetune"] = "pretrain"
    mix: dict[str, float] = Field(default_factory=dict, description="text = weight")
    table: str = ""  # of labelled texts, for `finetune`
    base: str = ""  # an earlier stage to go on from, or "scratch"; empty = the one before
    teacher: str = ""  # an earlier stage, a run or a shipped base; several with commas between
    unlabelled: list[str] = Field(default_factory=list, description="texts that the teachers of a finetune label")


class RecipeConfig(Said):
    """What a recipe says of all stages."""

    title: str
    language: str = ""
    note: str = ""
    preset: str | None = None  # none = the base's, or tiny
    base: str = ""  # to go on from; empty = from scratch
    tokenizer_texts: list[str] = Field(
        default_factory=list, description="that a new tokenizer is learnt from; none = all that pretraining reads"
    )
    tokenizer: Settings = Field(default_factory=dict)
    carry: CarryConfig = CarryConfig()
    finetune_defaults: Said = Field(Said(), description="recommended settings for fine-tuning the base")


# Of a stage of kind finetune: a recipe is fixed, so its settings do not follow the data.
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
    """A stage with all its settings."""

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
    def is_tuned(self) -> bool:
        """Whether it learns from labels."""
        return self.config.kind == "finetune"

    def teacher(self, stages: Path) -> list[str] | None:
        """The runs that teach it, where earlier ones among them lie in `stages`."""
        return [each if isinstance(each, str) else str(stages / each.folder) for each in self.teachers] or None


@dataclass(frozen=True)
class Recipe:
    """A recipe whose texts have been found."""

    config: RecipeConfig
    texts: dict[str, TextConfig]
    stages: list[Stage]
    tokenizer_texts: dict[str, MixtureComponent]


def open_recipe(path: Path) -> dict[str, Any]:
    """What a recipe file says."""
    try:
        return load_toml(path)
    except ConfigError as error:
        hint = (error.hint or "").replace("--config", "--recipe")
        raise ConfigError(str(error).replace("settings file", "recipe"), hint=hint) from None


def read_recipe(content: Mapping[str, Any], root: Path, over: Mapping[str, Any], scale: float) -> Recipe:
    """The recipe with its texts under `root`, settings `over` its own, and every budget times `scale`."""
    rest = {key: value for key, value in content.items() if key not in ("texts", "stages")}
    if not isinstance(content.get("texts", {}), Mapping):
        raise ConfigError("texts is no table of texts", hint='write [texts.NAME] and path = "…" below it')
    if not isinstance(content.get("stages", []), list):
        raise ConfigError("the stages are no list", hint="write [[stages]], in double brackets, before each")
    config = parse(RecipeConfig, rest, "the recipe")
    if config.carry.form not in FORMS:
        raise ConfigError(f"carry.form cannot be {config.carry.form!r}", hint=f"one of {', '.join(FORMS)}")
    texts = {name: parse(TextConfig, text, f"texts.{name}") for name, text in content.get("texts", {}).items()}
    found = {
        name: MixtureComponent(place(text.path, root), 1.0, text.text_column, text.documents)
        for name, text in texts.items()
    }
    if not (raw := content.get("stages")):
        raise ConfigError("the recipe has no stages", hint="add a [[stages]] with a name and a mix")
    given = [parse(StageConfig, stage, f"stage {number}") for number, stage in enumerate(raw, start=1)]
    _check_names(given, over)
    if config.base and (fresh := next((stage.name for stage in given if stage.base == SCRATCH), None)):
        raise ConfigError(
            f"stage {fresh} cannot begin from scratch in a recipe with a base, whose tokenizer is another",
            hint="leave the recipe's base out, or make that stage a recipe of its own",
        )
    if given[0].kind != "pretrain" and not config.base:
        raise ConfigError(f"the first stage, {given[0].name}, has no base to start from", hint="pretrain one before it")
    stages: list[Stage] = []
    for number, stage in enumerate(given, start=1):
        stages.append(_stage(number, config, stage, found, stages, root, over, scale))
    names = config.tokenizer_texts or list(dict.fromkeys(name for stage in given for name in stage.mix))
    return Recipe(config, texts, stages, {name: pick(found, name, "text of the recipe") for name in names})


def place(name: str, root: Path) -> str:
    """A built-in name as it is; a path as it stands under `root`."""
    if name in SOURCES:
        return name
    path = root / name
    if not path.exists():
        raise ConfigError(
            f"the recipe reads {name}, which is not in {root}", hint="--data-root names the folder that holds its texts"
        )
    return str(path)


def _check_names(stages: list[StageConfig], over: Mapping[str, Any]) -> None:
    names = [stage.name for stage in stages]
    for name in names:
        if name in (*SECTIONS, SCRATCH):
            raise ConfigError(f"a stage cannot be called {name!r}", hint="it has that meaning already")
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,99}", name):
            raise ConfigError(
                f"a stage cannot be called {name!r}", hint="use small letters, digits and hyphens, 100 at most"
            )
    if len(set(names)) < len(names):
        raise ConfigError("two stages have the same name", hint="name them apart")
    for section in over:
        pick({**dict.fromkeys(SECTIONS), **dict.fromkeys(names)}, section, "section or stage")


def _stage(
    number: int,
    config: RecipeConfig,
    stage: StageConfig,
    texts: Mapping[str, MixtureComponent],
    before: list[Stage],
    root: Path,
    over: Mapping[str, Any],
    scale: float,
) -> Stage:
    is_tuned = stage.kind == "finetune"
    stage = stage.model_copy(update={"teacher": str(over.get(stage.name, {}).get("teacher", stage.teacher))})
    if stage.unlabelled and not (is_tuned and stage.teacher):
        raise ConfigError(
            f"stage {stage.name} has unlabelled texts and no teacher to label them",
            hint="name a teacher in a stage of kind finetune",
        )
    if is_tuned == bool(stage.mix) or is_tuned != bool(stage.table):
        wanted = "a table and no mix" if is_tuned else "a mix and no table"
        raise ConfigError(f"stage {stage.name} of kind {stage.kind} needs {wanted}", hint="see docs/bases.md")
    if stage.base == SCRATCH and is_tuned:
        raise ConfigError(
            f"stage {stage.name} of kind finetune cannot begin from scratch", hint="pretrain a body before it"
        )
    common = {name: getattr(config, name) for name in SECTIONS if getattr(config, name)}
    if is_tuned:  # its objective and pace are another's; what must not be read stays
        common = {name: common[name] for name in ("model", "data") if name in common}
    own = {name: getattr(stage, name) for name in SECTIONS if getattr(stage, name, {})}
    settings = merge(STAGE_DEFAULTS if is_tuned else {}, merge(common, own))
    # [objective] is what pretraining asks, in the recipe and beside it.
    general = {key: over[key] for key in SECTIONS if key in over and not (is_tuned and key == "objective")}
    settings = merge(merge(settings, general), _of_stage(over, stage.name))
    if "seed" not in stage.training and "training.seed" not in over.get(stage.name, {}):
        told = {**config.training, **over.get("training", {})}.get("seed", 0)
        first = parse(TrainingConfig, {"seed": told}, f"the training of stage {stage.name}").seed
        # Another seed for each stage, so that none reads in the order of the one before.
        settings = merge(settings, {"training": {"seed": first + number - 1}})
    settings = merge(settings, _placed(settings, root))
    job: Job = "finetune" if is_tuned else "pretrain"
    settings = _scaled(settings, load_preset(_preset(config)).get(job, {}), scale)
    mix = [replace(pick(texts, name, "text of the recipe"), weight=weight) for name, weight in stage.mix.items()]
    table = place(stage.table, root) if is_tuned else ""
    earlier = {each.config.name: each for each in before}
    base = before[-1] if before else None
    if stage.base:
        base = None if stage.base == SCRATCH else pick(earlier, stage.base, "earlier stage")
    teachers = _teachers(stage.teacher, earlier, root)
    unlabelled = [pick(texts, name, "text of the recipe") for name in stage.unlabelled]
    return Stage(number, stage, settings, mix, table, base, teachers, unlabelled)


def _preset(config: RecipeConfig) -> str:
    """The named settings that everything starts from: those told, the base's, or tiny."""
    if config.preset is None and config.base:
        return load_model(config.base, with_weights=False).info.config.preset
    return config.preset or "tiny"


def _teachers(names: str, earlier: Mapping[str, Stage], root: Path) -> list[Stage | str]:
    """Stages before, and runs by the names of shipped bases or by their paths: from here, or under `root`."""
    found: list[Stage | str] = []
    named = [name.strip() for name in names.split(",") if name.strip()]
    if len(set(named)) < len(named):
        raise ConfigError("one teacher is named twice", hint="name each once")
    for name in named:
        known = name in shipped_bases() or Path(name).exists()
        if name not in earlier and not known and not (root / name).exists():
            raise ConfigError(
                f"the teacher {name} is no earlier stage, no shipped base and no run, here or in {root}",
                hint="--set STAGE.teacher=RUN names another",
            )
        found.append(earlier.get(name, name if known else str(root / name)))
    return found


def _of_stage(over: Mapping[str, Any], name: str) -> Settings:
    """What is set for one stage as `name.section.key`."""
    found: Settings = {}
    for key, value in over.get(name, {}).items():
        if key == "teacher":
            continue
        section, _, own = key.partition(".")
        if section not in SECTIONS or not own:
            raise ConfigError(
                f"--set {name}.{key} names no setting of the stage", hint=f"write --set {name}.training.minutes=3"
            )
        found.setdefault(section, {})[own] = value
    return found


def _placed(settings: Settings, root: Path) -> Settings:
    data = parse(DataConfig, settings.get("data", {}))
    return {
        "data": {key: [place(name, root) for name in names] for key in PATH_SETTINGS if (names := getattr(data, key))}
    }


def _scaled(settings: Settings, preset: Mapping[str, Any], scale: float) -> Settings:
    """The settings with their budget times `scale`; the preset's where they name none."""
    if scale == 1:
        return settings
    own = merge({"training": preset.get("training", {})}, {"training": settings.get("training", {})})
    training = parse(TrainingConfig, own["training"])
    name = next((name for name in BUDGETS if getattr(training, name) is not None), None)
    if name is None:
        return settings
    budget = getattr(training, name) * scale
    return merge(
        settings, {"training": {name: max(1, round(budget)) if name in ("max_steps", "max_tokens") else budget}}
    )


def resolve_stages(recipe: Recipe) -> list[RunConfig]:
    """The settings of every stage over those of the run that it continues; a fault names its stage."""
    start = load_model(recipe.config.base, with_weights=False) if recipe.config.base else None
    runs: dict[int, LoadedModel] = {}
    for stage in recipe.stages:
        base = start if stage.base is None else runs[stage.base.number]
        try:
            teachers = [
                load_model(each, with_weights=False) if isinstance(each, str) else runs[each.number]
                for each in stage.teachers
            ]
            if stage.is_tuned:
                config, objective = finetune_config(base, recipe.config.preset, stage.settings)
            else:
                teaching = DistillationSetup(teachers, []) if teachers else None
                config, objective = pretrain_config(recipe.config.preset, stage.settings, base, teaching)
        except HeadstartError as error:
            error.args = (f"stage {stage.config.name}: {error}",)
            raise
        # What later stages ask of this one before it is trained: its settings, not its tokenizer and weights.
        info = RunInfo(config, "finished", 0, list(config.data.label_map), "", RunInputs(), {})
        nothing: Any = None
        runs[stage.number] = LoadedModel(stage.config.name, info, objective, nothing, {}, np.zeros(0, np.uint64))
    _check_finetune_defaults(recipe.config, runs[len(runs)])
    return [run.info.config for run in runs.values()]


def _check_finetune_defaults(config: RecipeConfig, base: LoadedModel) -> None:
    """Refuse recommended settings that no fine-tuning of the base could use, or that each user chooses."""
    defaults = _finetune_defaults(config)
    keys = {"data": [key for key in defaults.get("data", {}) if key != "truncation_side"]}
    keys["training"] = [key for key in defaults.get("training", {}) if key in (*MACHINE_SETTINGS, "seed")]
    try:
        for name in [f"{section}.{key}" for section in keys for key in keys[section]]:
            raise ConfigError(f"{name} is for each user to choose", hint=f"leave {name} out")
        finetune_config(base, config.preset, defaults)
    except HeadstartError as error:
        raise ConfigError(f"the recipe's [finetune_defaults]: {error}", hint=error.hint) from None


def _finetune_defaults(config: RecipeConfig) -> Settings:
    return {name: content for name, content in config.finetune_defaults.model_dump().items() if content}


def describe(recipe: Recipe, configs: list[RunConfig]) -> dict[str, Any]:
    """All of a recipe that decides what is trained, JSON-able and the same wherever its texts are."""
    texts = {name: text.model_dump() for name, text in recipe.texts.items()}
    stages = {}
    for stage, config in zip(recipe.stages, configs, strict=True):
        read = {name: texts[name] for name in (*stage.config.mix, *stage.config.unlabelled)}
        own = stage.config.model_dump(include={"kind", "mix", "table", "base", "teacher", "unlabelled"})
        stages[stage.folder] = {**own, "texts": read, "settings": _deciding(config)}
    return {
        "base": recipe.config.base,
        "tokenizer_texts": {name: texts[name] for name in recipe.tokenizer_texts},
        "carry": recipe.config.carry.model_dump(),
        "stages": stages,
    }


def _deciding(config: RunConfig) -> dict[str, Any]:
    """The settings that decide what is trained; paths of other sets by their names."""
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
    on_event: OnEvent = lambda event: None,
) -> Pretrained | Finetuned | None:
    """Make a base by a recipe file, from texts under `data`; None when stages after `last_stage` are left.

    Given again, the same command resumes where it stopped, also with a run folder that was copied from elsewhere.
    """
    require_single_process("a recipe")
    if not 0 < scale < math.inf:
        raise ConfigError(f"a budget times {scale:g} trains nothing", hint="--budget-scale 0.1 is a tenth of it")
    given: Settings = {"recipe": open_recipe(Path(recipe)), "settings": dict(settings or {}), "scale": scale}
    ready = read_recipe(given["recipe"], Path(data), given["settings"], scale)
    if last_stage is not None and not 1 <= last_stage <= len(ready.stages):
        raise ConfigError(f"there is no stage {last_stage}", hint=f"stages go from 1 to {len(ready.stages)}")
    path = Path(out)
    _check_place(path)
    configs = resolve_stages(ready)
    resolved = describe(ready, configs)
    with writing(path):
        (path / STAGES).mkdir(parents=True, exist_ok=True)
    with RunDir(path) as folder:
        if is_recipe(path) and (changes := list(_differences(_known(path)["resolved"], resolved))):
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
    given = _known(path)
    with RunDir(path) as folder:
        recipe = read_recipe(given["recipe"], Path(given["data"]), given["settings"], given["scale"])
        return _train_stages(folder, recipe, resolve_stages(recipe), None, on_event)


def is_recipe(path: Path) -> bool:
    """Whether the folder is that of a recipe."""
    return (path / RECIPE).is_file()


def _check_place(path: Path) -> None:
    """Refuse a place that holds anything but a recipe's run or stages that were brought there."""
    if path.is_file():
        raise RunError(f"{path} is a file, not a place for a run", hint="choose another --out")
    others = [item.name for item in path.iterdir()] if path.is_dir() else []
    if not is_recipe(path) and any(name != STAGES and not name.startswith(".") for name in others):
        raise RunError(f"{path} is not empty", hint="choose another --out")


def _known(path: Path) -> dict[str, Any]:
    """What the folder's recipe.json says."""
    try:
        known = json.loads((path / RECIPE).read_text("utf-8"))
        return {name: known[name] for name in ("recipe", "settings", "scale", "data", "resolved")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{path / RECIPE} cannot be read: {error!r}",
            hint="remove it and give the recipe again: finished stages are kept",
        ) from None


def _differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """Where two nested dicts differ, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        was, now = (
            "absent" if each is None else "there" if isinstance(each, dict) else repr(each) for each in (old, new)
        )
        yield f"{name} was {was} and is now {now}"


def _train_stages(
    folder: RunDir, recipe: Recipe, configs: list[RunConfig], last_stage: int | None, on_event: OnEvent
) -> Pretrained | Finetuned | None:
    path, defaults = folder.path, _finetune_defaults(recipe.config)
    if (path / "run.json").is_file():
        if (info := folder.info()).finetune_defaults != defaults:  # nothing that is trained depends on them
            folder.write_info(replace(info, finetune_defaults=defaults))
        return _result(folder)
    wanted = recipe.stages[:last_stage]
    for stage, config in zip(wanted, configs, strict=False):
        run = path / STAGES / stage.folder
        base = recipe.config.base if stage.base is None else str(path / STAGES / stage.base.folder)
        on_event(Note(f"stage {stage.number} of {len(recipe.stages)}: {stage.config.name}"))
        try:
            if (run / "run.json").is_file():
                _resume_stage(run, stage, recipe, config, base, on_event)
            else:
                _start_stage(run, stage, recipe, base, on_event)
        except Stopped as stopped:
            stopped.again = f"headstart resume {shlex.quote(str(path))}"
            raise
        compact(run, recipe.config.carry.form, recipe.config.carry.shard_mib)
    if len(wanted) < len(recipe.stages):
        on_event(Note(f"stages {len(wanted) + 1} to {len(recipe.stages)} are left"))
        return None
    last = path / STAGES / recipe.stages[-1].folder
    names = [item.name for item in sorted(last.iterdir()) if item.is_file() and not item.name.startswith(".")]
    for name in [name for name in names if name != "run.json"]:
        write_with(path / name, partial(shutil.copyfile, last / name))
    # Written last: now the recipe is finished.
    folder.write_info(replace(RunDir(last).info(), finetune_defaults=defaults))
    return _result(folder)


def _start_stage(run: Path, stage: Stage, recipe: Recipe, base: str, on_event: OnEvent) -> None:
    teacher = stage.teacher(run.parent)
    common: Settings = {"preset": recipe.config.preset, "settings": stage.settings, "on_event": on_event}
    if stage.is_tuned:
        finetune(base, stage.table, run, teacher=teacher, unlabelled=stage.unlabelled, **common)
    else:
        tokenizer_texts = None if base or teacher else list(recipe.tokenizer_texts.values())
        more: Settings = {"tokenizer_corpora": tokenizer_texts, "adapts": False}
        pretrain(stage.mix, run, base=base or None, teacher=teacher, **more, **common)


def _resume_stage(run: Path, stage: Stage, recipe: Recipe, config: RunConfig, base: str, on_event: OnEvent) -> None:
    """Resume a stage, which may have been brought from elsewhere, or see that it is finished."""
    from headstart.workflows.resume import resume_run

    info = RunDir.open(run).info()
    weights = [each.weight for each in info.inputs.mix]
    if _deciding(info.config) != _deciding(config) or weights != [each.weight for each in stage.mix]:
        raise RunError(
            f"{run} was trained with other settings than the recipe's stage {stage.number}",
            hint="give the recipe and the --set that it was started with, or a new --out",
        )
    if info.status == "finished":
        return
    # The texts, or the stages, may have moved since: the run finds them where they are now.
    if stage.is_tuned:
        now = RunInputs(data=absolute_paths([stage.table])[0], base=absolute_paths([base])[0])
    else:
        tokenizer_texts = [] if base else list(recipe.tokenizer_texts.values())
        now = pretrain_inputs(stage.mix, base or None, tokenizer_texts)
    if teaching := DistillationSetup.load(stage.teacher(run.parent), stage.unlabelled, with_weights=False):
        now = teaching.add_to(now)
    moved = info.config.with_({"data": {"exclude_eval_texts_of": config.data.exclude_eval_texts_of}})
    RunDir(run).write_info(replace(info, config=moved, inputs=replace(now, fingerprint=info.inputs.fingerprint)))
    resume_run(run, on_event)


def _result(folder: RunDir) -> Pretrained | Finetuned:
    is_tuned = folder.info().config.job == "finetune"
    return FinetuneJob.read_result(folder) if is_tuned else PretrainJob.read_result(folder)
