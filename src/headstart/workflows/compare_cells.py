"""The cells of a comparison: models trained with one variant, label budget, seed and fold, and their predictions."""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from headstart.atomic_io import content_hash, finite, write_json, write_text
from headstart.baselines.tfidf import train_tfidf
from headstart.checkpoint import load_checkpoint, save_checkpoint
from headstart.config import RunConfig
from headstart.data.datasets import Dataset, Example
from headstart.data.subsets import balanced_subset, merge_folds, stratified_folds
from headstart.data.text_io import is_contaminated
from headstart.data.tokenizer import Tokenizer
from headstart.errors import RunError
from headstart.evaluation.metrics import score
from headstart.inference.loaded_model import LoadedModel
from headstart.objectives import make_objective
from headstart.objectives.base import Objective
from headstart.results import ArmKind, CurvePoint, SeedResult, TransferReport, plain, with_nan
from headstart.training.callbacks import OnEvent, ignore_event
from headstart.training.evaluate import eval_subset, predict_probabilities
from headstart.training.runtime import StopSignal, start_runtime
from headstart.training.trainer import Trainer
from headstart.workflows.finetune import FinetuneJob, Task, data_fingerprint, make_task
from headstart.workflows.finetune_defaults import DatasetFacts

Configure = Callable[[DatasetFacts], RunConfig]


@dataclass(frozen=True)
class Variant:
    """One way to train: how its models start, and their settings."""

    name: str
    kind: ArmKind
    base: LoadedModel | None
    tokenizer: Tokenizer
    config: RunConfig  # for the largest label budget
    configure: Configure  # the settings for another label budget
    control: str = ""  # the variant that differs in one thing only: from scratch, or for an ensemble its members
    is_recommended: bool = False  # whether it uses the settings that its base recommends

    @cached_property
    def objective(self) -> Objective:
        """What its models learn."""
        return make_objective(self.config.objective)

    @property
    def base_name(self) -> str:
        """The name of its base; empty without one."""
        return "" if self.base is None else self.base.name

    def can_reuse_head(self, classes: Sequence[str]) -> bool:
        """Whether its models start with the head of their base."""
        return self.base is not None and self.base.can_reuse_head(self.config, self.objective, classes)


@dataclass(frozen=True)
class Fold:
    """What one model learns from, and the texts that it is scored on."""

    dataset: Dataset
    split: str  # that is scored

    @property
    def examples(self) -> list[Example]:
        """The scored texts."""
        return self.dataset.splits[self.split]

    @property
    def targets(self) -> np.ndarray:
        """Their classes."""
        return np.array(self.dataset.targets(self.split))


def make_folds(dataset: Dataset, count: int | None) -> tuple[list[Fold], Dataset]:
    """Folds of train and valid, each scored on its held-out texts, and the dataset of all scored texts.

    Without a `count` the dataset is its only fold, scored on test if it has one, else on valid.
    """
    if count is None:
        return [Fold(dataset, "test" if dataset.splits.get("test") else "valid")], dataset
    folds = stratified_folds(dataset, count)
    return [Fold(fold, "valid") for fold in folds], merge_folds(folds)


def start_fit(
    config: RunConfig,
    objective: Objective,
    task: Task,
    base: LoadedModel | None,
    checkpoints: Path,
    identity: dict[str, Any],
    stop: StopSignal | None = None,
    on_event: OnEvent = ignore_event,
) -> tuple[Trainer, TransferReport | None, Callable[[], None]]:
    """A trainer that continues from its checkpoint, the weights that it takes from the base, and what saves its state.

    The folder of a checkpoint is named after all that the fit depends on, so no other fit ever continues from it.
    """
    job = FinetuneJob(config, start_runtime(config.training), base=base)
    model, transfer = job.build_model(task)
    job.on_event = on_event
    trainer = job.make_trainer(model, objective, job.training_data(task), transfer, stop)
    depends_on = {
        "identity": identity,
        "settings": config.model_dump(),
        "base": content_hash(base.info.to_dict()) if base is not None else "",
        "tokenizer": task.tokenizer.fingerprint,
        "data": data_fingerprint(task.dataset),
    }
    folder = checkpoints / content_hash(depends_on)[:16]
    if found := load_checkpoint(folder):
        trainer.load(*found)
    else:
        shutil.rmtree(checkpoints, ignore_errors=True)  # of other fits
    return (
        trainer,
        transfer,
        lambda: save_checkpoint(folder, trainer.state.step, trainer.parts(), trainer.state.to_dict()),
    )


def write_request(path: Path, kind: str, content: dict[str, Any]) -> dict[str, Any]:
    """Write the inputs and fingerprints of a comparison or a search; what a continued one had, which must be equal."""
    known: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else content
    if other := [name for name, value in content["inputs"].items() if known["inputs"].get(name) != value]:
        raise RunError(
            f"{path.parent} holds a {kind} with another {' and '.join(other)}",
            hint="run exactly the same command to continue it, or choose another --out",
        )
    for what, fingerprint in content["fingerprints"].items():
        if known["fingerprints"][what] != fingerprint:
            raise RunError(
                f"the {what} of {path.parent} changed since the {kind} started",
                hint=f"restore the old {what}, or choose another --out",
            )
    first = {"command": known["command"]} if "command" in known else {}  # the one that started it
    write_json(path, {**content, **first})
    return known


@dataclass(frozen=True)
class CellResult:
    """One trained model: its predictions for the scored texts of its fold, and its training."""

    probabilities: list[list[float]]  # N rows, one column for each class
    contaminated: list[bool]  # N, True = some stage of training has read the text
    seconds: float
    curve: list[CurvePoint]
    transfer: TransferReport | None = None

    def save(self, path: Path) -> None:
        """Write the result as JSON."""
        write_text(path, json.dumps(finite(plain(self)), ensure_ascii=False) + "\n")

    @staticmethod
    def load(path: Path) -> "CellResult | None":
        """The result of a model that was trained before, or None."""
        if not path.exists():
            return None
        return TypeAdapter(CellResult).validate_python(with_nan(json.loads(path.read_text("utf-8"))))


def train_cell(
    variant: Variant,
    fold: Fold,
    budget: int | None,
    seed: int,
    checkpoints: Path,
    stop: StopSignal | None = None,
    on_event: OnEvent = ignore_event,
) -> CellResult:
    """One model of a variant, from `budget` labels of its fold (None = all of them).

    It continues from its state in `checkpoints`, which the caller removes.
    """
    start = time.monotonic()
    dataset = fold.dataset if budget is None else balanced_subset(fold.dataset, budget, seed)
    fingerprints, transfer, seconds = dataset.hashes("train"), None, 0.0
    if variant.kind == "classical":
        probabilities, curve = _train_classical(variant, dataset, fold.split, seed)
    else:
        config = variant.configure(DatasetFacts.of(dataset, variant.tokenizer))
        config = config.with_({"training": {"seed": seed}})
        task = make_task(dataset, variant.tokenizer, config)
        identity = {"arm": [variant.name, variant.kind], "scored": fold.split}
        trainer, transfer, save = start_fit(
            config, variant.objective, task, variant.base, checkpoints, identity, stop, on_event
        )
        seconds = trainer.state.seconds
        trainer.run(save)
        trainer.finish()
        rows, runtime = task.rows[fold.split], trainer.runtime
        probabilities = predict_probabilities(
            trainer.model, variant.objective, rows, task.tokenizer, runtime, runtime.eval_batch_tokens
        )
        curve = [CurvePoint(**{**point, "step": int(point["step"])}) for point in trainer.state.curve]  # type: ignore[arg-type]
        if variant.base is not None:
            fingerprints = np.concatenate([fingerprints, variant.base.train_fingerprints])
    return CellResult(
        probabilities=probabilities.tolist(),
        contaminated=is_contaminated(dataset.hashes(fold.split), fingerprints).tolist(),
        seconds=round(seconds + time.monotonic() - start, 2),
        curve=curve,
        transfer=transfer,
    )


def _train_classical(variant: Variant, dataset: Dataset, split: str, seed: int) -> tuple[np.ndarray, list[CurvePoint]]:
    model = train_tfidf(dataset.texts("train"), dataset.targets("train"), seed=seed, classes=len(dataset.classes))
    chosen = eval_subset(len(dataset.valid), variant.config.training.eval_subset_size)
    on_valid = model.predict_probabilities([dataset.valid[index].text for index in chosen])
    found = score(np.array(dataset.targets("valid"))[chosen], on_valid, dataset.classes)
    point = CurvePoint(0.0, 0, found.accuracy, found.macro_f1, found.loss)
    return model.predict_probabilities(dataset.texts(split)), [point]


def ensemble(cells: Sequence[CellResult]) -> CellResult:
    """Several models of one fold as one: the mean of their probabilities."""
    return CellResult(
        probabilities=np.mean([cell.probabilities for cell in cells], axis=0).tolist(),
        contaminated=np.any([cell.contaminated for cell in cells], axis=0).tolist(),
        seconds=sum(cell.seconds for cell in cells),
        curve=[],
    )


def combine_folds(cells: Sequence[CellResult], folds: Sequence[Fold], seed: int) -> SeedResult:
    """The models of all folds as one result over all scored texts, each predicted by the model that held it out."""
    truth = np.concatenate([fold.targets for fold in folds])
    probabilities = np.concatenate([cell.probabilities for cell in cells])
    contaminated = np.concatenate([cell.contaminated for cell in cells])
    found = score(truth, probabilities, folds[0].dataset.classes, contaminated, folds[0].split)
    metrics = ("accuracy", "macro_f1", "loss", "calibration_error", "leak_free_accuracy")
    return SeedResult(
        seed=seed,
        **{name: getattr(found, name) for name in metrics},
        seconds=round(sum(cell.seconds for cell in cells), 2),
        predictions=probabilities.argmax(axis=1).tolist(),
        confidences=[round(float(value), 6) for value in probabilities.max(axis=1)],
        curve=_mean_curve([cell.curve for cell in cells]),
    )


def _mean_curve(curves: list[list[CurvePoint]]) -> list[CurvePoint]:
    """The mean of curves with as many points each; none when they differ."""
    if len(curves) == 1 or len({len(curve) for curve in curves}) > 1:
        return curves[0] if len(curves) == 1 else []
    means = np.mean([[astuple(point) for point in curve] for curve in curves], axis=0).tolist()
    return [
        CurvePoint(round(epoch, 4), point.step, *scores)
        for point, (epoch, _, *scores) in zip(curves[0], means, strict=True)
    ]
