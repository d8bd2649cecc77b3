"""The only module of these tests that uses names of the project: functions, settings, metrics.

A rename in the project changes this file and nothing else here. The keys and values of the fixtures stay as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np

from headstart.config import resolve
from headstart.data.datasets import Example, encode_rows
from headstart.inference.embed import text_vectors
from headstart.inference.loaded_model import load_model
from headstart.inference.translate import translate
from headstart.objectives import OBJECTIVES, make_objective
from headstart.planning.parameters import parameter_table
from headstart.training import evaluate, trainer
from headstart.training.callbacks import Evaluated, Event, StepDone
from headstart.training.runtime import start_runtime
from headstart.workflows.finetune import finetune
from headstart.workflows.pretrain import pretrain

Settings = dict[str, dict[str, Any]]
CACHE_VARIABLE = "HEADSTART_CACHE"  # the environment variable that names the cache directory

# --- shipped models ---------------------------------------------------------------------------------------------------

CLASSIFIERS = {"en-tiny": "en", "en-small": "en", "fr-tiny": "fr", "fr-small": "fr"}  # name: language of its texts
TRANSLATORS = ("en-de-captions", "en-fr-captions")
CPU_FLOAT32: Settings = {"training": {"device": "cpu", "precision": "float32"}}


def class_logits(classifier: str, texts: Sequence[str]) -> np.ndarray:
    """The logit of every class (N, C) in float32."""
    trained = load_model(classifier)
    config = trained.info.config.with_(CPU_FLOAT32)
    runtime = start_runtime(config.training)
    examples = [Example(text) for text in texts]
    rows = encode_rows(trained.tokenizer, examples, None, config.training.max_length, config.data.truncation_side)
    model = trained.model().to(runtime.device)
    return evaluate.class_logits(model, trained.objective, rows, trained.tokenizer, runtime, runtime.eval_batch_tokens)


def text_embeddings(classifier: str, texts: Sequence[str]) -> np.ndarray:
    """One embedding per text (N, D) in float32, with the project's default pooling."""
    return text_vectors(classifier, texts, settings=CPU_FLOAT32)


def translations(translator: str, sentences: Sequence[str], beam_size: int) -> list[tuple[str, float]]:
    """The best translation of every sentence with its score: log-probability over length penalty."""
    found = translate(translator, sentences, beam=beam_size, length_penalty=0.6, settings=CPU_FLOAT32)
    return [(each.candidates[0].text, each.candidates[0].score) for each in found]


# --- parameter counts -------------------------------------------------------------------------------------------------

COURSE_LAB = {"language_model": "pretrain", "classifier": "finetune"}  # fixture key: job of the preset `lab`
BLOCK_NAMES = {  # of the planning code: of the fixture
    "token embedding": "token_embedding",
    "attention qkv": "attention_qkv_projection",
    "attention out": "attention_output_projection",
    "feed-forward up": "feed_forward_input_projection",
    "feed-forward down": "feed_forward_output_projection",
    "two norms": "layer_norms",
    "head lm": "lm_head",
    "head class": "classification_head",
}


def parameter_counts(job: str, num_classes: int = 2) -> dict[str, int]:
    """Parameters by block, summed over the layers, of the course lab's model for one job."""
    config = resolve(job, "lab")
    objective = make_objective(config.objective)
    model, vocab_size = objective.resolve_backbone(config.model), config.tokenizer.vocab_size
    heads = objective.heads(model, vocab_size, num_classes)
    return {BLOCK_NAMES[block.name]: block.total for block in parameter_table(model, vocab_size, heads).blocks}


# --- training runs ----------------------------------------------------------------------------------------------------

# Every setting that changes a loss is explicit, so that defaults and presets of the project may change.
ROTARY: dict[str, Any] = {
    "architecture": "bidirectional",
    "num_layers": 2,
    "num_decoder_layers": None,
    "hidden_size": 24,
    "num_heads": 2,
    "intermediate_size": 40,
    "position_embedding": "rotary",
    "norm": "rms",
    "norm_first": True,
    "activation": "swiglu",
    "bias": False,
    "qk_norm": False,
    "tie_embeddings": True,
    "scale_embedding": False,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "max_position_embeddings": 64,
    "token_type_embeddings": False,
    "embedding_norm": False,
    "pooler": False,
    "norm_eps": 1e-5,
    "kernel_size": 3,
    "dilation": True,
    "rope_theta": 10000.0,
    "num_kv_heads": None,
    "mlm_head_transform": False,
    "head_bias": None,
    "norm_first_layer": True,
    "sliding_window": None,
    "global_attn_every_n_layers": 3,
    "local_rope_theta": 10000.0,
}
BERT = {
    **ROTARY,
    "position_embedding": "learned",
    "norm": "layer",
    "norm_first": False,
    "activation": "gelu",
    "bias": True,
    "attention_dropout": 0.1,
    "token_type_embeddings": True,
    "embedding_norm": True,
    "pooler": True,
    "mlm_head_transform": True,
}
VASWANI = {
    **ROTARY,
    "architecture": "encoder-decoder",
    "position_embedding": "sinusoidal",
    "norm": "layer",
    "norm_first": False,
    "activation": "relu",
    "bias": True,
    "scale_embedding": True,
}
MODERN = {  # the remaining options of a Transformer layer
    **ROTARY,
    "activation": "geglu",
    "qk_norm": True,
    "tie_embeddings": False,
    "num_kv_heads": 1,
    "norm_first_layer": False,
    "sliding_window": 4,
    "global_attn_every_n_layers": 2,
    "local_rope_theta": 1000.0,
}

COMMON: Settings = {
    "model": ROTARY,
    "tokenizer": {"type": "bpe", "vocab_size": 300, "lowercase": False, "shared_vocab": True},
    "optimizer": {
        "name": "adamw",
        "learning_rate": 5e-3,
        "weight_decay": 0.01,
        "beta1": 0.9,
        "beta2": 0.98,
        "eps": 1e-8,
        "momentum": 0.95,
        "max_grad_norm": 1.0,
        "layerwise_lr_decay": 1.0,
        "head_lr_multiplier": 1.0,
    },
    "lr_schedule": {
        "name": "cosine",
        "warmup_ratio": 0.2,
        "warmup_steps": None,
        "decay_ratio": 0.2,
        "min_lr_ratio": 0.0,
    },
    "training": {
        "max_steps": 6,
        "max_length": 32,
        "tokens_per_batch": 256,
        "batch_size": None,
        "gradient_accumulation_steps": 1,
        "seed": 7,
        "device": "cpu",
        "precision": "float32",
        "compile": False,
        "fsdp": False,
        "deterministic": False,
        "eval_steps": 1,
        "eval_subset_size": None,
        "save_steps": None,
        "save_minutes": None,
        "checkpoint_selection": "last",
        "freeze_backbone": False,
        "gradual_unfreezing_epochs": None,
        "head_init": "reuse",
        "linear_probe": False,
        "keep_winner": False,
        "reinit_top_layers": 0,
        "bpe_dropout": 0.0,
        "token_cutoff": 0.0,
        "weight_averaging": "none",
        "averaging_epochs": 3.0,
        "distillation_alpha": 0.5,
        "distillation_temperature": 2.0,
    },
    "data": {
        "train_size": None,
        "truncation_side": "both",
        "document_separator": "line",
        "deduplicate": False,
        "max_length_ratio": 9.0,
    },
}

MASKING = {"mask_rate": 0.2, "mask_token_prob": 0.8, "random_token_prob": 0.1, "masking": "token"}
CLASSIFICATION = {
    "name": "classify",
    "pooling": "mean",
    "head_hidden_layer": "dense",
    "label_smoothing": 0.0,
    "head_dropout": 0.1,
    "r_drop_alpha": 0.0,
}
TRANSLATION = {"name": "translate", "label_smoothing": 0.1, "metric_for_best_model": "loss", "r_drop_alpha": 0.0}

Workflow = Literal["pretrain", "finetune", "finetune --pair"]


@dataclass(frozen=True)
class TrainingRun:
    """A short seeded run: its workflow and the settings that differ from `COMMON`."""

    workflow: Workflow
    settings: Settings
    base: str | None = None  # the earlier run whose weights it starts from
    teacher: str | None = None  # the earlier run that it is distilled from
    table: str = "reviews.tsv"  # what a classifier learns


# The first eight cover the registry of objectives; the others cover options that change the loss or the update.
RUNS: dict[str, TrainingRun] = {
    "causal_lm": TrainingRun(
        "pretrain",
        {
            "model": {"architecture": "causal"},
            "objective": {"name": "causal-lm", "label_smoothing": 0.1},
            "optimizer": {"name": "muon"},
            "lr_schedule": {"name": "warmup-stable-decay", "decay_ratio": 0.5},
            "training": {"gradient_accumulation_steps": 2},
        },
    ),
    "masked_lm": TrainingRun("pretrain", {"objective": {"name": "masked-lm", **MASKING, "masking": "span"}}),
    "next_sentence": TrainingRun(
        "pretrain", {"model": BERT, "objective": {"name": "next-sentence", "nsp_unit": "sentence"}}
    ),
    "masked_lm_and_next_sentence": TrainingRun(
        "pretrain",
        {
            "model": BERT,
            "objective": {"name": "masked-lm+next-sentence", "nsp_unit": "sentence", **MASKING, "masking": "word"},
        },
    ),
    "causal_and_masked_lm": TrainingRun(
        "pretrain", {"model": MODERN, "objective": {"name": "causal+masked", "causal_fraction": 0.5, **MASKING}}
    ),
    "electra": TrainingRun(
        "pretrain",
        {
            "objective": {
                "name": "replaced-token",
                **MASKING,
                "mask_token_prob": 1.0,
                "random_token_prob": 0.0,
                "generator_size": 0.5,
                "discriminator_weight": 20.0,
            }
        },
    ),
    "classification": TrainingRun("finetune", {"objective": CLASSIFICATION, "lr_schedule": {"name": "linear"}}),
    "translation": TrainingRun(
        "finetune --pair",
        {
            "model": VASWANI,
            "objective": TRANSLATION,
            "optimizer": {"name": "adam", "weight_decay": 0.0, "eps": 1e-9},
            "lr_schedule": {"name": "inverse-square-root", "warmup_steps": 3},
        },
    ),
    "masked_lm_distillation": TrainingRun(
        "pretrain", {"objective": {"name": "masked-lm", **MASKING}}, teacher="masked_lm"
    ),
    "classification_from_causal_lm": TrainingRun(
        "finetune",
        {
            "model": {"architecture": "causal"},
            "objective": {**CLASSIFICATION, "pooling": "last", "head_hidden_layer": "linear"},
            "lr_schedule": {"name": "slanted-triangular"},
            "training": {"freeze_backbone": True},
        },
        base="causal_lm",
    ),
    "classification_from_masked_lm": TrainingRun(
        "finetune",
        {
            "objective": {**CLASSIFICATION, "pooling": "mean+max", "label_smoothing": 0.1},
            "optimizer": {"layerwise_lr_decay": 0.8, "head_lr_multiplier": 2.0},
            "training": {"bpe_dropout": 0.1, "token_cutoff": 0.1, "weight_averaging": "ema", "averaging_epochs": 1.0},
        },
        base="masked_lm",
    ),
    "classification_linear_probe": TrainingRun(
        "finetune",
        {"objective": {**CLASSIFICATION, "head_hidden_layer": "linear"}, "training": {"linear_probe": True}},
        base="masked_lm",
    ),
    "classification_r_drop": TrainingRun(
        "finetune", {"objective": {**CLASSIFICATION, "r_drop_alpha": 1.0}}, base="masked_lm"
    ),
    "classification_distillation": TrainingRun(
        "finetune", {"objective": CLASSIFICATION}, teacher="classification_from_masked_lm"
    ),
    "classification_lstm": TrainingRun("finetune", {"model": {"architecture": "bi-lstm"}, "objective": CLASSIFICATION}),
    "classification_cnn": TrainingRun("finetune", {"model": {"architecture": "cnn"}, "objective": CLASSIFICATION}),
    "multi_label": TrainingRun(
        "finetune", {"objective": {**CLASSIFICATION, "name": "multi-label"}}, base="masked_lm", table="topics.tsv"
    ),
    "regression": TrainingRun(
        "finetune", {"objective": {**CLASSIFICATION, "name": "regression"}}, base="masked_lm", table="scores.tsv"
    ),
    "ordinal": TrainingRun(
        "finetune",
        {"objective": {**CLASSIFICATION, "name": "ordinal"}, "data": {"task": "ordinal"}},
        base="masked_lm",
        table="stars.tsv",
    ),
    "token_classification": TrainingRun(
        "finetune", {"objective": {"name": "token-classification"}}, base="masked_lm", table="tags.conll"
    ),
    "translation_from_masked_lm_r_drop": TrainingRun(
        "finetune --pair",
        {"model": {"architecture": "encoder-decoder"}, "objective": {**TRANSLATION, "r_drop_alpha": 1.0}},
        base="masked_lm",
    ),
}


@dataclass
class Losses:
    """The training loss of every step, and the validation loss before the first step and after each."""

    train: list[float] = field(default_factory=list)
    valid: list[float] = field(default_factory=list)

    def record(self, event: Event) -> None:
        """Add what the trainer reports."""
        if isinstance(event, StepDone):
            self.train.append(event.loss)
        elif isinstance(event, Evaluated):
            self.valid.append(event.values["loss"])


def train(name: str, data_dir: Path, run_dirs: Mapping[str, Path], out: Path) -> Losses:
    """Train the run `name` on the files of `data_dir`; `run_dirs` holds the earlier runs that it needs."""
    run, losses = RUNS[name], Losses()
    changed = {section: {**COMMON.get(section, {}), **given} for section, given in run.settings.items()}
    settings = {**COMMON, **changed}
    base = "scratch" if run.base is None else str(run_dirs[run.base])
    teacher = None if run.teacher is None else str(run_dirs[run.teacher])
    with patch.object(trainer, "REPORT_STEPS", 1):  # the trainer reports every step
        if run.workflow == "pretrain":
            corpus = [str(data_dir / "corpus.txt")]
            pretrain(corpus, out, teacher=teacher, settings=settings, on_event=losses.record)
        elif run.workflow == "finetune":
            table = str(data_dir / run.table)
            finetune(base, table, out, teacher=teacher, settings=settings, on_event=losses.record)
        else:
            pairs = str(data_dir / "pairs")
            finetune(base, pairs, out, pair="en-de", settings=settings, on_event=losses.record)
    return losses


def objectives_without_run() -> set[str]:
    """Objectives of the registry that no run trains."""
    return set(OBJECTIVES) - {run.settings["objective"]["name"] for run in RUNS.values()}
