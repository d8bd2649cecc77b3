"""Export of a run to another library, and import of a model of transformers as a run."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headstart.atomic_io import refuse_existing, write_folder, write_json, write_text
from headstart.checkpoint import save_weights
from headstart.config import TrainingConfig, resolve
from headstart.convert.ctranslate2 import write_ctranslate2
from headstart.convert.from_transformers import ImportedModel, load_transformers
from headstart.convert.onnx import write_onnx
from headstart.convert.parity import ExportBundle, ParityReport
from headstart.convert.to_transformers import write_transformers
from headstart.data.text_io import text_columns
from headstart.errors import ConfigError, RunError, pick
from headstart.inference.loaded_model import HEAD, LoadedModel, RunInfo, RunInputs, load_model
from headstart.models.heads import RegressionHead
from headstart.models.model import count_parameters
from headstart.reports.pages import render_run
from headstart.results import plain
from headstart.training.runtime import start_runtime
from headstart.workflows.run_dir import RunDir, collect_provenance

# Each fills a temporary folder, and raises an error if the exported model computes anything else.
EXPORTERS: dict[str, Callable[[ExportBundle, Path], ParityReport]] = {
    "transformers": write_transformers,
    "onnx": write_onnx,
    "ctranslate2": write_ctranslate2,
}
PRESET = "imported"
BLOCK_LENGTH = 512  # tokens of a block when the model is evaluated on raw text, if it reads as many
PROBLEM_TYPES = {"multi-label": "multi_label_classification", "regression": "regression"}  # of transformers
OBJECTIVES = {"causal": "causal-lm", "bidirectional": "masked-lm"}


@dataclass(kw_only=True)
class Exported(ParityReport):
    """A folder that was written, and how close its outputs are to those of the run."""

    path: Path
    to: str
    parameters: int


def export(run: str, to: str, out: str | Path, *, int8: bool = False) -> Exported:
    """Write a finished run for `transformers`, `onnx` or `ctranslate2` to the new folder `out`.

    The folder appears once its tokens and outputs equal those of the run.
    """
    writer = pick(EXPORTERS, to, "place to export to")
    if int8:
        if to != "onnx":
            raise ConfigError(f"--int8 goes with --to onnx, not {to}", hint="leave --int8 out")
        writer = partial(write_onnx, int8=True)
    path = Path(out)
    refuse_existing(path)
    trained = load_model(run)
    _check_task(trained, to)
    bundle = make_bundle(trained)
    reports: list[ParityReport] = []
    write_folder(path, lambda folder: reports.append(writer(bundle, folder)))
    return Exported(**vars(reports[0]), path=path, to=to, parameters=count_parameters(bundle.model))


def _check_task(trained: LoadedModel, to: str) -> None:
    """Refuse a task that the other library has no place for."""
    is_pair = trained.objective.reads == "texts" and len(text_columns(trained.info.config.data.text_column)) > 1
    known = ("single-label", "multi-label", "regression") if to == "transformers" else ("single-label",)
    if trained.task not in known or (is_pair and to != "transformers"):
        what = trained.task if trained.task not in known else "pairs of texts"
        raise RunError(
            f"{trained.name} was trained for {what}, which cannot be exported to {to}",
            hint="--to transformers takes one or several labels, numbers and pairs; `headstart predict` knows every task",
        )

    if trained.specs.get(HEAD) is not None and trained.specs[HEAD].settings.get("pooling") == "pair":
        raise RunError(
            f"the head of {trained.name} compares the two texts of a pair, which no model of {to} does",
            hint="fine-tune with --set objective.pooling=mean to export it",
        )


def make_bundle(trained: LoadedModel) -> ExportBundle:
    """A run with everything that its outputs depend on; a classifier reads as much of a text as in training."""
    if trained.info.classifier == "tfidf":
        raise RunError(
            f"{trained.name} answers with its TF-IDF baseline, and only networks can be exported",
            hint="fine-tune without --keep-winner to export the network",
        )
    config = trained.info.config
    is_classifier = trained.objective.reads == "texts"
    model, specs = trained.model(), trained.specs
    if isinstance(head := model.heads[HEAD] if HEAD in specs else None, RegressionHead):
        model.heads[HEAD], specs = head.folded(), {HEAD: replace(specs[HEAD], kind="class")}
    return ExportBundle(
        model=model,
        specs=specs,
        tokenizer=trained.tokenizer,
        classes=trained.info.classes,
        max_length=config.training.max_length if is_classifier else config.model.max_position_embeddings,
        truncation_side=config.data.truncation_side if is_classifier else "start",
        source_tokenizer=trained.own_source_tokenizer,
        problem_type=PROBLEM_TYPES.get(trained.task, ""),
    )


@dataclass(frozen=True)
class Imported:
    """A base made from a model of transformers."""

    path: Path
    family: str  # "BERT"
    kind: str  # "bidirectional"
    parameters: int
    vocab_size: int
    max_length: int
    has_lm_head: bool
    dropped: dict[str, int]  # weights of other heads, and their sizes


def import_model(folder: str | Path, out: str | Path) -> Imported:
    """Import a folder of `save_pretrained` as the new run `out`."""
    start, path = time.time(), Path(out)
    refuse_existing(path)
    model = load_transformers(Path(folder))
    info = _run_info(model, Path(folder), start)
    parameters = sum(weight.numel() for weight in model.weights.values())
    result: dict[str, Any] = {"path": "", "score": None, "parameters": parameters, "seconds": 0.0, "steps": 0}
    result |= {"curve": [], "provenance": info.provenance}

    def fill(target: Path) -> None:
        run = RunDir(target)
        save_weights(target / "model.safetensors", model.weights)
        write_json(target / "result.json", result)
        write_text(target / "report.html", render_run(path.name, result, info.config.model_dump(), ""))
        run.write_start(info, (model.tokenizer, None), [np.zeros(0, np.uint64)])

    write_folder(path, fill)
    return Imported(
        path=path,
        family=model.family,
        kind=model.config.architecture,
        parameters=parameters,
        vocab_size=model.vocab_size,
        max_length=model.config.max_position_embeddings,
        has_lm_head=model.has_lm_head,
        dropped=model.dropped,
    )


def _run_info(model: ImportedModel, folder: Path, start: float) -> RunInfo:
    """What run.json says about a model that was trained elsewhere."""
    settings = {
        "model": model.config.model_dump(),
        "tokenizer": {"type": model.tokenizer.kind, "vocab_size": max(8, model.vocab_size)},
        "objective": {"name": OBJECTIVES[model.config.architecture]},
        "training": {"max_length": min(BLOCK_LENGTH, model.config.max_position_embeddings)},
    }
    return RunInfo(
        config=resolve("pretrain", PRESET, settings),
        status="finished",
        vocab_size=model.vocab_size,
        classes=[],
        tokenizer_fingerprint=model.tokenizer.fingerprint,
        inputs=RunInputs(imported=str(folder.resolve()), family=model.family, dropped=model.dropped),
        provenance=plain(collect_provenance(start_runtime(TrainingConfig(device="cpu")), [], start)),
        has_heads=model.has_lm_head,
    )
