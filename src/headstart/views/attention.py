"""Where each token looks: attention weights as arrays with labels, and drawn as heat maps."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from headstart.batch import Batch
from headstart.errors import ConfigError
from headstart.models.attention import visible
from headstart.models.bodies import EncoderDecoderBody, TransformerBody
from headstart.models.model import Model
from headstart.views.figure import FAINT, INK, STYLE

UNSEEN = "#e9ecf1"  # a key that the mask hides from the query; a key that is seen and not looked at is white
RAMP = LinearSegmentedColormap.from_list(
    "weights", ["#ffffff", "#a9d3ec", "#0072b2", "#00304d"]
).with_extremes(bad=UNSEEN)
HEADINGS = {
    "self": "Where each token looks",
    "cross": "Where a translation looks in its source",
    "encoder": "Where each token of the source looks",
    "decoder": "Where each token of the translation looks",
}
LONGEST_PIECE = 14  # characters of a token that stand on an axis
TITLE = 1.9  # inches that a map's title takes
MOST_LABELS = 90  # tokens on one axis; of more, every other, third ... is named


# A text that looks at itself; of a translator, the target at the source, the source at itself, the target at itself.
Part = Literal["self", "cross", "encoder", "decoder"]
PARTS: tuple[Part, ...] = ("cross", "encoder", "decoder")


@dataclass(frozen=True)
class AttentionMaps:
    """The attention weights of one text with its tokens; layers and attention heads are counted from 1.

    Where a translation looks at its source, a row is named for the token that is written there.
    """

    weights: np.ndarray  # (L, A, T, S), every row adds up to one
    seen: np.ndarray  # (T, S), True = the query may read the key
    queries: list[str]  # T tokens that look
    keys: list[str]  # S tokens that are looked at
    title: str = ""
    part: Part = "self"

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return int(self.weights.shape[0])

    @property
    def attention_heads(self) -> int:
        """How many attention heads each layer has."""
        return int(self.weights.shape[1])

    @property
    def is_self(self) -> bool:
        """Whether the tokens that look are those that are looked at."""
        return self.part != "cross"

    def chosen(self, layer: int | None, attention_head: int | None) -> tuple[list[int], list[int]]:
        """The places of the layers and attention heads asked for, all of them where None is given."""
        asked = (("layer", layer, self.layers), ("attention head", attention_head, self.attention_heads))
        for name, number, most in asked:
            if number is not None and not 1 <= number <= most:
                hint = f"choose a {name} from 1 to {most}" if most > 1 else f"there is one {name}, number 1"
                raise ConfigError(f"there is no {name} {number} in this model", hint=hint)
        return (
            list(range(self.layers)) if layer is None else [layer - 1],
            list(range(self.attention_heads)) if attention_head is None else [attention_head - 1],
        )

    def to_dict(self, layer: int | None = None, attention_head: int | None = None) -> dict[str, Any]:
        """JSON-able: tokens, mask and one entry for each layer and attention head asked for."""
        layers, heads = self.chosen(layer, attention_head)
        maps = [
            {"layer": at + 1, "attention_head": head + 1, "weights": _digits(self.weights[at, head])}
            for at in layers
            for head in heads
        ]
        return {
            "title": self.title,
            "part": self.part,
            "queries": self.queries,
            "keys": self.keys,
            "seen": self.seen.astype(int).tolist(),
            "maps": maps,
        }


def _digits(array: np.ndarray) -> list[Any]:
    return np.round(array.astype(np.float64), 6).tolist()


@torch.inference_mode()
def attention_maps(model: Model, batch: Batch, pieces: Sequence[str], title: str = "") -> AttentionMaps:
    """The attention weights of the first text of `batch`; `pieces` are its tokens as a reader sees them."""
    body = attentive(model)
    model.eval()
    length = int(batch.real[0].sum())
    assert length == len(pieces), (length, len(pieces))
    _, layers = body.watch(batch)  # L times (B, A, T, T)
    weights = torch.stack([layer[0, :, :length, :length] for layer in layers]).float().cpu().numpy()
    readable_pieces = [readable(piece) for piece in pieces]
    return AttentionMaps(
        weights, seen_by(body, batch)[:length, :length], readable_pieces, readable_pieces, title
    )


@torch.inference_mode()
def translation_maps(
    model: Model, batch: Batch, part: Part, sources: Sequence[str], targets: Sequence[str], title: str = ""
) -> AttentionMaps:
    """One kind of a translator's attention over the first pair of `batch`, which holds no padding.

    `sources` are all tokens of the source, and `targets` those of the translation with both ends marked.
    """
    body = model.body
    if not isinstance(body, EncoderDecoderBody):
        raise ConfigError(
            f"a {body.config.kind} body reads one text",
            hint="only a translator's maps have parts and a target",
        )
    model.eval()
    watched = body.watch_all(batch)
    layers = {"cross": watched.cross, "encoder": watched.source, "decoder": watched.target}[part]
    weights = torch.stack([layer[0] for layer in layers]).float().cpu().numpy()
    read, written, source = (
        [readable(piece) for piece in pieces] for pieces in (targets[:-1], targets[1:], sources)
    )
    queries = {"cross": written, "encoder": source, "decoder": read}[part]
    keys = read if part == "decoder" else source
    assert weights.shape[2:] == (len(queries), len(keys)), (weights.shape, len(queries), len(keys))
    seen = np.tri(len(queries), dtype=bool) if part == "decoder" else np.ones(weights.shape[2:], dtype=bool)
    return AttentionMaps(weights, seen, queries, keys, title, part)


def attentive(model: Model) -> TransformerBody:
    """The model's body, or an error when it has no attention to look at."""
    if not isinstance(model.body, TransformerBody):
        is_translator = isinstance(model.body, EncoderDecoderBody)
        raise ConfigError(
            "a translator reads two texts, and this looks at one"
            if is_translator
            else f"a {type(model.body).__name__} has no attention to draw",
            hint="choose a run with a causal or a bidirectional body",
        )
    return model.body


def seen_by(body: TransformerBody, batch: Batch) -> np.ndarray:
    """Which keys each query of the first text may read (T, T), by the mask that the body applies."""
    length = batch.tokens.shape[1]
    seen = visible(length, not body.sees_ahead, body.mask(batch), batch.tokens.device)
    if seen is None:
        return np.ones((length, length), dtype=bool)
    square = seen if seen.dim() == 2 else seen[0, 0]  # (T, T), or (1, T) for a padding mask alone
    return square.expand(length, length).cpu().numpy().copy()


def readable(piece: str) -> str:
    """A token that is safe on an axis: control and direction marks are spelt out, nothing is left empty."""
    spelt = [f"\\u{ord(mark):04x}" if unicodedata.category(mark).startswith("C") else mark for mark in piece]
    return "".join(spelt) or "∅"


def entropy(weights: np.ndarray) -> np.ndarray:
    """How spread each query's look is, in bits: 0 = one token, log2(n) = n tokens alike; (..., T, S) to (..., T)."""
    safe = np.where(weights > 0, weights, 1.0)
    return -(weights * np.log2(safe)).sum(axis=-1)


def mean_distance(weights: np.ndarray) -> np.ndarray:
    """How many tokens away each query looks on average; (..., T, S) to (..., T)."""
    queries, keys = np.arange(weights.shape[-2])[:, None], np.arange(weights.shape[-1])[None, :]
    return (weights * np.abs(queries - keys)).sum(axis=-1)


def draw_attention(
    maps: AttentionMaps, layer: int | None = None, attention_head: int | None = None
) -> Figure:
    """A grid of heat maps, a row for each layer and a column for each attention head; one alone is enlarged."""
    layers, heads = maps.chosen(layer, attention_head)
    if len(layers) == len(heads) == 1:
        return _enlarged(maps, layers[0], heads[0])
    length = max(len(maps.queries), len(maps.keys))
    panel = min(max(1.5, 0.15 * length), 3.2, 22 / max(len(layers), len(heads)))  # inches
    size = min(8.0, 0.72 * 72 * panel / length)  # points
    has_labels = size >= 4.5
    left, top, gap, bottom = (1.25 if has_labels else 0.5), 0.95, 0.32, (0.95 if has_labels else 0.4)
    wide, high = panel * len(maps.keys) / length, panel * len(maps.queries) / length
    pitch = wide if wide == panel else max(wide, TITLE)  # a narrow map leaves room for its title
    width = left + len(heads) * (pitch + gap)
    height = top + len(layers) * (high + gap) + bottom - gap
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(max(width, 4.2), height))
        for row, at in enumerate(layers):
            for column, head in enumerate(heads):
                x, y = left + column * (pitch + gap), height - top - row * (high + gap) - high
                axes = figure.add_axes(
                    (x / max(width, 4.2), y / height, wide / max(width, 4.2), high / height)
                )
                _heat(axes, maps, at, head)
                _label(axes, maps, size, has_labels and column == 0, has_labels and row == len(layers) - 1)
                axes.set_title(f"layer {at + 1} · attention head {head + 1}", fontsize=8.5, pad=4)
        _heading(figure, maps, height)
    return figure


def _enlarged(maps: AttentionMaps, layer: int, attention_head: int) -> Figure:
    length = max(len(maps.queries), len(maps.keys))
    panel = min(max(3.6, 0.27 * length), 20.0)
    left, top, right, bottom = 1.75, 0.95, 0.95, 1.7
    wide, high = panel * len(maps.keys) / length, panel * len(maps.queries) / length
    width, height = left + max(wide, TITLE) + right, top + high + bottom
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((left / width, bottom / height, wide / width, high / height))
        image = _heat(axes, maps, layer, attention_head)
        _label(axes, maps, min(10.0, 0.8 * 72 * panel / min(length, MOST_LABELS)), True, True)
        axes.set_title(f"layer {layer + 1} · attention head {attention_head + 1}", pad=8)
        axes.set_ylabel("this token (query) …" if maps.is_self else "to write this token (query) …")
        axes.set_xlabel("… looks at (key)" if maps.is_self else "… the source is looked at (key)")
        bar_height = min(high, 2.4)
        where = ((left + wide + 0.18) / width, bottom / height, 0.13 / width, bar_height / height)
        bar = figure.colorbar(image, cax=figure.add_axes(where))
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=8, length=2)
        _heading(figure, maps, height)
    return figure


def _heading(figure: Figure, maps: AttentionMaps, height: float) -> None:
    words = maps.title if len(maps.title) <= 60 else f"{maps.title[:59]}…"
    figure.text(0.02, 1 - 0.3 / height, f"{HEADINGS[maps.part]}{': ' if words else ''}{words}", fontsize=11)
    hidden = "" if maps.seen.all() else "; grey: hidden by the mask"
    note = f"each row adds up to one, darkest = the map's largest weight{hidden}"
    figure.text(0.02, 1 - 0.5 / height, note, fontsize=8, color=FAINT)


def _heat(axes: Axes, maps: AttentionMaps, layer: int, attention_head: int) -> Any:
    weights = maps.weights[layer, attention_head]
    shown = np.ma.masked_array(weights, mask=~maps.seen)
    for spine in axes.spines.values():
        spine.set(visible=True, linewidth=0.6)
    return axes.imshow(
        shown, cmap=RAMP, vmin=0, vmax=max(float(weights.max()), 1e-6), interpolation="nearest"
    )


def _label(axes: Axes, maps: AttentionMaps, size: float, is_left: bool, is_bottom: bool) -> None:
    sides = ((axes.yaxis, maps.queries, is_left, 0), (axes.xaxis, maps.keys, is_bottom, 90))
    for axis, pieces, is_named, angle in sides:
        step = -(-len(pieces) // MOST_LABELS)
        places = range(0, len(pieces), step) if is_named else []
        axis.set_ticks(list(places), [short(pieces[place]) for place in places])
        axis.set_tick_params(labelsize=size, labelrotation=angle, length=0, pad=2, labelcolor=INK)


def short(piece: str) -> str:
    """A token cut to what an axis has room for."""
    return piece if len(piece) <= LONGEST_PIECE else f"{piece[: LONGEST_PIECE - 1]}…"
