"""Position embeddings: the vectors as a heat map, and their similarity by distance between positions."""

from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from headstart.errors import ConfigError
from headstart.models.transformer import Embedding, rotary_angles, sinusoids
from headstart.plots.heatmaps import draw_heatmap
from headstart.plots.style import FAINT, PALETTE, STYLE

MAX_CELLS = 2**22  # of one heat map
TITLES = {
    "sinusoidal": "Sinusoidal: vector of each position",
    "rotary": "Rotary: sine and cosine of the rotation at each position",
    "learned": "Learned: vector of each position",
}


@dataclass(frozen=True)
class PositionMap:
    """A vector for each position, and the similarity of two positions by the distance between them.

    Sinusoidal and learned vectors are added to the token embedding. Rotary vectors hold the sines and cosines that
    rotate queries and keys, so their dot product is that of one vector with a rotated copy of itself.
    """

    kind: str
    vectors: np.ndarray  # (T, D)
    dot: np.ndarray  # (T,) mean dot product of positions at distance 0, 1, 2 ...
    cosine: np.ndarray  # (T,) mean cosine
    low: np.ndarray  # (T,) smallest cosine at that distance
    high: np.ndarray  # (T,) largest

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        names = ("vectors", "dot", "cosine", "low", "high")
        return {"kind": self.kind, **{name: np.round(getattr(self, name).astype(float), 6).tolist() for name in names}}


def sinusoidal_map(length: int, width: int) -> PositionMap:
    """Sinusoidal positions (Vaswani et al., 2017)."""
    _check_size(length, width)
    return position_map("sinusoidal", sinusoids(length, width).numpy())


def rotary_map(length: int, width: int, base: float = 10000.0) -> PositionMap:
    """Rotary positions (RoPE) of attention heads of size `width`."""
    _check_size(length, width)
    if width % 2:
        raise ConfigError(
            f"rotary positions rotate pairs of dimensions, and {width} is odd", hint="choose an even --width"
        )
    return position_map("rotary", _interleave(rotary_angles(length, width, base)))


@torch.inference_mode()
def model_map(embedding: Embedding, length: int) -> PositionMap:
    """The positions that a model uses, with its own weights where they are learned."""
    kind, config = embedding.config.position_embedding, embedding.config
    _check_size(length, config.hidden_size)
    if embedding.position_embedding is not None:
        if length > config.max_position_embeddings:
            raise ConfigError(
                f"this model has {config.max_position_embeddings} learned positions, not {length}",
                hint=f"choose a --max-length of at most {config.max_position_embeddings}",
            )
        return position_map("learned", embedding.position_embedding.weight[:length].float().cpu().numpy())
    if kind == "sinusoidal":
        return sinusoidal_map(length, config.hidden_size)
    if kind == "rotary":
        return rotary_map(length, config.hidden_size // config.num_heads, config.rope_theta)
    raise ConfigError("this model has no position embedding", hint="choose a run with positions")


def position_map(kind: str, vectors: np.ndarray) -> PositionMap:
    """Position vectors (T, D) with their similarity by distance."""
    exact = vectors.astype(np.float64)
    products = exact @ exact.T  # (T, T)
    norms = np.sqrt(np.maximum(np.diag(products), 1e-30))
    cosines = products / norms[:, None] / norms[None, :]
    rows = [(np.diagonal(products, offset), np.diagonal(cosines, offset)) for offset in range(len(exact))]
    return PositionMap(
        kind,
        vectors,
        dot=np.array([dot.mean() for dot, _ in rows]),
        cosine=np.array([cosine.mean() for _, cosine in rows]),
        low=np.array([cosine.min() for _, cosine in rows]),
        high=np.array([cosine.max() for _, cosine in rows]),
    )


def _interleave(angles: torch.Tensor) -> np.ndarray:
    """Sine and cosine of every pair of dimensions side by side, in the order of sinusoidal positions (T, D)."""
    cos, sin = angles.chunk(2, dim=-1)
    return torch.stack((sin, cos), dim=-1).flatten(1).numpy()


def _check_size(length: int, width: int) -> None:
    if length < 2 or width < 2:
        raise ConfigError(
            f"{length} positions of width {width} are too few to draw",
            hint="choose a --max-length and --width of at least 2",
        )
    if length * max(length, width) > MAX_CELLS:
        raise ConfigError(
            f"{length:,} positions of width {width:,} are too many to draw",
            hint="choose a smaller --max-length or --width, such as 256 and 128",
        )


def draw_positions(maps: list[PositionMap]) -> Figure:
    """A heat map for each position embedding, above cosine similarity and dot product by distance."""
    colours = dict(zip(TITLES, PALETTE, strict=False))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 3.1 * len(maps) + 3.4), layout=ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.1))
        grid = figure.add_gridspec(len(maps) + 1, 2, height_ratios=[3.1] * len(maps) + [3.4])
        for row, each in enumerate(maps):
            axes = figure.add_subplot(grid[row, :])
            limit = float(np.abs(each.vectors).max()) or 1.0
            image = draw_heatmap(axes, each.vectors.T, "RdBu_r", (-limit, limit), aspect="auto", origin="lower")
            axes.set(xlabel="position", ylabel="dimension", title=TITLES.get(each.kind, each.kind))
            figure.colorbar(image, ax=axes, pad=0.01, fraction=0.03).outline.set_visible(False)
        cosine, dot = figure.add_subplot(grid[-1, 0]), figure.add_subplot(grid[-1, 1])
        for each in maps:
            distance, colour = np.arange(len(each.cosine)), colours.get(each.kind, PALETTE[3])
            cosine.fill_between(distance, each.low, each.high, color=colour, alpha=0.15, linewidth=0)
            cosine.plot(distance, each.cosine, color=colour, linewidth=1.8, label=each.kind)
            dot.plot(distance, each.dot, color=colour, linewidth=1.8, label=each.kind)
        _label_distance(cosine, "cosine similarity", "Similarity by distance")
        _label_distance(dot, "dot product", "Dot product by distance")
        if any(float((each.high - each.low).max()) > 1e-3 for each in maps):
            cosine.text(0.98, 0.97, "band: all pairs at that distance", transform=cosine.transAxes, ha="right",
                        va="top", fontsize=8.5, color=FAINT)  # fmt: skip
        if len(maps) > 1:
            dot.legend(frameon=False, fontsize=10, loc="upper right")
    return figure


def _label_distance(axes: Axes, name: str, title: str) -> None:
    axes.axhline(0, color=FAINT, linewidth=0.8)
    axes.set(xlabel="distance between two positions", ylabel=name, title=title)
    axes.margins(x=0)
