"""Why several attention heads: how far and how widely each one looks, and what the model loses without it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from scipy.special import stdtrit
from torch import Tensor, nn

from headstart.batch import Batch
from headstart.models.attention import Attention
from headstart.models.model import Model
from headstart.views.attention import RAMP, attentive, entropy, mean_distance, seen_by
from headstart.views.figure import FAINT, STYLE

# Summed loss and number of answers of each part of the text: two arrays (parts,).
LossByPart = Callable[[Model], tuple[np.ndarray, np.ndarray]]
ON_DARK, ON_LIGHT = (
    "#fdfdfe",
    "#11151c",
)  # numbers in cells; a page that turns dark leaves these two as they are
LEAST_PARTS = 5  # of which an interval can be told
MOST_NUMBERS = 12  # layers or attention heads up to which numbers stand in the cells


@dataclass(frozen=True)
class AttentionHeadStudy:
    """What each attention head does; arrays are (L, A), layers and attention heads counted from 1 when shown."""

    entropy: np.ndarray  # bits, mean over tokens
    distance: np.ndarray  # tokens, mean over tokens
    ablation: np.ndarray  # by how much the loss (nats) rises when this attention head is silenced
    low: np.ndarray  # the 95 % interval of that, over parts of the text
    high: np.ndarray
    loss: float  # with all attention heads
    even_entropy: float  # what looking at all visible tokens alike would give
    even_distance: float
    texts: int
    answers: int  # tokens or texts that the loss is a mean over
    title: str = ""

    def matters(self) -> np.ndarray:
        """True where silencing shows a change: the interval leaves out zero (L, A)."""
        return (self.low > 0) | (self.high < 0)

    def rows(self) -> list[dict[str, Any]]:
        """One plain row for each attention head."""
        return [
            {
                "layer": layer + 1,
                "attention_head": head + 1,
                "entropy": float(self.entropy[layer, head]),
                "distance": float(self.distance[layer, head]),
                "ablation": float(self.ablation[layer, head]),
                "low": float(self.low[layer, head]),
                "high": float(self.high[layer, head]),
            }
            for layer, head in np.ndindex(self.entropy.shape)
        ]

    def range_words(self, layer: int, attention_head: int) -> str:
        """The interval of an ablation, at places counted from 0, as "+0.1 to +0.3"."""
        low, high = self.low[layer, attention_head], self.high[layer, attention_head]
        return "unknown: too few texts" if np.isnan(low) else f"{low:+.4f} to {high:+.4f}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        names = ("title", "loss", "even_entropy", "even_distance", "texts", "answers")
        return {**{name: getattr(self, name) for name in names}, "attention_heads": self.rows()}


@contextmanager
def silenced(model: Model, layer: int, attention_head: int) -> Iterator[None]:
    """The model with one attention head's output set to zero; both are counted from 0 here, as in arrays."""
    attention = attentive(model).blocks[layer].attention
    assert isinstance(attention, Attention)
    start = attention_head * attention.head_width

    def silence(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        mixed = inputs[0].clone()  # (B, T, D), the attention heads side by side
        mixed[..., start : start + attention.head_width] = 0
        return (mixed, *inputs[1:])

    handle = attention.outward.register_forward_pre_hook(silence)
    try:
        yield
    finally:
        handle.remove()


@torch.inference_mode()
def study_attention_heads(
    model: Model,
    batches: Sequence[Batch],
    loss: LossByPart,
    title: str = "",
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> AttentionHeadStudy:
    """Entropy and mean distance of each attention head over `batches`, and what `loss` gives without it."""
    body = attentive(model)
    model.eval()
    shape = (body.config.layers, body.config.attention_heads)
    looks = _looks(model, batches)
    totals, counts = loss(model)
    found = np.zeros((3, *shape))
    for done, (layer, head) in enumerate(np.ndindex(shape)):
        on_done(done, int(np.prod(shape)))
        with silenced(model, layer, head):
            without, _ = loss(model)
        found[:, layer, head] = _difference(without - totals, counts)
    return AttentionHeadStudy(
        entropy=looks[0],
        distance=looks[1],
        ablation=found[0],
        low=found[1],
        high=found[2],
        loss=float(totals.sum() / max(1, counts.sum())),
        even_entropy=looks[2],
        even_distance=looks[3],
        texts=sum(batch.tokens.shape[0] for batch in batches),
        answers=int(counts.sum()),
        title=title,
    )


def _looks(model: Model, batches: Sequence[Batch]) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Mean entropy and distance (L, A) over all real tokens, and what even looks would give."""
    body = attentive(model)
    sums = np.zeros((2, body.config.layers, body.config.attention_heads))
    even, count = np.zeros(2), 0
    for batch in batches:
        _, layers = body.watch(batch)
        weights = torch.stack(layers).float().cpu().numpy()  # (L, B, A, T, T)
        real = batch.real.cpu().numpy()  # (B, T)
        for at, measure in enumerate((entropy, mean_distance)):
            sums[at] += (measure(weights) * real[None, :, None, :]).sum(axis=(1, 3))
        for row in range(len(real)):
            length = int(real[row].sum())
            alone = Batch(batch.tokens[row : row + 1, :length], batch.real[row : row + 1, :length])
            seen = seen_by(body, alone).astype(float)
            alike = seen / seen.sum(axis=-1, keepdims=True)
            even += [entropy(alike).sum(), mean_distance(alike).sum()]
        count += int(real.sum())
    sums, even = sums / max(1, count), even / max(1, count)
    return sums[0], sums[1], float(even[0]), float(even[1])


def _difference(totals: np.ndarray, counts: np.ndarray) -> tuple[float, float, float]:
    """The mean over all answers with its 95 % interval, the parts being what varies; unknown for a few parts."""
    count, parts = max(1, counts.sum()), len(totals)
    mean = float(totals.sum() / count)
    if parts < LEAST_PARTS:
        return mean, float("nan"), float("nan")
    spread = ((totals - mean * counts) ** 2).sum() * parts / (parts - 1)
    reach = float(stdtrit(parts - 1, 0.975) * np.sqrt(spread)) / float(count)  # Student's
    return mean, mean - reach, mean + reach


def draw_attention_heads(study: AttentionHeadStudy) -> Figure:
    """Three grids, a row for each layer and a column for each attention head: width, reach and worth."""
    layers, heads = study.entropy.shape
    cell = min(0.95, 9.0 / max(layers, heads))
    width, height = max(3.0, cell * heads + 1.1), max(2.2, 0.72 * cell * layers + 1.5)
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(
            figsize=(3 * width, height + 0.75), layout=ConstrainedLayoutEngine(w_pad=0.14, h_pad=0.06)
        )
        wide, far, worth = figure.subplots(1, 3)
        _grid(wide, study.entropy, RAMP, (0, max(study.even_entropy, float(study.entropy.max()))), "{:.2f}")
        wide.set_title(
            f"How widely it looks\nentropy in bits; even looks: {study.even_entropy:.2f}", fontsize=10
        )
        _grid(far, study.distance, RAMP, (0, max(study.even_distance, float(study.distance.max()))), "{:.1f}")
        far.set_title(
            f"How far it looks\nmean distance in tokens; even looks: {study.even_distance:.1f}", fontsize=10
        )
        reach = max(float(np.abs(study.ablation).max()), 1e-9)
        faint = ~study.matters()
        _grid(worth, study.ablation, matplotlib.colormaps["PuOr_r"], (-reach, reach), "{:+.3f}", faint)
        worth.set_title(
            f"What is lost without it\nrise of the loss, nats; with all: {study.loss:.3f}", fontsize=10
        )
        note = " · in brackets: no change shown" if faint.any() else ""
        words = f"{study.texts:,} texts, {study.answers:,} answers marked{note}"
        figure.suptitle(f"What each attention head does{': ' * bool(study.title)}{study.title}", fontsize=12)
        figure.supxlabel(words, fontsize=8.5, color=FAINT)
    return figure


def _grid(
    axes: Axes,
    values: np.ndarray,
    colours: Colormap,
    limits: tuple[float, float],
    form: str,
    faint: np.ndarray | None = None,
) -> None:
    layers, heads = values.shape
    axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto", interpolation="nearest")
    if max(layers, heads) <= MOST_NUMBERS:
        for layer, head in np.ndindex(values.shape):
            share = (values[layer, head] - limits[0]) / max(limits[1] - limits[0], 1e-12)
            red, green, blue, _ = colours(share)
            is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.55
            text = form.format(values[layer, head])
            text = f"({text})" if faint is not None and faint[layer, head] else text
            axes.text(
                head,
                layer,
                text,
                ha="center",
                va="center",
                fontsize=8.5,
                color=ON_DARK if is_dark else ON_LIGHT,
            )
    axes.set_xticks(np.arange(0.5, heads - 1), minor=True)
    axes.set_yticks(np.arange(0.5, layers - 1), minor=True)
    axes.grid(which="minor", color=ON_DARK, linewidth=1.5, alpha=1)
    axes.set_xticks(range(heads), [str(head + 1) for head in range(heads)])
    axes.set_yticks(range(layers), [str(layer + 1) for layer in range(layers)])
    axes.tick_params(which="both", length=0, labelsize=9)
    axes.set_xlabel("attention head", fontsize=9.5)
    axes.set_ylabel("layer", fontsize=9.5)
