"""Fine-tuning a classifier: a base with a new head or its own, or the same model from scratch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import binomtest, entropy
from torch import nn

from headstart import fast
from headstart.atomic_io import content_hash
from headstart.baselines.tfidf import TfidfModel, train_tfidf
from headstart.batch import EncodedExample, Loader, TextLoader
from headstart.config import DataConfig, RunConfig, TaskName, TrainingConfig, merge
from headstart.data.augmentation import AugmentedTextLoader, check_bpe_dropout
from headstart.data.datasets import Dataset, encode_rows, load_dataset, write_tables
from headstart.data.documents import Corpora
from headstart.data.subsets import balanced_subset, exclude_evaluation_texts
from headstart.data.text_io import is_contaminated
from headstart.data.tokenizer import Tokenizer
from headstart.data.tokenizer_training import resolve_tokenizer
from headstart.errors import ConfigError, DataError
from headstart.evaluation.metrics import METRICS, score
from headstart.inference.loaded_model import (
    HEAD,
    SCRATCH,
    Classifier,
    LoadedModel,
    RunInfo,
    RunInputs,
    Tokenizers,
    absolute_paths,
    load_model,
    with_absolute_paths,
)
from headstart.models.heads import ClassHead, RegressionHead
from headstart.models.model import HeadSpec, Model, build_model, reordered, transfer
from headstart.objectives.classification import Classification
from headstart.results import Score, TaskScore, TransferReport
from headstart.training.callbacks import Note, OnEvent, Stage, ignore_event
from headstart.training.evaluate import eval_subset, fit_head, predict_probabilities
from headstart.training.runtime import init_processes, seed_everything, start_runtime
from headstart.training.trainer import Evaluation, Trainer
from headstart.workflows.distill import DistillationSetup
from headstart.workflows.finetune_defaults import DatasetFacts, explain_settings, finetune_config
from headstart.workflows.finetune_tasks import evaluate_task, summarize_task
from headstart.workflows.run_dir import DATA, RunDir
from headstart.workflows.training_job import FinishedRun, TrainingData, TrainingJob

if TYPE_CHECKING:
    from headstart.workflows.finetune_seq2seq import FinishedTranslator

BASELINE_TEXTS = 50_000  # at most, so that the baseline costs little compared with the network
# The objective of each task.
TASK_OBJECTIVES: dict[TaskName, str] = {
    "single-label": "classify",
    "multi-label": "multi-label",
    "regression": "regression",
    "ordinal": "ordinal",
    "token": "token-classification",
}
# The check for under-training: training texts that it reads per class and in all, at most; a loss of at least this
# fraction of that of class frequencies, and an accuracy below this fraction of the way from the majority class to 1.
CHECKED_PER_CLASS, CHECKED_TEXTS = 20, 2_000
UNDERTRAINED_LOSS, UNDERTRAINED_ACCURACY = 0.9, 0.25


@dataclass(frozen=True)
class Finetuned(FinishedRun):
    """A finished classifier and its validation score."""

    score: TaskScore | Score
    baseline: TaskScore | Score | None = None  # of a linear model, TF-IDF + linear SVM for classes, of the same texts
    comparison: str = ""  # whether the validation texts can tell the two apart
    warnings: list[str] = field(default_factory=list)
    classifier: Classifier = "network"  # what the run answers with
    thresholds: list[float] = field(default_factory=list)  # of several labels, tuned on the validation texts


def finetune(
    base: str,
    data: str | Dataset,
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

    DATA is a name or path, or a dataset in memory, which the run directory then holds as tables, so that the run can be
    resumed. With a `pair` of languages ("en-de") DATA holds texts and their translations, and a translator is trained. A
    `teacher` (a run, or "RUN1,RUN2") is a classifier to distil from; it also labels the texts of the `unlabelled`
    corpora. Under torchrun all processes train one model together.
    """
    if pair is not None and isinstance(data, str):
        from headstart.workflows.finetune_seq2seq import finetune_seq2seq

        if teacher is not None or unlabelled:
            raise ConfigError("translators cannot be distilled", hint="leave --distill-from or --pair out")
        return finetune_seq2seq(base, data, pair, out, preset=preset, settings=settings, on_event=on_event)
    with init_processes() as processes:
        listen = on_event if processes.is_main else ignore_event
        with processes.raise_on_all():
            loaded = None if base == SCRATCH else load_model(base)
            given = with_absolute_paths(settings)
            # A wrong setting is an error before the data is read. The data then decides the defaults.
            draft, objective = finetune_config(loaded, preset, given)
            distillation = DistillationSetup.load(teacher, unlabelled) if teacher or unlabelled else None
            dataset = load_labelled(data, draft, on_event=listen)
            given = settings_for_task(dataset, given, draft, distillation)
            if isinstance(data, Dataset):  # a resume reads its labels as they are meant here
                columns = "text" if dataset.train[0].pair is None else "text,pair"
                read_back = {"task": dataset.task, "text_column": columns, "label_column": "label"}
                given = merge(given, {"data": read_back})
            unlabelled_texts = [] if distillation is None else distillation.texts(dataset, objective, draft)
            owner = loaded or distillation
            facts = DatasetFacts.of(dataset, None if owner is None else owner.tokenizer, len(unlabelled_texts))
            config, objective = finetune_config(loaded, preset, given, data=facts)
            if loaded is None and config.training.reinit_top_layers:
                raise ConfigError("from scratch every layer is new", hint="leave training.reinit_top_layers out")
            notes = explain_settings(loaded, facts, config, objective, given)
            runtime = start_runtime(config.training, processes)
        where = own_data(Path(out)) if isinstance(data, Dataset) else absolute_paths([data])[0]
        inputs = RunInputs(base=absolute_paths([base])[0], data=where)
        if distillation is not None:
            inputs = distillation.add_to(inputs)
        job = FinetuneJob(config, runtime, inputs, listen, loaded, distillation)
        job.texts = dataset, unlabelled_texts
        return job.start(Path(out), notes)


# --- The data -------------------------------------------------------------------------------------------------------


def settings_for_task(
    dataset: Dataset, given: Mapping[str, Any], draft: RunConfig, distillation: DistillationSetup | None = None
) -> dict[str, Any]:
    """The settings with the objective of the task that the labels show; those that the task cannot use are refused."""
    objective = TASK_OBJECTIVES[dataset.task]
    name = given.get("objective", {}).get("name", objective)
    if name != objective:
        problem = f"the task is {dataset.task}, and objective.name is {name}"
        raise ConfigError(problem, hint=f"leave it out, or set --task to match {name}")
    training = given.get("training", {})
    is_plain = dataset.task == "single-label" and dataset.train[0].pair is None
    for flag, is_set in (
        ("--distill-from", distillation is not None),
        ("--keep-winner", training.get("keep_winner")),
        ("training.bpe_dropout", training.get("bpe_dropout")),
        ("training.token_cutoff", training.get("token_cutoff") and dataset.task != "multi-label"),
    ):
        if is_set and not is_plain:
            what = dataset.task if dataset.task != "single-label" else "pairs"
            raise ConfigError(f"{flag} is for one text with one class, and this task is {what}", hint="leave it out")
    if is_plain:
        return dict(given)
    own = {"name": objective, **given.get("objective", {})}
    if dataset.train[0].pair is not None and draft.model.architecture != "causal":
        own.setdefault("pooling", "pair")
    return merge(given, {"objective": own, "data": {"task": dataset.task}})


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


def own_data(run: Path) -> str:
    """Where a run directory holds texts that were given from Python."""
    return str(run.resolve() / DATA)


def load_labelled(
    data: str | Dataset, config: RunConfig, *, with_test: bool = False, on_event: OnEvent = ignore_event
) -> Dataset:
    """The labelled splits, with `data.train_size` training texts; skipped rows are reported."""
    dataset = data if isinstance(data, Dataset) else load_dataset(data, config.data, with_test=with_test)
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


def training_loader(
    rows: Sequence[EncodedExample],
    texts: Sequence[str],
    tokenizer: Tokenizer,
    training: TrainingConfig,
    data: DataConfig,
) -> Loader:
    """The loader of the training rows, with augmentation if it is set."""
    if training.bpe_dropout or training.token_cutoff:
        return AugmentedTextLoader(rows, texts, tokenizer, training, data)
    return TextLoader(rows, training.tokens_per_batch, training.batch_size, training.seed)


def data_fingerprint(dataset: Dataset) -> str:
    """A hash of every text and label that a run is trained or evaluated on."""
    return content_hash({name: [[row.content, row.label] for row in rows] for name, rows in dataset.splits.items()})


def choose_tokenizer(config: RunConfig, dataset: Dataset, base: LoadedModel | None, on_event: OnEvent) -> Tokenizer:
    """The base's tokenizer; from scratch the one that the settings name, trained on the training texts."""
    if base is not None:
        return base.tokenizer
    on_event(Stage(f"tokenizer: {config.tokenizer.type}"))
    unlabelled = [example.text for example in dataset.unlabelled]
    return resolve_tokenizer(config.tokenizer, lambda: [*dataset.texts("train"), *unlabelled])


def make_task(dataset: Dataset, tokenizer: Tokenizer, config: RunConfig, on_event: OnEvent = ignore_event) -> Task:
    """Every split as tokens."""
    on_event(Stage("tokenising the labelled texts"))
    length = config.training.max_length
    rows = {
        name: encode_rows(tokenizer, examples, dataset.classes, length, config.data.truncation_side, dataset.task)
        for name, examples in dataset.splits.items()
    }
    return Task(dataset, tokenizer, rows)


def swap_heads(
    base: LoadedModel, heads: Mapping[str, HeadSpec], *, reset_layers: int = 0
) -> tuple[Model, TransferReport]:
    """A new model with the base's backbone and new heads, the top `reset_layers` layers new, and a report on each weight."""
    model = fast.optimize(build_model(base.info.config.model, base.tokenizer.size, heads))
    return model, transfer(base.weights, model, reset_layers=reset_layers)


# --- The baseline and warnings -----------------------------------------------------------------------------------------


def train_baseline(dataset: Dataset, seed: int) -> tuple[TfidfModel, Score] | None:
    """TF-IDF + linear SVM on the same texts, and its validation score; None if the texts have fewer than two classes."""
    step, truth = max(1, -(-len(dataset.train) // BASELINE_TEXTS)), np.array(dataset.targets("valid"))
    texts, targets = dataset.texts("train")[::step], dataset.targets("train")[::step]
    try:
        model = train_tfidf(texts, targets, seed=seed, classes=len(dataset.classes))
    except DataError:
        return None
    probabilities = model.predict_probabilities(dataset.texts("valid"))
    seen = is_contaminated(dataset.hashes("valid"), np.unique(dataset.hashes("train")))
    return model, score(truth, probabilities, dataset.classes, seen, "valid")


def is_better(network: Score, baseline: Score) -> bool:
    """Whether the network has the higher validation accuracy, or the same accuracy and the lower loss."""
    return (network.correct, -network.loss) > (baseline.correct, -baseline.loss)


def explain_difference(network: Score, baseline: Score) -> str:
    """Whether the difference between network and baseline is larger than the noise of the validation set, in words."""
    found = binomtest(network.correct, network.count).proportion_ci(method="wilson")
    where = "inside" if found.low <= baseline.accuracy <= found.high else "outside"
    verdict = "no clear difference" if where == "inside" else "a clear difference"
    return (
        f"{where} the network's 95 % interval [{found.low:.3f}, {found.high:.3f}]: {verdict} on {network.count:,} texts"
    )


def warn_of_baseline(network: Score, baseline: Score, base: str, data: str | None) -> list[str]:
    """A warning with advice if the network is not better than the baseline, else an empty list.

    Without `data` the texts are in memory, and the advice is for Python.
    """
    if is_better(network, baseline):
        return []
    if data is None:
        model = "hs.shipped_bases() lists pretrained models to start from"
        adapt = f"hs.LanguageModel.pretrain(texts, base={base!r}) adapts the base to unlabelled texts of your domain"
        more = "GridSearchCV searches settings; keep_winner=True answers with TF-IDF"
    else:
        model = "`headstart models` lists pretrained models to start from"
        adapt = f"`headstart pretrain TEXTS --init-from {base}` adapts the base to unlabelled texts of your domain"
        more = f"`headstart tune {base} {data}` searches settings; --keep-winner answers with TF-IDF"
    return [
        f"the network is not better than TF-IDF + linear SVM on {network.count:,} validation texts: accuracy "
        f"{network.accuracy:.4f} against {baseline.accuracy:.4f}. Next: {model if base == SCRATCH else adapt}; {more}"
    ]


def warn_of_undertraining(truth: np.ndarray, found: np.ndarray, classes: Sequence[str], config: RunConfig) -> list[str]:
    """A warning if the model does not fit its own training texts: their classes, and its `found` probabilities (N, C)."""
    loss, right = METRICS["loss"](truth, found), METRICS["accuracy"](truth, found)
    counts = np.bincount(truth)
    guessing, majority = float(entropy(counts)), float(counts.max()) / len(truth)
    more = f"raise --epochs (now {config.training.max_epochs:g})" if config.training.max_epochs else "raise the budget"
    hint = f"{more} or optimizer.learning_rate (now {config.optimizer.learning_rate:g})"
    if loss > UNDERTRAINED_LOSS * guessing and right < majority + UNDERTRAINED_ACCURACY * (1 - majority):
        return [
            f"the model is under-trained: its loss on its own training texts is {loss:.3f}, and guessing by class "
            f"frequencies has {guessing:.3f}; {hint}"
        ]
    names = [classes[number] for number in np.setdiff1d(truth, found.argmax(axis=1))]
    return names and [
        f"the model is under-trained: it never predicts {len(names)} of {np.count_nonzero(counts)} classes on their own "
        f"training texts ({', '.join(names[:5])}{', …' if len(names) > 5 else ''}); {hint}"
    ]


def sample_per_class(targets: np.ndarray) -> np.ndarray:
    """Indices of training texts, at most CHECKED_PER_CLASS of a class."""
    order = np.argsort(targets, kind="stable")
    starts = np.searchsorted(targets[order], targets[order])  # where each class begins in the order
    chosen = order[np.arange(len(order)) - starts < CHECKED_PER_CLASS]
    return np.sort(chosen)[:: max(1, -(-len(chosen) // CHECKED_TEXTS))]


def standardize(head: nn.Module, dataset: Dataset) -> None:
    """Give the head of a regression the mean and the standard deviation of the training labels."""
    if isinstance(head, RegressionHead):
        labels = dataset.target_array("train")
        head.mean.fill_(float(labels.mean()))
        head.scale.fill_(float(labels.std()) or 1.0)


# --- The job --------------------------------------------------------------------------------------------------------


@dataclass
class FinetuneJob(TrainingJob[Task, Finetuned]):
    """Fine-tuning a classifier."""

    result_type = Finetuned

    def _write_start(self, run_dir: RunDir, data: TrainingData[Task], transfer: TransferReport | None) -> RunInfo:
        with self.processes.raise_on_all():
            if self.inputs.data == own_data(run_dir.path) and self.processes.is_main:
                write_tables(run_dir.path / DATA, self.texts[0])
        return super()._write_start(run_dir, data, transfer)

    @cached_property
    def texts(self) -> tuple[Dataset, list[str]]:
        """The labelled texts, and unlabelled ones that the teachers label, unless they were read for the settings."""
        dataset, teachers = load_labelled(self.inputs.data, self.config, on_event=self.on_event), self.distillation
        return dataset, [] if teachers is None else teachers.texts(dataset, self.objective, self.config)

    def read_data(self) -> str:
        """A hash of all texts and labels."""
        with self.processes.raise_on_all():
            dataset, unlabelled = self.texts
            own = data_fingerprint(dataset)
            return content_hash([own, unlabelled]) if unlabelled else own

    def train_tokenizers(self) -> Tokenizers:
        """One tokenizer, trained on the training texts."""
        return choose_tokenizer(self.config, self.texts[0], None, self.on_event), None

    def encode_data(self, tokenizers: Tokenizers) -> TrainingData[Task]:
        """The texts as tokens, with those that the teachers label."""
        tokenizer, (dataset, unlabelled) = tokenizers[0], self.texts
        if self.distillation is not None:
            dataset = self.distillation.add(dataset, unlabelled, self.config, self.runtime, self.on_event)
        if self.config.training.bpe_dropout:
            with self.processes.raise_on_all():
                check_bpe_dropout(tokenizer, dataset.texts("train"))
        return self.training_data(make_task(dataset, tokenizer, self.config, self.on_event))

    def training_data(self, task: Task) -> TrainingData[Task]:
        """A task with a loader of its training rows."""
        dataset, rows, config = task.dataset, task.rows["train"], self.config
        texts = dataset.texts("train")
        return TrainingData(
            content=task,
            loader=training_loader(rows, texts, task.tokenizer, config.training, config.data),
            tokenizer=task.tokenizer,
            tokens=sum(len(row.tokens) for row in rows),
            train_hashes=[dataset.hashes("train")],
            summary=f"{len(texts):,} texts to learn from",
            classes=dataset.classes,
        )

    def build_model(self, data: Task) -> tuple[Model, TransferReport | None]:
        """A classifier with the base's weights; all weights are random without a base.

        The base's head is reused where `LoadedModel.can_reuse_head` says so. With `training.linear_probe` a new head
        on a base is trained on the frozen backbone first.
        """
        config, base, objective, classes = self.config, self.base, self.objective, data.classes
        seed_everything(config.training.seed, 0, 3)
        size = data.tokenizer.size
        model = fast.optimize(build_model(config.model, size, objective.heads(config.model, size, len(classes))))
        if base is None:
            standardize(model.heads[HEAD], data.dataset)
            return model, None
        if base.can_reuse_head(config, objective, classes):
            weights = reordered(base.weights, HEAD, base.info.classes, classes)
            return model, transfer(weights, model, with_base_heads=True)
        if why := base.why_new_head(config, objective, classes):
            self.on_event(Note(why))
        report, head = transfer(base.weights, model, reset_layers=config.training.reinit_top_layers), model.heads[HEAD]
        standardize(head, data.dataset)
        if config.training.linear_probe and isinstance(head, ClassHead) and isinstance(objective, Classification):
            fit_head(model, head, objective, data.rows["train"], data.tokenizer, self.runtime)
        return model, report

    def evaluate(self, model: Model, data: Task) -> Evaluation:
        """Accuracy, macro F1 and loss on the validation texts, or on `training.eval_subset_size` of them."""
        if data.dataset.task != "single-label":
            return evaluate_task(self, model, data)
        chosen = eval_subset(len(data.rows["valid"]), self.config.training.eval_subset_size)
        truth = np.array(data.dataset.targets("valid"))[chosen]
        found = self.predictions(model, data, "valid", chosen)
        values = {name: METRICS[name](truth, found) for name in ("accuracy", "macro_f1", "loss")}
        assert isinstance(self.objective, Classification)
        return Evaluation(values, self.objective.selection_value(values))

    def score(self, model: Model, data: Task, split: str, seen: np.ndarray) -> Score:
        """The score on one split; its leak-free part leaves out texts whose hashes were `seen` in training."""
        found = self.predictions(model, data, split, np.arange(len(data.rows[split])))
        was_seen = is_contaminated(data.dataset.hashes(split), seen)
        return score(np.array(data.dataset.targets(split)), found, data.classes, was_seen, split)

    def predictions(self, model: Model, data: Task, split: str, chosen: np.ndarray) -> np.ndarray:
        """What the model predicts for rows of a split."""
        rows, runtime = [data.rows[split][index] for index in chosen], self.runtime
        return predict_probabilities(model, self.objective, rows, data.tokenizer, runtime, runtime.eval_batch_tokens)

    def summarize(self, run: FinishedRun, trainer: Trainer, data: Task, seen: np.ndarray) -> Finetuned:
        """The score of the network, or of the baseline where the run predicts with that."""
        if data.dataset.task != "single-label" or data.dataset.train[0].pair is not None:
            return summarize_task(self, run, trainer, data, seen)
        config, targets, read = self.config, np.array(data.dataset.targets("train")), trainer.strategy.read
        network = read(lambda model: self.score(model, data, "valid", seen))
        chosen = sample_per_class(targets)
        fitted = read(lambda model: self.predictions(model, data, "train", chosen))
        warnings = warn_of_undertraining(targets[chosen], fitted, data.classes, config)
        found = None
        with self.processes.raise_on_all():
            if self.processes.is_main:
                self.on_event(Stage("training the TF-IDF baseline"))
                found = train_baseline(self.texts[0], config.training.seed)
        if found is None:
            return Finetuned(**vars(run), score=network, warnings=warnings)
        tfidf, baseline = found
        data_name = None if self.inputs.data == own_data(run.path) else self.inputs.data
        keeps_baseline = config.training.keep_winner and not is_better(network, baseline)
        if keeps_baseline:
            tfidf.save(run.path)
        return Finetuned(
            **vars(run),
            score=baseline if keeps_baseline else network,
            baseline=baseline,
            comparison=explain_difference(network, baseline),
            warnings=[*warn_of_baseline(network, baseline, self.inputs.base, data_name), *warnings],
            classifier="tfidf" if keeps_baseline else "network",
        )
