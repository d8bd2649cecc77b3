"""Fine-tuning for tasks beyond one class a text: evaluation during training, baseline, thresholds and warnings."""

from typing import TYPE_CHECKING

import numpy as np

from headstart.config import TaskName
from headstart.data.text_io import is_contaminated
from headstart.evaluation.metrics import score
from headstart.evaluation.task_scores import cross_fitted_thresholds, curve_values, score_task, tune_thresholds
from headstart.inference.loaded_model import SCRATCH
from headstart.models.model import Model
from headstart.objectives.classification import Classification
from headstart.results import Score, TaskScore
from headstart.training.callbacks import Stage
from headstart.training.trainer import Evaluation, Trainer

if TYPE_CHECKING:
    from headstart.workflows.finetune import Finetuned, FinetuneJob, Task
    from headstart.workflows.training_job import FinishedRun

LABELS = {"macro_f1": "macro-F1", "micro_f1": "micro-F1", "span_f1": "span F1", "spearman": "Spearman correlation"}


def evaluate_task(job: "FinetuneJob", model: Model, data: "Task") -> Evaluation:
    """The metrics of the task on the validation texts."""
    dataset = data.dataset
    labels = [str(example.label) for example in dataset.valid]
    outputs = job.predictions(model, data, "valid", np.arange(len(data.rows["valid"])))
    values = curve_values(dataset.task, labels, outputs, dataset.classes)
    assert isinstance(job.objective, Classification)
    return Evaluation(values, job.objective.selection_value(values))


def summarize_task(
    job: "FinetuneJob", run: "FinishedRun", trainer: Trainer, data: "Task", seen: np.ndarray
) -> "Finetuned":
    """The validation score of the network and of the baseline; the thresholds of several labels are tuned there."""
    from headstart.workflows.finetune import Finetuned, explain_difference, is_better, own_data

    dataset, task = data.dataset, data.dataset.task
    labels = [str(example.label) for example in dataset.valid]
    everything = np.arange(len(data.rows["valid"]))
    outputs = trainer.strategy.read(lambda model: job.predictions(model, data, "valid", everything))
    was_seen = is_contaminated(dataset.hashes("valid"), seen)
    thresholds: list[float] = []

    def scored(found: np.ndarray, seen: np.ndarray) -> Score:
        if task == "single-label":
            return score(dataset.target_array("valid"), found, dataset.classes, seen, "valid")
        truth = dataset.target_array("valid")
        tuned = cross_fitted_thresholds(truth, found) if task == "multi-label" else None
        return score_task(task, labels, found, dataset.classes, seen, "valid", tuned)

    network = scored(outputs, was_seen)
    if task == "multi-label":
        thresholds = [round(float(each), 4) for each in tune_thresholds(dataset.target_array("valid"), outputs)]
    baseline = None
    with job.processes.raise_on_all():
        if job.processes.is_main:
            from headstart.baselines.task_baselines import baseline_outputs

            job.on_event(Stage("training the linear baseline"))
            train_seen = is_contaminated(dataset.hashes("valid"), np.unique(dataset.hashes("train")))
            baseline = scored(baseline_outputs(dataset, dataset.valid, job.config.training.seed), train_seen)
    warnings = [warn_of_collapse(network) if isinstance(network, TaskScore) else ""]
    comparison = ""
    if baseline is not None:
        if isinstance(network, TaskScore) and isinstance(baseline, TaskScore):
            comparison, is_won = explain_task_difference(network, baseline), network.value > baseline.value
        else:
            comparison, is_won = explain_difference(network, baseline), is_better(network, baseline)
        if not is_won:
            is_in_memory = job.inputs.data == own_data(run.path)
            names = job.inputs.base, "your data" if is_in_memory else job.inputs.data
            warnings.insert(0, warn_of_linear_baseline(network, baseline, task, *names))
    return Finetuned(
        **vars(run),
        score=network,
        baseline=baseline,
        comparison=comparison,
        warnings=[warning for warning in warnings if warning],
        thresholds=thresholds,
    )


def deciding_metric(found: Score) -> tuple[str, float]:
    """The metric that decides between models, and its value."""
    return (
        (found.metric, getattr(found, found.metric)) if isinstance(found, TaskScore) else ("accuracy", found.accuracy)
    )


def explain_task_difference(network: TaskScore, baseline: TaskScore) -> str:
    """Whether the baseline is inside the interval of the network, in words."""
    found, other = network.intervals[network.metric], deciding_metric(baseline)[1]
    is_inside = not (other < found.low or other > found.high)
    where, verdict = ("inside", "no clear difference") if is_inside else ("outside", "a clear difference")
    interval = f"95 % interval [{found.low:.3f}, {found.high:.3f}]"
    return f"{where} the network's {interval} of {LABELS.get(network.metric, network.metric)}: {verdict} on {network.texts:,} texts"


def warn_of_linear_baseline(network: Score, baseline: Score, task: TaskName, base: str, data: str) -> str:
    """A warning that the network is not better than the linear baseline."""
    from headstart.baselines.task_baselines import NAMES

    (metric, own), (_, other) = deciding_metric(network), deciding_metric(baseline)
    count = network.texts if isinstance(network, TaskScore) else network.count
    adapt = f"`headstart pretrain TEXTS --init-from {base}` adapts the base to unlabelled texts of your domain"
    advice = "`headstart models` lists pretrained models to start from" if base == SCRATCH else adapt
    return (
        f"the network is not better than {NAMES[task]} on {count:,} validation texts: {LABELS.get(metric, metric)} "
        f"{own:.4f} against {other:.4f}. Next: {advice}, or label more texts of {data}"
    )


def warn_of_collapse(network: TaskScore) -> str:
    """A warning that a model answers the same for every text, or ""."""
    if network.task == "regression" and network.spearman != network.spearman:
        return "the model is under-trained: it predicts the same number for every text; raise --epochs or --lr"
    if network.task in ("multi-label", "token") and not any(row["recall"] for row in network.per_class.values()):
        what = "label" if network.task == "multi-label" else "span"
        return f"the model is under-trained: it finds no {what} of the validation texts; raise --epochs or --lr"
    return ""
