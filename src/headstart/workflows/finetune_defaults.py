"""Fine-tuning settings that follow the data: a rule over what is known before training starts.

The rule fills in what neither the user, the preset nor the base's own recommendation sets. It knows the number of
training texts and classes, their length in tokens, the size of the model, and how the head starts. A preset that sets
a fine-tuning budget (`lab`, `bert`) is a complete recipe, and the rule stays out. Evidence for every constant:
benchmarks/results/finetune-defaults.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headstart.config import BUDGETS, ModelConfig, RunConfig, load_preset
from headstart.data.dataset import Dataset
from headstart.data.tokenizer import Tokenizer

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
LEARNING_RATE = (
    4e-4  # of 4 pretrained layers 256 wide; falls with the square of the width and the root of the depth
)
SCRATCH_LEARNING_RATE = 5e-4  # of a model 256 wide with random weights; falls with the width
# A reused head already knows the classes: more or faster training makes it forget what the base learnt of them.
REUSED_HEAD_EPOCHS, REUSED_HEAD_MIN_STEPS, REUSED_HEAD_RATE = 3, 10, 0.125
TOKENS_PER_WORD = 1.3  # of a tokenizer that is yet to be trained
SAMPLE = 2_000  # texts that are tokenized to estimate the mean length


@dataclass(frozen=True)
class DatasetFacts:
    """What the rule knows of a labelled training set."""

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


REFERENCE = DatasetFacts(1600, ("negative", "positive"), 128.0)  # stands in until the data is read


def finetune_defaults(data: DatasetFacts, model: ModelConfig, start: HeadStart) -> dict[str, dict[str, Any]]:
    """Settings by section for fine-tuning a model of this shape on such a dataset."""
    length = min(MAX_LENGTH, model.max_position_embeddings)
    batch_size = BATCH_SIZE * (2 if data.texts >= LARGE_SET or start == "reused-head" else 1)
    epochs = _epochs(data, batch_size, length, start)
    return {
        "optimizer": {"learning_rate": _learning_rate(model, start), "weight_decay": 0.01},
        "lr_schedule": {"name": "linear", "warmup_ratio": 0.1 if start == "reused-head" else 0.2},
        "data": {"truncation_side": "both"},
        "training": {
            "max_epochs": float(epochs),
            "batch_size": batch_size,
            "tokens_per_batch": batch_size * MAX_LENGTH,
            "max_length": length,
            "eval_steps": _steps_between_evaluations(data, epochs, batch_size),
            "linear_probe": start == "new-head",
        },
    }


def _epochs(data: DatasetFacts, batch_size: int, length: int, start: HeadStart) -> int:
    """Passes over the data: enough texts read in all and per class, bounded by tokens, never below the floor of steps."""
    steps_per_epoch = math.ceil(data.texts / batch_size)
    if start == "reused-head":
        return max(REUSED_HEAD_EPOCHS, math.ceil(REUSED_HEAD_MIN_STEPS / steps_per_epoch))
    per_class = UPDATES_PER_CLASS * len(data.classes) / data.texts
    wanted = min(MAX_EPOCHS, TEXTS_READ / data.texts)
    wanted = max(wanted, min(MAX_EPOCHS_MANY_CLASSES, per_class))
    affordable = TOKENS_READ / (data.texts * min(data.mean_tokens, length))
    floor = math.ceil(MIN_STEPS / steps_per_epoch)
    return max(MIN_EPOCHS, floor, min(math.ceil(wanted), math.floor(affordable)))


def _steps_between_evaluations(data: DatasetFacts, epochs: int, batch_size: int) -> int | None:
    """Steps between evaluations where one after each epoch would cost too much beside training; else None.

    A forward pass costs a third of a training step.
    """
    affordable = 3 * EVALUATION_SHARE * epochs * data.texts / max(1, data.valid_texts)
    evaluations = max(MIN_EVALUATIONS, affordable)
    return (
        None
        if evaluations >= epochs
        else math.ceil(epochs * math.ceil(data.texts / batch_size) / evaluations)
    )


def _learning_rate(model: ModelConfig, start: HeadStart) -> float:
    """The peak learning rate: wide models bear less, and one whose head already knows the classes needs less."""
    if start == "scratch":
        rate = SCRATCH_LEARNING_RATE * 256 / model.hidden_size
    else:
        share = REUSED_HEAD_RATE if start == "reused-head" else 1.0
        rate = LEARNING_RATE * share * (256 / model.hidden_size) ** 2 * math.sqrt(4 / model.num_layers)
    return float(f"{min(max(rate, 1e-5), 1e-3):.2g}")


def has_own_budget(preset: str) -> bool:
    """Whether a preset sets a fine-tuning budget, and so is a complete recipe."""
    training = load_preset(preset).get("finetune", {}).get("training", {})
    return any(name in training for name in BUDGETS)


def fits_recommendation(
    recommended: Mapping[str, Mapping[str, Any]], data: DatasetFacts, starts_alike: bool
) -> bool:
    """Whether a base's recommended settings hold for this dataset.

    They were measured with the base's own head if it has one (`starts_alike`: this run reuses it too, or there is
    none), and on texts about as long as the recommended length.
    """
    length = recommended.get("training", {}).get("max_length")
    return starts_alike and (length is None or data.mean_tokens >= length / 4)


def describe(config: RunConfig, given: Mapping[str, Any]) -> str:
    """The chosen settings in one line, without those that the user gave."""
    training, is_pretraining = config.training, config.job == "pretrain"
    chosen = {
        ("training", "max_epochs"): None
        if training.max_epochs is None
        else f"{training.max_epochs:g} epochs",
        ("training", "batch_size"): None
        if training.batch_size is None
        else f"batches of {training.batch_size} texts",
        ("optimizer", "learning_rate"): f"learning rate {config.optimizer.learning_rate:g}",
        (
            "training",
            "max_length",
        ): f"{'blocks' if is_pretraining else 'texts'} of up to {training.max_length} tokens",
        ("training", "linear_probe"): "new head trained first" if training.linear_probe else None,
    }
    return ", ".join(
        words for (section, key), words in chosen.items() if words and key not in given.get(section, {})
    )
