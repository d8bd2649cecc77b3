"""Position embeddings: the vectors as a heat map, and their similarity by distance between positions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

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
    return _position_map("sinusoidal", length, width, lambda: sinusoids(length, width))


def rotary_map(length: int, width: int, base: float = 10000.0) -> PositionMap:
    """Rotary positions (RoPE) of attention heads of size `width`: sine and cosine of every pair of dimensions."""
    if width % 2:
        raise ConfigError(
            f"rotary positions rotate pairs of dimensions, and {width} is odd", hint="choose an even --width"
        )

    def interleaved() -> torch.Tensor:  # in the order of sinusoidal positions
        cos, sin = rotary_angles(length, width, base).chunk(2, dim=-1)
        return torch.stack((sin, cos), dim=-1).flatten(1)

    return _position_map("rotary", length, width, interleaved)


@torch.inference_mode()
def model_map(embedding: Embedding, length: int) -> PositionMap:
    """The positions that a model uses, with its own weights where they are learned."""
    kind, config, learned = embedding.config.position_embedding, embedding.config, embedding.position_embedding
    if learned is not None:
        if length > config.max_position_embeddings:
            raise ConfigError(
                f"this model has {config.max_position_embeddings} learned positions, not {length}",
                hint=f"choose a --max-length of at most {config.max_position_embeddings}",
            )
        return _position_map("learned", length, config.hidden_size, lambda: learned.weight[:length].float().cpu())
    if kind == "sinusoidal":
        return sinusoidal_map(length, config.hidden_size)
    if kind == "rotary":
        return rotary_map(length, config.hidden_size // config.num_heads, config.rope_theta)
    raise ConfigError("this model has no position embedding", hint="choose a run with positions")


def _position_map(kind: str, length: int, width: int, make: Callable[[], torch.Tensor]) -> PositionMap:
    """Position vectors (T, D) with their similarity by distance."""
    is_small = min(length, width) < 2
    if is_small or length * max(length, width) > MAX_CELLS:
        raise ConfigError(
            f"{length:,} positions of width {width:,} are too {'few' if is_small else 'many'} to draw",
            hint="choose another --max-length or --width, such as 256 and 128",
        )
    vectors = make().numpy()
    exact = vectors.astype(np.float64)
    products = exact @ exact.T  # (T, T)
    norms = np.sqrt(np.maximum(np.diag(products), 1e-30))
    cosines = products / norms[:, None] / norms
    dots = [np.diagonal(products, offset).mean() for offset in range(length)]
    by_distance = [np.diagonal(cosines, offset) for offset in range(length)]
    mean, low, high = np.array([(row.mean(), row.min(), row.max()) for row in by_distance]).T
    return PositionMap(kind, vectors, np.array(dots), mean, low, high)


@matplotlib.rc_context(STYLE)
def draw_positions(maps: list[PositionMap]) -> Figure:
    """A heat map for each position embedding, above cosine similarity and dot product by distance."""
    colours = dict(zip(TITLES, PALETTE, strict=False))
    figure = Figure(figsize=(9.6, 3.1 * len(maps) + 3.4), layout="constrained")
    grid = figure.add_gridspec(len(maps) + 1, 2, height_ratios=[3.1] * len(maps) + [3.4])
    for row, each in enumerate(maps):
        axes = figure.add_subplot(grid[row, :], xlabel="position", ylabel="dimension", title=TITLES[each.kind])
        limit = float(np.abs(each.vectors).max()) or 1.0
        image = draw_heatmap(axes, each.vectors.T, "RdBu_r", (-limit, limit), aspect="auto", origin="lower")
        figure.colorbar(image, ax=axes, pad=0.01, fraction=0.03).outline.set_visible(False)
    cosine = figure.add_subplot(grid[-1, 0], ylabel="cosine similarity", title="Similarity by distance")
    dot = figure.add_subplot(grid[-1, 1], ylabel="dot product", title="Dot product by distance")
    for each in maps:
        distance, colour = np.arange(len(each.cosine)), colours[each.kind]
        cosine.fill_between(distance, each.low, each.high, color=colour, alpha=0.15, linewidth=0)
        cosine.plot(distance, each.cosine, color=colour, linewidth=1.8)
        dot.plot(distance, each.dot, color=colour, linewidth=1.8, label=each.kind)
    for axes in (cosine, dot):
        axes.axhline(0, color=FAINT, linewidth=0.8)
        axes.set_xlabel("distance between two positions")
        axes.margins(x=0)
    dot.legend(frameon=False, fontsize=10, loc="upper right")
    if "learned" in [each.kind for each in maps]:
        cosine.legend(["band: all pairs at that distance"], handlelength=0, frameon=False, fontsize=8.5)
    return figure
