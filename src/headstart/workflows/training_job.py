"""One training run, from its inputs to its saved model: what pretraining, fine-tuning and translation share.

A job reads its data, builds its model, evaluates it and summarizes the result. The rest is here: the run directory, the
tokenizers, the plan, the provenance, and the resume.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from pydantic import TypeAdapter

from headstart.atomic_io import content_hash
from headstart.checkpoint import has_checkpoint
from headstart.config import RunConfig
from headstart.data.samplers import Loader
from headstart.data.tokenizer import Tokenizer
from headstart.errors import RunError
from headstart.inference.loaded_model import SOURCE_TOKENIZER, LoadedModel, RunInfo, Tokenizers, load_model
from headstart.models.model import Model, count_parameters
from headstart.objectives import make_objective
from headstart.objectives.base import Objective
from headstart.results import TransferReport, plain
from headstart.training.callbacks import Event, Note
from headstart.training.distributed import Processes
from headstart.training.runtime import Runtime, StopSignal, graceful_shutdown, seed_everything
from headstart.training.trainer import Trainer
from headstart.workflows.distill import DistillationSetup
from headstart.workflows.plan import announce
from headstart.workflows.run_dir import SCRATCH, RunDir, broadcast_tokenizers, collect_provenance

OnEvent = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A finished run."""

    path: Path
    parameters: int
    seconds: float


@dataclass(frozen=True)
class TrainingData(ABC):
    """The data of a run as tokens."""

    tokenizer: Tokenizer

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Tokens that an epoch reads."""

    @property
    @abstractmethod
    def train_hashes(self) -> list[np.ndarray]:
        """Hashes of the training texts."""

    @abstractmethod
    def summary(self, loader: Loader) -> str:
        """How much there is to train on, in words."""

    @property
    def classes(self) -> list[str]:
        """The labels in the order of their indices."""
        return []

    @property
    def own_source_tokenizer(self) -> Tokenizer | None:
        """The tokenizer of a translator's source side, where it has its own."""
        return None


Data = TypeVar("Data", bound=TrainingData)
Result = TypeVar("Result", bound=FinishedRun)


@dataclass
class TrainingJob(ABC, Generic[Data, Result]):
    """A training run with its inputs; subclasses say what is read, built, evaluated and reported."""

    config: RunConfig
    inputs: dict[str, Any]  # what the command was given, as run.json keeps it
    runtime: Runtime
    on_event: OnEvent
    base: LoadedModel | None = None
    distillation: DistillationSetup | None = None
    result_type: ClassVar[type[FinishedRun]]

    # What a job supplies.

    @abstractmethod
    def read_data(self) -> str:
        """Read the data; return a hash of all that the result depends on."""

    @abstractmethod
    def train_tokenizers(self) -> Tokenizers:
        """The tokenizers of a run from scratch."""

    @abstractmethod
    def encode_data(self, tokenizers: Tokenizers) -> Data:
        """The data as tokens."""

    @abstractmethod
    def build_model(self, data: Data) -> tuple[Model, TransferReport | None]:
        """The model, and which of its weights come from the base."""

    @abstractmethod
    def make_trainer(
        self, model: Model, objective: Objective, data: Data, info: RunInfo, stop: StopSignal
    ) -> Trainer:
        """The trainer, which evaluates the model along the way."""

    @abstractmethod
    def summarize(self, trainer: Trainer, data: Data, info: RunInfo, run_dir: RunDir) -> Result:
        """Evaluate the trained model and report the result."""

    # What all jobs share.

    @property
    def objective(self) -> Objective:
        """The objective of the settings, without its teachers."""
        return make_objective(self.config.objective)

    @property
    def processes(self) -> Processes:
        """The processes that train together."""
        return self.runtime.processes

    def start(self, out: Path, notes: Sequence[str] = ()) -> Result:
        """Train in a new run directory. A process that torchrun starts again resumes the run that it left."""
        versions = {name: metadata.version(name) for name in ("headstart", "torch")}
        base = "" if self.base is None else content_hash(self.base.info.to_dict())
        self.processes.assert_equal({**self.config.model_dump(), "base": base, "version of": versions})
        own = self._find_own_run(out) if self.processes.info.may_resume else None
        run_dir = RunDir(out, self.processes) if own else RunDir.create(out, self.processes)
        with run_dir:
            if own is not None:
                return self.resume(run_dir, own, self.runtime, self.on_event)
            for note in notes:
                self.on_event(Note(note))
            return self.run(run_dir)

    def _find_own_run(self, path: Path) -> RunInfo | None:
        """The description of the unfinished or finished run in `path`, which must be this one."""
        info = RunDir(path, self.processes).find_info()
        if info is None:
            return None
        # The size of a translator's source vocabulary follows from its tokenizer; the settings do not contain it.
        derived = {"model": {"source_vocab_size": info.config.model.source_vocab_size}} if info.pair else {}
        is_same = info.config == self.config.with_(derived)
        if not is_same or any(info.inputs.get(name) != given for name, given in self.inputs.items()):
            error = RunError(f"{path} holds a run with other settings", hint="choose another --out")
            error.is_shared = True  # every process finds the same
            raise error
        return info

    @classmethod
    def resume(cls, run_dir: RunDir, info: RunInfo, runtime: Runtime, on_event: OnEvent) -> Result:
        """Continue the run in a locked directory; the result of a finished one is read."""
        if info.status == "finished":
            return cls.read_result(run_dir)
        base, processes = info.inputs.get("base", SCRATCH), runtime.processes
        has_state = processes.broadcast(lambda: has_checkpoint(run_dir.checkpoints))
        with processes.raise_on_all():
            loaded = None if has_state or base == SCRATCH else load_model(base)
            distillation = DistillationSetup.from_inputs(info.inputs)
        return cls(info.config, info.inputs, runtime, on_event, loaded, distillation).run(run_dir, info)

    @classmethod
    def read_result(cls, run_dir: RunDir) -> Result:
        """The result of a finished run."""
        content = {**cls.restore(run_dir.result()), "path": run_dir.path}
        fields = {name: content[name] for name in cls.result_type.__dataclass_fields__ if name in content}
        return TypeAdapter(cls.result_type).validate_python(fields)  # type: ignore[return-value]

    @staticmethod
    def restore(content: dict[str, Any]) -> dict[str, Any]:
        """A result from result.json with the values that JSON cannot hold."""
        return content

    def run(self, run_dir: RunDir, resumed: RunInfo | None = None) -> Result:
        """Train in a locked run directory; `resumed` describes the run in it that continues."""
        started, config, runtime = time.time(), self.config, self.runtime
        data, fingerprint = self.load_data(run_dir, resumed)
        config = self.config
        with self.processes.raise_on_all():
            announce(config, runtime, data.tokenizer.size, len(data.classes), data.tokens, self.on_event)
        seed_everything(config.training.seed, 0, 3)
        model, transfer = self.build_model(data)
        info = resumed or self._write_start(run_dir, data, fingerprint, transfer)
        self.processes.start(runtime.device, config.training.ddp_timeout_minutes)
        objective = self.objective
        if self.distillation is not None:
            objective = self.distillation.objective(objective, config, runtime)
        with graceful_shutdown() as stop:
            trainer = self.make_trainer(model, objective, data, info, stop)
            if transfer is not None:
                self.on_event(Note(f"from {self.inputs['base']}: {transfer.summary()}"))
            self.on_event(Note(f"{count_parameters(model):,} parameters; {data.summary(trainer.loader)}"))
            run_dir.train(trainer, resumed is not None, self.on_event)
        result = self.summarize(trainer, data, info, run_dir)
        command = info.provenance["command"]
        provenance = collect_provenance(runtime, [config.training.seed], started, command)
        more = {"path": "", "steps": trainer.state.step, "curve": trainer.state.curve}
        run_dir.finish(info, trainer, {**plain(result), **more, "provenance": plain(provenance)})
        return result

    def load_data(self, run_dir: RunDir, resumed: RunInfo | None) -> tuple[Data, str]:
        """The data as tokens, the same in every process, and its fingerprint."""
        fingerprint = self.read_data()
        self.processes.assert_equal({"texts": fingerprint}, "data")
        with self.processes.raise_on_all():
            if resumed is not None and resumed.inputs["fingerprint"] != fingerprint:
                raise RunError(
                    f"the data of {run_dir.path} has changed since the run started",
                    hint="put the old data back",
                )
        owner = self.base or self.distillation
        if resumed is not None:
            tokenizers = run_dir.tokenizers(resumed)
        elif owner is not None:
            tokenizers = owner.tokenizers
        else:
            tokenizers = broadcast_tokenizers(self.processes, self.train_tokenizers)
        if self.distillation is not None:
            with self.processes.raise_on_all():
                self.distillation.check_student(tokenizers[0])
        return self.encode_data(tokenizers), fingerprint

    def _write_start(
        self, run_dir: RunDir, data: Data, fingerprint: str, transfer: TransferReport | None
    ) -> RunInfo:
        """Write all that a resume needs, run.json last: from then on the run can be resumed."""
        source = data.own_source_tokenizer
        info = RunInfo(
            config=self.config,
            status="running",
            vocab_size=data.tokenizer.size,
            classes=data.classes,
            tokenizer_fingerprint=data.tokenizer.fingerprint,
            inputs={**self.inputs, "fingerprint": fingerprint},
            provenance=plain(collect_provenance(self.runtime, [self.config.training.seed])),
            transfer=None if transfer is None else plain(transfer),
            pair=self.inputs["pair"].split("-") if "pair" in self.inputs else [],
            source_tokenizer_fingerprint="" if source is None else source.fingerprint,
        )
        owners = [owner for owner in (self.base, self.distillation) if owner is not None]
        with self.processes.raise_on_all():
            if self.processes.is_main:
                data.tokenizer.save(run_dir.path)
                if source is not None:
                    source.save(run_dir.path, SOURCE_TOKENIZER)
                run_dir.write_fingerprints(data.train_hashes + [each.train_fingerprints for each in owners])
                run_dir.write_info(info)
        return info


def best_epoch(trainer: Trainer) -> float:
    """The epoch of the weights that a run keeps."""
    best = (point["epoch"] for point in trainer.state.curve if point["step"] == trainer.state.best_step)
    return (
        next(best, trainer.epochs_done)
        if trainer.config.training.checkpoint_selection == "best"
        else trainer.epochs_done
    )


def main_only(processes: Processes, on_event: OnEvent) -> OnEvent:
    """The listener in the main process; in the others one that ignores every event."""
    return on_event if processes.is_main else lambda event: None
