"""A plan for a run, on a named device or on this machine, perhaps with step times measured over random tokens."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from headstart.batch import EncodedExample
from headstart.config import RunConfig, load_preset, resolve
from headstart.errors import ConfigError
from headstart.models.model import build_model
from headstart.objectives import OBJECTIVES, make_objective
from headstart.planning.communication import Cluster
from headstart.planning.devices import find_device
from headstart.planning.plan import Plan, make_plan, this_machine
from headstart.planning.summary import plan_on_all_devices
from headstart.training.compile import can_compile
from headstart.training.runtime import peak_memory, seed_everything, start_runtime
from headstart.training.trainer import Evaluation, Trainer
from headstart.workflows.finetune_defaults import REFERENCE, finetune_defaults, has_own_budget

WARM_UP = 2  # steps before the clock starts: allocators, threads and optimizer state


def sharded_translator_error() -> ConfigError:
    """The refusal of a translator that is to be sharded."""
    problem = "a translator is trained with a whole copy in each process, not with a part"
    return ConfigError(problem, hint="leave training.fsdp out")


def plan(
    preset: str = "tiny",
    *,
    gpu: str | None = None,
    settings: Mapping[str, Any] | None = None,
    measure: bool = False,
    gpus: int = 1,
    nodes: int = 1,
    network: float = 100.0,
    tokens: float | None = None,
    epochs: float | None = None,
    price: float | None = None,
    **sizes: Any,
) -> Plan:
    """The plan of a run with this preset and these settings; `sizes` are those of `make_plan`."""
    config = plan_config(preset, settings or {})
    device = this_machine() if gpu is None else find_device(gpu)
    cluster = Cluster(gpus, nodes, network, config.training.fsdp) if gpus * nodes > 1 else None
    if measure and cluster:
        raise ConfigError("--calibrate runs on one device", hint="leave out --gpus and --nodes, or --calibrate")
    if measure and device.name != this_machine().name:
        problem = f"--calibrate runs on this machine, and {device.name} is another"
        raise ConfigError(problem, hint="leave out --gpu or --calibrate")
    options = {"tokens": tokens, "epochs": epochs, "price": price, "cluster": cluster, **sizes}
    options["can_compile"] = can_compile(device.kind) if measure or gpu is None else None
    found = make_plan(config, device, **options)
    if cluster and cluster.sharded and found.workload.source_length:
        raise sharded_translator_error()
    if measure:  # a batch too large for this machine is measured by the largest that fits
        workload = found.workload
        batch = max(1, min(workload.batch_size, found.largest_batch))
        classes = next((spec.size for spec in workload.heads.values() if spec.kind == "class"), 2)
        changed = config.with_({"training": {"compile": found.is_compiled}})
        measured = measure_steps(changed, workload.vocab_size, classes, batch, workload.length)
        seconds = measured.seconds_per_step * workload.batch_size / batch
        found = make_plan(config, device, **options, seconds_per_step=seconds)
    devices = plan_on_all_devices(found, **sizes) if gpu is None else []
    return replace(found, devices=devices, note=load_preset(preset).get("note", ""))


def plan_config(preset: str, settings: Mapping[str, Any]) -> RunConfig:
    """The settings of the job of the objective: fine-tuning for labels and translations, else pretraining.

    Without an objective, a preset made for translation is planned as translation, any other as pretraining.
    """
    preset_objective = load_preset(preset).get("finetune", {}).get("objective", {}).get("name")
    name = settings.get("objective", {}).get("name")
    if name is None and preset_objective in OBJECTIVES:
        name = preset_objective if OBJECTIVES[preset_objective].reads == "translations" else None
    is_finetuning = name in OBJECTIVES and OBJECTIVES[name].reads in ("texts", "translations")
    if not is_finetuning or has_own_budget(preset):
        return resolve("finetune" if is_finetuning else "pretrain", preset, settings)
    model = resolve("finetune", preset, settings).model
    return resolve("finetune", preset, settings, defaults=finetune_defaults(REFERENCE, model, "scratch"))


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
        texts = [rng.integers(2, self.size, length, dtype=np.int32) for length in lengths]
        labels = [index % self.classes if self.classes else None for index in range(len(texts))]
        rows = [EncodedExample(text, label) for text, label in zip(texts, labels, strict=True)]
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
