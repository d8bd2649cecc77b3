"""Attention masks: those that the models apply, and definitions for comparison.

In every mask a row is a query, a column is a key, and True means that the query may attend to the key.
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from headstart.batch import Batch
from headstart.config import ModelConfig
from headstart.errors import ConfigError
from headstart.evaluation.attention import attention_mask
from headstart.models import BACKBONES
from headstart.models.backbones import EncoderDecoderBackbone, TransformerBackbone
from headstart.plots.heatmaps import NO_GRID, draw_heatmap, label_axis
from headstart.plots.style import FAINT, INK, PALETTE

MIN_LENGTH, MAX_LENGTH = 4, 64  # tokens of a mask that can be drawn
DESCRIPTIONS = {
    "causal": "each token attends to itself and to those before it",
    "padding": "each token attends to all tokens but padding",
    "causal + padding": "padding is at the end, so the causal mask hides it from every other token",
    "packed documents": "a packed block, each token attends to its own document; headstart attends across documents",
    "prefix": "all tokens attend to the prefix, the rest is causal",  # Raffel et al. (2020)
    "cross": "each target token attends to all source tokens but padding",
}
DEFINITIONS = ("packed documents", "prefix")  # no model here uses them; the models apply the others
COLOURS = {"model": PALETTE[0], "definition": PALETTE[1]}
SOURCES = {"model": "applied by a model", "definition": "a definition, not used by a model here"}


@dataclass(frozen=True)
class Mask:
    """Which keys (columns) each query (row) may attend to."""

    name: str
    seen: np.ndarray  # (T, S), True = the query may attend to the key
    key_groups: tuple[str, ...] = ()  # the group of each key: "padding", "document 2" ...
    padding_queries: int = 0  # number of last queries that are padding and have no loss; drawn pale

    @property
    def source(self) -> str:
        """Whether a model applies it or it is a definition."""
        return "definition" if self.name in DEFINITIONS else "model"

    @property
    def description(self) -> str:
        """What it allows, in a sentence."""
        return DESCRIPTIONS[self.name]

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
    padding, prompt = max(1, length // 4), max(1, length // 3)
    padded = ("",) * (length - padding) + ("padding",) * padding
    documents = np.minimum(np.arange(length) * 3 // length, 2)  # three of about the same length
    names = tuple(f"document {document + 1}" for document in documents)
    keys, source = max(2, length * 3 // 4), max(1, length // 2)  # source tokens with and without padding
    causal = _mask("causal", length, length)
    return [
        Mask("causal", causal),
        Mask("padding", _mask("bidirectional", length, length - padding), padded, padding),
        # For every query but padding this equals the causal and the padding mask combined; padding has no loss.
        Mask("causal + padding", _mask("causal", length, length - padding), padded, padding),
        Mask("packed documents", (documents[:, None] == documents) & causal, names),
        Mask("prefix", causal | (np.arange(length) < prompt), ("prefix",) * prompt + ("",) * (length - prompt)),
        Mask("cross", _cross_mask(length, keys, source), ("",) * source + ("padding",) * (keys - source)),
    ]


def _mask(kind: str, length: int, real: int) -> np.ndarray:
    """The mask that a model applies to `length` tokens, of which those after the first `real` are padding."""
    body = BACKBONES[kind](_smallest_config(kind, length), 1)
    assert isinstance(body, TransformerBackbone)
    tokens = torch.zeros(1, length, dtype=torch.long)
    return attention_mask(body, Batch(tokens, torch.arange(length)[None, :] < real))


def _cross_mask(queries: int, keys: int, real: int) -> np.ndarray:
    """The cross-attention mask that a decoder applies to `keys` source tokens, of which the first `real` are text."""
    body = BACKBONES["encoder-decoder"](_smallest_config("encoder-decoder", max(queries, keys)), 1)
    assert isinstance(body, EncoderDecoderBackbone)
    tokens, source = (torch.zeros(1, length, dtype=torch.long) for length in (queries, keys))
    source_mask = torch.arange(keys)[None, :] < real
    cross_kv, _ = body.encode(Batch(tokens, tokens == 0, source=source, source_attention_mask=source_mask))
    mask = cross_kv[0][2]
    assert mask is not None
    return mask[0, 0].expand(queries, keys).numpy().copy()


def _smallest_config(kind: str, length: int) -> ModelConfig:
    return ModelConfig(
        architecture=kind, num_layers=1, hidden_size=2, num_heads=1, intermediate_size=1, max_position_embeddings=length
    )


@matplotlib.rc_context(NO_GRID)
def draw_masks(masks: list[Mask]) -> Figure:
    """The masks side by side; blue ones are applied by a model, orange ones are definitions."""
    columns = min(3, len(masks))
    rows = -(-len(masks) // columns)
    figure = Figure(figsize=(3.5 * columns, 3.95 * rows + 0.5), layout="constrained")
    for number, mask in enumerate(masks, start=1):
        _draw_mask(figure.add_subplot(rows, columns, number), mask)
    title = "Filled: the query (row) may attend to the key (column). Pale: the query is padding and has no loss."
    figure.suptitle(title, fontsize=10.5, x=0.01, ha="left")
    return figure


def _draw_mask(axes: Axes, mask: Mask) -> None:
    queries, keys = mask.seen.shape
    colour, most = COLOURS[mask.source], max(queries, keys)
    cmap = ListedColormap(["#f4f6f9", colour])
    draw_heatmap(axes, mask.seen, cmap, (0, 1), cell_lines=1.2 if most <= 24 else 0.0)
    for axis, count in ((axes.xaxis, keys), (axes.yaxis, queries)):
        label_axis(axis, [str(index + 1) for index in range(count)], step=-(-most // 12), labelsize=8)
    axes.spines[:].set_visible(False)
    axes.axhspan(queries - 0.5 - mask.padding_queries, queries - 0.5, color="#fdfdfe", alpha=0.72, linewidth=0)
    start, y = 0, 1.1 * queries - 0.5
    for name, group in groupby(mask.key_groups):  # a line with a name under each group of keys
        end = start + len(list(group))
        if name:
            axes.plot([start - 0.35, end - 0.65], [y, y], color=FAINT, linewidth=1.2, clip_on=False)
            x = (start + end - 1) / 2
            axes.text(x, y + 0.015 * queries, name, ha="center", va="top", fontsize=7.5, color=FAINT)
        start = end
    axes.set(xlim=(-0.5, keys - 0.5), ylim=(queries - 0.5, -0.5))
    axes.set_title(f"{mask.name}\n", fontsize=11, fontweight="bold", color=INK)
    axes.text(0.5, 1.02, SOURCES[mask.source], transform=axes.transAxes, ha="center", fontsize=8.5, color=colour)
    source, target = (" (source)", " (target)") if mask.name == "cross" else ("", "")
    axes.set_ylabel(f"query{target}", fontsize=9.5)
    axes.set_xlabel(f"key{source}", fontsize=9.5, labelpad=25 if mask.key_groups else 4)
