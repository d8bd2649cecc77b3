"""The models of a comparison's arms: trained on a part of the data, their answers written down and put together."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headstart.atomic_io import content_hash, finite, write_text
from headstart.baselines.tfidf import train_tfidf
from headstart.batch import EncodedExample
from headstart.config import RunConfig
from headstart.data.dataset import Dataset, Example
from headstart.data.decontamination import is_contaminated
from headstart.data.splits import balanced_subset, merge_folds, stratified_folds
from headstart.evaluation.metrics import score
from headstart.inference.classify import encode_rows
from headstart.results import CurvePoint, SeedResult, TransferReport, plain
from headstart.training.callbacks import Event
from headstart.training.evaluate import eval_subset, predict_probabilities
from headstart.training.runtime import StopSignal, start_runtime
from headstart.workflows.conclude import Plan
from headstart.workflows.finetune import FinetuneJob, Task, data_fingerprint
from headstart.workflows.run_dir import FitState

DIGITS = 9  # of a probability on disk: enough for every float32


@dataclass(frozen=True)
class Part:
    """What one model may learn from and is scored on, and where the scored texts stand among those of all parts."""

    dataset: Dataset
    scored: str
    places: np.ndarray

    @property
    def examples(self) -> list[Example]:
        """The scored texts."""
        return self.dataset.splits[self.scored]


@dataclass(frozen=True)
class Fit:
    """One trained model: its answers on the scored texts of its part, and how it came to them."""

    probabilities: np.ndarray  # (N, C)
    seen: np.ndarray  # (N,), True = some stage of training has read the text
    seconds: float
    curve: list[CurvePoint]
    transfer: TransferReport | None = None


def whole_part(dataset: Dataset) -> list[Part]:
    """The dataset as its one part, scored on test where there is one, else on valid."""
    scored = "test" if dataset.splits.get("test") else "valid"
    return [Part(dataset, scored, np.arange(len(dataset.splits[scored])))]


def fold_parts(dataset: Dataset, count: int) -> tuple[list[Part], Dataset]:
    """A part for each fold, scored on what it holds out, and all scored texts as one dataset."""
    folds = stratified_folds(dataset, count)
    ends = np.cumsum([0, *(len(fold.valid) for fold in folds)])
    parts = [Part(fold, "valid", np.arange(*ends[at : at + 2])) for at, fold in enumerate(folds)]
    return parts, merge_folds(folds)


def labels_in(parts: Sequence[Part]) -> int:
    """Labels that every part has to learn from."""
    return min(len(part.dataset.train) for part in parts)


class Encoder:
    """Each text that a model reads, tokenised once for each tokenizer and length."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, int, str], dict[str, np.ndarray]] = {}

    def task(self, dataset: Dataset, plan: Plan) -> Task:
        """`dataset` as tokens."""
        length, keep = plan.config.training.max_length, plan.config.data.truncation_side
        known = self.known.setdefault((plan.tokenizer.fingerprint, length, keep), {})
        every = (example for examples in dataset.splits.values() for example in examples)
        new = list({example.text: example for example in every if example.text not in known}.values())
        rows = encode_rows(plan.tokenizer, new, None, length, keep)
        known.update((example.text, row.tokens) for example, row in zip(new, rows, strict=True))
        index = dataset.class_index
        found = {
            split: [EncodedExample(known[example.text], index[example.label or ""]) for example in examples]
            for split, examples in dataset.splits.items()
        }
        return Task(dataset, plan.tokenizer, found)


def train_fit(
    plan: Plan,
    part: Part,
    budget: int | None,
    seed: int,
    encoder: Encoder,
    stop: StopSignal | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    checkpoints: Path | None = None,
) -> Fit:
    """One model of one arm, from `budget` labels of its part (None = all of them).

    With `checkpoints` it keeps its state there on the way, goes on from it, and leaves it to the caller to take away.
    """
    dataset = part.dataset if budget is None else balanced_subset(part.dataset, budget, seed)
    start, before, moved, seen = time.monotonic(), 0.0, None, dataset.hashes("train")
    if plan.kind == "classical":
        found, curve = _fit_classical(plan, dataset, part.scored, seed)
    else:
        config = plan.config_for(dataset).with_({"training": {"seed": seed}})
        runtime, task = start_runtime(config.training), encoder.task(dataset, plan)
        job = FinetuneJob(config, runtime, base=plan.trained)
        network, moved = job.build_model(task)
        job.on_event = on_event
        trainer = job.make_trainer(network, job.objective, job.training_data(task), moved, stop)
        if checkpoints is None:
            trainer.run()
        else:
            state = FitState(checkpoints, lambda: _identity(plan, config, dataset, part.scored))
            state.load(trainer)
            before = trainer.state.seconds
            trainer.run(lambda: state.save(trainer))
        trainer.finish()
        rows = task.rows[part.scored]
        found = predict_probabilities(
            network, plan.objective, rows, task.tokenizer, runtime, runtime.eval_batch_tokens
        )
        curve = [_point(point) for point in trainer.state.curve]
        if plan.trained is not None:
            seen = np.concatenate([seen, plan.trained.train_fingerprints])
    was_seen = is_contaminated(dataset.hashes(part.scored), seen)
    return Fit(_rounded(found), was_seen, round(before + time.monotonic() - start, 2), curve, moved)


def _identity(plan: Plan, config: RunConfig, dataset: Dataset, scored: str) -> dict[str, Any]:
    """All that a model depends on: its arm and settings with the seed, its base, and every text and label."""
    return {
        "arm": [plan.name, plan.kind],
        "settings": config.model_dump(),
        "base": content_hash(plan.trained.info.to_dict()) if plan.trained is not None else "",
        "tokenizer": plan.tokenizer.fingerprint,
        "data": data_fingerprint(dataset),
        "scored": scored,
    }


def _fit_classical(
    plan: Plan, dataset: Dataset, scored: str, seed: int
) -> tuple[np.ndarray, list[CurvePoint]]:
    model = train_tfidf(
        dataset.texts("train"), dataset.targets("train"), seed=seed, classes=len(dataset.classes)
    )
    found = model.predict_probabilities(dataset.texts(scored))
    chosen = eval_subset(len(dataset.valid), plan.config.training.eval_subset_size)
    on_valid = model.predict_probabilities([dataset.valid[place].text for place in chosen])
    marks = score(np.array(dataset.targets("valid"))[chosen], on_valid, dataset.classes)
    return found, [CurvePoint(0.0, 0, marks.accuracy, marks.macro_f1, marks.loss)]


def _rounded(probabilities: np.ndarray) -> np.ndarray:
    """As they will be read again from disk, so that a comparison that died and went on finds the very same."""
    return np.array([[float(f"{value:.{DIGITS}g}") for value in row] for row in probabilities.tolist()])


def _point(values: dict[str, float]) -> CurvePoint:
    return CurvePoint(
        epoch=values["epoch"],
        step=int(values["step"]),
        accuracy=values["accuracy"],
        macro_f1=values["macro_f1"],
        loss=values["loss"],
    )


def write_fit(path: Path, fit: Fit) -> None:
    """Keep what a trained model answered."""
    content = {
        "probabilities": fit.probabilities.tolist(),
        "seen": np.flatnonzero(fit.seen).tolist(),
        "seconds": fit.seconds,
        "curve": [plain(point) for point in fit.curve],
        "transfer": plain(fit.transfer) if fit.transfer else None,
    }
    write_text(path, json.dumps(finite(content), ensure_ascii=False) + "\n")


def read_fit(path: Path) -> Fit | None:
    """A model that was trained before, or None."""
    if not path.exists():
        return None
    content = json.loads(path.read_text("utf-8"))
    if "probabilities" not in content:  # written by an older headstart
        return None
    probabilities = np.array(content["probabilities"], dtype=np.float64)  # None becomes NaN
    seen = np.zeros(len(probabilities), dtype=bool)
    seen[content["seen"]] = True
    curve = [_point({name: np.nan if v is None else v for name, v in p.items()}) for p in content["curve"]]
    moved = TransferReport(**content["transfer"]) if content["transfer"] else None
    return Fit(probabilities, seen, content["seconds"], curve, moved)


def ensemble(fits: Sequence[Fit]) -> Fit:
    """Several models of one part as one: the mean of their probabilities."""
    return Fit(
        probabilities=np.mean([fit.probabilities for fit in fits], axis=0),
        seen=np.any([fit.seen for fit in fits], axis=0),
        seconds=sum(fit.seconds for fit in fits),
        curve=[],
    )


def join(fits: Sequence[Fit], parts: Sequence[Part], seed: int) -> SeedResult:
    """The models of all parts as one result over all scored texts, each answered by the model that held it out."""
    classes = parts[0].dataset.classes
    total = sum(len(part.places) for part in parts)
    truth, probabilities = np.zeros(total, dtype=np.int64), np.zeros((total, len(classes)))
    seen = np.zeros(total, dtype=bool)
    for fit, part in zip(fits, parts, strict=True):
        truth[part.places] = part.dataset.targets(part.scored)
        probabilities[part.places], seen[part.places] = fit.probabilities, fit.seen
    marks = score(truth, probabilities, classes, seen, parts[0].scored)
    return SeedResult(
        seed=seed,
        accuracy=marks.accuracy,
        macro_f1=marks.macro_f1,
        loss=marks.loss,
        calibration_error=marks.calibration_error,
        leak_free_accuracy=marks.leak_free_accuracy,
        seconds=round(sum(fit.seconds for fit in fits), 2),
        predictions=probabilities.argmax(axis=1).tolist(),
        confidences=[round(float(value), 6) for value in probabilities.max(axis=1)],
        curve=_mean_curve([fit.curve for fit in fits]),
    )


def _mean_curve(curves: list[list[CurvePoint]]) -> list[CurvePoint]:
    """The mean of curves with as many points each; none when they differ."""
    if len({len(curve) for curve in curves}) > 1:
        return []
    if len(curves) == 1:
        return curves[0]

    def mean(name: str, points: Sequence[CurvePoint]) -> float:
        return float(np.mean([getattr(point, name) for point in points]))

    return [
        CurvePoint(
            epoch=round(mean("epoch", points), 4),
            step=points[0].step,
            accuracy=mean("accuracy", points),
            macro_f1=mean("macro_f1", points),
            loss=mean("loss", points),
        )
        for points in zip(*curves, strict=True)
    ]
