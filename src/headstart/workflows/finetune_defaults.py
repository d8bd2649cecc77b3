"""The settings of a fine-tuning run, with defaults that follow the data.

A rule sets what neither the user, the preset nor the base's own recommendation sets. It knows the number of training
texts and classes, their length in tokens, the size of the model, and how the head starts. A preset that sets a
fine-tuning budget (`lab`, `bert`) is a complete recipe, and the rule does not apply. Evidence for every constant:
benchmarks/results/finetune-defaults.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headstart.config import BUDGETS, ModelConfig, RunConfig, fit_length, load_preset, resolve
from headstart.data.datasets import Dataset
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError
from headstart.inference.loaded_model import LoadedModel
from headstart.objectives import make_objective
from headstart.objectives.base import Objective, with_backbone

HeadStart = Literal["reused-head", "new-head", "scratch"]

MAX_LENGTH = 512  # tokens read of a text at most, where the model has positions for them
BATCH_SIZE = 16  # texts; small batches give a small set enough optimizer steps
LARGE_SET = 20_000  # texts from which a batch holds twice as many
MIN_STEPS = 200  # optimizer steps that any run gets
UPDATES_PER_CLASS = 400  # texts of a class that a run reads, repeats counted
TEXTS_READ = 24_000  # texts that a run reads, repeats counted: 15 epochs over 1,600
TOKENS_READ = 2_400_000  # tokens that a run reads at most beyond MIN_EPOCHS: long texts need fewer epochs
MIN_EPOCHS, MAX_EPOCHS = 3, 20
MAX_EPOCHS_MANY_CLASSES = 30  # for sets with few texts per class
EVALUATION_SHARE = 0.25  # of the cost of training that evaluations may take
MIN_EVALUATIONS = 4
LEARNING_RATE = 4e-4  # of 4 pretrained layers 256 wide; falls with the square of the width and the root of the depth
SCRATCH_LEARNING_RATE = 5e-4  # of a model 256 wide with random weights; falls with the width
# A reused head already knows the classes: more or faster training makes it forget them.
REUSED_HEAD_EPOCHS, REUSED_HEAD_MIN_STEPS, REUSED_HEAD_RATE = 3, 10, 0.125
TOKENS_PER_WORD = 1.3  # of a tokenizer that is not trained yet
SAMPLE = 2_000  # texts that are tokenized to estimate the mean length


@dataclass(frozen=True)
class DatasetFacts:
    """What the rule knows about a labelled training set."""

    texts: int
    classes: tuple[str, ...]
    mean_tokens: float  # of a training text, before truncation
    valid_texts: int = 0

    @staticmethod
    def of(dataset: Dataset, tokenizer: Tokenizer | None, extra_texts: int = 0) -> "DatasetFacts":
        """The facts of a dataset; without a tokenizer its words are counted."""
        texts = dataset.texts("train")
        sample = texts[:: max(1, len(texts) // SAMPLE)]
        if tokenizer is None:
            lengths = [TOKENS_PER_WORD * len(text.split()) + 2 for text in sample]
        else:
            lengths = [len(ids) + 2.0 for ids in tokenizer.encode(sample)]
        mean = sum(lengths) / max(1, len(lengths))
        valid = len(dataset.splits.get("valid", []))
        return DatasetFacts(len(texts) + extra_texts, tuple(dataset.classes), mean, valid)


REFERENCE = DatasetFacts(1600, ("negative", "positive"), 128.0)  # until the data is read


def finetune_defaults(data: DatasetFacts, model: ModelConfig, start: HeadStart) -> dict[str, dict[str, Any]]:
    """Settings by section for fine-tuning a model of this shape on such a dataset."""
    length = min(MAX_LENGTH, model.max_position_embeddings)
    batch_size = BATCH_SIZE * (2 if data.texts >= LARGE_SET or start == "reused-head" else 1)
    steps_per_epoch = math.ceil(data.texts / batch_size)
    epochs = _epochs(data, steps_per_epoch, length, start)
    # Evaluations cost a share of training; a forward pass costs a third of a training step.
    affordable = 3 * EVALUATION_SHARE * epochs * data.texts / max(1, data.valid_texts)
    evaluations = max(MIN_EVALUATIONS, affordable)
    return {
        "optimizer": {"learning_rate": _learning_rate(model, start), "weight_decay": 0.01},
        "lr_schedule": {"name": "linear", "warmup_ratio": 0.1 if start == "reused-head" else 0.2},
        "data": {"truncation_side": "both"},
        "training": {
            "max_epochs": float(epochs),
            "batch_size": batch_size,
            "tokens_per_batch": batch_size * MAX_LENGTH,
            "max_length": length,
            "eval_steps": None if evaluations >= epochs else math.ceil(epochs * steps_per_epoch / evaluations),
            "linear_probe": start == "new-head",
        },
    }


def _epochs(data: DatasetFacts, steps_per_epoch: int, length: int, start: HeadStart) -> int:
    """Passes over the data: enough texts read in all and per class, bounded by tokens, never below the floor of steps."""
    if start == "reused-head":
        return max(REUSED_HEAD_EPOCHS, math.ceil(REUSED_HEAD_MIN_STEPS / steps_per_epoch))
    per_class = UPDATES_PER_CLASS * len(data.classes) / data.texts
    wanted = min(MAX_EPOCHS, TEXTS_READ / data.texts)
    wanted = max(wanted, min(MAX_EPOCHS_MANY_CLASSES, per_class))
    affordable = TOKENS_READ / (data.texts * min(data.mean_tokens, length))
    floor = math.ceil(MIN_STEPS / steps_per_epoch)
    return max(MIN_EPOCHS, floor, min(math.ceil(wanted), math.floor(affordable)))


def _learning_rate(model: ModelConfig, start: HeadStart) -> float:
    """The peak learning rate: lower for wide models and for a head that already knows the classes."""
    if start == "scratch":
        rate = SCRATCH_LEARNING_RATE * 256 / model.hidden_size
    else:
        share = REUSED_HEAD_RATE if start == "reused-head" else 1.0
        rate = LEARNING_RATE * share * (256 / model.hidden_size) ** 2 * math.sqrt(4 / model.num_layers)
    return float(f"{min(max(rate, 1e-5), 1e-3):.2g}")


def has_own_budget(preset: str) -> bool:
    """Whether a preset sets a fine-tuning budget and is a complete recipe."""
    training = load_preset(preset).get("finetune", {}).get("training", {})
    return any(name in training for name in BUDGETS)


def fits_recommendation(recommended: Mapping[str, Mapping[str, Any]], data: DatasetFacts, starts_alike: bool) -> bool:
    """Whether a base's recommended settings hold for this dataset.

    They were measured with the base's own head if it has one (`starts_alike`: this run reuses it too, or there is
    none), and on texts about as long as the recommended length.
    """
    length = recommended.get("training", {}).get("max_length")
    return starts_alike and (length is None or data.mean_tokens >= length / 4)


def describe(config: RunConfig, given: Mapping[str, Any]) -> str:
    """The chosen settings in one line, without those that the user set."""
    training, unit = config.training, "blocks" if config.job == "pretrain" else "texts"
    chosen = {
        ("training", "max_epochs"): training.max_epochs and f"{training.max_epochs:g} epochs",
        ("training", "batch_size"): training.batch_size and f"batches of {training.batch_size} texts",
        ("optimizer", "learning_rate"): f"learning rate {config.optimizer.learning_rate:g}",
        ("training", "max_length"): f"{unit} of up to {training.max_length} tokens",
        ("training", "linear_probe"): training.linear_probe and "new head trained first",
    }
    return ", ".join(str(words) for (part, key), words in chosen.items() if words and key not in given.get(part, {}))


def explain_settings(
    base: LoadedModel | None, facts: DatasetFacts, config: RunConfig, objective: Objective, given: Mapping[str, Any]
) -> list[str]:
    """A line on the settings that were chosen and why; none where the preset or the user chose all."""
    words = describe(config, given)
    if base is not None and uses_recommendation(base, facts, config, objective, given):
        return [f"settings recommended by {base.name}: {words}"]
    if has_own_budget(config.preset) or not words:
        return []
    texts = f"{facts.texts:,} texts in {len(facts.classes)} classes, {facts.mean_tokens:.0f} tokens a text"
    return [f"settings for {texts}: {words}"]


# --- The settings of a run ------------------------------------------------------------------------------------------


def finetune_config(
    base: LoadedModel | None,
    preset: str | None,
    settings: Mapping[str, Any],
    *,
    data: DatasetFacts | None = None,
    is_control: bool = False,
) -> tuple[RunConfig, Objective]:
    """The settings of a run and its objective. A base brings its own body and tokenizer; only dropout may change.

    A pooler may be added, with new weights. Defaults follow the `data` (a reference set until it is read). A base's
    recommendation overrides them where it fits the data. A control has the base's shape and random weights.
    """
    name = preset or ("tiny" if base is None else base.info.config.preset)
    recommended: Mapping[str, Any] = {} if base is None or is_control else base.info.finetune_defaults
    try:
        config, objective = _resolve(base, name, recommended, settings)
    except ConfigError:  # the user's settings win over a recommendation that excludes them
        recommended = {section: content for section, content in recommended.items() if section != "training"}
        config, objective = _resolve(base, name, recommended, settings)
    facts = data or REFERENCE
    classes = facts.classes if data is not None or base is None else base.info.classes
    reuses_head = base is not None and not is_control and base.can_reuse_head(config, objective, classes)
    is_alike = reuses_head or (base is not None and not base.info.classes)
    if data is not None and not fits_recommendation(recommended, data, is_alike):
        recommended = {}
    defaults: dict[str, Any] = {}
    if not has_own_budget(name):
        start: HeadStart = "reused-head" if reuses_head else "new-head"
        defaults = finetune_defaults(facts, config.model, "scratch" if base is None or is_control else start)
        fixed = {**recommended.get("training", {}), **settings.get("training", {})}
        if any(key in fixed for key in (*BUDGETS, "eval_subset_size")):
            defaults["training"]["eval_steps"] = None  # its spacing is for the rule's own budget
    config, objective = _resolve(base, name, recommended, settings, defaults)
    reset, layers = config.training.reinit_top_layers, config.model.num_layers
    if reset > layers:
        problem = f"training.reinit_top_layers {reset} is more than the {layers} blocks there are"
        raise ConfigError(problem, hint=f"set it to {layers} or less; one or two is usual")
    return fit_length(config, settings), objective


def _resolve(
    base: LoadedModel | None,
    preset: str,
    recommended: Mapping[str, Any],
    settings: Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
) -> tuple[RunConfig, Objective]:
    if base is not None:
        base.check_tokenizer(settings.get("tokenizer", {}).get("type"))
        usual = load_preset(preset).get("finetune", {}).get("model", {})
        body = base.change_model(
            {**usual, **recommended.get("model", {}), **settings.get("model", {})},
            lambda key, value: "dropout" in key or (key == "pooler" and value is True),
        )
        settings = {**settings, "model": body, "tokenizer": base.info.config.tokenizer.model_dump()}
    config = resolve("finetune", preset, recommended, settings, defaults=defaults)
    objective = make_objective(config.objective)
    if objective.reads == "translations":
        hint = "add --pair SOURCE-TARGET, such as en-de"
        raise ConfigError(f"{objective.name} needs to know the languages of DATA", hint=hint)
    if objective.reads != "texts":
        raise ConfigError(f"{objective.name} reads no labels, so it cannot fine-tune", hint="use `headstart pretrain`")
    return with_backbone(config, objective), objective


def uses_recommendation(
    base: LoadedModel, facts: DatasetFacts, config: RunConfig, objective: Objective, given: Mapping[str, Any]
) -> bool:
    """Whether a run uses the settings that its base recommends, or those of them that the user does not set."""
    recommended = base.info.finetune_defaults
    is_alike = not base.info.classes or base.can_reuse_head(config, objective, facts.classes)
    is_left = any(set(content) - set(given.get(section, {})) for section, content in recommended.items())
    return is_left and fits_recommendation(recommended, facts, is_alike)
