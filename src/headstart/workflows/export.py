"""A run as a folder for another library, which appears whole or not at all."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headstart.atomic_io import refuse_existing, write_folder
from headstart.errors import ConfigError, RunError, pick
from headstart.inference.loaded_model import LoadedModel, load_model
from headstart.interchange.onnx import write_onnx
from headstart.interchange.parcel import Parcel, Written
from headstart.interchange.table import EXPORTERS
from headstart.models.model import count_parameters


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
