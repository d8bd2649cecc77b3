"""Marking a model without changing it."""

from collections.abc import Sequence

import numpy as np
import torch

from headstart.batch import Row
from headstart.data.loader import Loader, TextLoader
from headstart.models.model import Model
from headstart.objectives.base import Alphabet, Objective
from headstart.training.runtime import Runtime, generator_for

EVALUATION_SEED = 20180611  # masks drawn for marking are the same in every run


@torch.inference_mode()
def predict_probabilities(
    model: Model,
    objective: Objective,
    rows: Sequence[Row],
    alphabet: Alphabet,
    runtime: Runtime,
    batch_tokens: int,
) -> np.ndarray:
    """The probability of every class (N, C) for each text, in the order given."""
    scores = class_scores(model, objective, rows, alphabet, runtime, batch_tokens)
    return torch.from_numpy(scores).softmax(dim=-1).numpy().astype(np.float64)


@torch.inference_mode()
def class_scores(
    model: Model,
    objective: Objective,
    rows: Sequence[Row],
    alphabet: Alphabet,
    runtime: Runtime,
    batch_tokens: int,
) -> np.ndarray:
    """The score of every class (N, C) in float32 for each text, in the order given."""
    model.eval()
    loader = TextLoader(rows, batch_tokens, shuffled=False)
    found: np.ndarray | None = None
    for numbers in loader.batches(0):
        batch = objective.collate(loader.fetch(numbers, 0), alphabet, generator_for(0)).to(runtime.device)
        with runtime.autocast():
            scores = model(batch)["class"].float().cpu().numpy()  # (B, C)
        if found is None:
            found = np.zeros((len(rows), scores.shape[1]), dtype=np.float32)
        found[numbers] = scores
    return np.zeros((0, 0), dtype=np.float32) if found is None else found


@torch.inference_mode()
def language_sums(
    model: Model,
    objective: Objective,
    loader: Loader,
    alphabet: Alphabet,
    runtime: Runtime,
    most: int | None = None,
) -> dict[str, tuple[float, int, int]]:
    """Summed loss, count and right answers of each head over the loader's first epoch (its first `most` batches)."""
    model.eval()
    sums: dict[str, tuple[float, int, int]] = {}
    for index, numbers in enumerate(loader.batches(0)[:most]):
        rng = generator_for(EVALUATION_SEED, index)
        batch = objective.collate(loader.fetch(numbers, 0), alphabet, rng).to(runtime.device)
        with runtime.autocast():
            losses = objective.losses(model, batch)
        for name, loss in losses.items():
            total, count, correct = sums.get(name, (0.0, 0, 0))
            sums[name] = (total + float(loss.total), count + loss.count, correct + int(loss.correct))
    return sums
