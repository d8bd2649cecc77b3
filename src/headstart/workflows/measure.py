"""A few real training steps on made-up tokens: what this machine needs for them, measured."""

import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from headstart.batch import Row
from headstart.config import RunConfig
from headstart.models.model import build_model
from headstart.objectives import make_objective
from headstart.training.runtime import peak_memory, seed_everything, start_runtime
from headstart.training.trainer import Evaluation, Trainer

WARM_UP = 2  # steps before the clock starts: allocators, threads and optimiser state


@dataclass(frozen=True)
class MadeUp:
    """Random texts and the alphabet they are written in, as a loader that never ends."""

    size: int
    batch: int
    length: int
    classes: int
    source_size: int = 0  # of the vocabulary in which sources are written; 0 = there are none
    padding: int = 0
    mask: int | None = 1
    special_ids: frozenset[int] = frozenset({0, 1})

    @property
    def word_starts(self) -> np.ndarray:
        """Every token is a word of its own."""
        return np.ones(self.size, dtype=bool)

    def count(self, epoch: int) -> int:
        """Batches in an epoch."""
        return 1_000_000

    def batches(self, epoch: int) -> list[np.ndarray]:
        """The same row numbers again and again."""
        return [np.arange(self.batch)] * 1000

    def fetch(self, numbers: np.ndarray, epoch: int) -> list[Row]:
        """Rows of full length; a labelled text is one token shorter than its neighbours, so that a mask is due."""
        chance = np.random.default_rng(int(numbers[0]))
        lengths = [self.length - (index == 0 and self.classes > 0) for index in range(len(numbers))]
        label = (lambda index: index % self.classes) if self.classes else (lambda index: None)
        rows = [
            Row(chance.integers(2, self.size, length, dtype=np.int32), label(index))
            for index, length in enumerate(lengths)
        ]
        if not self.source_size:
            return rows
        shape = (len(rows), self.length - 1)  # a target is read without its last token
        sources = chance.integers(2, self.source_size, shape, dtype=np.int32)
        return [replace(row, source=source) for row, source in zip(rows, sources, strict=True)]


@dataclass(frozen=True)
class Measured:
    """What steps took: seconds for one (the median), and the most memory in bytes."""

    seconds_per_step: float
    peak_bytes: int  # of the process on a CPU, of tensors on a GPU
    reserved_bytes: int  # what the GPU's allocator holds; on a CPU the same as the peak
    steps: int


def measure_steps(
    config: RunConfig, vocabulary: int, classes: int, batch: int, length: int, seconds: float = 5.0
) -> Measured:
    """Train a fresh model for about `seconds` (three steps at least) on random tokens, and report."""
    objective = make_objective(config.objective)
    body = objective.resolve_backbone(config.model)
    config = config.with_(
        {"model": body.model_dump(), "training": {"max_steps": 1_000_000, "save_minutes": None}}
    )
    runtime = start_runtime(config.training)
    seed_everything(0)
    model = build_model(body, vocabulary, objective.heads(body, vocabulary, classes))
    texts = MadeUp(
        vocabulary,
        batch,
        length + objective.lookahead,
        classes if objective.reads == "texts" else 0,
        (body.source_vocab_size or vocabulary) if objective.reads == "translations" else 0,
    )
    trainer = Trainer(model, objective, texts, texts, config, runtime, lambda model: Evaluation({}, 0.0))
    trainer._evaluate_if_due()
    is_gpu = runtime.device.type == "cuda"
    marks: list[float] = []
    with trainer.attending():
        for parts in trainer._steps():
            trainer._step(parts)
            if is_gpu:
                torch.cuda.synchronize()
            marks.append(time.perf_counter())
            if len(marks) > WARM_UP + 2 and marks[-1] - marks[WARM_UP] > seconds:
                break
    return Measured(
        seconds_per_step=float(np.median(np.diff(marks[WARM_UP:]))),
        peak_bytes=torch.cuda.max_memory_allocated() if is_gpu else peak_memory(),
        reserved_bytes=torch.cuda.max_memory_reserved() if is_gpu else peak_memory(),
        steps=len(marks),
    )
