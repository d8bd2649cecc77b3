"""The main job on embedded film reviews, from raw text to report."""

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headstart.atomic_io import write_bytes, write_json
from headstart.config import merge, resolve
from headstart.data.audit import inspect_data
from headstart.data.datasets import balanced_subset, load_dataset
from headstart.errors import ConfigError, RunError, Stopped
from headstart.inference.loaded_model import absolute_paths, load_model
from headstart.pretrained import shipped_bases
from headstart.results import Comparison
from headstart.training.callbacks import Event, Note
from headstart.workflows.compare import compare, read_comparison, resume_compare
from headstart.workflows.finetune_defaults import finetune_config
from headstart.workflows.pretrain import pretrain
from headstart.workflows.resume import resume

DATA = "imdb"
SHIPPED = "en-tiny"
SHIPPED_EPOCHS = 1  # it starts near where it ends, and an epoch of it costs four of the others
LENGTH = 128
SHIPPED_LENGTH = 256  # tokens of a review that it reads: what it knows is worth reading more for
PRECISION = "bf16"
MARKED = 800  # validation reviews read after each epoch
SHOWN = ("report.html", "curves.png", "curves.svg", "comparison.json")


def run_demo(
    out: str | Path,
    *,
    minutes: float = 3.5,
    seeds: int = 3,
    labels: int = 1600,
    epochs: float = 3,
    base: str = SHIPPED,
    first_seed: int = 0,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Comparison:
    """Audit, pretrain a tiny base, compare it with its twin from scratch, a shipped base and a classical baseline.

    `base` is the shipped base, or a run to set beside in its place. Called again after a stop it goes on where it
    was; called on a finished demo it returns what was found.
    """
    folder, start = Path(out), time.monotonic()
    inputs = {
        "minutes": minutes,
        "seeds": seeds,
        "labels": labels,
        "epochs": epochs,
        "base": absolute_paths([base])[0],
        "first_seed": first_seed,
    }
    _check(inputs)
    _claim(folder, inputs)
    try:
        if not (folder / "base" / "run.json").exists():
            _tell_plan(inputs, on_event)
        comparison = _stages(folder, inputs, on_event)
    except Stopped as stopped:
        flags = {"minutes": minutes, "seeds": seeds, "labels": labels, "epochs": epochs, "seed": first_seed}
        words = [word for name, value in flags.items() for word in (f"--{name}", f"{value:g}")]
        words += ["--base", base] if base != SHIPPED else []
        stopped.again = shlex.join(["headstart", "demo", "--out", str(folder), *words])
        raise
    for name in SHOWN:
        write_bytes(folder / name, (folder / "compare" / name).read_bytes())
    on_event(Note(f"done in {(time.monotonic() - start) / 60:.1f} minutes"))
    return comparison


def _check(inputs: dict[str, Any]) -> None:
    """Refuse settings that would fail after minutes of work."""
    if inputs["seeds"] < 1:
        raise ConfigError(f"{inputs['seeds']} seeds train nothing", hint="--seeds 3 tells luck from difference")
    base = inputs["base"]
    if base not in shipped_bases() and not Path(base).exists():
        raise RunError(
            f"the demo sets the base {base} beside its own, and there is no base of that name here",
            hint="`headstart models` lists those that are here; HEADSTART_BASES names folders with more",
        )
    finetune_config(load_model(base), None, merge(_settings(inputs), _shipped_settings(inputs)))
    training = {"max_epochs": inputs["epochs"], "seed": inputs["first_seed"]}
    resolve("pretrain", "tiny", {"training": {"max_minutes": inputs["minutes"]}})
    config = resolve("finetune", "tiny", {"training": training, "data": {"train_size": inputs["labels"]}})
    balanced_subset(load_dataset(DATA, config.data), inputs["labels"], inputs["first_seed"])


def _claim(folder: Path, inputs: dict[str, Any]) -> None:
    """Take a new folder, or one in which the same demo was begun."""
    path = folder / "demo.json"
    if path.exists():
        if json.loads(path.read_text("utf-8")) != inputs:
            raise RunError(f"{folder} holds a demo with other settings", hint="choose another --out")
    elif folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise RunError(f"{folder} is not empty", hint="choose another --out")
    else:
        write_json(path, inputs)


def _tell_plan(inputs: dict[str, Any], on_event: Callable[[Event], None]) -> None:
    """Say what will happen and for how long, and audit the data."""
    epochs = 0.2 * inputs["epochs"] + 0.7 * min(inputs["epochs"], SHIPPED_EPOCHS)
    total = inputs["minutes"] + 0.7 + inputs["seeds"] * (0.8 + epochs * inputs["labels"] / 1600)
    on_event(
        Note(
            f"{inputs['minutes']:g} minutes of pretraining on film reviews without labels, then {inputs['seeds']} seeds "
            f"of each way to learn from {inputs['labels']:,} labels, {Path(inputs['base']).name} as it comes among them: "
            f"about {total:.0f} minutes on two cores, no network"
        )
    )
    found = inspect_data(
        DATA, length=LENGTH, settings={"data": {"train_size": inputs["labels"]}}, seed=inputs["first_seed"]
    )
    counts = ", ".join(f"{name} {part.count:,}" for name, part in found.splits.items())
    on_event(Note(f"audit of {DATA}: {counts}; {len(found.leaks)} texts are in two splits"))
    for warning in found.warnings:
        on_event(Note(warning))


def _settings(inputs: dict[str, Any]) -> dict[str, Any]:
    """How every arm learns from labels."""
    training = {
        "max_length": LENGTH,
        "max_epochs": inputs["epochs"],
        "eval_subset_size": MARKED,
        "precision": PRECISION,
    }
    return {"training": training, "data": {"truncation_side": "both"}}


def _shipped_settings(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"training": {"max_epochs": min(inputs["epochs"], SHIPPED_EPOCHS), "max_length": SHIPPED_LENGTH}}


def _stages(folder: Path, inputs: dict[str, Any], on_event: Callable[[Event], None]) -> Comparison:
    """Pretrain and compare, each taken up where it stopped."""
    base, compared = folder / "base", folder / "compare"
    if (base / "run.json").exists():
        resume(base, on_event)
    else:
        training = {"max_minutes": inputs["minutes"], "seed": inputs["first_seed"], "precision": PRECISION}
        pretrain([DATA], base, preset="tiny", settings={"training": training}, on_event=on_event)
    if (compared / "compare.json").exists():
        return resume_compare(compared, on_event) or read_comparison(compared)
    return compare(
        DATA,
        {str(base): {}, inputs["base"]: _shipped_settings(inputs)},
        compared,
        seeds=inputs["seeds"],
        first_seed=inputs["first_seed"],
        labels=[inputs["labels"]],
        arms=("classical", "scratch", "fine-tuned"),
        settings=_settings(inputs),
        on_event=on_event,
    )
