"""Packaging a run as a base to share: quantized weights, a model card, checksums, and the measured quantization error."""

import json
import lzma
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import Tensor

from headstart.atomic_io import file_hash, refuse_existing, write_bytes, write_folder, write_json, write_text
from headstart.config import DataConfig, Section, load_toml, parse
from headstart.data.built_in import SOURCES
from headstart.data.datasets import require_classes
from headstart.data.documents import parse_mixture
from headstart.data.subsets import evaluation_hashes
from headstart.data.text_io import pack_fingerprints
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
from headstart.training.callbacks import ignore_event
from headstart.training.runtime import start_runtime
from headstart.workflows.evaluate import evaluate_loaded, evaluate_on_own_valid, evaluate_translator
from headstart.workflows.finetune import FinetuneJob, load_labelled, make_task
from headstart.workflows.pretrain import PretrainJob, prepare_documents, without_repeats
from headstart.workflows.tune import to_toml

FORMAT = 1  # of base.json
COMPRESSED = 64 * 2**10  # bytes from which a tokenizer file is compressed
TABLE_SETTINGS = ("text_column", "label_column", "label_map")  # they describe one table only
METRICS = ("accuracy", "macro_f1", "loss", "perplexity", "bleu", "chrf")


class CardData(Section):
    """A text that a base was trained on."""

    name: str
    licence: str
    words: str = ""


class CardScore(Section):
    """A published score with its interval."""

    task: str
    value: float
    low: float
    high: float
    labels: int | None = None  # 0 = zero-shot, None = all labels
    seeds: int = 1
    metric: str = "accuracy"


class CardFacts(Section):
    """What a person states for the model card; the rest of the card comes from the run."""

    title: str = ""
    language: str = ""
    note: str = ""
    compute: str = ""
    data: list[CardData] = Field(default_factory=list)
    scores: list[CardScore] = Field(default_factory=list)
    not_for: list[str] = Field(default_factory=list)


@dataclass(frozen=True)
class Packaged:
    """A packaged base, and its scores before and after quantization."""

    name: str
    path: Path
    parameters: int
    weight_bytes: int
    total_bytes: int
    measured_on: str
    before: dict[str, float]
    after: dict[str, float]
    weight_error: float  # root mean square error of the weights, relative to their root mean square


def package(
    run: str,
    name: str,
    out: str | Path,
    *,
    dtype: str = "int8",
    max_shard_size: float = 12.0,
    eval_data: str | None = None,
    card: str | Path | None = None,
) -> Packaged:
    """Write RUN as the base `out`/`name`, and score it before and after on `eval_data` or on its own held-out texts.

    `card` is a TOML file for the model card: licences, scores, limits. `max_shard_size` is in MiB.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name) or name in (*SOURCES, SCRATCH):
        raise ConfigError(f"a base cannot be called {name!r}", hint="use small letters, digits and hyphens: fr-small")
    if dtype not in FORMS:
        raise ConfigError(f"weights cannot be stored as {dtype!r}", hint=f"choose from {', '.join(FORMS)}")
    path = Path(out) / name
    refuse_existing(path)
    facts: CardFacts = parse(CardFacts, load_toml(Path(card), "card", "--card"), str(card)) if card else CardFacts()
    model = load_model(run)
    packed = replace(model, info=_portable(model))
    quantized = as_stored(model.weights, dtype)
    scored = model if eval_data is None else packed  # other data is read as the packed base reads it
    measured_on, before = _measure(scored, eval_data)
    after = _measure(replace(scored, weights=quantized), eval_data)[1]
    measured: dict[str, Any] = {
        "measured_on": measured_on,
        "before": before,
        "after": after,
        "weight_error": _relative_error(model.weights, quantized),
    }
    content = _card_content(model, Path(run), name, facts) | {"storing": {"form": dtype, **measured}}

    def fill(folder: Path) -> None:
        store_weights(folder, model.weights, dtype, max_shard_size)
        _write_tokenizer(folder, model.tokenizer, TOKENIZER)
        if model.own_source_tokenizer is not None:
            _write_tokenizer(folder, model.own_source_tokenizer, SOURCE_TOKENIZER)
        write_bytes(folder / PACKED_FINGERPRINTS, pack_fingerprints(model.train_fingerprints))
        write_json(folder / "run.json", packed.info.to_dict())
        shape = {**content["shape"], "weights on disk": f"{stored_bytes(folder) / 2**20:.1f} MiB"}
        write_text(folder / "card.md", render_model_card({**content, "shape": shape}))
        keys = ("name", "title", "language", "parameters", "objective", "classes", "scores", "storing")
        write_json(folder / BASE, {"format": FORMAT, **{key: content[key] for key in keys}})
        write_json(folder / CHECKSUMS, {file.name: file_hash(file) for file in sorted(folder.iterdir())})

    write_folder(path, fill)
    return Packaged(
        name=name,
        path=path,
        parameters=content["parameters"],
        weight_bytes=stored_bytes(path),
        total_bytes=sum(file.stat().st_size for file in path.iterdir()),
        **measured,
    )


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, name: str) -> None:
    """Write the tokenizer's files, the main one as `name`; JSON is minified and large files are compressed."""
    for file, content in tokenizer.engine.files().items():
        target = name if file == TOKENIZER else file
        if len(content) <= COMPRESSED:
            write_bytes(folder / target, content)
            continue
        with suppress(ValueError):  # of a file that is not JSON
            content = json.dumps(json.loads(content), ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        write_bytes(folder / f"{target}.xz", lzma.compress(content, preset=9))


def _relative_error(weights: Mapping[str, Tensor], quantized: Mapping[str, Tensor]) -> float:
    """The root mean square error of all weights over their root mean square."""
    error = sum(float((quantized[name].double() - weight.double()).square().sum()) for name, weight in weights.items())
    size = sum(float(weight.double().square().sum()) for weight in weights.values())
    return float((error / max(size, 1e-300)) ** 0.5)


def _measure(model: LoadedModel, eval_data: str | None) -> tuple[str, dict[str, float]]:
    """The name of the evaluation data and the scores on it; no scores for a model without a head."""
    found: object
    if not model.info.has_heads:
        return "the model has no head to evaluate", {}
    if eval_data is None:
        try:
            name, found = _score_held_out(model)
        except DataError as error:
            raise RunError(
                f"the data that {model.name} was trained on cannot be read here: {error.problem}",
                hint="--eval-data DATA names other data to measure the quantization error on",
            ) from None
    elif model.info.pair:
        name, found = Path(eval_data).name, evaluate_translator(model, eval_data, model.info.config)
    else:
        name, found = Path(eval_data).name, evaluate_loaded(model, eval_data)
    return name, {metric: float(getattr(found, metric)) for metric in METRICS if hasattr(found, metric)}


def _score_held_out(loaded: LoadedModel) -> tuple[str, object]:
    """The score on the held-out part of the training data."""
    config, inputs = loaded.info.config, loaded.info.inputs
    name = f"the validation part of {Path(inputs.data).name}"
    if loaded.info.pair:
        return name, evaluate_on_own_valid(loaded)
    runtime = start_runtime(config.training)
    model = loaded.model().to(runtime.device)
    if loaded.objective.reads == "texts":
        dataset = load_labelled(inputs.data, config)
        require_classes(dataset, "package")
        task = make_task(dataset, loaded.tokenizer, config)
        return name, FinetuneJob(config, runtime).score(model, task, "valid", loaded.train_fingerprints)
    mixture = inputs.mix or parse_mixture(inputs.corpora)
    if not mixture:
        raise DataError("it is not recorded")
    corpora = [prepare_documents(each.open(config.data), loaded.tokenizer, ignore_event) for each in mixture]
    excluded = evaluation_hashes(config.data.exclude_eval_texts_of)
    valid = join(corpus.valid for corpus in without_repeats(corpora, config.data, excluded, ignore_event))
    if len(valid) <= loaded.objective.lookahead:
        raise RunError(f"{loaded.name} had no held-out text", hint="--eval-data TEXT names some to measure on")
    return "the held-out part of its texts", PretrainJob(config, runtime).score(model, valid, loaded.tokenizer)


def _portable(model: LoadedModel) -> RunInfo:
    """The run's description without the paths of the machine it was trained on and the columns of its table."""
    info, config = model.info, model.info.config
    own = config.data.model_dump(exclude=set(TABLE_SETTINGS))
    excluded = [Path(name).name for name in config.data.exclude_eval_texts_of]
    changes: dict[str, Any] = {"data": DataConfig(**{**own, "exclude_eval_texts_of": excluded})}
    if Path(config.tokenizer.type).exists():
        changes["tokenizer"] = config.tokenizer.model_copy(update={"type": model.tokenizer.kind})
    return replace(
        info,
        config=config.model_copy(update=changes),
        inputs=RunInputs(data=Path(info.inputs.data).name, corpora=[Path(name).name for name in info.inputs.corpora]),
        provenance={**info.provenance, "command": ""},
        transfer=None,
    )


def _card_content(model: LoadedModel, run: Path, name: str, facts: CardFacts) -> dict[str, Any]:
    """The content of the model card but for the quantization error."""
    recipe = _read_json(run / RECIPE) if (run / RECIPE).is_file() else {}
    stated: dict[str, Any] = recipe.get("recipe", {})
    stages = [run / "stages" / f"{n:02d}-{each['name']}" for n, each in enumerate(stated.get("stages", []), start=1)]
    info, shape = model.info, model.info.config.model
    objective, classes = info.config.objective.name, info.classes
    parameters = sum(weight.numel() for weight in model.weights.values())
    words = {key: getattr(facts, key) or stated.get(key, "") for key in ("title", "language", "note")}
    return {
        **facts.model_dump(),
        **words,
        "name": name,
        "parameters": parameters,
        "objective": objective,
        "classes": classes,
        "finetune_defaults": to_toml(info.finetune_defaults) if info.finetune_defaults else "",
        "shape": {
            "language": words["language"] or "not stated",
            **({"translates": " to ".join(info.pair)} if info.pair else {}),
            "parameters": parameters,
            "model": f"{shape.architecture}, {shape.num_layers} blocks, width {shape.hidden_size}, "
            f"reads {shape.max_position_embeddings} tokens at most",
            "tokenizer": f"{model.tokenizer.kind}, {model.tokenizer.size:,} tokens",
            "last objective": objective + (f" ({', '.join(classes[:5])})" if classes else ""),
            "texts read": len(model.train_fingerprints),
        },
        "excluded": ", ".join(_excluded_sets(stages, stated, info.config.data)),
        "stages": _stage_rows(stages or [run], is_recipe=bool(stages)),
        "recipe": recipe.get("text", ""),
        "recipe_changes": _recipe_changes(recipe),
    }


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def _excluded_sets(stages: list[Path], recipe: Mapping[str, Any], last: DataConfig) -> list[str]:
    """The sets whose evaluation texts every stage excluded, as far as it is known."""
    common, lists = recipe.get("data", {}).get("exclude_eval_texts_of", []), [last.exclude_eval_texts_of]
    for stage, folder in zip(recipe.get("stages", []), stages, strict=True):
        if (folder / "run.json").is_file():
            lists.append(_read_json(folder / "run.json")["settings"]["data"]["exclude_eval_texts_of"])
        else:
            lists.append(stage.get("data", {}).get("exclude_eval_texts_of", common))
    names = [[Path(each).name for each in excluded] for excluded in lists]
    return [name for name in names[0] if all(name in other for other in names)]


def _recipe_changes(recipe: Mapping[str, Any]) -> str:
    """The settings that were changed without editing the recipe file."""
    scale, settings = recipe.get("scale", 1), recipe.get("settings", {})
    changes = [f"every budget times {scale:g}"] if scale != 1 else []
    changes += [f"{section}.{key} = {value}" for section, keys in settings.items() for key, value in keys.items()]
    return ", ".join(changes)


def _stage_rows(folders: list[Path], is_recipe: bool) -> list[dict[str, Any]]:
    """What each stage took; a stage whose run is missing has an empty row."""
    rows = []
    for folder in folders:
        row: dict[str, Any] = dict.fromkeys(("stage", "kind", "tokens", "steps", "time", "machine", "commit"), "")
        if all((folder / name).is_file() for name in ("result.json", "run.json")):
            result, settings = _read_json(folder / "result.json"), _read_json(folder / "run.json")["settings"]
            known = {**result, **result.get("provenance", {})}
            row |= {name: known[name] for name in ("tokens", "steps", "machine", "commit") if name in known}
            row["kind"] = f"{settings['job']}, {settings['objective']['name']}"
            row["time"] = f"{result.get('seconds', 0) / 60:.1f} min"
        elif is_recipe:
            row["kind"] = "not saved"
        else:
            continue
        rows.append({**row, "stage": folder.name})
    return rows
