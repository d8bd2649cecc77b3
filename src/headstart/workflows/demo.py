"""The demo: pretrain a tiny base on film reviews, compare it with a shipped base and baselines, and write a report."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headstart.atomic_io import write_bytes, write_json
from headstart.config import merge, resolve
from headstart.data.audit import inspect_data
from headstart.data.datasets import load_dataset
from headstart.data.subsets import balanced_subset
from headstart.errors import ConfigError, RunError, Stopped
from headstart.inference.loaded_model import absolute_paths, load_model
from headstart.results import Comparison
from headstart.training.callbacks import Note, OnEvent, ignore_event
from headstart.workflows.compare import compare, read_comparison, resume_compare
from headstart.workflows.finetune_defaults import finetune_config
from headstart.workflows.pretrain import pretrain
from headstart.workflows.resume import resume
from headstart.workflows.run_dir import command_line

DATA = "imdb"
SHIPPED = "en-tiny"
SHIPPED_EPOCHS = 1  # its first scores are near its last, and one of its epochs takes as long as four of the others
LENGTH = 128
SHIPPED_LENGTH = 256  # tokens of a review that the shipped base reads
PRECISION = "bf16"
EVAL_SUBSET = 800  # validation reviews that are scored after each epoch
REPORT_FILES = ("report.html", "curves.png", "curves.svg", "comparison.json")


@dataclass(frozen=True)
class DemoInputs:
    """The request for a demo, as demo.json holds it."""

    minutes: float
    seeds: int
    labels: int
    epochs: float
    base: str
    first_seed: int

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of every arm."""
        evaluation = {"eval_subset_size": EVAL_SUBSET, "precision": PRECISION}
        training = {"max_length": LENGTH, "max_epochs": self.epochs, **evaluation}
        return {"training": training, "data": {"truncation_side": "both"}}

    @property
    def shipped_settings(self) -> dict[str, Any]:
        """The settings of the shipped base's arm that differ."""
        return {"training": {"max_epochs": min(self.epochs, SHIPPED_EPOCHS), "max_length": SHIPPED_LENGTH}}


def run_demo(
    out: str | Path,
    *,
    minutes: float = 3.5,
    seeds: int = 3,
    labels: int = 1600,
    epochs: float = 3,
    base: str = SHIPPED,
    first_seed: int = 0,
    on_event: OnEvent = ignore_event,
) -> Comparison:
    """Audit, pretrain a tiny base, and compare it with training from scratch, a shipped base and a classical baseline.

    `base` is the shipped base, or a run instead of it. The same call resumes a demo that was stopped, and returns the
    result of one that is finished.
    """
    folder, start = Path(out), time.monotonic()
    inputs = DemoInputs(minutes, seeds, labels, epochs, absolute_paths([base])[0], first_seed)
    _check(inputs)
    _claim(folder, inputs)
    try:
        comparison = _pretrain_and_compare(folder, inputs, on_event)
    except Stopped as stopped:
        stopped.again = command_line()  # for what is left of both
        raise
    for name in REPORT_FILES:
        write_bytes(folder / name, (folder / "compare" / name).read_bytes())
    on_event(Note(f"done in {(time.monotonic() - start) / 60:.1f} minutes"))
    return comparison


def _check(inputs: DemoInputs) -> None:
    """Refuse settings that would fail after minutes of work."""
    if inputs.seeds < 1:
        raise ConfigError(f"{inputs.seeds} seeds train nothing", hint="--seeds 3 separates luck from difference")
    finetune_config(load_model(inputs.base), None, merge(inputs.settings, inputs.shipped_settings))
    resolve("pretrain", "tiny", {"training": {"max_minutes": inputs.minutes, "seed": inputs.first_seed}})
    config = resolve("finetune", "tiny", inputs.settings, {"data": {"train_size": inputs.labels}})
    balanced_subset(load_dataset(DATA, config.data), inputs.labels, inputs.first_seed)


def _claim(folder: Path, inputs: DemoInputs) -> None:
    """Create a new folder, or accept one with the same demo."""
    path = folder / "demo.json"
    if path.exists():
        if json.loads(path.read_text("utf-8")) != asdict(inputs):
            raise RunError(f"{folder} holds a demo with other settings", hint="choose another --out")
    elif folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise RunError(f"{folder} is not empty", hint="choose another --out")
    else:
        write_json(path, asdict(inputs))


def _announce(inputs: DemoInputs, on_event: OnEvent) -> None:
    """Report what will be trained, for how long, and the audit of the data."""
    epochs = 0.2 * inputs.epochs + 0.7 * min(inputs.epochs, SHIPPED_EPOCHS)
    total = inputs.minutes + 0.7 + inputs.seeds * (0.8 + epochs * inputs.labels / 1600)
    on_event(
        Note(
            f"{inputs.minutes:g} minutes of pretraining on film reviews without labels, then {inputs.seeds} seeds of each "
            f"arm on {inputs.labels:,} labels, one of them fine-tuned from {Path(inputs.base).name}: "
            f"about {total:.0f} minutes on two cores, no network"
        )
    )
    labels = {"data": {"train_size": inputs.labels}}
    found = inspect_data(DATA, length=LENGTH, settings=labels, seed=inputs.first_seed)
    counts = ", ".join(f"{name} {part.count:,}" for name, part in found.splits.items())
    for line in (f"audit of {DATA}: {counts}; {len(found.leaks)} texts are in two splits", *found.warnings):
        on_event(Note(line))


def _pretrain_and_compare(folder: Path, inputs: DemoInputs, on_event: OnEvent) -> Comparison:
    """Pretrain and compare; each step is resumed if it was stopped."""
    base, compared = folder / "base", folder / "compare"
    if (base / "run.json").exists():
        resume(base, on_event)
    else:
        _announce(inputs, on_event)
        training = {"max_minutes": inputs.minutes, "seed": inputs.first_seed, "precision": PRECISION}
        pretrain([DATA], base, preset="tiny", settings={"training": training}, on_event=on_event)
    if (compared / "compare.json").exists():
        return resume_compare(compared, on_event) or read_comparison(compared)
    return compare(
        DATA,
        {str(base): {}, inputs.base: inputs.shipped_settings},
        compared,
        seeds=inputs.seeds,
        first_seed=inputs.first_seed,
        labels=[inputs.labels],
        arms=("classical", "scratch", "fine-tuned"),
        settings=inputs.settings,
        on_event=on_event,
    )
