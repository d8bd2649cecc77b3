"""Pictures of a model and of its parts: arrays first, then files as the name of `out` asks."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from headstart.atomic_io import write_text
from headstart.batch import Batch, EncodedExample
from headstart.config import RunConfig
from headstart.data.datasets import SOURCES, Example, load_for_scoring, load_texts
from headstart.data.samplers import encode_rows
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, DataError, RunError, nearest, pick
from headstart.evaluation.attention import TRANSLATOR_TYPES, AttentionMaps, attention_maps, translation_maps
from headstart.evaluation.head_ablation import GroupedLoss, HeadAblation, measure_head_ablation
from headstart.generation.beam_search import Beam
from headstart.inference.embed import plain_batch
from headstart.inference.loaded_model import LoadedModel, load_model, require_head
from headstart.inference.translate import write_translations
from headstart.models.model import Model
from headstart.models.transformer import Embedding
from headstart.plots.heatmaps import draw_attention, draw_head_ablation
from headstart.plots.masks import Mask, all_masks, draw_masks
from headstart.plots.positions import PositionMap, draw_positions, model_map, sinusoidal_map
from headstart.plots.style import save_figure
from headstart.reports.pages import render_attention, render_figure
from headstart.training.callbacks import Event, Stage
from headstart.training.evaluate import EVALUATION_SEED
from headstart.training.runtime import Runtime, generator_for, start_runtime

KINDS = (".png", ".svg", ".html")
PART = 4  # texts whose loss is summed before parts are compared
WIDTH, LENGTH = 128, 128  # of sinusoids drawn without a run


@dataclass(frozen=True)
class Drawing:
    """A picture under way: its name, how to draw it, and the page that shows it."""

    name: str
    figure: Callable[[], Figure]
    page: Callable[[Figure], str]


def picture_attention(
    run: str,
    text: str,
    out: Path | None,
    *,
    target: str | None = None,
    part: str | None = None,
    layer: int | None = None,
    attention_head: int | None = None,
) -> tuple[AttentionMaps, list[Path]]:
    """Where each token of `text` looks in every layer and attention head, and the files that show it.

    A translator's `part` is cross, encoder or decoder; `target` is the translation, its own one unless given.
    """
    trained = load_model(run)
    if trained.objective.reads == "translations":
        maps = _translation_maps(trained, text, target, part or "cross")
    elif target is not None or part is not None:
        raise ConfigError(f"{run} is no translator", hint="--target and --attention-type go with a run for a --pair")
    else:
        batch, pieces = read_text(trained, text)
        maps = attention_maps(trained.model(), batch, pieces, title=Path(run).name)
    maps.chosen(layer, attention_head)
    drawing = Drawing(
        "attention",
        lambda: draw_attention(maps, layer, attention_head),
        lambda figure: render_attention(maps, layer, attention_head),
    )
    return maps, write_pictures(out, drawing)


def _translation_maps(trained: LoadedModel, text: str, target: str | None, part: str) -> AttentionMaps:
    """One kind of attention of a translator over a source and a translation of it."""
    kind = pick({name: name for name in TRANSLATOR_TYPES}, part, "part of a translator")
    model, runtime = trained.model(), start_runtime(trained.info.config.training)
    source = framed(trained, trained.source_tokenizer, text)
    if target is None:
        own = write_translations(model.to(runtime.device), [source], trained.tokenizer, runtime, Beam())[0]
        tokens = trained.tokenizer.add_special_tokens(own.tokens, len(own.tokens) + 2)
    else:
        tokens = framed(trained, trained.tokenizer, target)
    batch = trained.objective.collate([EncodedExample(tokens, source=source)], trained.tokenizer, generator_for(0))
    pieces = (trained.source_tokenizer.convert_ids_to_tokens(source), trained.tokenizer.convert_ids_to_tokens(tokens))
    title = Path(trained.name).name
    return translation_maps(model, batch.to(runtime.device), kind, *pieces, title)


def read_text(trained: LoadedModel, text: str) -> tuple[Batch, list[str]]:
    """One text as a batch with its tokens as words; an empty or over-long one is refused."""
    tokens = framed(trained, trained.tokenizer, text)
    row = torch.from_numpy(tokens).long()[None, :]  # (1, T)
    return Batch(row, torch.ones_like(row, dtype=torch.bool), unpadded=True), trained.tokenizer.convert_ids_to_tokens(
        tokens
    )


def framed(trained: LoadedModel, tokenizer: Tokenizer, text: str) -> np.ndarray:
    """One text as tokens with both ends marked; an empty or over-long one is refused."""
    if not text.strip():
        raise DataError("the text is empty", hint="give a sentence in quotes")
    limit = trained.info.config.model.max_position_embeddings
    ids = tokenizer.encode([text])[0]
    if len(ids) + 2 > limit:
        raise DataError(
            f"the text has {len(ids) + 2:,} tokens with both ends marked, and {trained.name} reads {limit:,} at most",
            hint="give a shorter text: a sentence or two draw best",
        )
    return tokenizer.add_special_tokens(ids, limit)


def picture_masks(out: Path | None, *, length: int = 8) -> tuple[list[Mask], list[Path]]:
    """Every mask over texts of `length` tokens, and the files that show them."""
    masks = all_masks(length)
    lines = [f"{mask.name}: {mask.description}" for mask in masks]
    drawing = Drawing(
        "masks", lambda: draw_masks(masks), lambda figure: render_figure("Attention masks", figure, lines)
    )
    return masks, write_pictures(out, drawing)


def picture_positions(
    run: str | None, out: Path | None, *, width: int | None = None, length: int | None = None
) -> tuple[list[PositionMap], list[Path]]:
    """Sinusoidal positions, beside them those of `run` where they differ, and the files that show them."""
    if run is None:
        maps = [sinusoidal_map(length or LENGTH, width or WIDTH)]
    else:
        if width is not None:
            raise ConfigError(f"{run} brings its own width", hint="leave --width out, or leave the run out")
        maps = _positions_of(load_model(run), length)
    drawing = Drawing(
        "positions", lambda: draw_positions(maps), lambda figure: render_figure("Position embeddings", figure)
    )
    return maps, write_pictures(out, drawing)


def _positions_of(trained: LoadedModel, length: int | None) -> list[PositionMap]:
    embedding = getattr(trained.model().backbone, "embedding", None)
    if not isinstance(embedding, Embedding):
        raise ConfigError(
            f"{trained.name} tells order by reading in order", hint="choose a run with a Transformer body"
        )
    reach = length or min(LENGTH, trained.info.config.model.max_position_embeddings)
    own = model_map(embedding, reach)
    if own.kind == "sinusoidal":
        return [own]
    return [own, sinusoidal_map(reach, trained.info.config.model.hidden_size)]


def picture_attention_heads(
    run: str,
    file: str,
    out: Path | None,
    *,
    texts: int = 200,
    settings: Mapping[str, Any] | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> tuple[HeadAblation, list[Path]]:
    """What each attention head of `run` does on the first `texts` of a file, and the files that show it."""
    trained = load_model(run)
    require_head(trained)
    config = trained.info.config.with_(settings or {})
    runtime = start_runtime(config.training)
    rows = _study_rows(trained, file, config, texts)
    parts = [rows[at : at + PART] for at in range(0, len(rows), PART)]
    batches = [plain_batch(part, trained.tokenizer.pad_id).to(runtime.device) for part in parts]

    def tell(done: int, total: int) -> None:
        on_event(Stage("silencing one attention head after the other", done, total))

    model, title = trained.model().to(runtime.device), f"{Path(run).name} on {Path(file).name}"
    study = measure_head_ablation(model, batches, _loss_of(trained, parts, runtime), title, tell)
    page_title = "Attention heads: entropy, distance and ablation"
    drawing = Drawing(
        "heads", lambda: draw_head_ablation(study), lambda figure: render_figure(page_title, figure, study=study)
    )
    return study, write_pictures(out, drawing)


def _study_rows(trained: LoadedModel, file: str, config: RunConfig, most: int) -> list[EncodedExample]:
    """Rows that the run's own objective can ask about: labelled texts for a classifier, else plain ones."""
    reads, classes = trained.objective.reads, trained.info.classes
    if reads not in ("blocks", "texts"):
        raise RunError(
            f"{trained.objective.name} reads {reads}, which this study cannot give it",
            hint="choose a base or a classifier",
        )
    if reads == "texts" or file in SOURCES:
        _, examples, _ = load_for_scoring(file, config.data)
        examples = examples[:: max(1, len(examples) // most)][:most]  # a table may be sorted by class
    else:
        wanted = (Example(text) for text in load_texts(file, config.data) if text.strip())
        examples = list(islice(wanted, most))
    if not examples:
        raise DataError(f"{file} holds no text", hint="give a file with at least one text that is not blank")
    if reads == "texts":
        strange = next((example for example in examples if example.label not in classes), None)
        if strange is not None:
            raise DataError(
                f"{strange.origin} has label {strange.label!r}, which {trained.name} never learnt",
                hint=nearest(str(strange.label), classes),
            )
    return encode_rows(
        trained.tokenizer, examples, classes or None, config.training.max_length, config.data.truncation_side
    )


def _loss_of(trained: LoadedModel, parts: list[list[EncodedExample]], runtime: Runtime) -> GroupedLoss:
    """The run's own loss by part, asked the same way each time."""

    def loss(model: Model) -> tuple[np.ndarray, np.ndarray]:
        totals, counts = np.zeros(len(parts)), np.zeros(len(parts))
        for index, part in enumerate(parts):
            chance = generator_for(EVALUATION_SEED, index)
            batch = trained.objective.collate(part, trained.tokenizer, chance).to(runtime.device)
            for marks in trained.objective.losses(model, batch).values():
                totals[index] += float(marks.total)
                counts[index] += marks.count
        return totals, counts

    return loss


def write_pictures(out: Path | None, drawing: Drawing) -> list[Path]:
    """The picture as the file `out`, or as every kind of file in the folder `out`."""
    if out is None:
        return []
    if out.suffix.lower() in KINDS and not out.is_dir():
        paths = [out]
    elif out.suffix and not out.is_dir():
        raise ConfigError(
            f"pictures are not written as {out.suffix}", hint=f"end --out in {', '.join(KINDS)}, or name a folder"
        )
    else:
        paths = [out / f"{drawing.name}{kind}" for kind in KINDS]
    figure = drawing.figure()
    with warnings.catch_warnings():  # a letter that the font lacks is drawn as a box, and the page shows it
        warnings.filterwarnings("ignore", message=r"Glyph .* missing", category=UserWarning)
        for path in paths:
            if path.suffix.lower() == ".html":
                write_text(path, drawing.page(figure))
            else:
                save_figure(figure, path)
    return paths
