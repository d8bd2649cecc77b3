"""Continued pretraining: which settings a base brings, and which a small corpus needs.

A few hundred to a few thousand texts adapt a base to their domain. A preset's settings are made for corpora of many
millions of tokens; on a small one they are a handful of steps. Evidence: benchmarks/results/finetune-defaults.md.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from headstart.config import DataConfig, ModelConfig, load_preset
from headstart.data.documents import MixtureComponent
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, DataError
from headstart.inference.loaded_model import LoadedModel
from headstart.workflows.tokenizers import check_tokenizer

SMALL_CORPUS = 5_000_000  # tokens up to which a corpus is one to adapt to
COUNTED = 30_000_000  # characters after which a corpus counts as large, and no more of it is counted
SAMPLE = 500  # documents that are tokenized to know how many tokens a character makes
TOKENS_READ = 2_000_000  # of an adaptation, repeats counted
MIN_EPOCHS, MAX_EPOCHS = 3, 40
BLOCK_SIZE, BATCH_TOKENS = 128, 4096
MIN_STEPS = 100
LEARNING_RATE = 5e-4  # of a model 256 wide; falls with the square of the width


def count_tokens(mix: Sequence[MixtureComponent], config: DataConfig, tokenizer: Tokenizer) -> int | None:
    """About how many tokens the corpora hold; None for a large or an unreadable mix, whose settings are the preset's."""
    characters = 0.0
    sample: list[str] = []
    try:
        for portion in mix:
            documents = portion.open(config)
            sample += islice(iter(documents), SAMPLE)
            for text in documents:
                characters += portion.weight * len(text)
                if characters > COUNTED:
                    return None
    except DataError:
        return None  # it is told where the corpus is read
    ratio = sum(map(len, tokenizer.encode(sample))) / max(1, sum(map(len, sample)))
    tokens = round(ratio * characters)
    return tokens if 0 < tokens <= SMALL_CORPUS else None


def adaptation_defaults(tokens: int, model: ModelConfig) -> dict[str, dict[str, Any]]:
    """Settings by section for continued pretraining on a small corpus of so many tokens.

    The weights that predict held-out text best are kept, so an overlong run does no harm.
    """
    batch_tokens = min(
        BATCH_TOKENS, max(512, tokens // 8)
    )  # a small corpus gets small batches, and so more steps
    wanted = min(MAX_EPOCHS, max(MIN_EPOCHS, TOKENS_READ / tokens))
    floor = math.ceil(MIN_STEPS * batch_tokens / tokens)
    rate = min(1e-3, LEARNING_RATE * (256 / model.hidden_size) ** 2)
    return {
        "optimizer": {"name": "adamw", "learning_rate": float(f"{rate:.2g}"), "weight_decay": 0.01},
        "lr_schedule": {"name": "linear", "warmup_ratio": 0.1},
        "training": {
            "max_epochs": float(min(max(math.ceil(wanted), floor), 10 * MAX_EPOCHS)),
            "max_length": min(BLOCK_SIZE, model.max_position_embeddings),
            "tokens_per_batch": batch_tokens,
            "checkpoint_selection": "best",
        },
    }


def continued_settings(
    trained: LoadedModel, preset: str | None, settings: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The preset and settings of a run from a base, whose shape and tokenizer are fixed; dropout alone is free."""
    own = trained.info.config
    name = preset or own.preset
    raw = load_preset(name)
    shape = raw.get("model", {}) if preset else {}
    wanted = {**shape, **raw.get("pretrain", {}).get("model", {}), **settings.get("model", {})}
    for key, value in wanted.items():
        if "dropout" not in key and getattr(own.model, key, value) not in (value, "auto") and value != "auto":
            raise ConfigError(
                f"model.{key} of {trained.name} is {getattr(own.model, key)}, not {value}",
                hint="a base's shape is fixed: leave that setting and --preset out, or pretrain from scratch",
            )
    # The dropout of fine-tuning is no part of the shape, and does not go on into pretraining.
    is_tuned = own.job == "finetune"
    kept = {key: value for key, value in own.model if not (is_tuned and "dropout" in key)}
    told = {key: value for key, value in wanted.items() if value != "auto"}
    return name, {**taught_settings(trained, settings), "model": {**kept, **told}}


def taught_settings(trained: LoadedModel, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that reads with another's tokenizer, which is fixed."""
    own = trained.info.config.tokenizer
    asked = dict(settings.get("tokenizer", {}))
    if "type" in asked:
        check_tokenizer(trained, asked.pop("type"))
    for key, value in asked.items():
        if getattr(own, key, value) != value:
            raise ConfigError(
                f"tokenizer.{key} of {trained.name} is {getattr(own, key)}, not {value}",
                hint="a base or a teacher brings its own tokenizer; pretrain from scratch to change it",
            )
    return {**settings, "tokenizer": {**own.model_dump(), **asked}}
