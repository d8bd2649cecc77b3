"""A model of `transformers` as a base run, which every other command takes like one of our own."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headstart.atomic_io import refuse_existing, write_folder, write_json, write_text
from headstart.checkpoint import save_weights
from headstart.config import TrainingConfig, resolve
from headstart.inference.loaded_model import RunInfo
from headstart.interchange.arrival import Arrival, open_folder
from headstart.reports.pages import render_run
from headstart.results import plain
from headstart.training.runtime import start_runtime
from headstart.workflows.run_dir import RunDir, collect_provenance

PRESET = "imported"
BLOCK = 512  # tokens of a block when the model is marked on raw text, if it reads as many
OBJECTIVES = {"causal": "causal-lm", "bidirectional": "masked-lm"}


@dataclass(frozen=True)
class Imported:
    """A base that came in."""

    path: Path
    layout: str  # "BERT"
    kind: str  # "bidirectional"
    parameters: int
    vocabulary: int
    length: int  # tokens it reads at most
    has_scores: bool  # whether its language-model head came along
    left: dict[str, int]  # weights that stayed behind


def import_model(folder: str | Path, out: str | Path) -> Imported:
    """Take in a folder of `save_pretrained` as the new run `out`."""
    started, place = time.time(), Path(out)
    refuse_existing(place)
    arrival = open_folder(Path(folder))
    info = _info(arrival, Path(folder), started)
    parameters = sum(weight.numel() for weight in arrival.weights.values())
    result: dict[str, Any] = {
        "path": "", "score": None, "parameters": parameters, "seconds": 0.0, "steps": 0, "curve": [],
        "provenance": info.provenance,
    }  # fmt: skip

    def fill(beside: Path) -> None:
        run = RunDir(beside)
        arrival.tokenizer.save(beside)
        run.write_fingerprints([np.zeros(0, np.uint64)])
        save_weights(beside / "model.safetensors", arrival.weights)
        write_json(beside / "result.json", result)
        write_text(beside / "report.html", render_run(place.name, result, info.config.model_dump(), ""))
        run.write_info(info)

    write_folder(place, fill)
    return Imported(
        path=place,
        layout=arrival.layout,
        kind=arrival.body.kind,
        parameters=parameters,
        vocabulary=arrival.vocabulary,
        length=arrival.body.max_length,
        has_scores=arrival.has_scores,
        left=arrival.left,
    )


def _info(arrival: Arrival, folder: Path, started: float) -> RunInfo:
    """What run.json says of a model that was trained elsewhere."""
    tokenizer = {"kind": arrival.tokenizer.kind, "vocabulary": max(8, arrival.vocabulary)}
    settings = {
        "body": arrival.body.model_dump(),
        "tokenizer": tokenizer,
        "objective": {"name": OBJECTIVES[arrival.body.kind]},
        "training": {"length": min(BLOCK, arrival.body.max_length)},
    }
    return RunInfo(
        config=resolve("pretrain", PRESET, settings),
        status="finished",
        vocab_size=arrival.vocabulary,
        classes=[],
        tokenizer_fingerprint=arrival.tokenizer.fingerprint,
        inputs={"imported": str(folder.resolve()), "layout": arrival.layout, "left": arrival.left},
        provenance=plain(collect_provenance(start_runtime(TrainingConfig(device="cpu")), [], started)),
        has_heads=arrival.has_scores,
    )
