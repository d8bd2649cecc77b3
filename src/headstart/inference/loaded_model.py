"""A finished run in memory: what evaluation, inference and fine-tuning start from."""

import io
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from headstart import fast
from headstart.atomic_io import write_bytes, write_json
from headstart.checkpoint import WEIGHTS_FILE, read_weights, save_weights
from headstart.config import PATH_SETTINGS, RunConfig, TaskName, merge, parse
from headstart.data.built_in import SOURCES
from headstart.data.documents import MixtureComponent
from headstart.data.text_io import unpack_fingerprints
from headstart.data.tokenizer import Tokenizer
from headstart.data.tokenizer_training import open_tokenizer
from headstart.errors import ConfigError, RunError, nearest
from headstart.models.model import HeadSpec, Model, build_model
from headstart.objectives import make_objective
from headstart.objectives.base import Objective
from headstart.objectives.classification import HEAD_SETTINGS
from headstart.pretrained import BASE, CHECKSUMS, check_base
from headstart.pretrained import shipped_bases as shipped_bases

if TYPE_CHECKING:
    from headstart.baselines.tfidf import TfidfModel

Classifier = Literal["network", "tfidf"]
Tokenizers = tuple[Tokenizer, Tokenizer | None]  # the second: of a translator's source side, where it has its own
HEAD = "class"  # name of a classifier's head
SCRATCH = "scratch"  # the name of a base with random weights
FORMAT_VERSION = 2  # of run.json
RUN_INFO, RECIPE = "run.json", "recipe.json"
TOKENIZER, SOURCE_TOKENIZER = "tokenizer.json", "source-tokenizer.json"
FINGERPRINTS = "train_fingerprints.npy"  # hashes of every text that any training stage has read
PACKED_FINGERPRINTS = "train_fingerprints.xz"  # the same in the compressed form of a packaged base


@dataclass(frozen=True)
class RunInputs:
    """What the command of a run was given, with absolute paths; the fields that it does not use are empty."""

    base: str = ""
    data: str = ""
    pair: str = ""  # the languages of a translator, as "en-de"
    corpora: list[str] = field(default_factory=list)
    mix: list[MixtureComponent] = field(default_factory=list)  # the same with weights
    tokenizer_corpora: list[MixtureComponent] = field(default_factory=list)  # that a new tokenizer is trained on
    teacher: list[str] = field(default_factory=list)
    unlabelled: list[MixtureComponent] = field(default_factory=list)  # that the teachers label
    fingerprint: str = ""  # of all texts and labels
    imported: str = ""  # the folder of a model that was trained elsewhere
    family: str = ""
    dropped: dict[str, int] = field(default_factory=dict)  # its weights that are not used, and their sizes

    def to_dict(self) -> dict[str, Any]:
        """The fields that are used, JSON-able."""
        return {name: value for name, value in asdict(self).items() if value}

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> "RunInputs":
        """The inverse of `to_dict`."""
        return TypeAdapter(RunInputs).validate_python(dict(content))


@dataclass(frozen=True)
class RunInfo:
    """The contents of run.json."""

    config: RunConfig
    status: str  # "running" or "finished"
    vocab_size: int
    classes: list[str]
    tokenizer_fingerprint: str
    inputs: RunInputs
    provenance: dict[str, Any]
    transfer: dict[str, Any] | None = None
    pair: list[str] = field(default_factory=list)  # the languages of a translator: from, to
    source_tokenizer_fingerprint: str = ""  # only where the source side has its own tokenizer
    has_heads: bool = True  # False for a backbone that was imported without any head
    finetune_defaults: dict[str, Any] = field(default_factory=dict)  # recommended settings by section
    classifier: Classifier = "network"  # what a classifier answers with
    thresholds: list[float] = field(default_factory=list)  # of each label, where a text may have several

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, with the format version first."""
        content = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "config"}
        settings = {"inputs": self.inputs.to_dict(), "settings": self.config.model_dump()}
        return {"format_version": FORMAT_VERSION, **content, **settings}

    @staticmethod
    def from_dict(content: Mapping[str, Any], where: str) -> "RunInfo":
        """The inverse of `to_dict`; `where` is the path of the file for error messages."""
        version = content.get("format_version", content.get("format"))
        if isinstance(version, int) and version != FORMAT_VERSION:
            age, hint = "an earlier", "train the run again, or install the headstart version that its provenance names"
            if version > FORMAT_VERSION:
                age, hint = "a newer", "upgrade headstart to read it"
            formats = f"format {version}; this version reads {FORMAT_VERSION}"
            raise RunError(f"{where} was written by {age} headstart ({formats})", hint=hint)
        try:
            fields = {name: content[name] for name in RunInfo.__dataclass_fields__ if name in content}
            fields["inputs"] = RunInputs.from_dict(content["inputs"])
            return RunInfo(config=parse(RunConfig, content["settings"], where), **fields)
        except (KeyError, TypeError, ValidationError) as error:
            raise RunError(f"{where} does not describe a run: {error!r}", hint="is it a run directory?") from None

    @staticmethod
    def find(path: Path) -> "RunInfo | None":
        """The description of the run in the directory `path`, if there is one."""
        return RunInfo.read(path) if (path / RUN_INFO).is_file() else None

    @staticmethod
    def read(path: Path) -> "RunInfo":
        """The description of the run in the directory `path`."""
        where = path / RUN_INFO
        try:
            content = json.loads(where.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{where} cannot be read: {error}", hint="is it a run directory?") from None
        return RunInfo.from_dict(content if isinstance(content, dict) else {}, str(where))


@dataclass(frozen=True)
class LoadedModel:
    """The model of a finished run with its tokenizer, settings and training fingerprints."""

    name: str
    info: RunInfo
    objective: Objective
    tokenizer: Tokenizer
    weights: dict[str, Tensor]
    train_fingerprints: np.ndarray
    own_source_tokenizer: Tokenizer | None = None  # of a translator with a vocabulary for each side
    tfidf: "TfidfModel | None" = None  # what it answers with, where the TF-IDF baseline was better

    @property
    def tokenizers(self) -> Tokenizers:
        """Its tokenizers."""
        return self.tokenizer, self.own_source_tokenizer

    @property
    def source_tokenizer(self) -> Tokenizer:
        """The tokenizer of the texts that a translator reads."""
        return self.own_source_tokenizer or self.tokenizer

    @property
    def specs(self) -> dict[str, HeadSpec]:
        """The heads of the model; empty for a backbone that was imported without any."""
        if not self.info.has_heads:
            return {}
        return self.objective.heads(self.info.config.model, self.info.vocab_size, len(self.info.classes))

    def check_tokenizer(self, name: str | None) -> None:
        """Refuse a tokenizer other than this model's own; None names no tokenizer."""
        is_same = name in (None, self.info.config.tokenizer.type)
        if not is_same and name is not None and Path(name).exists():
            is_same = open_tokenizer(name).fingerprint == self.tokenizer.fingerprint
        if not is_same:
            problem = f"{self.name} was trained with another tokenizer than {name}"
            raise RunError(problem, hint="leave --tokenizer out: a base brings its own")

    def change_model(
        self, wanted: Mapping[str, Any], may_change: Callable[[str, Any], bool], body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The settings of the body (its own by default) with the `wanted` changes, if the weights allow them."""
        own = self.info.config.model.model_dump() if body is None else dict(body)
        changes = {key: value for key, value in wanted.items() if value != "auto"}
        for key, value in changes.items():
            if not may_change(key, value) and own.get(key, value) != value:
                problem = f"model.{key} of {self.name} is {own[key]}, not {value}"
                hint = "a base's shape is fixed: leave that setting and --preset out, or train from scratch"
                raise ConfigError(problem, hint=hint)
        return {**own, **changes}

    def can_reuse_head(self, config: RunConfig, objective: Objective, classes: Sequence[str]) -> bool:
        """Whether a run can reuse this classifier's head: it has these classes and the shape that the run needs."""
        has_head = self._reusable_head(config, objective, classes) is not None
        return has_head and not self.why_new_head(config, objective, classes)

    def why_new_head(self, config: RunConfig, objective: Objective, classes: Sequence[str]) -> str:
        """Why a head for these very classes is not reused; empty if it is reused or there is none."""
        head = self._reusable_head(config, objective, classes)
        if head is None:
            return ""
        if config.training.reinit_top_layers:
            return "the base's head has the same classes; it is new because the layers below it are reinitialized"
        new = objective.heads(config.model, 0, len(classes))[HEAD].settings
        changes = {key: value for key, value in head.settings.items() if key != "dropout" and new[key] != value}
        wanted = " ".join(f"--set objective.{HEAD_SETTINGS[key]}={value}" for key, value in changes.items())
        reason = f"the base's head has the same classes but another shape, so the head is new; {wanted} reuses it"
        return reason if changes else ""

    def _reusable_head(self, config: RunConfig, objective: Objective, classes: Sequence[str]) -> HeadSpec | None:
        """The classifier's head if it has this task and these classes, in any order, and the settings want it."""
        is_alike = self.objective.name == objective.name and sorted(self.info.classes) == sorted(classes)
        return self.specs.get(HEAD) if config.training.head_init == "reuse" and is_alike else None

    @property
    def task(self) -> TaskName:
        """What a classifier predicts."""
        return "single-label" if self.info.config.data.task == "auto" else self.info.config.data.task

    def save(self, folder: Path) -> None:
        """Write the model into an existing folder, as a finished run; run.json last."""
        save_weights(folder / WEIGHTS_FILE, self.weights)
        self.tokenizer.save(folder)
        if self.own_source_tokenizer is not None:
            self.own_source_tokenizer.save(folder, SOURCE_TOKENIZER)
        if self.tfidf is not None:
            self.tfidf.save(folder)
        write_bytes(folder / FINGERPRINTS, array_bytes(self.train_fingerprints))
        write_json(folder / RUN_INFO, self.info.to_dict())

    def model(self) -> Model:
        """The model with its weights, in evaluation mode."""
        model = build_model(self.info.config.model, self.info.vocab_size, self.specs)
        model.load_state_dict(self.weights)
        return fast.optimize(model.eval(), "evaluate")


def load_model(name: str, with_weights: bool = True) -> LoadedModel:
    """A finished run, by its directory or by a pretrained base's name; without weights only its description."""
    shipped = shipped_bases()
    path = shipped.get(name, Path(name))
    if not path.exists() and shipped and path.parent == Path():  # a path to elsewhere names no base
        raise RunError(f"there is no run at {name} and no base of that name", hint=nearest(name, shipped))
    check_is_run(path)
    if any((path / name).is_file() for name in (BASE, CHECKSUMS, PACKED_FINGERPRINTS)):
        check_base(path)
    info = RunInfo.read(path)
    if info.status != "finished":
        raise RunError(f"the run in {name} is not finished", hint=f"`headstart resume {name}` continues it")
    tokenizer, source_tokenizer = read_tokenizers(path, info)
    return LoadedModel(
        name=name,
        info=info,
        objective=make_objective(info.config.objective),
        tokenizer=tokenizer,
        weights=read_weights(path) if with_weights else {},
        train_fingerprints=read_fingerprints(path),
        own_source_tokenizer=source_tokenizer,
        tfidf=_load_tfidf(path) if info.classifier == "tfidf" and with_weights else None,
    )


def check_is_run(path: Path) -> None:
    """Refuse a directory that holds no run."""
    if (path / RUN_INFO).is_file():
        return
    if (path / RECIPE).is_file():
        problem = f"the recipe in {path} is not finished"
        raise RunError(problem, hint=f"`headstart resume {shlex.quote(str(path))}` continues it")
    if path.exists():
        raise RunError(f"{path} is not a run directory", hint=f"a run directory holds {RUN_INFO}")
    siblings = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = nearest(path.name, siblings) if siblings else f"a run directory holds {RUN_INFO}"
    raise RunError(f"there is no run at {path}", hint=hint)


def read_tokenizers(path: Path, info: RunInfo) -> Tokenizers:
    """The tokenizers in a run directory, which must be those that the run was trained with."""
    source = info.source_tokenizer_fingerprint
    return (
        _read_tokenizer(path, TOKENIZER, info.tokenizer_fingerprint),
        _read_tokenizer(path, SOURCE_TOKENIZER, source) if source else None,
    )


def _read_tokenizer(path: Path, name: str, fingerprint: str) -> Tokenizer:
    tokenizer = Tokenizer.load(path, name)
    if tokenizer.fingerprint != fingerprint:
        problem = f"the {name.removesuffix('.json')} in {path} is not the one this run was trained with"
        raise RunError(problem, hint=f"put back the tokenizer whose fingerprint is {fingerprint[:12]}…")
    return tokenizer


def read_fingerprints(path: Path) -> np.ndarray:
    """Hashes of every text that any training stage has read, sorted."""
    if (path / PACKED_FINGERPRINTS).exists():
        return unpack_fingerprints((path / PACKED_FINGERPRINTS).read_bytes())
    if (path / FINGERPRINTS).exists():
        found: np.ndarray = np.load(path / FINGERPRINTS, allow_pickle=False)
        return found
    return np.zeros(0, np.uint64)


def array_bytes(array: np.ndarray) -> bytes:
    """An array as the content of a .npy file."""
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def _load_tfidf(path: Path) -> "TfidfModel":
    from headstart.baselines.tfidf import TfidfModel  # needs scikit-learn, which takes long to load

    return TfidfModel.load(path)


def require_head(loaded: LoadedModel) -> None:
    """Refuse a backbone that has no head to predict with."""
    if not loaded.info.has_heads:
        problem = f"{loaded.name} was imported without a language-model head, so it predicts nothing"
        hint = f"`headstart finetune {loaded.name} DATA --out RUN` gives it a head; `headstart embed` needs none"
        raise RunError(problem, hint=hint)


def absolute_paths(names: Sequence[str]) -> list[str]:
    """Paths made absolute, so that a resume finds them from any directory; other names as they are."""
    known = (*shipped_bases(), SCRATCH)
    return [str(Path(n).resolve()) if Path(n).exists() and n not in known else n for n in names]


def with_absolute_paths(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Settings in which the datasets that they name have absolute paths."""
    given = dict(settings or {})
    data = given.get("data")
    if not isinstance(data, Mapping):  # reading the settings reports what is wrong with it
        return given
    named = {
        key: [name if name in SOURCES else absolute_paths([name])[0] for name in data[key]]
        for key in PATH_SETTINGS
        if isinstance(data.get(key), list | tuple) and all(isinstance(name, str) for name in data[key])
    }
    return merge(given, {"data": named}) if named else given
