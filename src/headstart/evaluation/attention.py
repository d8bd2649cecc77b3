"""Attention weights of a model with their tokens, and statistics of them."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from headstart.batch import Batch
from headstart.errors import ConfigError
from headstart.models.backbones import EncoderDecoderBackbone, TransformerBackbone
from headstart.models.model import Model
from headstart.models.transformer import causal_mask

# "self" is the self-attention of a model that reads one text; the others are the three attentions of a translator.
AttentionType = Literal["self", "cross", "encoder", "decoder"]
TRANSLATOR_TYPES: tuple[AttentionType, ...] = ("cross", "encoder", "decoder")


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
        selection = (("layer", layer, self.layers), ("attention head", attention_head, self.attention_heads))
        for name, number, count in selection:
            if number is not None and not 1 <= number <= count:
                hint = f"choose a {name} from 1 to {count}" if count > 1 else f"there is one {name}, number 1"
                raise ConfigError(f"there is no {name} {number} in this model", hint=hint)
        return (
            list(range(self.layers)) if layer is None else [layer - 1],
            list(range(self.attention_heads)) if attention_head is None else [attention_head - 1],
        )

    def to_dict(self, layer: int | None = None, attention_head: int | None = None) -> dict[str, Any]:
        """JSON-able: tokens, mask and one entry for each selected layer and attention head."""
        layers, heads = self.chosen(layer, attention_head)
        maps = [
            {
                "layer": index + 1,
                "attention_head": head + 1,
                "weights": np.round(self.weights[index, head].astype(np.float64), 6).tolist(),
            }
            for index in layers
            for head in heads
        ]
        return {
            "title": self.title,
            "part": self.attention_type,
            "queries": self.queries,
            "keys": self.keys,
            "seen": self.seen.astype(int).tolist(),
            "maps": maps,
        }


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
        is_translator = isinstance(model.backbone, EncoderDecoderBackbone)
        raise ConfigError(
            "a translator reads two texts, and this needs a model that reads one"
            if is_translator
            else f"a {type(model.backbone).__name__} has no attention to draw",
            hint="choose a run with a causal or a bidirectional Transformer",
        )
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
    safe = np.where(weights > 0, weights, 1.0)
    found: np.ndarray = -(weights * np.log2(safe)).sum(axis=-1)
    return found


def mean_distance(weights: np.ndarray) -> np.ndarray:
    """Mean distance in tokens between query and key, weighted by attention; (..., T, S) to (..., T)."""
    queries, keys = np.arange(weights.shape[-2])[:, None], np.arange(weights.shape[-1])[None, :]
    found: np.ndarray = (weights * np.abs(queries - keys)).sum(axis=-1)
    return found
