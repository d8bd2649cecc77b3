"""A recipe: a file that says how a base is made from raw text, stage by stage."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from headstart.config import (
    BUDGETS,
    PLACES,
    DataConfig,
    Job,
    ObjectiveConfig,
    Section,
    load_preset,
    load_toml,
    merge,
    parse,
    resolve,
)
from headstart.data.portion import Portion
from headstart.data.sources import SOURCES
from headstart.errors import ConfigError, pick
from headstart.objectives.table import make_objective
from headstart.sections import TrainingConfig
from headstart.shipped import shipped_bases
from headstart.storage import FORMS
from headstart.workflows.advice import check_advice
from headstart.workflows.begin import SCRATCH
from headstart.workflows.run import load_trained

SECTIONS = ("body", "tokenizer", "objective", "optimizer", "schedule", "training", "data")
Settings = dict[str, Any]


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

    body: Settings = Field(default_factory=dict)
    objective: Settings = Field(default_factory=dict)
    optimizer: Settings = Field(default_factory=dict)
    schedule: Settings = Field(default_factory=dict)
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
    unlabelled: list[str] = Field(
        default_factory=list, description="texts that the teachers of a finetune label"
    )


class RecipeConfig(Said):
    """What a recipe says of all stages."""

    title: str
    language: str = ""
    note: str = ""
    preset: str | None = None  # none = the base's, or tiny
    base: str = ""  # to go on from; empty = from scratch
    tokenizer_texts: list[str] = Field(
        default_factory=list,
        description="that a new tokenizer is learnt from; none = all that pretraining reads",
    )
    tokenizer: Settings = Field(default_factory=dict)
    carry: CarryConfig = CarryConfig()
    finetune: Settings = Field(
        default_factory=dict, description="advice: settings by section for fine-tuning the base"
    )


# Of a stage of kind finetune: a recipe is fixed, so its settings do not follow the data.
STAGE_DEFAULTS: Settings = {
    "optimizer": {"learning_rate": 1e-4, "weight_decay": 0.01},
    "schedule": {"kind": "linear", "warmup": 0.1},
    "data": {"keep": "start"},
    "training": {
        "epochs": 10.0,
        "length": 512,
        "batch_tokens": 16384,
        "batch_examples": 32,
        "linear_probe": False,
    },
}


@dataclass(frozen=True)
class Stage:
    """A stage with all its settings."""

    number: int
    config: StageConfig
    settings: Settings
    mix: list[Portion]
    table: str
    base: "Stage | None" = None  # to go on from; None = the one before
    is_fresh: bool = False  # whether it starts from scratch, whatever was before
    teachers: "list[Stage | str]" = field(default_factory=list)
    unlabelled: list[Portion] = field(default_factory=list)

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.number:02d}-{self.config.name}"

    def teacher(self, stages: Path) -> list[str] | None:
        """The runs that teach it, where earlier ones among them lie in `stages`."""
        return [
            each if isinstance(each, str) else str(stages / each.folder) for each in self.teachers
        ] or None


@dataclass(frozen=True)
class Recipe:
    """A recipe whose texts have been found."""

    config: RecipeConfig
    stages: list[Stage]
    tokenizer_texts: list[Portion]


def read_recipe(content: Mapping[str, Any], root: Path, over: Mapping[str, Any], scale: float) -> Recipe:
    """The recipe with its texts under `root`, settings `over` its own, and every budget times `scale`."""
    rest = {key: value for key, value in content.items() if key not in ("texts", "stages")}
    if not isinstance(content.get("texts", {}), Mapping):
        raise ConfigError("texts is no table of texts", hint='write [texts.NAME] and path = "…" below it')
    if not isinstance(content.get("stages", []), list):
        raise ConfigError("the stages are no list", hint="write [[stages]], in double brackets, before each")
    config: RecipeConfig = parse(RecipeConfig, rest, "the recipe")
    if config.carry.form not in FORMS:
        raise ConfigError(f"carry.form cannot be {config.carry.form!r}", hint=f"one of {', '.join(FORMS)}")
    texts = {
        name: parse(TextConfig, text, f"texts.{name}") for name, text in content.get("texts", {}).items()
    }
    found = {name: _portion(text, root) for name, text in texts.items()}
    raw = content.get("stages", [])
    if not raw:
        raise ConfigError("the recipe has no stages", hint="add a [[stages]] with a name and a mix")
    given = [parse(StageConfig, stage, f"stage {number}") for number, stage in enumerate(raw, start=1)]
    _check_names(given, over)
    if config.base and (fresh := next((stage.name for stage in given if stage.base == SCRATCH), None)):
        raise ConfigError(
            f"stage {fresh} cannot begin from scratch in a recipe with a base, whose tokenizer is another",
            hint="leave the recipe's base out, or make that stage a recipe of its own",
        )
    if given[0].kind != "pretrain" and not config.base:
        raise ConfigError(
            f"the first stage, {given[0].name}, has no base to start from", hint="pretrain one before it"
        )
    stages: list[Stage] = []
    for number, stage in enumerate(given, start=1):
        stages.append(_stage(number, config, stage, found, stages, root, over, scale))
    shape = merge(config.body, over.get("body", {}))
    check_advice(config.finetune, _preset(config), shape, is_whole=not config.base)
    read = list(dict.fromkeys(name for stage in given for name in stage.mix))
    names = config.tokenizer_texts or read
    return Recipe(config, stages, [pick(found, name, "text of the recipe") for name in names])


def open_recipe(path: Path) -> dict[str, Any]:
    """What a recipe file says."""
    try:
        return load_toml(path)
    except ConfigError as error:
        if path.exists():
            raise ConfigError(str(error).replace("settings file", "recipe"), hint=error.hint) from None
        near = sorted(file.name for file in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        hint = f"there are {', '.join(near)} in {path.parent}" if near else "check the path given to --recipe"
        raise ConfigError(str(error).replace("settings file", "recipe"), hint=hint) from None


def _portion(text: TextConfig, root: Path) -> Portion:
    return Portion(place(text.path, root), 1.0, text.text_column, text.documents)


def place(name: str, root: Path) -> str:
    """A built-in name as it is; a path as it stands under `root`."""
    if name in SOURCES:
        return name
    path = root / name
    if not path.exists():
        raise ConfigError(
            f"the recipe reads {name}, which is not in {root}",
            hint="--data names the folder that holds its texts",
        )
    return str(path)


def _check_names(stages: list[StageConfig], over: Mapping[str, Any]) -> None:
    names = [stage.name for stage in stages]
    for name in names:
        if name in (*SECTIONS, SCRATCH):
            raise ConfigError(f"a stage cannot be called {name!r}", hint="it has that meaning already")
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,99}", name):
            raise ConfigError(
                f"a stage cannot be called {name!r}",
                hint="use small letters, digits and hyphens, 100 at most",
            )
    if len(set(names)) < len(names):
        raise ConfigError("two stages have the same name", hint="name them apart")
    for section in over:
        pick({**dict.fromkeys(SECTIONS), **dict.fromkeys(names)}, section, "section or stage")


def _stage(
    number: int,
    config: RecipeConfig,
    stage: StageConfig,
    texts: Mapping[str, Portion],
    before: list[Stage],
    root: Path,
    over: Mapping[str, Any],
    scale: float,
) -> Stage:
    is_tuned = stage.kind == "finetune"
    teacher = str(over.get(stage.name, {}).get("teacher", stage.teacher))
    if stage.unlabelled and not (is_tuned and teacher):
        raise ConfigError(
            f"stage {stage.name} has unlabelled texts and no teacher to label them",
            hint="name a teacher in a stage of kind finetune",
        )
    if is_tuned == bool(stage.mix) or is_tuned != bool(stage.table):
        wanted = "a table and no mix" if is_tuned else "a mix and no table"
        raise ConfigError(f"stage {stage.name} of kind {stage.kind} needs {wanted}", hint="see docs/bases.md")
    is_fresh = stage.base == SCRATCH
    if is_fresh and is_tuned:
        raise ConfigError(
            f"stage {stage.name} of kind finetune cannot begin from scratch", hint="pretrain a body before it"
        )
    common = {name: getattr(config, name) for name in SECTIONS if getattr(config, name)}
    if is_tuned:  # its objective and pace are another's; what must not be read stays
        common = {name: common[name] for name in ("body", "data") if name in common}
    own = {name: getattr(stage, name) for name in SECTIONS if getattr(stage, name, {})}
    settings = merge(STAGE_DEFAULTS if is_tuned else {}, merge(common, own))
    general = _sections(over)
    if is_tuned:  # as in the recipe, where [objective] is what pretraining asks
        general.pop("objective", None)
    for part in (general, _of_stage(over, stage.name)):
        settings = merge(settings, part)
    if "seed" not in stage.training and "training.seed" not in over.get(stage.name, {}):
        told = {**config.training, **over.get("training", {})}.get("seed", 0)
        first = parse(TrainingConfig, {"seed": told}, f"the training of stage {stage.name}").seed
        # Another seed for each stage, so that none reads in the order of the one before.
        settings = merge(settings, {"training": {"seed": first + number - 1}})
    settings = merge(settings, _placed(settings, root))
    job: Job = "finetune" if is_tuned else "pretrain"
    preset = _preset(config)
    settings = _scaled(settings, load_preset(preset).get(job, {}), scale)
    asked = resolve(job, preset, settings).objective  # a wrong setting dies before any stage begins
    is_first = is_fresh or (number == 1 and not config.base)
    if is_tuned or is_first or "name" in settings.get("objective", {}):  # else it is the base's
        _check_objective(stage.name, asked)
    mix = [
        Portion(own.corpus, weight, own.text_column, own.documents)
        for own, weight in ((pick(texts, name, "text of the recipe"), w) for name, w in stage.mix.items())
    ]
    table = place(stage.table, root) if is_tuned else ""
    earlier = {each.config.name: each for each in before}
    base = pick(earlier, stage.base, "earlier stage") if stage.base and not is_fresh else None
    teachers = _teachers(teacher, earlier, root)
    unlabelled = [pick(texts, name, "text of the recipe") for name in stage.unlabelled]
    return Stage(number, stage, settings, mix, table, base, is_fresh, teachers, unlabelled)


def _preset(config: RecipeConfig) -> str:
    """The named settings that everything starts from: those told, the base's, or tiny."""
    if config.preset is None and config.base:
        return load_trained(config.base, with_weights=False).info.config.preset
    return config.preset or "tiny"


def _check_objective(stage: str, asked: ObjectiveConfig) -> None:
    try:
        make_objective(asked)
    except ConfigError as error:
        raise ConfigError(f"stage {stage}: {error}", hint=error.hint) from None


def _teachers(names: str, earlier: Mapping[str, Stage], root: Path) -> list[Stage | str]:
    """Stages before, and runs by the names of shipped bases or by their paths: from here, or under `root`."""
    found: list[Stage | str] = []
    for name in filter(None, (name.strip() for name in names.split(","))):
        known = name in shipped_bases() or Path(name).exists()
        if name not in earlier and not known and not (root / name).exists():
            raise ConfigError(
                f"the teacher {name} is no earlier stage, no shipped base and no run, here or in {root}",
                hint="--set STAGE.teacher=RUN names another",
            )
        found.append(earlier.get(name, name if known else str(root / name)))
    return found


def _sections(over: Mapping[str, Any]) -> Settings:
    """What is set for all stages."""
    return {name: value for name, value in over.items() if name in SECTIONS}


def _of_stage(over: Mapping[str, Any], name: str) -> Settings:
    """What is set for one stage as `name.section.key`."""
    found: Settings = {}
    for key, value in over.get(name, {}).items():
        if key == "teacher":
            continue
        section, _, own = key.partition(".")
        if section not in SECTIONS or not own:
            raise ConfigError(
                f"--set {name}.{key} names no setting of the stage",
                hint=f"write --set {name}.training.minutes=3",
            )
        found.setdefault(section, {})[own] = value
    return found


def _placed(settings: Settings, root: Path) -> Settings:
    data = parse(DataConfig, settings.get("data", {}))
    return {
        "data": {
            key: [place(name, root) for name in names] for key in PLACES if (names := getattr(data, key))
        }
    }


def _scaled(settings: Settings, advice: Mapping[str, Any], scale: float) -> Settings:
    """The settings with their budget times `scale`; the preset's where they name none."""
    if scale == 1:
        return settings
    own = merge({"training": advice.get("training", {})}, {"training": settings.get("training", {})})
    training: TrainingConfig = parse(TrainingConfig, own["training"])
    name = next((name for name in BUDGETS if getattr(training, name) is not None), None)
    if name is None:
        return settings
    budget = getattr(training, name) * scale
    return merge(
        settings, {"training": {name: max(1, round(budget)) if name in ("steps", "tokens") else budget}}
    )
