"""A run is a folder: settings, tokenizer, weights, training state, log and result."""

import json
import shlex
import shutil
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor

from headstart.atomic_io import write_json, write_text, write_with
from headstart.checkpoint import load_checkpoint, save_checkpoint, save_weights
from headstart.config import RunConfig, parse
from headstart.data.decontamination import lengthened
from headstart.data.tokenizer import Tokenizer
from headstart.errors import RunError, Stopped, nearest
from headstart.models.model import HeadSpec, Model, build_model
from headstart.objectives import make_objective
from headstart.objectives.base import Objective
from headstart.pretrained import BASE, CHECKSUMS, check_base
from headstart.pretrained import shipped_bases as shipped_bases
from headstart.quantization import WEIGHTS_FILE, read_weights
from headstart.results import Transfer
from headstart.training.callbacks import Event
from headstart.training.distributed import ALONE, Processes
from headstart.training.trainer import Trainer
from headstart.workflows.hold import Hold
from headstart.workflows.run_log import RunLog
from headstart.workflows.tensorboard import TensorBoardLog

if TYPE_CHECKING:
    from headstart.baselines.tfidf import ClassicalModel

Classifier = Literal["network", "tfidf"]
FORMAT = 1  # of run.json; a newer one is refused with a word
TOKENIZER, SOURCE_TOKENIZER = "tokenizer.json", "source-tokenizer.json"
SEEN = "seen.xz"  # of a packed base: the hashes in their short form
RECIPE = "recipe.json"  # in the folder of a recipe's stages


@dataclass(frozen=True)
class RunInfo:
    """What run.json holds."""

    config: RunConfig
    status: str  # "running" or "finished"
    vocabulary: int
    classes: list[str]
    fingerprint: str  # of the tokenizer
    inputs: dict[str, Any]  # what the command was given: data, corpora, base
    story: dict[str, Any]
    transfer: dict[str, Any] | None = None
    pair: list[str] = field(default_factory=list)  # the languages of a translator: from, to
    source_fingerprint: str = ""  # of the source's tokenizer, where it has its own
    has_heads: bool = True  # False for a body that came in without any
    finetune_defaults: dict[str, Any] = field(default_factory=dict)  # recommended settings by section
    classifier: Classifier = "network"  # what a classifier answers with

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, with the format's number first."""
        content = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "config"}
        return {"format": FORMAT, **content, "settings": self.config.model_dump()}

    @staticmethod
    def from_dict(content: Mapping[str, Any], where: str) -> "RunInfo":
        """What `to_dict` gave."""
        try:
            if content["format"] > FORMAT:
                raise RunError(
                    f"{where} was written by a newer headstart", hint="upgrade headstart to read it"
                )
            kept = {name: content[name] for name in RunInfo.__dataclass_fields__ if name in content}
            return RunInfo(config=parse(RunConfig, content["settings"], where), **kept)
        except (KeyError, TypeError) as error:
            raise RunError(
                f"{where} is no run's description: {error!r}", hint="is it a run folder?"
            ) from None


class RunFolder:
    """A run on disk, held by one process at a time; of many that train together only the main one touches it."""

    def __init__(self, path: Path, processes: Processes = ALONE):
        self.path, self.processes = path, processes
        self._hold = Hold(path)

    @staticmethod
    def create(path: Path, processes: Processes = ALONE) -> "RunFolder":
        """A new, empty run folder; an existing one is never touched."""
        folder = RunFolder(path, processes)
        processes.from_main(folder._hold.make)
        return folder

    @staticmethod
    def open(path: Path, processes: Processes = ALONE) -> "RunFolder":
        """An existing run folder."""
        processes.from_main(lambda: RunFolder._find(path))
        return RunFolder(path, processes)

    @staticmethod
    def _find(path: Path) -> str:
        if (path / RECIPE).is_file() and not (path / "run.json").is_file():
            raise RunError(
                f"the recipe in {path} is not finished",
                hint=f"`headstart resume {shlex.quote(str(path))}` goes on with it",
            )
        if not (path / "run.json").is_file():
            siblings = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
            near = (
                nearest(path.name, siblings)
                if siblings and not path.exists()
                else "a run folder holds run.json"
            )
            raise RunError(
                f"{path} is no run folder" if path.exists() else f"there is no run at {path}", hint=near
            )
        return ""

    def __enter__(self) -> "RunFolder":
        """Hold the run; a second process is told so."""
        self.processes.from_main(self._hold.take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.processes.is_main:
            self._hold.release()

    @property
    def checkpoints(self) -> Path:
        """Where training state is kept until the run is finished."""
        return self.path / "checkpoints"

    def write_info(self, info: RunInfo) -> None:
        """Put run.json in place."""
        write_json(self.path / "run.json", info.to_dict())

    def info(self) -> RunInfo:
        """What run.json says."""
        where = self.path / "run.json"

        def read() -> str:
            try:
                return json.dumps(json.loads(where.read_text("utf-8")))
            except (OSError, ValueError) as error:
                raise RunError(f"{where} cannot be read: {error}", hint="is it a run folder?") from None

        return RunInfo.from_dict(json.loads(self.processes.from_main(read)), str(where))

    def write_seen(self, seen: np.ndarray) -> None:
        """Keep the hashes of every text that any training stage has read."""
        unique = np.unique(seen.astype(np.uint64))

        def write(beside: Path) -> None:
            with open(beside, "wb") as handle:
                np.save(handle, unique)

        write_with(self.path / "seen.npy", write)

    def seen(self) -> np.ndarray:
        """Those hashes, sorted; only the main process knows them."""
        path, short = self.path / "seen.npy", self.path / SEEN
        if self.processes.is_main and short.exists():
            return lengthened(short.read_bytes())
        is_there = self.processes.is_main and path.exists()
        return np.load(path, allow_pickle=False) if is_there else np.zeros(0, np.uint64)

    def tokenizer(self, info: RunInfo) -> Tokenizer:
        """The run's tokenizer, which must be the one it was trained with."""
        return self._tokenizer(TOKENIZER, info.fingerprint)

    def source_tokenizer(self, info: RunInfo) -> Tokenizer | None:
        """The tokenizer of what a translator reads, where it is another than that of what it writes."""
        return self._tokenizer(SOURCE_TOKENIZER, info.source_fingerprint) if info.source_fingerprint else None

    def _tokenizer(self, name: str, fingerprint: str) -> Tokenizer:
        tokenizer = from_main(self.processes, lambda: Tokenizer.load(self.path, name))
        if tokenizer.fingerprint != fingerprint:
            raise RunError(
                f"the {name.removesuffix('.json')} in {self.path} is not the one this run was trained with",
                hint=f"put back the tokenizer whose fingerprint is {fingerprint[:12]}…",
            )
        return tokenizer

    def save_state(self, trainer: Trainer) -> None:
        """Write a checkpoint from which training goes on bit for bit, on as many processes as one likes."""
        parts = trainer.parts()
        with self.processes.together():
            if self.processes.is_main:
                save_checkpoint(self.checkpoints, trainer.state.step, parts, trainer.state.to_dict())

    def load_state(self, trainer: Trainer) -> bool:
        """Take up the newest whole checkpoint; False when there is none and training starts over."""
        found = load_checkpoint(self.checkpoints) if self.processes.is_main else None
        state = self.processes.from_main(lambda: json.dumps(found[1] if found else None))
        if state == "null":
            return False
        trainer.load(found[0] if found else None, json.loads(state))
        return True

    def finish(self, info: RunInfo, trainer: Trainer, result: dict[str, Any]) -> None:
        """Write weights and result, mark the run finished, and drop the training state."""
        weights = trainer.copy.whole(trainer.model.state_dict())
        with self.processes.together():
            if self.processes.is_main:
                self._finish(info, weights, result)

    def _finish(self, info: RunInfo, weights: dict[str, Tensor], result: dict[str, Any]) -> None:
        from headstart.reports.run import render_run  # needs matplotlib, which takes long to load

        save_weights(self.path / WEIGHTS_FILE, weights)
        write_json(self.path / "result.json", result)
        moved = Transfer(**info.transfer).summary() if info.transfer else ""
        write_text(
            self.path / "report.html", render_run(self.path.name, result, info.config.model_dump(), moved)
        )
        self.write_info(RunInfo(**{**info.__dict__, "status": "finished"}))
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def result(self) -> dict[str, Any]:
        """What the finished run found."""
        return json.loads(self.processes.from_main(lambda: (self.path / "result.json").read_text("utf-8")))


def from_main(processes: Processes, make: Callable[[], Tokenizer]) -> Tokenizer:
    """The tokenizer that `make` gives on the main process, on every process."""
    made: list[Tokenizer] = []

    def packed() -> str:
        made.append(make())
        files = made[0].engine.files().items()
        return json.dumps({name: b64encode(content).decode("ascii") for name, content in files})

    sent = processes.from_main(packed)
    if made:
        return made[0]
    with TemporaryDirectory() as folder:
        for name, content in json.loads(sent).items():
            (Path(folder) / name).write_bytes(b64decode(content))
        return Tokenizer.load(Path(folder))


@dataclass(frozen=True)
class Trained:
    """A finished run in memory: what evaluation, prediction and fine-tuning start from."""

    name: str
    info: RunInfo
    objective: Objective
    tokenizer: Tokenizer
    weights: dict[str, Tensor]
    seen: np.ndarray
    own_source_tokenizer: Tokenizer | None = None  # of a translator with a vocabulary for each side
    tfidf: "ClassicalModel | None" = None  # what it answers with, where the TF-IDF baseline was better

    @property
    def source_tokenizer(self) -> Tokenizer:
        """What splits the texts that a translator reads."""
        return self.own_source_tokenizer or self.tokenizer

    @property
    def specs(self) -> dict[str, HeadSpec]:
        """The heads of the model; none for a body that came in without any."""
        if not self.info.has_heads:
            return {}
        return self.objective.heads(self.info.config.body, self.info.vocabulary, len(self.info.classes))

    def model(self) -> Model:
        """The model with its weights."""
        model = build_model(self.info.config.body, self.info.vocabulary, self.specs)
        model.load_state_dict(self.weights)
        return model.eval()


def load_trained(name: str, with_weights: bool = True) -> Trained:
    """A finished run, by its folder or by a shipped base's name; without its weights it can only be asked what it is."""
    shipped = shipped_bases()
    path = shipped.get(name, Path(name))
    if not path.exists() and shipped and path.parent == Path():  # a path to elsewhere names no base
        raise RunError(f"there is no run at {name} and no base of that name", hint=nearest(name, shipped))
    folder = RunFolder.open(path)
    if any((path / name).is_file() for name in (BASE, CHECKSUMS, SEEN)):
        check_base(path)
    info = folder.info()
    if info.status != "finished":
        raise RunError(
            f"the run in {name} is not finished", hint=f"`headstart resume {name}` goes on with it"
        )
    return Trained(
        name=name,
        info=info,
        objective=make_objective(info.config.objective),
        tokenizer=folder.tokenizer(info),
        weights=read_weights(path) if with_weights else {},
        seen=folder.seen(),
        own_source_tokenizer=folder.source_tokenizer(info),
        tfidf=_load_tfidf(path) if info.classifier == "tfidf" and with_weights else None,
    )


def _load_tfidf(path: Path) -> "ClassicalModel":
    from headstart.baselines.tfidf import ClassicalModel  # needs scikit-learn, which takes long to load

    return ClassicalModel.load(path)


def need_heads(trained: Trained) -> None:
    """Refuse to ask a body that has no head to answer with."""
    if not trained.info.has_heads:
        raise RunError(
            f"{trained.name} came in without a language-model head, so it can be asked nothing",
            hint=f"`headstart finetune {trained.name} DATA --out RUN` gives it a head; `headstart embed` needs none",
        )


def train_in(
    folder: RunFolder, trainer: Trainer, is_resumed: bool, on_event: Callable[[Event], None]
) -> None:
    """Train inside a run folder: take up saved state, log, save on the way, and keep the right weights."""
    if is_resumed:
        folder.load_state(trainer)
    logs: list[RunLog | TensorBoardLog] = []
    with folder.processes.together():
        if folder.processes.is_main:
            own = RunLog(folder.path / "log.jsonl", trainer.state.step)
            logs.append(own)
            if trainer.config.training.tensorboard:
                logs.append(TensorBoardLog(folder.path / "tensorboard"))

    def listen(event: Event) -> None:
        for log in logs:
            log(event)
        on_event(event)

    def save() -> None:
        with folder.processes.together():
            if folder.processes.is_main:
                own.sync()  # a checkpoint never outlives the log up to it
        folder.save_state(trainer)

    trainer.on_event = listen
    try:
        trainer.run(save)
    except Stopped as stopped:
        stopped.again = f"headstart resume {shlex.quote(str(folder.path))}"
        raise
    finally:
        for log in logs:
            log.close()
    trainer.finish()
