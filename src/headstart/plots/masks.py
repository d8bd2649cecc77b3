"""Attention masks: those that the models apply, and definitions for comparison.

In every mask a row is a query, a column is a key, and True means that the query may attend to the key.
"""

from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from headstart.batch import Batch
from headstart.config import ModelConfig
from headstart.errors import ConfigError
from headstart.evaluation.attention import attention_mask
from headstart.models import BACKBONES
from headstart.models.backbones import EncoderDecoderBackbone, TransformerBackbone
from headstart.plots.heatmaps import draw_heatmap, label_axis
from headstart.plots.style import FAINT, INK, PALETTE, STYLE

MIN_LENGTH, MAX_LENGTH = 4, 64  # tokens of a mask that can be drawn
COLOURS = {"model": PALETTE[0], "definition": PALETTE[1]}


@dataclass(frozen=True)
class Mask:
    """Which keys (columns) each query (row) may attend to."""

    name: str
    seen: np.ndarray  # (T, S), True = the query may attend to the key
    source: Literal["model", "definition"]  # applied by a model, or a definition that no model here uses
    description: str
    key_groups: tuple[str, ...] = ()  # the group of each key: "padding", "document 2" ...
    padding_queries: int = 0  # number of last queries that are padding and have no loss; drawn pale

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, with 1 where the query may attend to the key."""
        return {
            "name": self.name,
            "source": self.source,
            "description": self.description,
            "keys": list(self.key_groups),
            "padding_queries": self.padding_queries,
            "seen": self.seen.astype(int).tolist(),
        }


def all_masks(length: int = 8) -> list[Mask]:
    """Every type of mask over texts of `length` tokens, the last quarter of which is padding."""
    if not MIN_LENGTH <= length <= MAX_LENGTH:
        raise ConfigError(
            f"a mask of {length} tokens cannot be drawn well",
            hint=f"choose a --max-length from {MIN_LENGTH} to {MAX_LENGTH}",
        )
    padding = max(1, length // 4)
    prompt = max(1, length // 3)
    causal = _model_mask("causal", length, 0)
    documents = np.minimum(np.arange(length) * 3 // length, 2)  # three of about the same length
    keys = max(2, length * 3 // 4)
    source_padding = keys - max(1, length // 2)
    return [
        Mask("causal", causal, "model", "each token attends to itself and to those before it"),
        Mask(
            "padding",
            _model_mask("bidirectional", length, padding),
            "model",
            "each token attends to all tokens but padding",
            _groups("", length - padding, "padding", padding),
            padding,
        ),
        # For every query but padding this equals the causal and the padding mask combined; padding has no loss.
        Mask(
            "causal + padding",
            _model_mask("causal", length, padding),
            "model",
            "padding is at the end, so the causal mask hides it from every other token",
            _groups("", length - padding, "padding", padding),
            padding,
        ),
        Mask(
            "packed documents",
            (documents[:, None] == documents[None, :]) & np.tri(length, dtype=bool),
            "definition",
            "a packed block, each token attends to its own document; headstart attends across documents",
            tuple(f"document {document + 1}" for document in documents),
        ),
        Mask(  # Raffel et al. (2020)
            "prefix",
            np.tri(length, dtype=bool) | (np.arange(length) < prompt)[None, :],
            "definition",
            "all tokens attend to the prefix, the rest is causal",
            _groups("prefix", prompt, "", length - prompt),
        ),
        Mask(
            "cross",
            _cross_mask(length, keys, source_padding),
            "model",
            "each target token attends to all source tokens but padding",
            _groups("", keys - source_padding, "padding", source_padding),
        ),
    ]


def _groups(first: str, count: int, second: str, rest: int) -> tuple[str, ...]:
    return (first,) * count + (second,) * rest


def _model_mask(kind: str, length: int, padding: int) -> np.ndarray:
    """The mask that a model applies to a text of `length` tokens, the last `padding` of which are padding."""
    body = BACKBONES[kind](_smallest_config(kind, length), 1)
    assert isinstance(body, TransformerBackbone)
    tokens = torch.zeros(1, length, dtype=torch.long)
    return attention_mask(body, Batch(tokens, torch.arange(length)[None, :] < length - padding))


def _cross_mask(queries: int, keys: int, padding: int) -> np.ndarray:
    """The cross-attention mask that a decoder applies to `keys` source tokens with padding at the end."""
    body = BACKBONES["encoder-decoder"](_smallest_config("encoder-decoder", max(queries, keys)), 1)
    assert isinstance(body, EncoderDecoderBackbone)
    tokens, source = (torch.zeros(1, length, dtype=torch.long) for length in (queries, keys))
    source_mask = torch.arange(keys)[None, :] < keys - padding
    cross_kv, _ = body.encode(Batch(tokens, tokens == 0, source=source, source_attention_mask=source_mask))
    mask = cross_kv[0][2]
    assert mask is not None
    return mask[0, 0].expand(queries, keys).numpy().copy()


def _smallest_config(kind: str, length: int) -> ModelConfig:
    return ModelConfig(
        architecture=kind, num_layers=1, hidden_size=2, num_heads=1, intermediate_size=1, max_position_embeddings=length
    )


def draw_masks(masks: list[Mask]) -> Figure:
    """The masks side by side; blue ones are applied by a model, orange ones are definitions."""
    columns = min(3, len(masks))
    rows = -(-len(masks) // columns)
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(
            figsize=(3.5 * columns, 3.95 * rows + 0.5), layout=ConstrainedLayoutEngine(w_pad=0.16, h_pad=0.1)
        )
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, mask in zip(grid, masks, strict=False):
            _draw_mask(axes, mask)
        for axes in grid[len(masks) :]:
            axes.set_visible(False)
        title = "Filled: the query (row) may attend to the key (column). Pale: the query is padding and has no loss."
        figure.suptitle(title, fontsize=10.5, x=0.01, ha="left")
    return figure


def _draw_mask(axes: Axes, mask: Mask) -> None:
    queries, keys = mask.seen.shape
    colour = COLOURS[mask.source]
    cell_lines = 1.2 if max(queries, keys) <= 24 else 0.0
    draw_heatmap(axes, mask.seen, ListedColormap(["#f4f6f9", colour]), (0, 1), cell_lines=cell_lines)
    step = max(1, -(-max(queries, keys) // 12))
    for axis, count in ((axes.xaxis, keys), (axes.yaxis, queries)):
        label_axis(axis, [str(index + 1) for index in range(count)], step=step, labelsize=8)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if mask.padding_queries:
        top = queries - 0.5 - mask.padding_queries
        axes.axhspan(top, queries - 0.5, color="#fdfdfe", alpha=0.72, linewidth=0)
    _draw_key_groups(axes, mask)
    source = "applied by a model" if mask.source == "model" else "a definition, not used by a model here"
    axes.set_title(f"{mask.name}\n", fontsize=11, fontweight="bold", color=INK)
    axes.text(0.5, 1.02, source, transform=axes.transAxes, ha="center", va="bottom", fontsize=8.5, color=colour)
    axes.set_ylabel("query" if mask.name != "cross" else "query (target)", fontsize=9.5)
    label_pad = 25 if any(mask.key_groups) else 4
    axes.set_xlabel("key" if mask.name != "cross" else "key (source)", fontsize=9.5, labelpad=label_pad)


def _draw_key_groups(axes: Axes, mask: Mask) -> None:
    """A line with a name under each run of keys of one group."""
    queries, keys = mask.seen.shape
    groups, start = mask.key_groups, 0
    for end in range(1, len(groups) + 1):
        if end < len(groups) and groups[end] == groups[start]:
            continue
        if groups[start]:
            y = queries - 0.5 + 0.1 * queries
            axes.plot([start - 0.35, end - 0.65], [y, y], color=FAINT, linewidth=1.2, clip_on=False)
            x = (start + end - 1) / 2
            axes.text(x, y + 0.015 * queries, groups[start], ha="center", va="top", fontsize=7.5, color=FAINT)
        start = end
    axes.set_ylim(queries - 0.5, -0.5)
    axes.set_xlim(-0.5, keys - 0.5)
