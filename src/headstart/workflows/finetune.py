"""Fine-tuning a classifier: a base under a new head or its own, or the same model from scratch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headstart.atomic_io import content_hash
from headstart.batch import EncodedExample
from headstart.config import ModelConfig, RunConfig
from headstart.data.augmentation import check_bpe_dropout, training_loader
from headstart.data.dataset import Dataset
from headstart.data.datasets import load_dataset
from headstart.data.decontamination import exclude_evaluation_texts, is_contaminated
from headstart.data.documents import Corpora
from headstart.data.splits import balanced_subset
from headstart.data.tokenizer import Tokenizer, resolve_tokenizer
from headstart.errors import ConfigError
from headstart.evaluation.metrics import METRICS, score
from headstart.inference.classify import encode_rows
from headstart.inference.loaded_model import Classifier, LoadedModel, Tokenizers, load_model
from headstart.models.heads import ClassHead
from headstart.models.model import HeadSpec, Model, build_model, reordered, transfer
from headstart.objectives.base import Objective
from headstart.results import Score, TransferReport, with_nan
from headstart.training.callbacks import Note, OnEvent, Stage, ignore_event
from headstart.training.distributed import init_processes
from headstart.training.evaluate import eval_subset, predict_probabilities
from headstart.training.linear_probe import fit_head
from headstart.training.runtime import Runtime, StopSignal, seed_everything, start_runtime
from headstart.training.trainer import Evaluation, Trainer
from headstart.workflows.diagnostics import (
    explain_difference,
    is_better,
    train_baseline,
    warn_of_baseline,
    warn_of_undertraining,
)
from headstart.workflows.distill import DistillationSetup
from headstart.workflows.finetune_defaults import (
    HEAD,
    DatasetFacts,
    can_reuse_head,
    explain_settings,
    finetune_config,
    why_new_head,
)
from headstart.workflows.run_dir import SCRATCH, absolute_paths, with_absolute_paths
from headstart.workflows.training_job import FinishedRun, TrainingData, TrainingJob

if TYPE_CHECKING:
    from headstart.workflows.finetune_seq2seq import FinishedTranslator


@dataclass(frozen=True, kw_only=True)
class Finetuned(FinishedRun):
    """A finished classifier and its validation score."""

    score: Score
    baseline: Score | None = None  # of TF-IDF + linear SVM, trained on the same texts
    comparison: str = ""  # whether the validation texts can tell the two apart
    warnings: list[str] = field(default_factory=list)
    classifier: Classifier = "network"  # what the run answers with


def finetune(
    base: str,
    data: str,
    out: str | Path,
    *,
    pair: str | None = None,
    teacher: str | Sequence[str] | None = None,
    unlabelled: Corpora | None = None,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    on_event: OnEvent = ignore_event,
) -> "Finetuned | FinishedTranslator":
    """Train a classifier on DATA, from BASE (a run directory or a shipped base's name) or from `scratch`.

    With a `pair` of languages ("en-de") DATA holds texts and their translations, and a translator is trained. A
    `teacher` (a run, or "RUN1,RUN2") is a classifier to distil from; it also labels the texts of the `unlabelled`
    corpora. Under torchrun all processes train one model together.
    """
    if pair is not None:
        from headstart.workflows.finetune_seq2seq import finetune_seq2seq

        if teacher is not None or unlabelled:
            raise ConfigError("translators cannot be distilled", hint="leave --distill-from or --pair out")
        return finetune_seq2seq(base, data, pair, out, preset=preset, settings=settings, on_event=on_event)
    with init_processes() as processes:
        listen = on_event if processes.is_main else ignore_event
        with processes.raise_on_all():
            loaded = None if base == SCRATCH else load_model(base)
            given = with_absolute_paths(settings)
            # A wrong setting is refused before the data is read; the data then decides the defaults.
            draft, objective = finetune_config(loaded, preset, given)
            distillation = DistillationSetup.load(teacher, unlabelled)
            source = LabelledData.load(data, draft, objective, distillation, listen)
            owner = loaded or distillation
            facts = DatasetFacts.of(
                source.dataset, None if owner is None else owner.tokenizer, len(source.pseudo_labelled)
            )
            config, objective = finetune_config(loaded, preset, given, data=facts)
            if loaded is None and config.training.reinit_top_layers:
                raise ConfigError(
                    "from scratch every block is new", hint="leave training.reinit_top_layers out"
                )
            runtime = start_runtime(config.training, processes)
        inputs = dict(zip(("data", "base"), absolute_paths([data, base]), strict=True))
        inputs |= {} if distillation is None else distillation.inputs()
        job = FinetuneJob(config, inputs, runtime, listen, loaded, distillation, source)
        return job.start(Path(out), list(explain_settings(loaded, facts, config, objective, given)))


# --- The data -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelledData:
    """The labelled texts of a run, and unlabelled ones that its teachers label."""

    dataset: Dataset
    pseudo_labelled: list[str]

    @staticmethod
    def load(
        data: str,
        config: RunConfig,
        objective: Objective,
        distillation: DistillationSetup | None,
        on_event: OnEvent,
    ) -> "LabelledData":
        """Read what the settings name."""
        dataset = load_labelled(data, config, on_event=on_event)
        texts = [] if distillation is None else distillation.texts(dataset, objective, config)
        return LabelledData(dataset, texts)

    @property
    def fingerprint(self) -> str:
        """A hash of every text and label."""
        own = data_fingerprint(self.dataset)
        return content_hash([own, self.pseudo_labelled]) if self.pseudo_labelled else own


@dataclass(frozen=True)
class Task:
    """Labelled texts as tokens, split by split."""

    dataset: Dataset
    tokenizer: Tokenizer
    rows: dict[str, list[EncodedExample]]

    @property
    def classes(self) -> list[str]:
        """The labels in the order of their indices."""
        return self.dataset.classes


def load_labelled(
    data: str,
    config: RunConfig,
    *,
    with_test: bool = False,
    on_event: OnEvent = ignore_event,
) -> Dataset:
    """The labelled splits, with the training subset of `data.train_size` texts; skipped rows are reported."""
    dataset = load_dataset(data, config.data, with_test=with_test)
    if dataset.skips:
        first = dataset.skips[0]
        on_event(Note(f"{len(dataset.skips)} rows skipped; the first is {first.origin}: {first.reason}"))
    if config.data.exclude_eval_texts_of:
        dataset = exclude_evaluation_texts(dataset, config.data.exclude_eval_texts_of)
    if config.data.train_size is not None:
        dataset = balanced_subset(dataset, config.data.train_size, config.training.seed)
    for note in dataset.notes:
        on_event(Note(note))
    return dataset


def data_fingerprint(dataset: Dataset) -> str:
    """A hash of every text and label that a run learns from or is evaluated on."""
    return content_hash(
        {name: [[row.text, row.label] for row in rows] for name, rows in dataset.splits.items()}
    )


def choose_tokenizer(
    config: RunConfig, dataset: Dataset, base: LoadedModel | None, on_event: OnEvent
) -> Tokenizer:
    """The base's tokenizer; from scratch the one that the settings name, trained on the training texts."""
    if base is not None:
        return base.tokenizer
    on_event(Stage(f"tokenizer: {config.tokenizer.type}"))
    unlabelled = [example.text for example in dataset.unlabelled]
    return resolve_tokenizer(config.tokenizer, lambda: [*dataset.texts("train"), *unlabelled])


def make_task(
    dataset: Dataset, tokenizer: Tokenizer, config: RunConfig, on_event: OnEvent = lambda event: None
) -> Task:
    """Every split as tokens."""
    on_event(Stage("tokenising the labelled texts"))
    rows = {
        name: encode_rows(
            tokenizer, examples, dataset.classes, config.training.max_length, config.data.truncation_side
        )
        for name, examples in dataset.splits.items()
    }
    return Task(dataset, tokenizer, rows)


# --- The model ------------------------------------------------------------------------------------------------------


def make_classifier(
    config: RunConfig, objective: Objective, task: Task, base: LoadedModel | None, runtime: Runtime
) -> tuple[Model, TransferReport | None]:
    """A classifier with the base's backbone, and an account of every weight; all weights are random without a base.

    The base's head is reused where `can_reuse_head` says so. With `training.linear_probe` a new head on a base is
    trained on the frozen backbone first.
    """
    seed_everything(config.training.seed, 0, 3)
    heads = objective.heads(config.model, task.tokenizer.size, len(task.classes))
    if base is None:
        return build_model(config.model, task.tokenizer.size, heads), None
    if can_reuse_head(config, objective, task.classes, base):
        model = build_model(config.model, task.tokenizer.size, heads)
        weights = reordered(base.weights, HEAD, base.info.classes, task.classes)
        return model, transfer(weights, model, with_base_heads=True)
    model, moved = swap_heads(base, heads, config.model, reset_layers=config.training.reinit_top_layers)
    head = model.heads[HEAD]
    if config.training.linear_probe and isinstance(head, ClassHead):
        fit_head(model, head, objective, task.rows["train"], task.tokenizer, runtime)
    return model, moved


def swap_heads(
    base: LoadedModel,
    heads: Mapping[str, HeadSpec],
    config: ModelConfig | None = None,
    *,
    reset_layers: int = 0,
) -> tuple[Model, TransferReport]:
    """A new model with the base's backbone under new heads, and an account of every weight.

    `config` changes settings that shape no weight, such as dropout. The top `reset_layers` layers are reinitialized.
    """
    model = build_model(config or base.info.config.model, base.tokenizer.size, heads)
    return model, transfer(base.weights, model, reset_layers=reset_layers)


def make_trainer(
    model: Model,
    objective: Objective,
    task: Task,
    config: RunConfig,
    runtime: Runtime,
    on_event: OnEvent = ignore_event,
    stop: StopSignal | None = None,
    *,
    is_head_new: bool = False,
) -> Trainer:
    """A trainer over the task's training rows, evaluated on the validation rows.

    With a new head the weights before the first step are never the best ones.
    """
    training, data = config.training, config.data
    loader = training_loader(task.rows["train"], task.dataset.texts("train"), task.tokenizer, training, data)
    chosen = eval_subset(len(task.rows["valid"]), training.eval_subset_size)
    truth = np.array(task.dataset.targets("valid"))[chosen]
    rows = [task.rows["valid"][index] for index in chosen]

    def evaluate(model: Model) -> Evaluation:
        found = predict_probabilities(
            model, objective, rows, task.tokenizer, runtime, runtime.eval_batch_tokens
        )
        values = {name: METRICS[name](truth, found) for name in ("accuracy", "macro_f1", "loss")}
        return Evaluation(values, objective_value=values["accuracy"] - 1e-6 * min(values["loss"], 100.0))

    may_select_initial = not is_head_new
    return Trainer(
        model,
        objective,
        loader,
        task.tokenizer,
        config,
        runtime,
        evaluate,
        on_event,
        stop,
        may_select_initial,
    )


def score_rows(
    model: Model,
    objective: Objective,
    task: Task,
    split: str,
    config: RunConfig,
    runtime: Runtime,
    train_fingerprints: np.ndarray,
) -> Score:
    """The score on one split; its leak-free part leaves out texts with these fingerprints."""
    probabilities = predict_probabilities(
        model, objective, task.rows[split], task.tokenizer, runtime, runtime.eval_batch_tokens
    )
    was_seen = is_contaminated(task.dataset.hashes(split), train_fingerprints)
    return score(np.array(task.dataset.targets(split)), probabilities, task.classes, was_seen, split)


# --- The job --------------------------------------------------------------------------------------------------------


@dataclass
class FinetuneJob(TrainingJob[Task, Finetuned]):
    """Fine-tuning a classifier."""

    source: LabelledData | None = None
    result_type = Finetuned

    def read_data(self) -> str:
        """The labelled texts, unless they were read for the settings."""
        with self.processes.raise_on_all():
            if self.source is None:
                self.source = LabelledData.load(
                    self.inputs["data"], self.config, self.objective, self.distillation, self.on_event
                )
            return self.source.fingerprint

    def train_tokenizers(self) -> Tokenizers:
        """One tokenizer, trained on the training texts."""
        return choose_tokenizer(self.config, self._labelled.dataset, None, self.on_event), None

    @property
    def _labelled(self) -> LabelledData:
        assert self.source is not None, "read_data comes first"
        return self.source

    def encode_data(self, tokenizers: Tokenizers) -> TrainingData[Task]:
        """The texts as tokens, with those that the teachers label."""
        tokenizer, dataset = tokenizers[0], self._labelled.dataset
        if self.distillation is not None:
            dataset = self.distillation.add(
                dataset, self._labelled.pseudo_labelled, tokenizer, self.config, self.runtime, self.on_event
            )
        with self.processes.raise_on_all():
            check_bpe_dropout(tokenizer, dataset.texts("train"), self.config.training)
        task = make_task(dataset, tokenizer, self.config, self.on_event)
        tokens = sum(len(row.tokens) for row in task.rows["train"])
        summary = f"{len(dataset.train):,} texts to learn from"
        hashes = [dataset.hashes("train")]
        return TrainingData(task, tokenizer, tokens, hashes, summary, dataset.classes)

    def build_model(self, data: Task) -> tuple[Model, TransferReport | None]:
        """A classifier with the base's weights."""
        model, transfer = make_classifier(self.config, self.objective, data, self.base, self.runtime)
        if why := why_new_head(self.config, self.objective, data.classes, self.base):
            self.on_event(Note(why))
        return model, transfer

    def make_trainer(
        self,
        model: Model,
        objective: Objective,
        data: Task,
        transfer: TransferReport | None,
        stop: StopSignal,
    ) -> Trainer:
        """The trainer of a classifier."""
        is_new = transfer is None or not transfer.reused_head
        return make_trainer(
            model, objective, data, self.config, self.runtime, self.on_event, stop, is_head_new=is_new
        )

    def summarize(self, run: FinishedRun, trainer: Trainer, data: Task, seen: np.ndarray) -> Finetuned:
        """The score of the network or of the baseline, whichever the run answers with."""
        config, objective, runtime, read = self.config, self.objective, self.runtime, trainer.strategy.read
        network = read(lambda model: score_rows(model, objective, data, "valid", config, runtime, seen))
        warnings = read(lambda model: warn_of_undertraining(model, objective, data, config, runtime))
        with self.processes.raise_on_all():
            baseline = None
            if self.processes.is_main:
                self.on_event(Stage("training the TF-IDF baseline"))
                baseline = train_baseline(self._labelled.dataset, config.training.seed)
        if baseline is None:
            return Finetuned(**vars(run), score=network, warnings=warnings)
        wins = config.training.keep_winner and not is_better(network, baseline.score)
        if wins:
            baseline.model.save(run.path)
        worse = warn_of_baseline(network, baseline.score, self.inputs["base"], self.inputs["data"])
        return Finetuned(
            **vars(run),
            score=baseline.score if wins else network,
            baseline=baseline.score,
            comparison=explain_difference(network, baseline.score),
            warnings=[*worse, *warnings],
            classifier="tfidf" if wins else "network",
        )

    @staticmethod
    def restore(content: dict[str, Any]) -> dict[str, Any]:
        """A result with NaN where JSON has null."""
        return {name: None if value is None else with_nan(value, name) for name, value in content.items()}
