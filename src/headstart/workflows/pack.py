"""A run packed as a base that travels: few bits, a card, checksums; and what storing it so has cost."""

import json
import lzma
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from headstart.atomic_io import file_hash, refuse_existing, write_bytes, write_folder, write_json, write_text
from headstart.config import DataConfig, load_toml, parse
from headstart.data.datasets import SOURCES, evaluation_hashes
from headstart.data.documents import parse_mixture
from headstart.data.hashing import pack_fingerprints
from headstart.data.token_cache import join
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, DataError, RunError
from headstart.inference.loaded_model import (
    PACKED_FINGERPRINTS,
    RECIPE,
    SCRATCH,
    SOURCE_TOKENIZER,
    TOKENIZER,
    LoadedModel,
    RunInfo,
    RunInputs,
    load_model,
)
from headstart.pretrained import BASE, CHECKSUMS
from headstart.quantization import FORMS, as_stored, store_weights, stored_bytes
from headstart.reports.pages import render_model_card
from headstart.results import LanguageScore, Score, TranslationScore
from headstart.training.runtime import start_runtime
from headstart.workflows.evaluate import evaluate_loaded, evaluate_on_own_valid, evaluate_translator
from headstart.workflows.facts import Facts
from headstart.workflows.finetune import FinetuneJob, load_labelled, make_task
from headstart.workflows.pretrain import PretrainJob, without_repeats
from headstart.workflows.search import to_toml
from headstart.workflows.tokenize_corpus import prepare_documents

FORMAT = 1
LARGE = 64 * 2**10  # bytes from which a tokenizer's file is compressed
# Settings for one table, and no one else's
READING = ("text_column", "label_column", "label_map")
MEASURES = ("accuracy", "macro_f1", "loss", "perplexity", "bleu", "chrf")


@dataclass(frozen=True)
class Packed:
    """A packed base, and what was lost by storing it."""

    name: str
    path: Path
    parameters: int
    weight_bytes: int
    total_bytes: int
    measured_on: str
    before: dict[str, float]
    after: dict[str, float]
    weight_error: float  # root mean square error of the weights over their root mean square


def pack(
    run: str,
    name: str,
    out: str | Path,
    *,
    form: str = "int8",
    shard_mib: float = 12.0,
    measure: str | None = None,
    facts: str | Path | None = None,
) -> Packed:
    """Write RUN as the base `out`/`name`, and measure it before and after on `measure` or on its own held-out texts.

    `facts` is a TOML file with what only people know: licences, scores, what the base is not for.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name) or name in (*SOURCES, SCRATCH):
        raise ConfigError(f"a base cannot be called {name!r}", hint="use small letters, digits and hyphens: fr-small")
    if form not in FORMS:
        raise ConfigError(f"weights are not stored as {form!r}", hint=f"choose from {', '.join(FORMS)}")
    path = Path(out) / name
    refuse_existing(path)
    told: Facts = parse(Facts, load_toml(Path(facts)), str(facts)) if facts else Facts()
    trained = load_model(run)
    stored = as_stored(trained.weights, form)
    lossy = replace(trained, weights=stored)
    where, before = _marks(trained, measure)
    after = _marks(lossy, measure)[1]
    storing: dict[str, Any] = {
        "form": form,
        "measured_on": where,
        "before": before,
        "after": after,
        "weight_error": _error(trained.weights, stored),
    }
    about = _about(trained, Path(run), name, told, storing)

    def fill(beside: Path) -> None:
        store_weights(beside, trained.weights, form, shard_mib)
        _write_tokenizer(beside, trained.tokenizer, TOKENIZER)
        if trained.own_source_tokenizer is not None:
            _write_tokenizer(beside, trained.own_source_tokenizer, SOURCE_TOKENIZER)
        write_bytes(beside / PACKED_FINGERPRINTS, pack_fingerprints(trained.train_fingerprints))
        write_json(beside / "run.json", _without_places(trained).to_dict())
        shape = {**about["shape"], "weights on disk": f"{stored_bytes(beside) / 2**20:.1f} MiB"}
        write_text(beside / "card.md", render_model_card({**about, "shape": shape}))
        described = ("name", "title", "language", "parameters", "objective", "classes", "scores", "storing")
        write_json(beside / BASE, {"format": FORMAT, **{key: about[key] for key in described}})
        write_json(beside / CHECKSUMS, {file.name: file_hash(file) for file in sorted(beside.iterdir())})

    write_folder(path, fill)
    return Packed(
        name=name,
        path=path,
        parameters=about["parameters"],
        weight_bytes=stored_bytes(path),
        total_bytes=sum(file.stat().st_size for file in path.iterdir()),
        measured_on=where,
        before=before,
        after=after,
        weight_error=storing["weight_error"],
    )


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, name: str) -> None:
    """The tokenizer's files, the main one under `name`; large ones compressed."""
    for file, content in tokenizer.engine.files().items():
        place = name if file == TOKENIZER else file
        is_large = len(content) > LARGE
        write_bytes(
            folder / (f"{place}.xz" if is_large else place),
            lzma.compress(_tight(content), preset=9) if is_large else content,
        )


def _tight(content: bytes) -> bytes:
    """JSON without what only eyes need; other content as it is."""
    try:
        return json.dumps(json.loads(content), ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except ValueError:
        return content


def _error(weights: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> float:
    """The root mean square error over the root mean square, of all weights together."""
    off = sum(float((stored[name].double() - weight.double()).square().sum()) for name, weight in weights.items())
    size = sum(float(weight.double().square().sum()) for weight in weights.values())
    return float((off / max(size, 1e-300)) ** 0.5)


def _marks(trained: LoadedModel, measure: str | None) -> tuple[str, dict[str, float]]:
    """What a base was measured on, and its marks; none for a body without a head."""
    if not trained.info.has_heads:
        return "it has no head that could be asked", {}
    if trained.info.pair:
        return _translator_marks(trained, measure)
    if measure is not None:
        return Path(measure).name, _numbers(evaluate_loaded(_reading_as_usual(trained), measure))
    config, inputs = trained.info.config, trained.info.inputs
    runtime = start_runtime(config.training)
    model = trained.model().to(runtime.device)
    try:
        if trained.objective.reads == "texts":
            task = make_task(load_labelled(inputs.data, config), trained.tokenizer, config)
            seen = trained.train_fingerprints
            marks: Score | LanguageScore = FinetuneJob(config, runtime).score(model, task, "valid", seen)
            return f"the validation part of {Path(inputs.data).name}", _numbers(marks)
        mix = inputs.mix or parse_mixture(inputs.corpora)
        if not mix:
            raise DataError("they are not recorded")
        parts = [prepare_documents(each.open(config.data), trained.tokenizer, lambda event: None) for each in mix]
        never = evaluation_hashes(config.data.exclude_eval_texts_of)
        valid = join(part.valid for part in without_repeats(parts, config.data, never, lambda event: None))
    except (DataError, KeyError) as error:
        raise RunError(
            f"the texts that {trained.name} was made of cannot be read here: {error}",
            hint="--eval-data DATA names others to measure the loss of storing on",
        ) from None
    if len(valid) <= trained.objective.lookahead:
        raise RunError(f"{trained.name} had no held-out text", hint="--eval-data TEXT names some to measure on")
    marks = PretrainJob(config, runtime).score(model, valid, trained.tokenizer)
    return "the held-out part of its texts", _numbers(marks)


def _translator_marks(trained: LoadedModel, measure: str | None) -> tuple[str, dict[str, float]]:
    """Marks of a translator on the pairs named, or on those that it was validated on."""
    if measure is not None:
        marks = evaluate_translator(trained, measure, trained.info.config)
        assert isinstance(marks, TranslationScore)
        return Path(measure).name, _numbers(marks)
    data = trained.info.inputs.data
    try:
        return f"the validation part of {Path(data).name}", _numbers(evaluate_on_own_valid(trained))
    except DataError as error:
        raise RunError(
            f"the pairs that {trained.name} was made of cannot be read here: {error}",
            hint="--eval-data DATA names others to measure the loss of storing on",
        ) from None


def _numbers(marks: Score | LanguageScore | TranslationScore) -> dict[str, float]:
    return {name: float(getattr(marks, name)) for name in MEASURES if hasattr(marks, name)}


def _reading_as_usual(trained: LoadedModel) -> LoadedModel:
    """The run without the columns and labels of the table that it was made of, which are no one else's."""
    config = trained.info.config
    usual = {name: getattr(DataConfig(), name) for name in READING}
    config = config.model_copy(update={"data": config.data.model_copy(update=usual)})
    return replace(trained, info=replace(trained.info, config=config))


def _without_places(trained: LoadedModel) -> RunInfo:
    """The run's description without the places of the machine that it was trained on, and of its table."""
    info = _reading_as_usual(trained).info
    corpora = [Path(name).name for name in info.inputs.corpora]
    inputs = RunInputs(data=Path(info.inputs.data).name, corpora=corpora)
    provenance = {key: value for key, value in info.provenance.items() if key != "command"}
    apart = [Path(name).name for name in info.config.data.exclude_eval_texts_of]
    config = info.config.model_copy(
        update={"data": info.config.data.model_copy(update={"exclude_eval_texts_of": apart})}
    )
    if Path(config.tokenizer.type).exists():
        config = config.with_({"tokenizer": {"type": trained.tokenizer.kind}})
    return replace(info, config=config, inputs=inputs, provenance={"command": "", **provenance}, transfer=None)


def _about(trained: LoadedModel, run: Path, name: str, told: Facts, storing: dict[str, Any]) -> dict[str, Any]:
    """All that the card says."""
    recipe = json.loads((run / RECIPE).read_text("utf-8")) if (run / RECIPE).is_file() else {}
    said = recipe.get("recipe", {})
    info, body = trained.info, trained.info.config.model
    parameters = sum(weight.numel() for weight in trained.weights.values())
    data: DataConfig = info.config.data
    apart = ", ".join(_apart(run, said, data))
    return {
        "name": name,
        "title": told.title or said.get("title", ""),
        "language": told.language or said.get("language", ""),
        "note": told.note or said.get("note", ""),
        "parameters": parameters,
        "objective": info.config.objective.name,
        "classes": info.classes,
        "finetune_defaults": to_toml(info.finetune_defaults) if info.finetune_defaults else "",
        "shape": {
            "language": told.language or said.get("language", "") or "not stated",
            **({"translates": " to ".join(info.pair)} if info.pair else {}),
            "parameters": parameters,
            "model": f"{body.architecture}, {body.num_layers} blocks, width {body.hidden_size}, reads {body.max_position_embeddings} tokens at most",
            "tokenizer": f"{trained.tokenizer.kind}, {trained.tokenizer.size:,} tokens",
            "last objective": info.config.objective.name
            + (f" ({', '.join(info.classes[:5])})" if info.classes else ""),
            "texts read": len(trained.train_fingerprints),
        },
        "scores": [score.model_dump() for score in told.scores],
        "storing": storing,
        "data": [row.model_dump() for row in told.data],
        "kept_apart": f"Never read: the validation and test texts of {apart}, as far as they were there."
        if apart
        else "",
        "stages": _stages(run, said),
        "compute": told.compute,
        "recipe": recipe.get("text", ""),
        "over": _over(recipe),
        "not_for": told.not_for,
    }


def _apart(run: Path, recipe: Mapping[str, Any], last: DataConfig) -> list[str]:
    """The sets whose held-out texts no stage has read: those that each of them, as far as it is known, set apart."""
    general, lists = recipe.get("data", {}).get("exclude_eval_texts_of", []), [last.exclude_eval_texts_of]
    for number, stage in enumerate(recipe.get("stages", []), start=1):
        kept = run / "stages" / f"{number:02d}-{stage['name']}" / "run.json"
        said = stage.get("data", {}).get("exclude_eval_texts_of", general)
        settings = (
            json.loads(kept.read_text("utf-8"))["settings"]
            if kept.is_file()
            else {"data": {"exclude_eval_texts_of": said}}
        )
        lists.append(settings["data"]["exclude_eval_texts_of"])
    names = [[Path(each).name for each in apart] for apart in lists]
    return [name for name in names[0] if all(name in other for other in names)]


def _over(recipe: Mapping[str, Any]) -> str:
    """What was set beside the recipe's file, in words."""
    scale, settings = recipe.get("scale", 1), recipe.get("settings", {})
    told = [f"every budget times {scale:g}"] if scale != 1 else []
    told += [f"{section}.{key} = {value}" for section, keys in settings.items() for key, value in keys.items()]
    return f"Made by this recipe, with {', '.join(told)}:" if told else "Made by this recipe:" if recipe else ""


def _stages(run: Path, recipe: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each stage took, from the runs that are there; of those left behind, that it is not known."""
    names = [f"{number:02d}-{each['name']}" for number, each in enumerate(recipe.get("stages", []), start=1)]
    found = []
    for folder in [run / "stages" / name for name in names] or [run]:
        if not all((folder / each).is_file() for each in ("result.json", "run.json")):
            if names:
                unknown = dict.fromkeys(("tokens", "steps", "time", "machine", "commit"), "")
                found.append({"stage": folder.name, "kind": "not kept", **unknown})
            continue
        result, info = (json.loads((folder / each).read_text("utf-8")) for each in ("result.json", "run.json"))
        provenance, settings = result.get("provenance", {}), info["settings"]
        found.append(
            {
                "stage": folder.name,
                "kind": f"{settings['job']}, {settings['objective']['name']}",
                "tokens": result.get("tokens", ""),
                "steps": result.get("steps", ""),
                "time": f"{result.get('seconds', 0) / 60:.1f} min",
                "machine": provenance.get("machine", ""),
                "commit": provenance.get("commit", ""),
            }
        )
    return found
