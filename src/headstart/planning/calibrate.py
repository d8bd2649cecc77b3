"""Measured training steps over random tokens: seconds and peak memory on this machine."""

import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from headstart.batch import EncodedExample
from headstart.config import RunConfig
from headstart.models.model import build_model
from headstart.objectives import make_objective
from headstart.training.runtime import peak_memory, seed_everything, start_runtime
from headstart.training.trainer import Evaluation, Trainer

WARM_UP = 2  # steps before the clock starts: allocators, threads and optimizer state


@dataclass(frozen=True)
class SyntheticData:
    """Random texts and their vocabulary, as a loader without end."""

    size: int
    batch: int
    length: int
    classes: int
    source_size: int = 0  # of the vocabulary of the sources; 0 = there are none
    pad_id: int = 0
    mask_id: int | None = 1
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

    def fetch(self, numbers: np.ndarray, epoch: int) -> list[EncodedExample]:
        """Rows of full length; the first labelled text is one token shorter, so that a padding mask is needed."""
        rng = np.random.default_rng(int(numbers[0]))
        lengths = [self.length - (index == 0 and self.classes > 0) for index in range(len(numbers))]
        rows = [
            EncodedExample(
                rng.integers(2, self.size, length, dtype=np.int32), index % self.classes if self.classes else None
            )
            for index, length in enumerate(lengths)
        ]
        if not self.source_size:
            return rows
        shape = (len(rows), self.length - 1)  # the decoder reads a target without its last token
        sources = rng.integers(2, self.source_size, shape, dtype=np.int32)
        return [replace(row, source=source) for row, source in zip(rows, sources, strict=True)]


@dataclass(frozen=True)
class StepMeasurement:
    """Seconds of one step (the median), and the peak memory in bytes."""

    seconds_per_step: float
    peak_bytes: int  # of the process on a CPU, of tensors on a GPU
    reserved_bytes: int  # by the GPU's allocator; on a CPU the same as the peak
    steps: int


def measure_steps(
    config: RunConfig, vocabulary: int, classes: int, batch: int, length: int, seconds: float = 5.0
) -> StepMeasurement:
    """Train a new model for about `seconds` (three steps at least) on random tokens, and report."""
    objective = make_objective(config.objective)
    body = objective.resolve_backbone(config.model)
    config = config.with_({"model": body.model_dump(), "training": {"max_steps": 1_000_000, "save_minutes": None}})
    runtime = start_runtime(config.training)
    seed_everything(0)
    model = build_model(body, vocabulary, objective.heads(body, vocabulary, classes))
    texts = SyntheticData(
        vocabulary,
        batch,
        length + objective.lookahead,
        classes if objective.reads == "texts" else 0,
        (body.source_vocab_size or vocabulary) if objective.reads == "translations" else 0,
    )
    trainer = Trainer(model, objective, texts, texts, config, runtime, lambda model: Evaluation({}, 0.0))
    trainer.evaluate_if_due()
    is_gpu = runtime.device.type == "cuda"
    times: list[float] = []
    with trainer.attention_kernels():
        for parts in trainer.batches():
            trainer.step(parts)
            if is_gpu:
                torch.cuda.synchronize()
            times.append(time.perf_counter())
            if len(times) > WARM_UP + 2 and times[-1] - times[WARM_UP] > seconds:
                break
    return StepMeasurement(
        seconds_per_step=float(np.median(np.diff(times[WARM_UP:]))),
        peak_bytes=torch.cuda.max_memory_allocated() if is_gpu else peak_memory(),
        reserved_bytes=torch.cuda.max_memory_reserved() if is_gpu else peak_memory(),
        steps=len(times),
    )
