"""What a finished classifier says of itself: its TF-IDF baseline, and whether it is worse than that or under-trained."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import binomtest

from headstart.baselines.tfidf import TfidfModel, train_tfidf
from headstart.config import RunConfig
from headstart.data.dataset import Dataset
from headstart.data.decontamination import is_contaminated
from headstart.errors import DataError
from headstart.evaluation.metrics import METRICS, score
from headstart.models.model import Model
from headstart.objectives.base import Objective
from headstart.results import Score
from headstart.training.evaluate import predict_probabilities
from headstart.training.runtime import Runtime
from headstart.workflows.run_dir import SCRATCH

if TYPE_CHECKING:
    from headstart.workflows.finetune import Task

BASELINE_TEXTS = 50_000  # the baseline learns from at most as many, so that it stays cheap beside the network
TEXTS_PER_CLASS = 20  # training texts of a class that the check for under-training reads at most
CHECKED_TEXTS = 2_000  # and in all
LITTLE_LEARNT = 0.9  # of the loss of guessing by class frequencies
LITTLE_BETTER = 0.25  # of the way from the majority class's accuracy to 1


@dataclass(frozen=True)
class Baseline:
    """TF-IDF and a linear SVM, trained on the same texts, with its validation score."""

    model: TfidfModel
    score: Score


def train_baseline(dataset: Dataset, seed: int) -> Baseline | None:
    """The baseline of a dataset; None where no text or only one class is left to learn from."""
    step = max(1, -(-len(dataset.train) // BASELINE_TEXTS))
    texts, targets = dataset.texts("train")[::step], dataset.targets("train")[::step]
    try:
        model = train_tfidf(texts, targets, seed=seed, classes=len(dataset.classes))
    except DataError:
        return None
    found = model.predict_probabilities(dataset.texts("valid"))
    seen = is_contaminated(dataset.hashes("valid"), np.unique(dataset.hashes("train")))
    return Baseline(model, score(np.array(dataset.targets("valid")), found, dataset.classes, seen, "valid"))


def is_better(network: Score, baseline: Score) -> bool:
    """Whether the network is ahead on the validation texts: by accuracy, or by loss where accuracies are equal."""
    if network.correct != baseline.correct:
        return network.correct > baseline.correct
    return network.loss < baseline.loss


def explain_difference(network: Score, baseline: Score) -> str:
    """Whether the validation texts can tell network and baseline apart, in words."""
    found = binomtest(network.correct, network.count).proportion_ci(method="wilson")
    where = "inside" if found.low <= baseline.accuracy <= found.high else "outside"
    verdict = "no clear difference" if where == "inside" else "a clear difference"
    return (
        f"{where} the network's 95 % interval [{found.low:.3f}, {found.high:.3f}]: {verdict} "
        f"on {network.count:,} texts"
    )


def warn_of_baseline(network: Score, baseline: Score, base: str, data: str) -> list[str]:
    """The warning that the network does not pay, with what to try; empty where it does."""
    if is_better(network, baseline):
        return []
    other = (
        "`headstart models` lists pretrained models to start from"
        if base == SCRATCH
        else f"`headstart pretrain TEXTS --init-from {base}` adapts the base to unlabelled texts of your domain"
    )
    return [
        f"the network is not better than TF-IDF + linear SVM on {network.count:,} validation texts: accuracy "
        f"{network.accuracy:.4f} against {baseline.accuracy:.4f}. Next: {other}; `headstart tune {base} {data}` "
        "searches settings; --keep-winner answers with TF-IDF"
    ]


def warn_of_undertraining(
    model: Model, objective: Objective, task: "Task", config: RunConfig, runtime: Runtime
) -> list[str]:
    """Warnings where the model has hardly learnt its own training texts."""
    chosen = _sample(np.array(task.dataset.targets("train")))
    truth = np.array(task.dataset.targets("train"))[chosen]
    rows = [task.rows["train"][place] for place in chosen]
    found = predict_probabilities(model, objective, rows, task.tokenizer, runtime, runtime.eval_batch_tokens)
    loss = METRICS["loss"](truth, found)
    shares = np.bincount(truth) / len(truth)
    guessing = float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())
    predicted, present = set(found.argmax(axis=1).tolist()), set(truth.tolist())
    more = (
        f"raise --epochs (now {config.training.max_epochs:g})"
        if config.training.max_epochs
        else "raise the budget"
    )
    hint = f"{more} or optimizer.learning_rate (now {config.optimizer.learning_rate:g})"
    majority, right = float(shares.max()), METRICS["accuracy"](truth, found)
    if loss > LITTLE_LEARNT * guessing and right < majority + LITTLE_BETTER * (1 - majority):
        return [
            f"the model is under-trained: its loss on its own training texts is {loss:.3f}, and guessing by class "
            f"frequencies has {guessing:.3f}; {hint}"
        ]
    if missing := present - predicted:
        names = [task.classes[number] for number in sorted(missing)]
        return [
            f"the model is under-trained: it never predicts {len(missing)} of {len(present)} classes on their own "
            f"training texts ({', '.join(names[:5])}{', …' if len(names) > 5 else ''}); {hint}"
        ]
    return []


def _sample(targets: np.ndarray) -> np.ndarray:
    """Places of training texts, at most TEXTS_PER_CLASS of a class."""
    order = np.argsort(targets, kind="stable")
    starts = np.searchsorted(targets[order], targets[order])  # where each class begins in the order
    chosen = order[np.arange(len(order)) - starts < TEXTS_PER_CLASS]
    return np.sort(chosen)[:: max(1, -(-len(chosen) // CHECKED_TEXTS))]
