"""Settings: one frozen schema for presets, TOML files, `--set section.key=value` and saved runs.

A wrong setting dies here, before any data is read. Sections are merged in the order: defaults (for fine-tuning,
those of `workflows/finetune_defaults.py`), preset (its part for the job), recommendation of the base that is
fine-tuned, TOML file, flags.
"""

import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ValidationError

from headstart.errors import ConfigError, nearest, pick
from headstart.sections import BUDGETS as BUDGETS
from headstart.sections import PLACES as PLACES
from headstart.sections import BodyConfig as BodyConfig
from headstart.sections import DataConfig as DataConfig
from headstart.sections import ObjectiveConfig as ObjectiveConfig
from headstart.sections import OptimizerConfig as OptimizerConfig
from headstart.sections import ScheduleConfig as ScheduleConfig
from headstart.sections import Section as Section
from headstart.sections import TokenizerConfig as TokenizerConfig
from headstart.sections import TrainingConfig as TrainingConfig

Job = Literal["pretrain", "finetune"]


class RunConfig(Section):
    """All settings of one run."""

    job: Job
    preset: str = "tiny"
    body: BodyConfig = BodyConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    training: TrainingConfig = TrainingConfig()
    data: DataConfig = DataConfig()

    def with_(self, changes: Mapping[str, Any]) -> "RunConfig":
        """These settings with `changes` (nested by section) on top, checked again."""
        return parse(RunConfig, merge(self.model_dump(), changes))


WHOLE = ("classes",)  # settings that are tables by themselves


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """`lower` overlaid by `upper`, section by section.

    A budget, an objective, a way to tell the warm-up, or which rows and labels are meant, replaces the one below.
    """
    merged = dict(lower)
    for key, value in upper.items():
        if key not in WHOLE and isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            below = merged[key]
            if key == "training" and any(value.get(name) is not None for name in BUDGETS):
                below = {name: old for name, old in below.items() if name not in BUDGETS}
            if key == "objective" and value.get("name", below.get("name")) != below.get("name"):
                below = {}  # another objective has other settings
            if key == "schedule" and value.get("warmup") is not None:
                below = {name: old for name, old in below.items() if name != "warmup_steps"}
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def parse(schema: type[BaseModel], content: Mapping[str, Any], where: str = "") -> Any:
    """`content` checked against `schema`; the first fault becomes a sentence with a hint."""
    if not isinstance(content, Mapping):
        raise ConfigError(
            f"{where or 'a section of settings'} is {content!r}, and should be a table of settings",
            hint="write its settings as lines KEY = VALUE under its name in brackets",
        )
    try:
        return schema.model_validate(dict(content))
    except ValidationError as error:
        faults = error.errors()  # a misspelt key first: what it was meant to be is missing because of it
        fault = next((each for each in faults if each["type"] == "extra_forbidden"), faults[0])
        name = ".".join(str(part) for part in fault["loc"])
        inside = f" in {where}" if where else ""
        if fault["type"] == "extra_forbidden":
            section: Any = schema
            for part in fault["loc"][:-1]:
                is_place = isinstance(part, int)  # in a list
                section = get_args(section)[0] if is_place else section.model_fields[part].annotation
            hint = nearest(str(fault["loc"][-1]), section.model_fields)
            raise ConfigError(f"no setting is called {name!r}{inside}", hint=hint) from None
        if fault["type"] == "missing":
            key = fault["loc"][-1]
            raise ConfigError(
                f"{name} is missing{inside}", hint=f'write {key} = "…"; the documentation lists every setting'
            ) from None
        raise ConfigError(
            f"setting {name}{inside} cannot be {fault['input']!r}: {fault['msg'].lower()}",
            hint="docs/reference/settings.md lists every setting with its values",
        ) from None


def preset_names() -> list[str]:
    """The presets that come with headstart."""
    folder = resources.files("headstart.presets")
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load_preset(name: str) -> dict[str, Any]:
    """A preset's raw sections: body, tokenizer, and a part for each job."""
    table = {name: name for name in preset_names()}
    text = (
        resources.files("headstart.presets")
        .joinpath(f"{pick(table, name, 'preset')}.toml")
        .read_text("utf-8")
    )
    return tomllib.loads(text)


def load_toml(path: Path) -> dict[str, Any]:
    """A user's settings file."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no settings file at {path}", hint="check the path given to --config") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="name a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is no readable TOML: {error}", hint="mend the file at that place"
        ) from None


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """`section.key=value` words as nested settings; values are read as TOML, bare words as text."""
    nested: dict[str, Any] = {}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (sign and dot and key):
            raise ConfigError(
                f"--set {assignment!r} is not section.key=value", hint="for example --set body.width=256"
            )
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value
        nested.setdefault(section, {})[key] = parsed
    return nested


def resolve(
    job: Job, preset: str, *overlays: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> RunConfig:
    """The settings of one run: `defaults`, then the preset's part for `job`, then each overlay."""
    raw = load_preset(preset)
    shared = {
        key: value for key, value in raw.items() if key not in ("pretrain", "finetune", "title", "note")
    }
    content = merge({"job": job, "preset": preset, **(defaults or {})}, merge(shared, raw.get(job, {})))
    for overlay in overlays:
        content = merge(content, overlay)
    return parse(RunConfig, content)
