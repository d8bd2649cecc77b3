"""The main job on embedded film reviews, from raw text to report."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headstart.errors import RunError
from headstart.results import Comparison
from headstart.training.events import Event, Note
from headstart.workflows.compare import compare
from headstart.workflows.inspect import inspect_data
from headstart.workflows.pretrain import pretrain

DATA = "imdb"
FINETUNING: dict[str, dict[str, Any]] = {"training": {"length": 128}, "data": {"keep": "both"}}


def run_demo(
    out: str | Path,
    *,
    minutes: float = 4.0,
    seeds: int = 3,
    labels: int = 1600,
    epochs: float = 8,
    first_seed: int = 0,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Comparison:
    """Audit, pretrain a tiny base, compare it with its twin from scratch and a classical baseline, and report."""
    folder, start = Path(out), time.monotonic()
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} is not empty", hint="choose another --out, or remove the old demo")
    on_event(
        Note(f"audit of {DATA}, then {minutes:g} minutes of pretraining, then {seeds} seeds of each arm")
    )
    found = inspect_data(DATA, length=128, settings={"data": {"labels": labels}}, seed=first_seed)
    leaks = len(found.leaks)
    on_event(
        Note(
            ", ".join(f"{name} {part.count:,}" for name, part in found.splits.items())
            + f"; {leaks} texts leak"
        )
    )
    base = folder / "base"
    settings = {"training": {"minutes": minutes, "seed": first_seed}}
    pretrain([DATA], base, preset="tiny", settings=settings, on_event=on_event)
    comparison = compare(
        DATA,
        [str(base)],
        folder / "compare",
        seeds=seeds,
        labels=[labels],
        settings={**FINETUNING, "training": {**FINETUNING["training"], "epochs": epochs}},
        on_event=on_event,
    )
    on_event(Note(f"done in {(time.monotonic() - start) / 60:.1f} minutes"))
    return comparison
