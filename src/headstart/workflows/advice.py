"""A base's advice: the settings with which whoever made it found it best fine-tuned.

They stand over the preset's and under whatever the user says.
"""

from collections.abc import Mapping
from typing import Any

from headstart.config import RunConfig, load_preset, resolve
from headstart.errors import ConfigError, pick
from headstart.objectives.table import make_objective
from headstart.sections import FREE
from headstart.workflows.pretrain import fit_length

SECTIONS = ("body", "data", "objective", "optimizer", "schedule", "training")
# What a user asks for -> what of the advice gives way, because the two exclude each other.
GIVES_WAY = {
    "freeze": ("unfreeze_every", "reset_layers"),
    "unfreeze_every": ("freeze", "reset_layers"),
    "reset_layers": ("freeze", "unfreeze_every"),
    "sharded": ("unfreeze_every",),
    "minutes": ("average",),  # of the last epochs, which are known only for other budgets
    "tokens": ("average",),
}

Advice = Mapping[str, Mapping[str, Any]]


def may_change(key: str, value: Any) -> bool:
    """Whether fine-tuning may change this setting of a base's body: dropout, or a pooler that is added."""
    return "dropout" in key or (key == "pooler" and value is True)


def check_advice(advice: Mapping[str, Any], preset: str, body: Mapping[str, Any], is_whole: bool) -> None:
    """Refuse advice that no fine-tuning of the base could follow.

    `body` is what is known of the base's shape; only if it `is_whole` can it be held against it.
    """
    try:
        for section, content in advice.items():
            pick(dict.fromkeys(SECTIONS), section, "section of advice")
            if not isinstance(content, Mapping):
                raise ConfigError(f"{section} is no table of settings", hint=f"write [finetune.{section}]")
        _check_keys(advice)
        fixed = {"body": {**body, **load_preset(preset).get("finetune", {}).get("body", {})}}
        config = resolve("finetune", preset, fixed, advice)
        objective = make_objective(config.objective)
        if objective.reads != "texts":
            raise ConfigError(f"{objective.name} reads no labels", hint="leave objective.name out")
        if is_whole:
            config = config.with_({"body": objective.settle(config.body).model_dump()})
            fit_length(config, advice)
            check_reset(config)
    except ConfigError as error:
        raise ConfigError(f"the recipe's [finetune]: {error}", hint=error.hint) from None


def _check_keys(advice: Advice) -> None:
    for key, value in advice.get("body", {}).items():
        if not may_change(key, value):
            raise ConfigError(
                f"body.{key} is the base's own, and fine-tuning does not change it",
                hint="advise body.dropout, body.attention_dropout, or body.pooler=true",
            )
    for key in advice.get("data", {}):
        if key != "keep":
            raise ConfigError(
                f"data.{key} is about each user's own data",
                hint="advise data.keep: which end of a long text is read",
            )
    for key in advice.get("training", {}):
        if key in (*FREE, "seed"):
            raise ConfigError(
                f"training.{key} is for each user to choose", hint="advise what decides how well it learns"
            )


def check_reset(config: RunConfig) -> None:
    """Refuse more fresh blocks than there are."""
    if config.training.reset_layers > config.body.layers:
        raise ConfigError(
            f"training.reset_layers {config.training.reset_layers} is more than the {config.body.layers} blocks there are",
            hint=f"set it to {config.body.layers} or less; one or two is usual",
        )


def advice_under(advice: Advice, settings: Mapping[str, Any]) -> Advice:
    """The advice without what excludes the user's own settings."""
    asked = settings.get("training", {})
    gone = {key for name, keys in GIVES_WAY.items() if asked.get(name) for key in keys}
    training = {
        key: value
        for key, value in advice.get("training", {}).items()
        if key not in gone or (key == "average" and value != "last")
    }
    return {**advice, "training": training} if gone else advice


def followed(advice: Advice, settings: Mapping[str, Any], config: RunConfig) -> str:
    """What of the advice a run with this `config` follows, in words; nothing when all of it is overruled."""
    found = [
        f"{section}.{key}={value}"
        for section, content in advice.items()
        for key, value in content.items()
        if key not in settings.get(section, {}) and getattr(getattr(config, section), key, None) == value
    ]
    return ", ".join(found)
