"""How order is told: position vectors as a heat map, and how alike two positions are by their distance."""

from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from headstart.errors import ConfigError
from headstart.models.embedding import Embedding, rotary_turns, sinusoids
from headstart.views.figure import FAINT, PALETTE, STYLE

MOST_CELLS = 2**22  # of one heat map


@dataclass(frozen=True)
class PositionMap:
    """One way to tell order: a vector for each position, and how alike positions are at each distance.

    Sinusoidal and learned vectors are added to the token's; rotary ones hold the cosines and sines by which
    queries and keys are turned, so that their dot product is that of one vector with itself, turned.
    """

    kind: str
    vectors: np.ndarray  # (T, D)
    dot: np.ndarray  # (T,) mean dot product of positions that are 0, 1, 2 ... apart
    cosine: np.ndarray  # (T,) mean cosine
    low: np.ndarray  # (T,) least cosine of any such pair
    high: np.ndarray  # (T,)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        names = ("vectors", "dot", "cosine", "low", "high")
        return {
            "kind": self.kind,
            **{name: np.round(getattr(self, name).astype(float), 6).tolist() for name in names},
        }


def sinusoidal_map(length: int, width: int) -> PositionMap:
    """The sine and cosine waves as the model adds them."""
    _check(length, width)
    return position_map("sinusoidal", sinusoids(length, width).numpy())


def rotary_map(length: int, width: int, base: float = 10000.0) -> PositionMap:
    """The turns of rotary positions, for attention heads of `width` numbers."""
    _check(length, width)
    if width % 2:
        raise ConfigError(f"rotary positions turn pairs, and {width} is odd", hint="choose an even --width")
    return position_map("rotary", _pairs(*rotary_turns(length, width, base)))


@torch.inference_mode()
def model_map(embedding: Embedding, length: int) -> PositionMap:
    """The positions that a model's embedding uses, learned ones as it has learnt them."""
    kind, config = embedding.config.positions, embedding.config
    _check(length, config.width)
    if embedding.places is not None:
        if length > config.max_length:
            raise ConfigError(
                f"this model has learnt {config.max_length} positions, not {length}",
                hint=f"choose a --length of at most {config.max_length}",
            )
        return position_map("learned", embedding.places.weight[:length].float().cpu().numpy())
    if kind == "sinusoidal":
        return sinusoidal_map(length, config.width)
    if kind == "rotary":
        return rotary_map(length, config.width // config.attention_heads, config.rotary_base)
    raise ConfigError("this model is not told positions at all", hint="choose a run with positions")


def position_map(kind: str, vectors: np.ndarray) -> PositionMap:
    """Any (T, D) position vectors with their similarity by distance."""
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


def _pairs(cos: torch.Tensor, sin: torch.Tensor) -> np.ndarray:
    """The (T, D) cosine and sine of every pair side by side, as sinusoids stand."""
    half = cos.shape[1] // 2
    return torch.stack((sin[:, :half], cos[:, :half]), dim=-1).flatten(1).numpy()


def _check(length: int, width: int) -> None:
    if length < 2 or width < 2:
        raise ConfigError(
            f"{length} positions of width {width} are too few to draw",
            hint="choose a --length and --width of at least 2",
        )
    if length * max(length, width) > MOST_CELLS:
        raise ConfigError(
            f"{length:,} positions of width {width:,} are too many to draw",
            hint="choose a smaller --length or --width; 256 and 128 show all there is",
        )


def draw_positions(maps: list[PositionMap]) -> Figure:
    """A heat map for each way to tell order; under them cosine and dot product by distance, all ways together."""
    colours = {kind: PALETTE[at] for at, kind in enumerate(("sinusoidal", "rotary", "learned"))}
    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=(9.6, 3.1 * len(maps) + 3.4), layout=ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.1)
        )
        grid = figure.add_gridspec(len(maps) + 1, 2, height_ratios=[3.1] * len(maps) + [3.4])
        for row, each in enumerate(maps):
            _heat(figure, figure.add_subplot(grid[row, :]), each)
        cosine, dot = figure.add_subplot(grid[-1, 0]), figure.add_subplot(grid[-1, 1])
        for each in maps:
            distance, colour = np.arange(len(each.cosine)), colours.get(each.kind, PALETTE[3])
            cosine.fill_between(distance, each.low, each.high, color=colour, alpha=0.15, linewidth=0)
            cosine.plot(distance, each.cosine, color=colour, linewidth=1.8, label=each.kind)
            dot.plot(distance, each.dot, color=colour, linewidth=1.8, label=each.kind)
        _distance_axis(cosine, "cosine similarity", "Similarity by distance")
        _distance_axis(dot, "dot product", "Dot product by distance")
        if any(float((each.high - each.low).max()) > 1e-3 for each in maps):
            cosine.text(0.98, 0.97, "band: all pairs at that distance", transform=cosine.transAxes, ha="right",
                        va="top", fontsize=8.5, color=FAINT)  # fmt: skip
        if len(maps) > 1:
            dot.legend(frameon=False, fontsize=10, loc="upper right")
    return figure


WORDS = {
    "sinusoidal": "Sinusoidal: the vector of each position",
    "rotary": "Rotary: sine and cosine of the turn at each position",
    "learned": "Learned: the vector of each position",
}


def _heat(figure: Figure, axes: Axes, each: PositionMap) -> None:
    reach = float(np.abs(each.vectors).max()) or 1.0
    image = axes.imshow(
        each.vectors.T,
        cmap="RdBu_r",
        vmin=-reach,
        vmax=reach,
        aspect="auto",
        interpolation="nearest",
        origin="lower",
    )
    axes.grid(False)
    axes.set(xlabel="position", ylabel="dimension", title=WORDS.get(each.kind, each.kind))
    bar = figure.colorbar(image, ax=axes, pad=0.01, fraction=0.03)
    bar.outline.set_visible(False)


def _distance_axis(axes: Axes, name: str, title: str) -> None:
    axes.axhline(0, color=FAINT, linewidth=0.8)
    axes.set(xlabel="distance between two positions", ylabel=name, title=title)
    axes.margins(x=0)
