"""Pretraining that goes on from a base: which settings it brings."""

from collections.abc import Mapping
from typing import Any

from headstart.config import load_preset
from headstart.errors import ConfigError
from headstart.workflows.run import Trained
from headstart.workflows.tokenizers import check_tokenizer


def continued_settings(
    trained: Trained, preset: str | None, settings: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The preset and settings of a run from a base, whose shape and tokenizer are fixed; dropout alone is free."""
    own = trained.info.config
    name = preset or own.preset
    raw = load_preset(name)
    shape = raw.get("body", {}) if preset else {}
    wanted = {**shape, **raw.get("pretrain", {}).get("body", {}), **settings.get("body", {})}
    for key, value in wanted.items():
        if "dropout" not in key and getattr(own.body, key, value) not in (value, "auto") and value != "auto":
            raise ConfigError(
                f"body.{key} of {trained.name} is {getattr(own.body, key)}, not {value}",
                hint="a base's shape is fixed: leave that setting and --preset out, or pretrain from scratch",
            )
    # The dropout of fine-tuning is no part of the shape, and does not go on into pretraining.
    is_tuned = own.job == "finetune"
    kept = {key: value for key, value in own.body if not (is_tuned and "dropout" in key)}
    told = {key: value for key, value in wanted.items() if value != "auto"}
    return name, {**taught_settings(trained, settings), "body": {**kept, **told}}


def taught_settings(trained: Trained, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that reads with another's tokenizer, which is fixed."""
    own = trained.info.config.tokenizer
    asked = dict(settings.get("tokenizer", {}))
    if "kind" in asked:
        check_tokenizer(trained, asked.pop("kind"))
    for key, value in asked.items():
        if getattr(own, key, value) != value:
            raise ConfigError(
                f"tokenizer.{key} of {trained.name} is {getattr(own, key)}, not {value}",
                hint="a base or a teacher brings its own tokenizer; pretrain from scratch to change it",
            )
    return {**settings, "tokenizer": {**own.model_dump(), **asked}}
