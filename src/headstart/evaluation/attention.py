"""Attention weights of a model with their tokens, statistics of them, and head ablation."""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import entr, stdtrit
from torch import Tensor, nn

from headstart.batch import Batch
from headstart.errors import ConfigError
from headstart.models.backbones import EncoderDecoderBackbone, TransformerBackbone
from headstart.models.kv_cache import causal_mask
from headstart.models.model import Model
from headstart.models.transformer import SelfAttention

# "self" is the self-attention of a model that reads one text; the others are the three attentions of a translator.
AttentionType = Literal["self", "cross", "encoder", "decoder"]
TRANSLATOR_TYPES: tuple[AttentionType, ...] = ("cross", "encoder", "decoder")
# Summed loss and number of predictions of each group of texts: two arrays (groups,).
GroupedLoss = Callable[[Model], tuple[np.ndarray, np.ndarray]]
MIN_GROUPS = 5  # for a confidence interval


@dataclass(frozen=True)
class AttentionMaps:
    """The attention weights of one text; layers and attention heads are counted from 1.

    In cross-attention a row is named after the target token that is predicted from it.
    """

    weights: np.ndarray  # (L, A, T, S), every row adds up to one
    seen: np.ndarray  # (T, S), the attention mask: True = the query may attend to the key
    queries: list[str]  # T tokens
    keys: list[str]  # S tokens
    title: str = ""
    attention_type: AttentionType = "self"

    @property
    def layers(self) -> int:
        """Number of layers."""
        return int(self.weights.shape[0])

    @property
    def attention_heads(self) -> int:
        """Number of attention heads in each layer."""
        return int(self.weights.shape[1])

    @property
    def is_self(self) -> bool:
        """Whether queries and keys are the same tokens."""
        return self.attention_type != "cross"

    def chosen(self, layer: int | None, attention_head: int | None) -> tuple[list[int], list[int]]:
        """Indices of the selected layers and attention heads; None selects all of them."""
        return _chosen("layer", layer, self.layers), _chosen("attention head", attention_head, self.attention_heads)

    def to_dict(self, layer: int | None = None, attention_head: int | None = None) -> dict[str, Any]:
        """JSON-able: tokens, mask and one entry for each selected layer and attention head."""
        weights = np.round(self.weights.astype(np.float64), 6)
        maps = [
            {"layer": index + 1, "attention_head": head + 1, "weights": weights[index, head].tolist()}
            for index, head in product(*self.chosen(layer, attention_head))
        ]
        return {
            "title": self.title,
            "part": self.attention_type,
            "queries": self.queries,
            "keys": self.keys,
            "seen": self.seen.astype(int).tolist(),
            "maps": maps,
        }


def _chosen(name: str, number: int | None, count: int) -> list[int]:
    if number is None:
        return list(range(count))
    if not 1 <= number <= count:
        raise ConfigError(f"there is no {name} {number} in this model", hint=f"choose a {name} from 1 to {count}")
    return [number - 1]


@torch.inference_mode()
def attention_maps(model: Model, batch: Batch, pieces: Sequence[str], title: str = "") -> AttentionMaps:
    """The self-attention weights of the first text of `batch`; `pieces` are its tokens as strings."""
    body = self_attention_body(model)
    model.eval()
    length = int(batch.attention_mask[0].sum())
    assert length == len(pieces), (length, len(pieces))
    layers = body(batch, output_attentions=True).attentions  # L times (B, H, T, T)
    weights = torch.stack([layer[0, :, :length, :length] for layer in layers]).float().cpu().numpy()
    mask = attention_mask(body, batch)[:length, :length]
    tokens = [readable(piece) for piece in pieces]
    return AttentionMaps(weights, mask, tokens, tokens, title)


@torch.inference_mode()
def translation_maps(
    model: Model,
    batch: Batch,
    attention_type: AttentionType,
    sources: Sequence[str],
    targets: Sequence[str],
    title: str = "",
) -> AttentionMaps:
    """One attention type of a translator over the first pair of `batch`, which holds no padding.

    `sources` are all tokens of the source; `targets` those of the translation with bos and eos.
    """
    body = model.backbone
    if not isinstance(body, EncoderDecoderBackbone):
        raise ConfigError(
            f"a {body.config.architecture} model reads one text",
            hint="only a translator has several attention types and a target",
        )
    model.eval()
    output = body(batch, output_attentions=True)
    layers = {"cross": output.cross_attentions, "encoder": output.encoder_attentions, "decoder": output.attentions}
    weights = torch.stack([layer[0] for layer in layers[attention_type]]).float().cpu().numpy()
    inputs, outputs, source = ([readable(piece) for piece in pieces] for pieces in (targets[:-1], targets[1:], sources))
    queries = {"cross": outputs, "encoder": source, "decoder": inputs}[attention_type]
    keys = inputs if attention_type == "decoder" else source
    assert weights.shape[2:] == (len(queries), len(keys)), (weights.shape, len(queries), len(keys))
    is_causal = attention_type == "decoder"
    mask = np.tri(len(queries), dtype=bool) if is_causal else np.ones(weights.shape[2:], dtype=bool)
    return AttentionMaps(weights, mask, queries, keys, title, attention_type)


def self_attention_body(model: Model) -> TransformerBackbone:
    """The backbone of a model that reads one text, or an error when it has no self-attention to show."""
    if not isinstance(model.backbone, TransformerBackbone):
        is_translator, name = isinstance(model.backbone, EncoderDecoderBackbone), type(model.backbone).__name__
        problem = "a translator reads two texts" if is_translator else f"a {name} has no attention to draw"
        raise ConfigError(problem, hint="choose a run with a causal or a bidirectional Transformer")
    return model.backbone


def attention_mask(body: TransformerBackbone, batch: Batch) -> np.ndarray:
    """The mask (T, T) that the backbone applies to the first text: True = the query may attend to the key."""
    length = batch.tokens.shape[1]
    mask = body.mask(batch)
    if not body.sees_ahead:
        mask = causal_mask(length, mask, batch.tokens.device)
    if mask is None:
        return np.ones((length, length), dtype=bool)
    square = mask if mask.dim() == 2 else mask[0, 0]  # (T, T), or (1, T) for a padding mask alone
    return square.expand(length, length).cpu().numpy().copy()


def readable(piece: str) -> str:
    """A token that is safe to display: control and direction characters are escaped, an empty token is "∅"."""
    escaped = [f"\\u{ord(char):04x}" if unicodedata.category(char).startswith("C") else char for char in piece]
    return "".join(escaped) or "∅"


def entropy(weights: np.ndarray) -> np.ndarray:
    """Entropy of each row in bits: 0 = one key, log2(S) = uniform attention; (..., T, S) to (..., T)."""
    found: np.ndarray = entr(weights).sum(axis=-1) / np.log(2)
    return found


def mean_distance(weights: np.ndarray) -> np.ndarray:
    """Mean distance in tokens between query and key, weighted by attention; (..., T, S) to (..., T)."""
    queries, keys = np.arange(weights.shape[-2])[:, None], np.arange(weights.shape[-1])[None, :]
    found: np.ndarray = (weights * np.abs(queries - keys)).sum(axis=-1)
    return found


# Head ablation


@dataclass(frozen=True)
class HeadAblation:
    """Statistics of every attention head; arrays are (L, A), layers and heads are counted from 1 when shown."""

    entropy: np.ndarray  # bits, mean over tokens
    distance: np.ndarray  # tokens, mean over tokens
    ablation: np.ndarray  # rise of the loss (nats) when this head's output is set to zero
    low: np.ndarray  # its 95 % interval over groups of texts
    high: np.ndarray
    loss: float  # with all attention heads
    even_entropy: float  # of uniform attention over all tokens that the mask allows
    even_distance: float
    texts: int
    answers: int  # predictions that the loss is a mean over
    title: str = ""

    def is_significant(self) -> np.ndarray:
        """True where the interval of the rise excludes zero (L, A)."""
        return (self.low > 0) | (self.high < 0)

    def rows(self) -> list[dict[str, Any]]:
        """One dict for each attention head."""
        names = ("entropy", "distance", "ablation", "low", "high")
        return [
            {
                "layer": at[0] + 1,
                "attention_head": at[1] + 1,
                **{name: float(getattr(self, name)[at]) for name in names},
            }
            for at in np.ndindex(self.entropy.shape)
        ]

    def range_words(self, layer: int, attention_head: int) -> str:
        """The interval of an ablation, indices counted from 0, as "+0.1 to +0.3"."""
        low, high = self.low[layer, attention_head], self.high[layer, attention_head]
        return "unknown: too few texts" if np.isnan(low) else f"{low:+.4f} to {high:+.4f}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        names = ("title", "loss", "even_entropy", "even_distance", "texts", "answers")
        return {**{name: getattr(self, name) for name in names}, "attention_heads": self.rows()}


@contextmanager
def ablated(model: Model, layer: int, attention_head: int) -> Iterator[None]:
    """The model with the output of one attention head set to zero; both indices are counted from 0."""
    attention = self_attention_body(model).stack.blocks[layer].attention
    assert isinstance(attention, SelfAttention)
    start = attention_head * attention.head_dim

    def zero_head(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        concatenated = inputs[0].clone()  # (B, T, D), the outputs of all heads
        concatenated[..., start : start + attention.head_dim] = 0
        return (concatenated, *inputs[1:])

    handle = attention.out_proj.register_forward_pre_hook(zero_head)
    try:
        yield
    finally:
        handle.remove()


@torch.inference_mode()
def measure_head_ablation(
    model: Model,
    batches: Sequence[Batch],
    loss: GroupedLoss,
    title: str = "",
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> HeadAblation:
    """Entropy and mean distance of each attention head over `batches`, and the rise of `loss` without it."""
    body = self_attention_body(model)
    model.eval()
    shape = (body.config.num_layers, body.config.num_heads)
    mean_entropy, distance, even_entropy, even_distance = _attention_statistics(model, batches)
    totals, counts = loss(model)
    ablation, low, high = rises = np.zeros((3, *shape))  # with the bounds of the intervals
    for done, (layer, head) in enumerate(np.ndindex(shape)):
        on_done(done, int(np.prod(shape)))
        with ablated(model, layer, head):
            without, _ = loss(model)
        rises[:, layer, head] = mean_difference(without - totals, counts)
    texts, answers = sum(len(batch.tokens) for batch in batches), int(counts.sum())
    full = float(totals.sum() / max(1, answers))
    even = (even_entropy, even_distance)
    return HeadAblation(mean_entropy, distance, ablation, low, high, full, *even, texts, answers, title)


def _attention_statistics(model: Model, batches: Sequence[Batch]) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Mean entropy and distance (L, A) over all tokens but padding, and those of uniform attention."""
    body = self_attention_body(model)
    sums = np.zeros((2, body.config.num_layers, body.config.num_heads))
    even, count = np.zeros(2), 0
    for batch in batches:
        layers = body(batch, output_attentions=True).attentions
        weights = torch.stack(layers).float().cpu().numpy()  # (L, B, A, T, T)
        real = batch.attention_mask.cpu().numpy()  # (B, T), False = padding
        for index, statistic in enumerate((entropy, mean_distance)):
            sums[index] += (statistic(weights) * real[None, :, None, :]).sum(axis=(1, 3))
        for row, length in enumerate(real.sum(axis=1).tolist()):
            alone = batch.rows(row, row + 1)
            mask = attention_mask(body, alone)[:length, :length].astype(float)
            uniform = mask / mask.sum(axis=-1, keepdims=True)
            even += [entropy(uniform).sum(), mean_distance(uniform).sum()]
        count += int(real.sum())
    sums, even = sums / max(1, count), even / max(1, count)
    return sums[0], sums[1], float(even[0]), float(even[1])


def mean_difference(totals: np.ndarray, counts: np.ndarray) -> tuple[float, float, float]:
    """Mean over all predictions with its 95 % interval over the groups; nan for fewer than five groups."""
    count, groups = max(1, counts.sum()), len(totals)
    mean = float(totals.sum() / count)
    if groups < MIN_GROUPS:
        return mean, float("nan"), float("nan")
    variance = ((totals - mean * counts) ** 2).sum() * groups / (groups - 1)
    half_width = float(stdtrit(groups - 1, 0.975) * np.sqrt(variance)) / float(count)  # Student's t
    return mean, mean - half_width, mean + half_width
