"""Plots of attention, masks, positions and attention heads: each function returns the data and the files it wrote."""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from headstart.atomic_io import write_text
from headstart.batch import Batch, EncodedExample
from headstart.config import RunConfig
from headstart.data.built_in import SOURCES
from headstart.data.datasets import Example, encode_rows, load_for_scoring, load_texts
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, DataError, RunError, nearest, pick
from headstart.evaluation.attention import (
    TRANSLATOR_TYPES,
    AttentionMaps,
    HeadAblation,
    attention_maps,
    measure_head_ablation,
    translation_maps,
)
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
from headstart.training.callbacks import OnEvent, Stage, ignore_event
from headstart.training.runtime import generator_for, start_runtime
from headstart.training.trainer import EVALUATION_SEED

SUFFIXES = (".png", ".svg", ".html")
GROUP = 4  # texts whose losses are summed before groups are compared
SIZE, LENGTH = 128, 128  # of sinusoids that are plotted without a run


def plot_attention(
    run: str,
    text: str,
    out: Path | None,
    *,
    target: str | None = None,
    attention_type: str | None = None,
    layer: int | None = None,
    attention_head: int | None = None,
) -> tuple[AttentionMaps, list[Path]]:
    """The attention weights of every layer and attention head on `text`, and the files that show them.

    A translator's `attention_type` is cross, encoder or decoder; `target` defaults to its own translation.
    """
    loaded = load_model(run)
    if loaded.objective.reads == "translations":
        maps = _translation_maps(loaded, text, target, attention_type or "cross")
    elif target is not None or attention_type is not None:
        raise ConfigError(f"{run} is not a translator", hint="--target and --attention-type go with a run for a --pair")
    else:
        ids = _encode(loaded, loaded.tokenizer, text)
        row = torch.from_numpy(ids).long()[None, :]  # (1, T)
        batch = Batch(row, torch.ones_like(row, dtype=torch.bool), unpadded=True)
        tokens = loaded.tokenizer.convert_ids_to_tokens(ids)
        maps = attention_maps(loaded.model(), batch, tokens, title=Path(run).name)
    maps.chosen(layer, attention_head)
    chosen = maps, layer, attention_head
    return maps, write_plots(out, "attention", lambda: draw_attention(*chosen), lambda _: render_attention(*chosen))


def _translation_maps(loaded: LoadedModel, text: str, target: str | None, attention_type: str) -> AttentionMaps:
    """One type of attention of a translator on a text and its translation."""
    kind = pick({name: name for name in TRANSLATOR_TYPES}, attention_type, "attention of a translator")
    runtime = start_runtime(loaded.info.config.training)
    model, tokenizer = loaded.model().to(runtime.device), loaded.tokenizer
    source = _encode(loaded, loaded.source_tokenizer, text)
    if target is None:
        own = write_translations(model, [source], tokenizer, runtime, Beam())[0]
        ids = tokenizer.add_special_tokens(own.tokens, len(own.tokens) + 2)
    else:
        ids = _encode(loaded, tokenizer, target)
    batch = loaded.objective.collate([EncodedExample(ids, source=source)], tokenizer, generator_for(0))
    tokens = (loaded.source_tokenizer.convert_ids_to_tokens(source), tokenizer.convert_ids_to_tokens(ids))
    return translation_maps(model, batch.to(runtime.device), kind, *tokens, Path(loaded.name).name)


def _encode(loaded: LoadedModel, tokenizer: Tokenizer, text: str) -> np.ndarray:
    """One text as token ids with special tokens; an empty or over-long one is refused."""
    limit = loaded.info.config.model.max_position_embeddings
    ids = tokenizer.encode([text])[0]
    if not text.strip() or len(ids) + 2 > limit:
        raise DataError(
            f"the text has {len(ids) + 2:,} tokens with both special tokens, and {loaded.name} reads {limit:,} at most"
            if text.strip()
            else "the text is empty",
            hint="give one or two sentences in quotes",
        )
    return tokenizer.add_special_tokens(ids, limit)


def plot_masks(out: Path | None, *, length: int = 8) -> tuple[list[Mask], list[Path]]:
    """Every attention mask over `length` tokens, and the files that show them."""
    masks = all_masks(length)
    lines = [f"{mask.name}: {mask.description}" for mask in masks]
    render = partial(render_figure, "Attention masks", lines=lines)
    return masks, write_plots(out, "masks", lambda: draw_masks(masks), render)


def plot_positions(
    run: str | None, out: Path | None, *, width: int | None = None, length: int | None = None
) -> tuple[list[PositionMap], list[Path]]:
    """Sinusoidal position embeddings and, where they differ, those of `run`; and the files that show them."""
    if run is None:
        maps = [sinusoidal_map(length or LENGTH, width or SIZE)]
    elif width is not None:
        raise ConfigError(f"{run} has a width of its own", hint="leave out --width, or leave out the run")
    else:
        loaded = load_model(run)
        shape, embedding = loaded.info.config.model, getattr(loaded.model().backbone, "embedding", None)
        if not isinstance(embedding, Embedding):
            raise ConfigError(
                f"{loaded.name} has no position embeddings: it is recurrent or convolutional",
                hint="choose a run with a Transformer backbone",
            )
        length = length or min(LENGTH, shape.max_position_embeddings)
        maps = [model_map(embedding, length)]
        if maps[0].kind != "sinusoidal":
            maps.append(sinusoidal_map(length, shape.hidden_size))
    render = partial(render_figure, "Position embeddings")
    return maps, write_plots(out, "positions", lambda: draw_positions(maps), render)


def plot_attention_heads(
    run: str,
    file: str,
    out: Path | None,
    *,
    max_texts: int = 200,
    settings: Mapping[str, Any] | None = None,
    on_event: OnEvent = ignore_event,
) -> tuple[HeadAblation, list[Path]]:
    """Entropy, distance and ablation of each attention head on at most `max_texts` of a file, and the plots of them."""
    loaded = load_model(run)
    require_head(loaded)
    config = loaded.info.config.with_(settings or {})
    runtime = start_runtime(config.training)
    rows = _load_rows(loaded, file, config, max_texts)
    groups = [rows[start : start + GROUP] for start in range(0, len(rows), GROUP)]
    batches = [plain_batch(group, loaded.tokenizer.pad_id).to(runtime.device) for group in groups]

    def loss(model: Model) -> tuple[np.ndarray, np.ndarray]:  # with the same masks and samples at every call
        totals, counts = np.zeros(len(groups)), np.zeros(len(groups))
        for index, group in enumerate(groups):
            generator = generator_for(EVALUATION_SEED, index)
            batch = loaded.objective.collate(group, loaded.tokenizer, generator).to(runtime.device)
            for part in loaded.objective.losses(model, batch).values():
                totals[index] += float(part.total)
                counts[index] += part.count
        return totals, counts

    def on_head(done: int, total: int) -> None:
        on_event(Stage("ablating one attention head after the other", done, total))

    model, title = loaded.model().to(runtime.device), f"{Path(run).name} on {Path(file).name}"
    study = measure_head_ablation(model, batches, loss, title, on_head)
    render = partial(render_figure, "Attention heads: entropy, distance and ablation", study=study)
    return study, write_plots(out, "heads", lambda: draw_head_ablation(study), render)


def _load_rows(loaded: LoadedModel, file: str, config: RunConfig, max_texts: int) -> list[EncodedExample]:
    """Examples for the run's own objective: labelled texts for a classifier, raw ones for a base."""
    reads, classes = loaded.objective.reads, loaded.info.classes
    if reads not in ("blocks", "texts"):
        raise RunError(
            f"{loaded.objective.name} reads {reads}, on which attention heads cannot be measured",
            hint="choose a base or a classifier",
        )
    if reads == "texts" or file in SOURCES:
        _, examples, _ = load_for_scoring(file, config.data)
        examples = examples[:: max(1, len(examples) // max_texts)][:max_texts]  # a table may be sorted by class
    else:
        texts = (Example(text) for text in load_texts(file, config.data) if text.strip())
        examples = list(islice(texts, max_texts))
    if not examples:
        raise DataError(f"{file} holds no text", hint="give a file with at least one text that is not blank")
    unknown = next((example for example in examples if example.label not in classes), None)
    if reads == "texts" and unknown is not None and loaded.task in ("single-label", "ordinal"):
        raise DataError(
            f"{unknown.origin} has label {unknown.label!r}, which {loaded.name} was not trained on",
            hint=nearest(str(unknown.label), classes),
        )
    length, side = config.training.max_length, config.data.truncation_side
    return encode_rows(loaded.tokenizer, examples, classes or None, length, side, loaded.task)


def write_plots(out: Path | None, name: str, draw: Callable[[], Figure], render: Callable[[Figure], str]) -> list[Path]:
    """Write a figure as the file `out`, or in every format into the folder `out`."""
    if out is None:
        return []
    is_folder = not out.suffix or out.is_dir()
    if not is_folder and out.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"plots are not written as {out.suffix}", hint=f"end --out in {', '.join(SUFFIXES)}, or name a folder"
        )
    paths = [out / f"{name}{suffix}" for suffix in SUFFIXES] if is_folder else [out]
    figure = draw()
    with warnings.catch_warnings():  # a character that the font lacks is drawn as a box, and the page shows it
        warnings.filterwarnings("ignore", message=r"Glyph .* missing", category=UserWarning)
        for path in paths:
            if path.suffix.lower() == ".html":
                write_text(path, render(figure))
            else:
                save_figure(figure, path)
    return paths
