"""Passes over a dataset with a frozen backbone: predictions and the training of a head (linear probing)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from headstart import fast
from headstart.batch import IGNORE, Batch, EncodedExample, TextLoader
from headstart.models.heads import ClassHead
from headstart.models.model import Model
from headstart.objectives.base import Objective, Vocabulary
from headstart.objectives.classification import Classification
from headstart.objectives.token_classification import TokenClassification, tags_of
from headstart.training.runtime import ALONE, Runtime, generator_for

Rows = Sequence[EncodedExample]

MAX_TEXTS = 4_000  # more texts hardly change a linear head
ITERATIONS = 100  # of L-BFGS
WEIGHT_PENALTY = 3.0  # on the sum of squared weights, beside the summed loss


def predict_probabilities(
    model: Model, objective: Objective, rows: Rows, vocabulary: Vocabulary, runtime: Runtime, batch_tokens: int
) -> np.ndarray:
    """What a classifier predicts for each text in order (N, C), or for each token: probabilities, or a number."""
    logits = torch.from_numpy(class_logits(model, objective, rows, vocabulary, runtime, batch_tokens))
    found = objective.activate(logits) if isinstance(objective, Classification) else logits.softmax(dim=-1)
    return found.numpy().astype(np.float64)


def class_logits(
    model: Model, objective: Objective, rows: Rows, vocabulary: Vocabulary, runtime: Runtime, batch_tokens: int
) -> np.ndarray:
    """The logit of every class (N, C) in float32 for each text in order, or for each token that has a tag."""
    if model.training:
        model.eval()
    padding = None if model.backbone.skips_padding else runtime.eval_max_padding
    loader = TextLoader(rows, batch_tokens, shuffled=False, padding=padding)
    sizes = None
    if isinstance(objective, TokenClassification):
        sizes = np.array([(tags_of(row) != IGNORE).sum() for row in rows], dtype=np.int64)
    return compute_rows(lambda batch: model(batch)["class"], objective, loader, vocabulary, runtime, sizes)


def compute_rows(
    work: Callable[[Batch], Tensor],
    objective: Objective,
    loader: TextLoader,
    vocabulary: Vocabulary,
    runtime: Runtime,
    sizes: np.ndarray | None = None,
) -> np.ndarray:
    """What `work` returns for each of the loader's texts (N, D), in float32; with `sizes`, as many rows of each text."""
    batches, found = loader.batches(0), np.zeros((0, 0), dtype=np.float32)
    ends = np.arange(1, len(loader.rows) + 1) if sizes is None else sizes.cumsum()
    for index, is_own in runtime.shard(len(batches)):
        batch = objective.collate(loader.fetch(batches[index], 0), vocabulary, generator_for(0))
        with runtime.inference_mode(), runtime.autocast():
            values = work(batch.to(runtime.device)).float().cpu().numpy()  # (B, D)
        if not len(found):
            found = np.zeros((ends[-1], values.shape[1]), dtype=np.float32)
        if is_own and sizes is None:
            found[batches[index]] = values
        elif is_own and sizes is not None:
            found[np.concatenate([np.arange(ends[at] - sizes[at], ends[at]) for at in batches[index]])] = values
    tables = [table for table in runtime.processes.all_gather(found) if len(table)]
    return np.sum(tables, axis=0) if tables else found


def eval_subset(count: int, size: int | None) -> np.ndarray:
    """Indices of the validation texts that each evaluation reads: `size` of `count`, evenly spaced."""
    if size is None or size >= count:
        return np.arange(count)
    return np.linspace(0, count - 1, size).round().astype(int)


def fit_head(
    model: Model, head: ClassHead, objective: Classification, rows: Rows, vocabulary: Vocabulary, runtime: Runtime
) -> None:
    """Train the class head alone, on cached vectors of the training texts (Kumar et al., 2022).

    Fine-tuning then starts from a head that knows the classes, and its first gradients do not distort the backbone.
    """
    step = max(1, -(-len(rows) // MAX_TEXTS))
    sample = list(rows[::step])
    vectors = pooled_vectors(model, head, objective, sample, vocabulary, runtime)
    plain = replace(objective, label_smoothing=0.0)
    labels = plain.labels_of(sample)
    assert labels is not None, "texts to train on have labels"
    weights, penalty = list(head.parameters()), WEIGHT_PENALTY / len(sample)
    device = weights[0].device
    head.cpu().eval()
    optimizer = torch.optim.LBFGS(weights, max_iter=ITERATIONS, history_size=10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        found = plain.criterion(head.classify(vectors), labels, head)
        loss = found.total / len(sample) + penalty * sum((weight**2).sum() for weight in weights)
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.zero_grad(set_to_none=True)
    head.to(device)


def pooled_vectors(
    model: Model, head: ClassHead, objective: Objective, rows: Rows, vocabulary: Vocabulary, runtime: Runtime
) -> Tensor:
    """The vector that the head reads of each text (N, D), on the CPU in float32; every process computes all."""
    fast.optimize(model).to(runtime.device).eval()
    loader = TextLoader(rows, runtime.eval_batch_tokens, shuffled=False, padding=runtime.eval_max_padding)
    alone = replace(runtime, processes=ALONE, is_sharded=False)

    def pooled(batch: Batch) -> Tensor:
        hidden = model.backbone(batch, head.positions(batch.attention_mask))
        return head.pooled(hidden, batch, model.backbone)

    return torch.from_numpy(compute_rows(pooled, objective, loader, vocabulary, alone))
