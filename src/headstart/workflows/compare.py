"""What the pretraining bought: classical, scratch, frozen and fine-tuned arms at equal budget over several seeds.

Every trained arm is written down as soon as it is done, so a comparison that dies goes on where it was.
"""

import json
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headstart.baselines.classical import train_classical
from headstart.batch import Row
from headstart.config import merge
from headstart.data.example import Dataset, hashes
from headstart.data.sources import load_dataset
from headstart.data.splits import take_labels
from headstart.errors import ConfigError, RunError, Stopped, nearest
from headstart.files import content_hash, write_json
from headstart.results import Comparison, CurvePoint, SeedResult, Transfer, comparison_from, plain
from headstart.training.evaluate import predict_probabilities
from headstart.training.events import Event, Stage
from headstart.training.metrics import score
from headstart.training.runtime import StopWish, start_runtime, stopping_gently
from headstart.workflows.conclude import ARMS, Plan, conclude, write_comparison
from headstart.workflows.finetune import (
    MARK_TOKENS,
    Task,
    choose_tokenizer,
    data_fingerprint,
    encode_rows,
    finetune_config,
    make_classifier,
    make_trainer,
    marked_places,
)
from headstart.workflows.pretrain import absolute
from headstart.workflows.run import RunFolder, Trained, load_trained
from headstart.workflows.story import command_line

FROZEN_RATE = 10.0  # a head alone bears, and needs, a higher learning rate than a whole model


def compare(
    data: str,
    bases: Sequence[str] = (),
    out: str | Path = "runs/compare",
    *,
    seeds: int = 3,
    first_seed: int = 0,
    labels: Sequence[int] | None = None,
    arms: Sequence[str] = ARMS,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    mark: float | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Comparison:
    """Train every arm with every seed at every label budget, and report what differs beyond chance."""
    for name in arms:
        if name not in ARMS:
            raise ConfigError(f"no arm is called {name!r}", hint=nearest(name, ARMS))
    if seeds < 1:
        raise ConfigError(f"{seeds} seeds train nothing", hint="--seeds 3 or more tells luck from difference")
    inputs = {
        "data": absolute([data])[0],
        "bases": absolute(list(bases)),
        "names": _names(bases),
        "seeds": list(range(first_seed, first_seed + seeds)),
        "labels": sorted(set(labels)) if labels else None,
        "arms": list(arms),
        "preset": preset,
        "settings": _with_whole_paths(json.loads(json.dumps(dict(settings or {})))),
        "mark": mark,
        "command": command_line(),
    }
    folder = RunFolder.create(Path(out))
    try:
        with folder:
            return _run(folder.path, inputs, on_event)
    finally:
        if not (folder.path / "compare.json").exists():
            folder.remove_if_bare()


def _names(bases: Sequence[str]) -> list[str]:
    """A short name for each base, as much of its path as tells it from the others."""
    paths = [Path(base).resolve() if Path(base).exists() else Path(base) for base in bases]
    for depth in range(1, 1 + max((len(path.parts) for path in paths), default=1)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise ConfigError("one base is given twice", hint="name each --base once")


def _with_whole_paths(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in which the path of a tokenizer is found from any folder."""
    kind = settings.get("tokenizer", {}).get("kind")
    if kind is not None:
        settings["tokenizer"]["kind"] = absolute([kind])[0]
    return settings


def is_comparison(path: Path) -> bool:
    """Whether a folder holds a comparison."""
    return (path / "compare.json").is_file()


def resume_compare(path: Path, on_event: Callable[[Event], None]) -> Comparison | None:
    """Go on with a comparison; None when it was finished before."""
    if (path / "report.html").exists():
        return None
    with RunFolder(path):
        return _run(path, json.loads((path / "compare.json").read_text("utf-8"))["inputs"], on_event)


def read_comparison(path: Path) -> Comparison:
    """What a finished comparison found."""
    return comparison_from(json.loads((path / "comparison.json").read_text("utf-8")))


def _run(out: Path, inputs: dict[str, Any], on_event: Callable[[Event], None]) -> Comparison:
    started = time.time()
    bases = [
        replace(load_trained(path), name=name)
        for path, name in zip(inputs["bases"], inputs["names"], strict=True)
    ]
    first, _ = finetune_config(bases[0] if bases else None, inputs["preset"], inputs["settings"])
    whole = load_dataset(inputs["data"], first.data, with_test=True)
    scored = "test" if whole.splits.get("test") else "valid"
    budgets = inputs["labels"] or [first.data.labels or len(whole.train)]
    for seed in (inputs["seeds"][0], inputs["seeds"][-1]):
        first.with_({"training": {"seed": seed}})
    for budget in budgets:  # a budget that the data cannot meet is told before anything is trained
        if budget != len(whole.train):
            take_labels(whole, budget, inputs["seeds"][0])
    plans = _plans(bases, inputs, whole, scored, on_event)
    if not plans:
        raise ConfigError(
            "there is nothing to train: these arms need a base", hint="add --base RUN, or other --arms"
        )
    notes = [*whole.notes, *_notes(scored, plans)]
    encoder = _Encoder(whole)
    _begin(out, inputs, whole, [content_hash(trained.info.to_dict()) for trained in bases])
    jobs = [
        (plan, budget, seed)
        for budget in budgets
        for seed in inputs["seeds"]
        for plan in plans
        if not (plan.kind == "classical" and seed != inputs["seeds"][0] and budget == len(whole.train))
    ]
    results: dict[tuple[str, int], list[SeedResult]] = {}
    transfers: dict[str, Transfer | None] = {}
    try:
        with stopping_gently() as stop:
            for number, (plan, budget, seed) in enumerate(jobs):
                on_event(Stage(f"{plan.name}, {budget} labels, seed {seed}", number, len(jobs)))
                path = out / "arms" / f"{_slug(plan.name)}-{budget}-{seed}.json"
                result, moved = _read_result(path) or _train(
                    plan, budget, seed, whole, scored, encoder, path, stop, on_event
                )
                results.setdefault((plan.name, budget), []).append(result)
                transfers[plan.name] = moved
    except Stopped as stopped:
        stopped.again = f"headstart resume {shlex.quote(str(out))}"
        raise
    comparison = conclude(inputs, whole, scored, budgets, plans, results, transfers, notes, started)
    write_comparison(out, comparison)
    return comparison


def _begin(out: Path, inputs: dict[str, Any], whole: Dataset, bases: list[str]) -> None:
    """Write down what is compared, or check that a comparison taken up again reads the same data and bases."""
    path, marks = out / "compare.json", {"fingerprint": data_fingerprint(whole), "bases": bases}
    if path.exists():
        known = json.loads(path.read_text("utf-8"))
        for name, what in (("fingerprint", "data"), ("bases", "bases")):
            if known[name] != marks[name]:
                raise RunError(
                    f"the {what} of {out} changed since the comparison began", hint="put the old back"
                )
    write_json(path, {"inputs": inputs, **marks})


def _plans(
    bases: list[Trained],
    inputs: dict[str, Any],
    whole: Dataset,
    scored: str,
    on_event: Callable[[Event], None],
) -> list[Plan]:
    """The arms, in the order of the report."""
    extra = {"training": {"keep": "last"}} if scored == "valid" else {}
    settings = merge(extra, inputs["settings"])
    frozen = merge(settings, {"training": {"freeze": True}})
    plans: list[Plan] = []
    twins: dict[tuple[str, str], str] = {}
    starts: list[Trained | None] = [*bases] or [None]
    for trained in starts:
        config, objective = finetune_config(trained, inputs["preset"], settings)
        tokenizer = choose_tokenizer(config, whole, trained, on_event)
        if not plans and "classical" in inputs["arms"]:
            plans.append(Plan("classical", "classical", config, objective, tokenizer))
        twin = (config.body.model_dump_json(), tokenizer.fingerprint)
        if "scratch" in inputs["arms"] and twin not in twins:
            name = "scratch" if not twins or trained is None else f"scratch like {trained.name}"
            plans.append(Plan(name, "scratch", config, objective, tokenizer))
            twins[twin] = name
        if trained is None:
            continue
        rest = (objective, tokenizer, trained, trained.name, twins.get(twin, ""))
        if "frozen" in inputs["arms"]:
            still, _ = finetune_config(trained, inputs["preset"], frozen)
            still = still.with_({"optimizer": {"learning_rate": still.optimizer.learning_rate * FROZEN_RATE}})
            plans.append(Plan(f"{trained.name} frozen", "frozen", still, *rest))
        if "fine-tuned" in inputs["arms"]:
            plans.append(Plan(f"{trained.name} fine-tuned", "fine-tuned", config, *rest))
    return plans


def _notes(scored: str, plans: list[Plan]) -> list[str]:
    notes = []
    if scored == "valid":
        notes.append(
            "there is no test split, so the last epoch is scored on valid and nothing is selected on it"
        )
    else:
        notes.append("each neural model keeps its best epoch on valid; test is read once, at the end")
    neural = [plan.config for plan in plans if plan.kind != "classical"]
    if neural and len(neural) < len(plans):
        length, keep = neural[0].training.length, neural[0].data.keep
        part = {"start": "its beginning", "end": "its end", "both": "both its ends"}[keep]
        notes.append(
            f"neural arms read at most {length} tokens of a text ({part} when it is longer); "
            "the classical baseline reads it whole"
        )
    recipes = {
        plan.config.model_dump_json(include={"optimizer", "schedule", "training"})
        for plan in plans
        if plan.kind == "fine-tuned"
    }
    if len(recipes) > 1:
        notes.append(
            "the bases train with the settings of their own presets, so budgets differ: see settings"
        )
    if any(plan.kind == "frozen" for plan in plans):
        notes.append(f"frozen arms train the head alone, at {FROZEN_RATE:g} times the learning rate")
    return notes


class _Encoder:
    """Each text tokenised once for each tokenizer and length."""

    def __init__(self, whole: Dataset):
        self.whole = whole
        self.known: dict[tuple[str, int, str], dict[str, np.ndarray]] = {}

    def task(self, dataset: Dataset, plan: Plan) -> Task:
        """`dataset`, whose texts are all of the whole set's, as tokens."""
        length, keep = plan.config.training.length, plan.config.data.keep
        key = (plan.tokenizer.fingerprint, length, keep)
        if key not in self.known:
            examples = [example for rows in self.whole.splits.values() for example in rows]
            rows = encode_rows(plan.tokenizer, examples, None, length, keep)
            self.known[key] = {example.text: row.tokens for example, row in zip(examples, rows, strict=True)}
        index = dataset.class_index
        found = {
            split: [Row(self.known[key][example.text], index[example.label or ""]) for example in examples]
            for split, examples in dataset.splits.items()
        }
        return Task(dataset, plan.tokenizer, found)


def _train(
    plan: Plan,
    budget: int,
    seed: int,
    whole: Dataset,
    scored: str,
    encoder: _Encoder,
    path: Path,
    stop: StopWish,
    on_event: Callable[[Event], None],
) -> tuple[SeedResult, Transfer | None]:
    """One model of one arm, written down when it is done."""
    dataset = whole if budget == len(whole.train) else take_labels(whole, budget, seed)
    truth, start = np.array(dataset.targets(scored)), time.monotonic()
    moved, curve, seen = None, [], hashes(dataset.texts("train"))
    if plan.kind == "classical":
        model = train_classical(
            dataset.texts("train"), dataset.targets("train"), seed=seed, classes=len(dataset.classes)
        )
        found = model.predict_probabilities(dataset.texts(scored))
        chosen = marked_places(len(dataset.valid), plan.config.training.marked)
        on_valid = model.predict_probabilities([dataset.valid[place].text for place in chosen])
        marks = score(np.array(dataset.targets("valid"))[chosen], on_valid, dataset.classes)
        curve = [CurvePoint(0.0, 0, marks.accuracy, marks.macro_f1, marks.loss)]
    else:
        config = plan.config.with_({"training": {"seed": seed}})
        runtime, task = start_runtime(config.training), encoder.task(dataset, plan)
        network, moved = make_classifier(config, plan.objective, task, plan.trained)
        trainer = make_trainer(network, plan.objective, task, config, runtime, on_event, stop)
        trainer.run()
        trainer.finish()
        found = predict_probabilities(
            network, plan.objective, task.rows[scored], task.tokenizer, runtime, MARK_TOKENS
        )
        curve = [_point(point) for point in trainer.state.curve]
        if plan.trained is not None:
            seen = np.concatenate([seen, plan.trained.seen])
    if stop:
        raise Stopped(stop.signal or 0)
    marks = score(truth, found, dataset.classes, np.isin(hashes(dataset.texts(scored)), seen), scored)
    result = SeedResult(
        seed=seed,
        accuracy=marks.accuracy,
        macro_f1=marks.macro_f1,
        loss=marks.loss,
        calibration_error=marks.calibration_error,
        leak_free_accuracy=marks.leak_free_accuracy,
        seconds=round(time.monotonic() - start, 2),
        predictions=found.argmax(axis=1).tolist(),
        confidences=[round(float(value), 6) for value in found.max(axis=1)],
        curve=curve,
    )
    write_json(
        path, {"result": plain(result), "transfer": plain(moved) if moved else None, "leaked": marks.leaked}
    )
    return result, moved


def _point(values: dict[str, float]) -> CurvePoint:
    return CurvePoint(
        epoch=values["epoch"],
        step=int(values["step"]),
        accuracy=values["accuracy"],
        macro_f1=values["macro_f1"],
        loss=values["loss"],
    )


def _read_result(path: Path) -> tuple[SeedResult, Transfer | None] | None:
    """An arm that an earlier, interrupted comparison finished."""
    if not path.exists():
        return None
    content = json.loads(path.read_text("utf-8"))
    result = content["result"]
    curve = [CurvePoint(**point) for point in result.pop("curve")]
    moved = Transfer(**content["transfer"]) if content["transfer"] else None
    return SeedResult(**result, curve=curve), moved


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name) + "-" + content_hash(name)[:6]
