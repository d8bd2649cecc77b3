"""One training run, from its inputs to its saved model: what pretraining, fine-tuning and translation share."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import numpy as np
from pydantic import TypeAdapter

from headstart.atomic_io import content_hash
from headstart.batch import Loader
from headstart.checkpoint import has_checkpoint
from headstart.config import RunConfig
from headstart.data.tokenizer import Tokenizer
from headstart.errors import RunError
from headstart.inference.loaded_model import (
    SCRATCH,
    LoadedModel,
    RunInfo,
    RunInputs,
    Tokenizers,
    load_model,
    read_fingerprints,
)
from headstart.models.model import Model, count_parameters, describe_transfer, reuses_head
from headstart.objectives import make_objective
from headstart.objectives.base import Objective
from headstart.planning.plan import announce
from headstart.results import Number, TransferReport
from headstart.training.callbacks import Note, OnEvent, ignore_event
from headstart.training.runtime import Runtime, StopSignal, graceful_shutdown, seed_everything
from headstart.training.trainer import Evaluation, Trainer
from headstart.workflows.distill import DistillationSetup
from headstart.workflows.run_dir import RunDir, collect_provenance

Content = TypeVar("Content")  # the data as the model reads it
Result = TypeVar("Result", bound="FinishedRun")


@dataclass(frozen=True)
class FinishedRun:
    """A finished run; each kind of job adds its score."""

    path: Path
    parameters: int
    tokens: int
    seconds: float
    curve: list[dict[str, Number]]
    best_epoch: float  # of the weights that were selected
    transfer: TransferReport | None  # which weights come from the base


@dataclass(frozen=True)
class TrainingData(Generic[Content]):
    """The data of a run as tokens."""

    content: Content
    loader: Loader  # of the training part
    tokenizer: Tokenizer
    tokens: int  # in one epoch
    train_hashes: list[np.ndarray]  # of the training texts
    summary: str  # how much there is to train on, in words
    classes: list[str] = field(default_factory=list)
    own_source_tokenizer: Tokenizer | None = None  # of a translator with a vocabulary for each side
    has_validation: bool = True


@dataclass
class TrainingJob(ABC, Generic[Content, Result]):
    """A training run; a subclass loads its data, builds its model, evaluates it and summarizes the result."""

    config: RunConfig
    runtime: Runtime
    inputs: RunInputs = field(default_factory=RunInputs)
    on_event: OnEvent = ignore_event
    base: LoadedModel | None = None
    distillation: DistillationSetup | None = None
    result_type: ClassVar[type[FinishedRun]]

    def __post_init__(self) -> None:
        self.processes = self.runtime.processes
        self.objective = make_objective(self.config.objective)  # without its teachers
        if not self.processes.is_main:
            self.on_event = ignore_event

    @abstractmethod
    def read_data(self) -> str:
        """Read the data; return a hash of all that the result depends on."""

    @abstractmethod
    def train_tokenizers(self) -> Tokenizers:
        """The tokenizers of a run from scratch."""

    @abstractmethod
    def encode_data(self, tokenizers: Tokenizers) -> TrainingData[Content]:
        """The data as tokens."""

    @abstractmethod
    def build_model(self, data: Content) -> tuple[Model, TransferReport | None]:
        """The model, and which of its weights come from the base."""

    @abstractmethod
    def evaluate(self, model: Model, data: Content) -> Evaluation:
        """The metrics of a model on the validation part, for an evaluation during training."""

    @abstractmethod
    def summarize(self, run: FinishedRun, trainer: Trainer, data: Content, seen: np.ndarray) -> Result:
        """Evaluate the trained model; `seen` are hashes of all texts that it was ever trained on."""

    def start(self, out: Path, notes: Sequence[str] = ()) -> Result:
        """Train in a new run directory. A process that torchrun restarts resumes the run that it left."""
        if not self.processes.is_alone:
            versions = {name: metadata.version(name) for name in ("headstart", "torch")}
            base = "" if self.base is None else content_hash(self.base.info.to_dict())
            self.processes.assert_equal({**self.config.model_dump(), "base": base, "version of": versions})
        own = self._find_own_run(out) if self.processes.may_resume else None
        run_dir = RunDir(out, self.processes) if own else RunDir.create(out, self.processes)
        with run_dir:
            if own is not None:
                return self.resume(run_dir, own, self.runtime, self.on_event)
            for note in notes:
                self.on_event(Note(note))
            return self.run(run_dir)

    def _find_own_run(self, path: Path) -> RunInfo | None:
        """The description of the unfinished or finished run in `path`, which must be this one."""
        info = self.processes.broadcast(lambda: RunInfo.find(path))
        if info is None:
            return None
        # The size of a translator's source vocabulary follows from its tokenizer; the settings do not contain it.
        derived = {"model": {"source_vocab_size": info.config.model.source_vocab_size}} if info.pair else {}
        with self.processes.raise_on_all():
            if info.config != self.config.with_(derived) or replace(info.inputs, fingerprint="") != self.inputs:
                raise RunError(f"{path} holds a run with other settings", hint="choose another --out")
        return info

    @classmethod
    def resume(cls, run_dir: RunDir, info: RunInfo, runtime: Runtime, on_event: OnEvent) -> Result:
        """Continue the run in a locked directory; the result of a finished one is read."""
        if info.status == "finished":
            return cls.read_result(run_dir)
        processes, base = runtime.processes, info.inputs.base
        has_state = processes.broadcast(lambda: has_checkpoint(run_dir.checkpoints))
        with processes.raise_on_all():
            loaded = None if has_state or base in ("", SCRATCH) else load_model(base)
            distillation = DistillationSetup.load(info.inputs.teacher or None, info.inputs.unlabelled)
        return cls(info.config, runtime, info.inputs, on_event, loaded, distillation).run(run_dir, info)

    @classmethod
    def read_result(cls, run_dir: RunDir) -> Result:
        """The result of a finished run."""
        content = {**run_dir.result(), "path": run_dir.path}
        fields = {name: content[name] for name in cls.result_type.__dataclass_fields__ if name in content}
        return TypeAdapter(cls.result_type).validate_python(fields)  # type: ignore[return-value]

    def run(self, run_dir: RunDir, resumed: RunInfo | None = None) -> Result:
        """Train in a locked run directory; `resumed` describes the run in it that continues."""
        started, runtime = time.time(), self.runtime
        data = self._load_data(run_dir, resumed)
        with self.processes.raise_on_all():
            announce(self.config, runtime, data.tokenizer.size, len(data.classes), data.tokens, self.on_event)
        seed_everything(self.config.training.seed, 0, 3)
        model, transfer = self.build_model(data.content)
        if resumed is not None:
            transfer = TransferReport(**resumed.transfer) if resumed.transfer else None
        if transfer is not None:
            self.on_event(Note(f"from {self.inputs.base}: {describe_transfer(transfer)}"))
        self.on_event(Note(f"{count_parameters(model):,} parameters; {data.summary}"))
        self.processes.start(runtime.device, self.config.training.ddp_timeout_minutes)
        objective = self.objective
        if self.distillation is not None:
            objective = self.distillation.objective(objective, self.config, runtime)
        with graceful_shutdown() as stop:
            trainer = self.make_trainer(model, objective, data, transfer, stop)
            info = resumed or self._write_start(run_dir, data, transfer)
            run_dir.train(trainer, resumed is not None, self.on_event)
        state = trainer.state
        spent, parameters = (state.tokens, state.seconds), count_parameters(model)
        run = FinishedRun(run_dir.path, parameters, *spent, state.curve, trainer.best_epoch, transfer)
        seen = read_fingerprints(run_dir.path) if self.processes.is_main else np.zeros(0, np.uint64)
        result = self.summarize(run, trainer, data.content, seen)
        run_dir.finish(info, trainer, {**asdict(result), "path": "", "steps": state.step}, started)
        return result

    def _load_data(self, run_dir: RunDir, resumed: RunInfo | None) -> TrainingData[Content]:
        """The data as tokens, the same in every process."""
        fingerprint = self.read_data()
        self.processes.assert_equal({"texts": fingerprint}, "data")
        self.inputs, owner = replace(self.inputs, fingerprint=fingerprint), self.base or self.distillation
        if resumed is not None:
            tokenizers = run_dir.tokenizers(resumed)
        else:
            tokenizers = owner.tokenizers if owner else self.processes.broadcast(self.train_tokenizers)
        with self.processes.raise_on_all():
            if resumed is not None and resumed.inputs.fingerprint != fingerprint:
                problem = f"the data of {run_dir.path} has changed since the run started"
                raise RunError(problem, hint="put the old data back")
            if self.distillation is not None:
                self.distillation.check_student(tokenizers[0])
        return self.encode_data(tokenizers)

    def make_trainer(
        self,
        model: Model,
        objective: Objective,
        data: TrainingData[Content],
        transfer: TransferReport | None,
        stop: StopSignal | None = None,
    ) -> Trainer:
        """The trainer of a model; the `objective` may have teachers."""
        evaluate = partial(self.evaluate, data=data.content) if data.has_validation else None
        # With a new class head, the weights before the first step are never the best ones.
        may_select_initial = not data.classes or (transfer is not None and reuses_head(transfer))
        given = (model, objective, data.loader, data.tokenizer, self.config, self.runtime)
        return Trainer(*given, evaluate, self.on_event, stop, may_select_initial)

    def _write_start(self, run_dir: RunDir, data: TrainingData[Content], transfer: TransferReport | None) -> RunInfo:
        """Write all that a resume needs into the run directory."""
        tokenizer, source = data.tokenizer, data.own_source_tokenizer
        owners = (self.base, self.distillation)
        hashes = data.train_hashes + [owner.train_fingerprints for owner in owners if owner is not None]
        info = RunInfo(
            config=self.config,
            status="running",
            vocab_size=tokenizer.size,
            classes=data.classes,
            tokenizer_fingerprint=tokenizer.fingerprint,
            inputs=self.inputs,
            provenance=asdict(collect_provenance(self.runtime, [self.config.training.seed])),
            transfer=None if transfer is None else asdict(transfer),
            pair=self.inputs.pair.split("-") if self.inputs.pair else [],
            source_tokenizer_fingerprint=source.fingerprint if source else "",
        )
        run_dir.write_start(info, (tokenizer, source), hashes)
        return info
