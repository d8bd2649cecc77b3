"""Marking a model without changing it."""

from collections.abc import Sequence

import numpy as np
import torch

from headstart.batch import EncodedExample
from headstart.data.samplers import Loader, TextLoader
from headstart.models.model import Model
from headstart.objectives.base import Objective, Vocabulary
from headstart.training.runtime import Runtime, generator_for

EVALUATION_SEED = 20180611  # masks drawn for marking are the same in every run


def predict_probabilities(
    model: Model,
    objective: Objective,
    rows: Sequence[EncodedExample],
    vocabulary: Vocabulary,
    runtime: Runtime,
    batch_tokens: int,
) -> np.ndarray:
    """The probability of every class (N, C) for each text, in the order given."""
    scores = class_logits(model, objective, rows, vocabulary, runtime, batch_tokens)
    return torch.from_numpy(scores).softmax(dim=-1).numpy().astype(np.float64)


def class_logits(
    model: Model,
    objective: Objective,
    rows: Sequence[EncodedExample],
    vocabulary: Vocabulary,
    runtime: Runtime,
    batch_tokens: int,
) -> np.ndarray:
    """The score of every class (N, C) in float32 for each text, in the order given."""
    if model.training:
        model.eval()
    padding = None if model.backbone.is_flat else runtime.eval_max_padding
    loader = TextLoader(rows, batch_tokens, shuffled=False, padding=padding)
    batches = loader.batches(0)
    found: np.ndarray | None = None
    for index, is_own in runtime.shard(len(batches)):
        numbers = batches[index]
        batch = objective.collate(loader.fetch(numbers, 0), vocabulary, generator_for(0)).to(runtime.device)
        with runtime.inference_mode(), runtime.autocast():
            scores = model(batch)["class"].float().cpu().numpy()  # (B, C)
        if found is None:
            found = np.zeros((len(rows), scores.shape[1]), dtype=np.float32)
        if is_own:
            found[numbers] = scores
    tables = [table for table in runtime.processes.all_gather(found) if table is not None]
    return np.sum(tables, axis=0) if tables else np.zeros((0, 0), dtype=np.float32)


def loss_sums(
    model: Model,
    objective: Objective,
    loader: Loader,
    vocabulary: Vocabulary,
    runtime: Runtime,
    most: int | None = None,
) -> dict[str, tuple[float, int, int]]:
    """Summed loss, count and right answers of each head over the loader's first epoch (its first `most` batches)."""
    model.eval()
    batches = loader.batches(0)[:most]
    sums: dict[str, float] = {}
    for index, is_own in runtime.shard(len(batches)):
        rng = generator_for(EVALUATION_SEED, index)
        batch = objective.collate(loader.fetch(batches[index], 0), vocabulary, rng).to(runtime.device)
        with runtime.inference_mode(), runtime.autocast():
            losses = objective.losses(model, batch)
        for name, loss in losses.items() if is_own else ():
            for what, value in (("loss", loss.total), ("answers", loss.count), ("right", loss.correct)):
                sums[f"{what} {name}"] = sums.get(f"{what} {name}", 0) + float(value)
    whole = runtime.processes.all_reduce(sums)
    heads = [name.removeprefix("loss ") for name in whole if name.startswith("loss ")]
    return {
        name: (whole[f"loss {name}"], round(whole[f"answers {name}"]), round(whole[f"right {name}"]))
        for name in heads
    }


def eval_subset(count: int, most: int | None) -> np.ndarray:
    """Which of `count` validation texts are read at each evaluation: `most` of them, evenly spread."""
    if most is None or most >= count:
        return np.arange(count)
    return np.linspace(0, count - 1, most).round().astype(int)
