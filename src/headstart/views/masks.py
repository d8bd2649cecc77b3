"""Who may read whom: masks as arrays, those that the model applies and those that are definitions, and drawn.

In every mask a row is a query, a column is a key, and True means that the query may read the key.
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
from headstart.config import BodyConfig
from headstart.errors import ConfigError
from headstart.models.bodies import BODIES, EncoderDecoderBody, TransformerBody
from headstart.views.attention import seen_by
from headstart.views.figure import FAINT, INK, PALETTE, STYLE

SHORTEST, LONGEST = 4, 64  # tokens that a drawn mask may have
COLOURS = {"model": PALETTE[0], "definition": PALETTE[1]}


@dataclass(frozen=True)
class Mask:
    """Which keys (columns) each query (row) may read, and where that comes from."""

    name: str
    seen: np.ndarray  # (T, S), True = the query may read the key
    source: Literal["model", "definition"]  # what a body applies, or a definition that none applies yet
    words: str
    parts: tuple[str, ...] = ()  # what each key is, where that needs saying: "padding", "document 2" ...
    idle: int = 0  # the last queries that are padding, whose answers nobody uses; drawn pale

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, with 1 where the query may read the key."""
        return {
            "name": self.name,
            "source": self.source,
            "words": self.words,
            "keys": list(self.parts),
            "idle": self.idle,
            "seen": self.seen.astype(int).tolist(),
        }


def all_masks(length: int = 8) -> list[Mask]:
    """Every kind of mask over texts of `length` tokens, padding being the last quarter of them."""
    if not SHORTEST <= length <= LONGEST:
        raise ConfigError(
            f"a mask of {length} tokens cannot be drawn well",
            hint=f"choose a --length from {SHORTEST} to {LONGEST}",
        )
    real = length - max(1, length // 4)
    documents = np.minimum(np.arange(length) * 3 // length, 2)  # three of about the same length
    return [
        causal(length),
        padding(length, real),
        causal_and_padding(length, real),
        packed(documents),
        prefix(length, max(1, length // 3)),
        cross(length, max(2, length * 3 // 4), max(1, length // 2)),
    ]


def causal(length: int) -> Mask:
    """What a causal body applies: each token sees itself and those before it."""
    seen = _applied("causal", length, length)
    return Mask("causal", seen, "model", "each token sees itself and those before it")


def padding(length: int, real: int) -> Mask:
    """What a bidirectional body applies to a text of `real` tokens padded to `length`."""
    seen = _applied("bidirectional", length, real)
    return Mask(
        "padding", seen, "model", "each token sees all real tokens", _padded(length, real), length - real
    )


def causal_and_padding(length: int, real: int) -> Mask:
    """What a causal body applies to a text of `real` tokens padded to `length`: the causal mask alone.

    Padding stands at the end, so for every real query it is the two masks joined; padding's own answers go unused.
    """
    seen = _applied("causal", length, real)
    words = "padding stands at the end, so the causal mask hides it from every real token"
    return Mask("causal + padding", seen, "model", words, _padded(length, real), length - real)


def packed(documents: np.ndarray) -> Mask:
    """Causal inside each document of a packed block; `documents` (T,) says which one each token is of."""
    same = documents[:, None] == documents[None, :]
    seen = same & np.tri(len(documents), dtype=bool)
    words = "a packed block, each token sees its own document; our blocks are not cut up so: they see across"
    return Mask("packed documents", seen, "definition", words, tuple(f"document {d + 1}" for d in documents))


def prefix(length: int, prompt: int) -> Mask:
    """The first `prompt` tokens see each other whole, the rest is causal (Raffel et al., 2020)."""
    seen = np.tri(length, dtype=bool) | (np.arange(length) < prompt)[None, :]
    parts = tuple("prefix" if place < prompt else "" for place in range(length))
    return Mask("prefix", seen, "definition", "the prefix is seen by all, the rest is causal", parts)


def cross(queries: int, keys: int, real: int) -> Mask:
    """What a decoder applies to `keys` source tokens, of which `real` are no padding: all target tokens see those."""
    body = BODIES["encoder-decoder"](_smallest("encoder-decoder", max(queries, keys)), 1)
    assert isinstance(body, EncoderDecoderBody)
    tokens, source = (torch.zeros(1, length, dtype=torch.long) for length in (queries, keys))
    batch = Batch(tokens, tokens == 0, source=source, source_real=torch.arange(keys)[None, :] < real)
    mask = body.encode(batch)[0][2]
    seen = np.ones((queries, keys), dtype=bool)
    if mask is not None:
        seen = mask[0, 0].expand(queries, keys).numpy().copy()
    words = "each target token sees all real source tokens"
    return Mask("cross", seen, "model", words, _padded(keys, real))


def _padded(length: int, real: int) -> tuple[str, ...]:
    return tuple("" if place < real else "padding" for place in range(length))


def _applied(kind: str, length: int, real: int) -> np.ndarray:
    """The mask that a body of this kind applies to a text of `real` tokens padded to `length`."""
    body = BODIES[kind](_smallest(kind, length), 1)
    assert isinstance(body, TransformerBody)
    batch = Batch(torch.zeros(1, length, dtype=torch.long), torch.arange(length)[None, :] < real)
    return seen_by(body, batch)


def _smallest(kind: str, length: int) -> BodyConfig:
    return BodyConfig(kind=kind, layers=1, width=2, attention_heads=1, feed_forward=1, max_length=length)


def draw_masks(masks: list[Mask]) -> Figure:
    """The masks side by side; blue ones are applied by the model, orange ones are definitions."""
    columns = min(3, len(masks))
    rows = -(-len(masks) // columns)
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(
            figsize=(3.5 * columns, 3.95 * rows + 0.5), layout=ConstrainedLayoutEngine(w_pad=0.16, h_pad=0.1)
        )
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, mask in zip(grid, masks, strict=False):
            _draw(axes, mask)
        for axes in grid[len(masks) :]:
            axes.set_visible(False)
        words = "Filled: the query (row) may read the key (column). Pale: the query is padding, its answer goes unused."
        figure.suptitle(words, fontsize=10.5, x=0.01, ha="left")
    return figure


def _draw(axes: Axes, mask: Mask) -> None:
    queries, keys = mask.seen.shape
    colour = COLOURS[mask.source]
    axes.imshow(mask.seen, cmap=ListedColormap(["#f4f6f9", colour]), vmin=0, vmax=1, interpolation="nearest")
    axes.set_xticks(np.arange(-0.5, keys), minor=True)
    axes.set_yticks(np.arange(-0.5, queries), minor=True)
    if max(queries, keys) <= 24:
        axes.grid(which="minor", color="#ffffff", linewidth=1.2, alpha=1)
    axes.tick_params(which="both", length=0, labelsize=8)
    step = max(1, -(-max(queries, keys) // 12))
    axes.set_xticks(range(0, keys, step), [str(place + 1) for place in range(0, keys, step)])
    axes.set_yticks(range(0, queries, step), [str(place + 1) for place in range(0, queries, step)])
    for spine in axes.spines.values():
        spine.set_visible(False)
    if mask.idle:
        axes.axhspan(queries - 0.5 - mask.idle, queries - 0.5, color="#fdfdfe", alpha=0.72, linewidth=0)
    _braces(axes, mask)
    source = "as the model applies it" if mask.source == "model" else "a definition, not applied yet"
    axes.set_title(f"{mask.name}\n", fontsize=11, fontweight="bold", color=INK)
    axes.text(
        0.5, 1.02, source, transform=axes.transAxes, ha="center", va="bottom", fontsize=8.5, color=colour
    )
    axes.set_ylabel("query" if mask.name != "cross" else "query (target)", fontsize=9.5)
    below = 25 if any(mask.parts) else 4
    axes.set_xlabel("key" if mask.name != "cross" else "key (source)", fontsize=9.5, labelpad=below)


def _braces(axes: Axes, mask: Mask) -> None:
    """A line with a word under each run of keys that are of one kind."""
    start = 0
    for end in range(1, len(mask.parts) + 1):
        if end < len(mask.parts) and mask.parts[end] == mask.parts[start]:
            continue
        if mask.parts[start]:
            bottom = mask.seen.shape[0] - 0.5
            span, at = mask.seen.shape[0], bottom + 0.1 * mask.seen.shape[0]
            axes.plot([start - 0.35, end - 0.65], [at, at], color=FAINT, linewidth=1.2, clip_on=False)
            axes.text(
                (start + end - 1) / 2, at + 0.015 * span, mask.parts[start], ha="center", va="top", fontsize=7.5,
                color=FAINT,
            )  # fmt: skip
        start = end
    axes.set_ylim(mask.seen.shape[0] - 0.5, -0.5)
    axes.set_xlim(-0.5, mask.seen.shape[1] - 0.5)
