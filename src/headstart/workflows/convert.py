"""Conversion of a run to and from the formats of other libraries."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headstart.atomic_io import refuse_existing, write_folder, write_json, write_text
from headstart.checkpoint import save_weights
from headstart.config import TrainingConfig, resolve
from headstart.convert.ctranslate2 import write_ctranslate2
from headstart.convert.from_transformers import Arrival, open_folder
from headstart.convert.onnx import write_onnx
from headstart.convert.parity import Parcel, Written
from headstart.convert.to_transformers import write_transformers
from headstart.errors import ConfigError, RunError, pick
from headstart.inference.loaded_model import LoadedModel, RunInfo, load_model
from headstart.models.model import count_parameters
from headstart.reports.run import render_run
from headstart.results import plain
from headstart.training.runtime import start_runtime
from headstart.workflows.run_dir import RunDir, collect_provenance

# Each fills a folder that is not yet in its place, and raises rather than leave a model that answers otherwise.
EXPORTERS: dict[str, Callable[[Parcel, Path], Written]] = {
    "transformers": write_transformers,
    "onnx": write_onnx,
    "ctranslate2": write_ctranslate2,
}
PRESET = "imported"
BLOCK = 512  # tokens of a block when the model is marked on raw text, if it reads as many
OBJECTIVES = {"causal": "causal-lm", "bidirectional": "masked-lm"}


@dataclass(frozen=True)
class Exported:
    """A folder that was written, and how near it answers to the run."""

    path: Path
    to: str
    kind: str  # what it is there: a class of transformers, an ONNX graph, a CTranslate2 model
    parameters: int
    texts: int  # samples whose tokens were compared
    answers: int  # numbers that were compared
    difference: float  # the largest among them
    notes: list[str]
    details: dict[str, Any]


def export(run: str, to: str, out: str | Path, *, int8: bool = False) -> Exported:
    """Write a finished run for `transformers`, `onnx` or `ctranslate2` to the new folder `out`, once it answers as the run does."""
    writer = pick(EXPORTERS, to, "place to export to")
    if int8:
        if to != "onnx":
            raise ConfigError(f"--int8 goes with --to onnx, not {to}", hint="leave --int8 out")
        writer = partial(write_onnx, int8=True)
    place = Path(out)
    refuse_existing(place)
    trained = load_model(run)
    _check_network(trained)
    parcel = pack(trained)
    found: list[Written] = []
    write_folder(place, lambda beside: found.append(writer(parcel, beside)))
    written = found[0]
    return Exported(
        path=place,
        to=to,
        kind=written.kind,
        parameters=count_parameters(parcel.model),
        texts=written.texts,
        answers=written.answers,
        difference=written.difference,
        notes=written.notes,
        details=written.details,
    )


def _check_network(trained: LoadedModel) -> None:
    if trained.info.classifier == "tfidf":
        raise RunError(
            f"{trained.name} answers with its TF-IDF baseline, and export writes networks",
            hint="fine-tune without --keep-winner to export the network",
        )


def pack(trained: LoadedModel) -> Parcel:
    """A run with all that its answers depend on; a classifier reads as much of a text as it was trained on."""
    config = trained.info.config
    is_classifier = trained.objective.reads == "texts"
    return Parcel(
        model=trained.model(),
        specs=trained.specs,
        tokenizer=trained.tokenizer,
        classes=trained.info.classes,
        length=config.training.length if is_classifier else config.body.max_length,
        keep=config.data.keep if is_classifier else "start",
        source_tokenizer=trained.own_source_tokenizer,
    )


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
