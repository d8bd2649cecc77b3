"""What the pretraining bought: classical, scratch, frozen and fine-tuned arms at equal budget over several seeds.

Every trained model is written down as soon as it is done, and the one under way keeps its training state as any run
does, so a comparison that dies goes on where it was.
"""

import json
import re
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headstart.atomic_io import content_hash, write_json
from headstart.config import RunConfig, merge
from headstart.data.augmentation import check_bpe_dropout
from headstart.data.dataset import Dataset
from headstart.data.datasets import load_dataset
from headstart.data.decontamination import exclude_evaluation_texts
from headstart.data.splits import balanced_subset
from headstart.errors import ConfigError, RunError, Stopped, nearest
from headstart.inference.loaded_model import LoadedModel, load_model
from headstart.objectives import make_objective
from headstart.results import Comparison, SeedResult, TransferReport, comparison_from
from headstart.training.callbacks import Event, Stage
from headstart.training.launch import require_single_process
from headstart.training.runtime import graceful_shutdown
from headstart.workflows.arms import (
    Encoder,
    Fit,
    Part,
    ensemble,
    fold_parts,
    join,
    labels_in,
    read_fit,
    train_fit,
    whole_part,
    write_fit,
)
from headstart.workflows.conclude import ARMS, FROZEN_RATE, OPTIONAL_ARMS, Plan, conclude, write_comparison
from headstart.workflows.finetune import choose_tokenizer, data_fingerprint
from headstart.workflows.finetune_defaults import DatasetFacts, finetune_config, uses_recommendation
from headstart.workflows.notes import notes_after, notes_before
from headstart.workflows.run_dir import RunDir, absolute_paths, command_line, with_absolute_paths


def compare(
    data: str,
    bases: Sequence[str] | Mapping[str, Mapping[str, Any]] = (),
    out: str | Path = "runs/compare",
    *,
    seeds: int = 3,
    first_seed: int = 0,
    labels: Sequence[int] | None = None,
    folds: int | None = None,
    arms: Sequence[str] = ARMS,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    mark: float | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Comparison:
    """Train every arm with every seed at every label budget, and report what differs beyond chance.

    With `folds`, train and valid are put together and every text is held out once; test is not read. `bases` may map
    each base to settings of its own, which override the common ones. A base with such settings gets no arm from
    scratch and is tested against those of the others.
    """
    require_single_process("a comparison")
    known = (*ARMS, *OPTIONAL_ARMS)
    for name in arms:
        if name not in known:
            raise ConfigError(f"no arm is called {name!r}", hint=nearest(name, known))
    if seeds < 1:
        raise ConfigError(f"{seeds} seeds train nothing", hint="--seeds 3 or more tells luck from difference")
    own = bases if isinstance(bases, Mapping) else {}
    inputs = {
        "data": absolute_paths([data])[0],
        "bases": absolute_paths(list(bases)),
        "names": _names(list(bases)),
        "own_settings": [dict(own.get(base, {})) for base in bases],
        "seeds": list(range(first_seed, first_seed + seeds)),
        "labels": sorted(set(labels)) if labels else None,
        "folds": folds,
        "arms": list(arms),
        "preset": preset,
        "settings": _with_whole_paths(json.loads(json.dumps(dict(settings or {})))),
        "mark": mark,
        "command": command_line(),
    }
    with RunDir.create(Path(out)) as folder:
        return _run(folder.path, inputs, on_event)


def _names(bases: Sequence[str]) -> list[str]:
    """A short name for each base, as much of its path as tells it from the others."""
    paths = [Path(base).resolve() if Path(base).exists() else Path(base) for base in bases]
    for depth in range(1, 1 + max((len(path.parts) for path in paths), default=1)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise ConfigError("one base is given twice", hint="name each --base once")


def _with_whole_paths(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in which a tokenizer and other sets are found from any folder."""
    kind = settings.get("tokenizer", {}).get("type")
    if kind is not None:
        settings["tokenizer"]["type"] = absolute_paths([kind])[0]
    return with_absolute_paths(settings)


def is_comparison(path: Path) -> bool:
    """Whether a folder holds a comparison."""
    return (path / "compare.json").is_file()


def resume_compare(path: Path, on_event: Callable[[Event], None]) -> Comparison | None:
    """Go on with a comparison; None when it was finished before."""
    require_single_process("a comparison")
    if (path / "report.html").exists():
        return None
    with RunDir(path):
        return _run(path, json.loads((path / "compare.json").read_text("utf-8"))["inputs"], on_event)


def read_comparison(path: Path) -> Comparison:
    """What a finished comparison found."""
    return comparison_from(json.loads((path / "comparison.json").read_text("utf-8")))


def _run(out: Path, inputs: dict[str, Any], on_event: Callable[[Event], None]) -> Comparison:
    started = time.time()
    bases = [
        replace(load_model(path), name=name)
        for path, name in zip(inputs["bases"], inputs["names"], strict=True)
    ]
    first, _ = finetune_config(bases[0] if bases else None, inputs["preset"], inputs["settings"])
    folds = inputs.get("folds")
    whole = load_dataset(inputs["data"], first.data, with_test=folds is None)
    if first.data.exclude_eval_texts_of:
        whole = exclude_evaluation_texts(whole, first.data.exclude_eval_texts_of)
    parts, judged = fold_parts(whole, folds) if folds is not None else (whole_part(whole), whole)
    most = labels_in(parts)
    budgets = inputs["labels"] or [first.data.train_size or most]
    for seed in (inputs["seeds"][0], inputs["seeds"][-1]):
        first.with_({"training": {"seed": seed}})
    for budget in budgets:  # a budget that the data cannot meet is told before anything is trained
        if budget != most:
            balanced_subset(parts[0].dataset, budget, inputs["seeds"][0])
    largest = parts[0].dataset if max(budgets) == most else balanced_subset(parts[0].dataset, max(budgets), 0)
    plans = _plans(bases, inputs, judged, largest, parts[0].scored, on_event)
    _check(plans, inputs, budgets, most)
    for plan in plans:
        if plan.kind != "classical":
            check_bpe_dropout(plan.tokenizer, parts[0].dataset.texts("train"), plan.config.training)
    notes = [*judged.notes, *notes_before(parts, plans, inputs)]
    _begin(out, inputs, whole, [content_hash(trained.info.to_dict()) for trained in bases])
    results, transfers = _train_all(out, inputs, plans, parts, budgets, most, on_event)
    notes += notes_after(plans, results)
    scored = parts[0].scored if folds is None else f"{folds} folds"
    examples = [example for part in parts for example in part.examples]
    truth = np.concatenate([part.dataset.targets(part.scored) for part in parts])
    comparison = conclude(
        inputs, whole, examples, truth, scored, budgets, plans, results, transfers, notes, started
    )
    write_comparison(out, comparison)
    return comparison


def _check(plans: list[Plan], inputs: dict[str, Any], budgets: list[int], most: int) -> None:
    if not plans:
        raise ConfigError(
            "there is nothing to train: these arms need a base", hint="add --base RUN, or other --arms"
        )
    if "ensemble" not in inputs["arms"]:
        return
    if len(inputs["seeds"]) < 2 or not any(plan.kind == "ensemble" for plan in plans):
        raise ConfigError(
            "an ensemble is of the seeds of a fine-tuned base",
            hint="add --base RUN and the arm fine-tuned, with two seeds or more",
        )
    if any(budget != most for budget in budgets):
        raise ConfigError(
            "each seed draws its own labels, so their ensemble would learn from more than the budget",
            hint="leave out --train-size, or the arm ensemble",
        )


def _train_all(
    out: Path,
    inputs: dict[str, Any],
    plans: list[Plan],
    parts: list[Part],
    budgets: list[int],
    most: int,
    on_event: Callable[[Event], None],
) -> tuple[dict[tuple[str, int], list[SeedResult]], dict[str, TransferReport | None]]:
    """Every arm's results by name and budget, and what each carried over; what is on disk is not trained again."""
    first_seed = inputs["seeds"][0]
    jobs = [
        (plan, budget, seed, number)
        for budget in budgets
        for seed in inputs["seeds"]
        for plan in plans
        if plan.kind != "ensemble"
        and not (plan.kind == "classical" and seed != first_seed and budget == most)
        for number in range(len(parts))
    ]
    encoder, state = Encoder(), RunDir(out).checkpoints
    fits: dict[tuple[str, int, int], list[Fit]] = {}
    transfers: dict[str, TransferReport | None] = {}
    try:
        with graceful_shutdown() as stop:
            for done, (plan, budget, seed, number) in enumerate(jobs):
                fold = f", fold {number + 1}" if len(parts) > 1 else ""
                on_event(Stage(f"{plan.name}, {budget} labels{fold}, seed {seed}", done, len(jobs)))
                name = f"{_slug(plan.name)}-{budget}-{seed}" + (f"-{number}" if len(parts) > 1 else "")
                path = out / "arms" / f"{name}.json"
                fit = read_fit(path)
                if fit is None:
                    own = None if budget == most else budget
                    fit = train_fit(plan, parts[number], own, seed, encoder, stop, on_event, state)
                    write_fit(path, fit)
                    shutil.rmtree(state, ignore_errors=True)
                    if stop:
                        raise Stopped(stop.signal or 0)
                fits.setdefault((plan.name, budget, seed), []).append(fit)
                transfers[plan.name] = fit.transfer
    except Stopped as stopped:
        stopped.again = f"headstart resume {shlex.quote(str(out))}"
        raise
    shutil.rmtree(state, ignore_errors=True)  # of a last fit that was written down before the comparison died
    for plan in plans:
        for budget in budgets if plan.kind == "ensemble" else []:
            members = [fits[plan.members, budget, seed] for seed in inputs["seeds"]]
            fits[plan.name, budget, first_seed] = [ensemble(models) for models in zip(*members, strict=True)]
    results: dict[tuple[str, int], list[SeedResult]] = {}
    for (name, budget, seed), models in fits.items():
        results.setdefault((name, budget), []).append(join(models, parts, seed))
    return results, transfers


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
    bases: list[LoadedModel],
    inputs: dict[str, Any],
    judged: Dataset,
    largest: Dataset,
    scored: str,
    on_event: Callable[[Event], None],
) -> list[Plan]:
    """The arms, in the order of the report; their settings are those for the `largest` number of labels."""
    extra = {"training": {"checkpoint_selection": "last"}} if scored == "valid" else {}
    settings = merge(extra, inputs["settings"])
    frozen = {
        "training": {"freeze_backbone": True, "reinit_top_layers": 0, "gradual_unfreezing_epochs": None}
    }
    plans: list[Plan] = []
    twins: dict[tuple[str, str], str] = {}
    starts: list[tuple[LoadedModel | None, Mapping[str, Any]]] = list(
        zip(bases, inputs["own_settings"], strict=True)
    )
    if all(own for _, own in starts):
        starts = [(None, {}), *starts]
    for trained, own in starts:
        wanted = merge(settings, own)
        draft, _ = finetune_config(trained, inputs["preset"], wanted)
        tokenizer = choose_tokenizer(draft, judged, trained, on_event)
        facts = DatasetFacts.of(largest, tokenizer)
        control = _configuring(trained, inputs["preset"], settings, is_control=True)
        tuned = _configuring(trained, inputs["preset"], wanted)
        usual, config = control(facts), tuned(facts)
        asked, objective = make_objective(usual.objective), make_objective(config.objective)
        is_recommended = trained is not None and uses_recommendation(
            trained, facts, config, objective, wanted
        )
        if not plans and "classical" in inputs["arms"]:
            plans.append(Plan("classical", "classical", usual, asked, tokenizer))
        twin = (usual.model.model_dump_json(), tokenizer.fingerprint)
        if "scratch" in inputs["arms"] and twin not in twins and not own:
            name = "scratch" if not twins or trained is None else f"scratch like {trained.name}"
            plans.append(Plan(name, "scratch", usual, asked, tokenizer, configure=control))
            twins[twin] = name
        if trained is None:
            continue
        rest = (objective, tokenizer, trained, trained.name, "" if own else twins.get(twin, ""))
        if "frozen" in inputs["arms"]:
            still = _configuring(trained, inputs["preset"], merge(wanted, frozen), rate=FROZEN_RATE)
            plans.append(
                Plan(
                    f"{trained.name} frozen",
                    "frozen",
                    still(facts),
                    *rest,
                    is_recommended=is_recommended,
                    configure=still,
                )
            )
        if "fine-tuned" in inputs["arms"]:
            name = f"{trained.name} fine-tuned"
            plans.append(
                Plan(name, "fine-tuned", config, *rest, is_recommended=is_recommended, configure=tuned)
            )
            if "ensemble" in inputs["arms"]:
                of_seeds = (objective, tokenizer, trained, trained.name, name, name)
                plans.append(Plan(f"{trained.name} ensemble", "ensemble", config, *of_seeds))
    return plans


def _configuring(
    trained: LoadedModel | None,
    preset: str | None,
    settings: Mapping[str, Any],
    *,
    is_control: bool = False,
    rate: float = 1.0,
) -> Callable[[DatasetFacts], RunConfig]:
    """An arm's settings as a function of its dataset; `rate` multiplies the learning rate."""

    def configure(facts: DatasetFacts) -> RunConfig:
        config, _ = finetune_config(trained, preset, settings, data=facts, is_control=is_control)
        return config.with_({"optimizer": {"learning_rate": config.optimizer.learning_rate * rate}})

    return configure


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name) + "-" + content_hash(name)[:6]
