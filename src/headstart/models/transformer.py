"""The Transformer (Vaswani et al., 2017): embedding, positions, norm, attention, feed-forward, block, stack.

Shapes: B texts, T queries, S keys, D = hidden size, H heads of d = D / H. Masks are True where a key may be attended to.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.batch import select_positions
from headstart.config import ModelConfig
from headstart.constants import GATED_ACTIVATIONS
from headstart.errors import ConfigError, pick
from headstart.models.kv_cache import KVCache, LayerKVCache, causal_mask, local_mask

Positions = slice | Tensor  # the same range for all texts, or (B, T)
CrossKV = tuple[Tensor, Tensor, Tensor | None]  # keys, values (B, H, S, d) and mask (B, 1, 1, S) of the source


class LayerInputs(NamedTuple):
    """What a layer reads besides the hidden vectors."""

    attention_mask: Tensor | None = None  # (B, 1, 1 or T, S)
    is_causal: bool = False
    rope: Tensor | None = None  # cosines and sines (T, d) or (B, T, d), half of the columns each
    cross_kv: CrossKV | None = None
    cache: LayerKVCache | None = None  # keys and values of earlier tokens
    output_positions: Tensor | None = None  # (N,), of the last layer: compute these of the B * T positions
    output_attentions: bool = False


def make_norm(config: ModelConfig, size: int | None = None) -> nn.Module:
    """RMSNorm or LayerNorm of `size` numbers, by default the hidden size."""
    if config.norm == "rms":
        return nn.RMSNorm(size or config.hidden_size, eps=config.norm_eps)
    return nn.LayerNorm(size or config.hidden_size, eps=config.norm_eps, bias=config.bias)


def sinusoids(length: int, size: int) -> Tensor:
    """The (T, D) sine and cosine waves of Vaswani et al. (2017)."""
    rate = torch.exp(torch.arange(0, size, 2, dtype=torch.float) * (-math.log(10000.0) / size))
    angle = torch.arange(length, dtype=torch.float)[:, None] * rate  # (T, D / 2)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :size]


def rotary_angles(length: int, head_dim: int, theta: float) -> Tensor:
    """Cosines and sines (T, d), half of the columns each, of the angle at every position (Su et al., 2021)."""
    # The quotient is that of `transformers`: at large positions, the last bit of a rate changes an angle.
    rate = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float), rate)
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


class PositionTable(nn.Module):
    """A row for each position, `compute(length, *arguments)`; it grows with the longest text."""

    def __init__(self, length: int, compute: Callable[..., Tensor], *arguments: float):
        super().__init__()
        self.compute, self.arguments = compute, arguments
        self.table: Tensor = nn.Buffer(compute(length, *arguments), persistent=False)

    def forward(self, positions: Positions) -> Tensor:
        """The rows at `positions`."""
        length = count_positions(positions)
        if length > len(self.table):
            self.table = self.compute(max(length, 2 * len(self.table)), *self.arguments).to(self.table)
        return self.table[positions]


def count_positions(positions: Positions) -> int:
    """One more than the largest position."""
    return positions.stop if isinstance(positions, slice) else int(positions.max()) + 1


class Rotary(nn.Module):
    """Rotates pairs of dimensions by the angle of their position (Su et al., 2021); halves are paired as in Llama."""

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        """(B, T, H, d) in and out."""
        cos, sin = rope.unsqueeze(-2).to(x.dtype).chunk(2, dim=-1)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Embedding(nn.Module):
    """Token embeddings plus sinusoidal or learned positions; rotary positions belong to the stack."""

    def __init__(self, config: ModelConfig, vocab_size: int):
        super().__init__()
        self.config = config
        size, length = config.hidden_size, config.max_position_embeddings
        self.token_embedding = nn.Embedding(vocab_size, size)
        self.position_embedding = nn.Embedding(length, size) if config.position_embedding == "learned" else None
        self.sinusoids = PositionTable(length, sinusoids, size) if config.position_embedding == "sinusoidal" else None
        self.token_type_embedding = nn.Embedding(2, size) if config.token_type_embeddings else None
        self.norm = make_norm(config) if config.embedding_norm else nn.Identity()
        self.scale = math.sqrt(size) if config.scale_embedding else 1.0
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor, positions: Positions | None = None, token_types: Tensor | None = None) -> Tensor:
        """Vectors (B, T, D) of tokens (B, T), which are at positions 0 to T - 1 by default."""
        hidden = self.token_embedding(tokens)
        if self.scale != 1.0:
            hidden = hidden * self.scale
        vectors = self.position_vectors(slice(0, tokens.shape[1]) if positions is None else positions)
        if vectors is not None:
            hidden = hidden + vectors.to(hidden.dtype)
        if self.token_type_embedding is not None:
            types = self.token_type_embedding
            hidden = hidden + (types.weight[0] if token_types is None else types(token_types))
        output: Tensor = self.dropout(self.norm(hidden))
        return output

    def position_vectors(self, positions: Positions) -> Tensor | None:
        """The vectors (T, D) or (B, T, D) that are added at `positions`; None if positions are rotary or unused."""
        if self.position_embedding is None:
            return None if self.sinusoids is None else self.sinusoids(positions)
        length, limit = count_positions(positions), self.config.max_position_embeddings
        if length > limit:
            raise ConfigError(
                f"a text of {length} tokens is longer than the {limit} learned positions",
                hint="cut the text with --set training.max_length, or use rotary or sinusoidal positions",
            )
        return self.position_embedding.weight[positions]


class ScaledDotProductAttention(nn.Module):
    """softmax(Q K^T / sqrt(d)) V, with dropout of the attention weights in training."""

    def __init__(self, dropout: float):
        super().__init__()
        self.dropout = dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, inputs: LayerInputs) -> tuple[Tensor, Tensor | None]:
        """Vectors (B, H, T, d), and the attention weights (B, H, T, S) on request."""
        mask, dropout = inputs.attention_mask, self.dropout if self.training else 0.0
        if not inputs.output_attentions:
            return F.scaled_dot_product_attention(query, key, value, mask, dropout, inputs.is_causal), None
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # (B, H, T, S)
        mask = causal_mask(query.shape[2], mask, query.device) if inputs.is_causal else mask
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        weights = F.dropout(scores.softmax(dim=-1), dropout)
        return weights @ value, weights


class SelfAttention(nn.Module):
    """Multi-head self-attention; with fewer key-value heads than heads, several heads share one (GQA)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads or config.num_heads
        self.head_dim = config.hidden_size // config.num_heads
        size = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        self.qkv_proj = nn.Linear(config.hidden_size, size, bias=config.bias)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)
        self.query_norm = make_norm(config, self.head_dim) if config.qk_norm else None
        self.key_norm = make_norm(config, self.head_dim) if config.qk_norm else None
        self.rotary = Rotary()
        self.attend = ScaledDotProductAttention(config.attention_dropout)

    def project(self, hidden: Tensor, rope: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, T, d)."""
        qkv = self.qkv_proj(hidden).unflatten(-1, (-1, self.head_dim))  # (B, T, H + 2 * kv heads, d)
        query, key, value = qkv.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=2)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if rope is not None:
            query, key = self.rotary(query, rope), self.rotary(key, rope)
        query, key, value = (x.to(value.dtype).transpose(1, 2) for x in (query, key, value))
        if self.num_kv_heads != self.num_heads:
            key, value = (x.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1) for x in (key, value))
        return query, key, value

    def forward(self, hidden: Tensor, inputs: LayerInputs = LayerInputs()) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) in and out, and the attention weights (B, H, T, S) on request."""
        query, key, value = self.project(hidden, inputs.rope)
        if inputs.cache is not None:
            key, value = inputs.cache.update(key, value)
        mixed, weights = self.attend(query, key, value, inputs)
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), weights


class CrossAttention(nn.Module):
    """Multi-head attention with queries of the decoder, and keys and values of the encoder's output."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.num_heads, self.head_dim = config.num_heads, config.hidden_size // config.num_heads
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)
        self.kv_proj = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=config.bias)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)
        self.query_norm = make_norm(config, self.head_dim) if config.qk_norm else None
        self.key_norm = make_norm(config, self.head_dim) if config.qk_norm else None
        self.attend = ScaledDotProductAttention(config.attention_dropout)

    def project_source(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, S, d) of the encoder's output (B, S, D)."""
        key, value = self.kv_proj(source).unflatten(-1, (2, self.num_heads, self.head_dim)).unbind(2)
        if self.key_norm is not None:
            key = self.key_norm(key).to(value.dtype)
        return key.transpose(1, 2), value.transpose(1, 2)

    def forward(self, hidden: Tensor, cross_kv: CrossKV, with_weights: bool) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) in and out; in beam search, B is a multiple of the sources, and hypotheses of one are adjacent."""
        key, value, mask = cross_kv
        query = self.q_proj(hidden).view(len(key), -1, self.num_heads, self.head_dim)  # hypotheses along T
        if self.query_norm is not None:
            query = self.query_norm(query).to(hidden.dtype)
        inputs = LayerInputs(mask, output_attentions=with_weights)
        mixed, weights = self.attend(query.transpose(1, 2), key, value, inputs)
        return self.out_proj(mixed.transpose(1, 2).reshape(hidden.shape)), weights


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "relu2": lambda x: F.relu(x).square(),
    "swiglu": F.silu,
    "geglu": F.gelu,
}


class FeedForward(nn.Module):
    """Two linear layers around an activation; a gated activation has two up projections (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.is_gated = config.activation in GATED_ACTIVATIONS
        self.activation = pick(ACTIVATIONS, config.activation, "activation")
        inner = config.intermediate_size * (2 if self.is_gated else 1)
        self.up_proj = nn.Linear(config.hidden_size, inner, bias=config.bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., D) in and out, each position by itself."""
        inner = self.up_proj(hidden)
        if self.is_gated:
            gate, value = inner.chunk(2, dim=-1)
            inner = self.activation(gate) * value
        else:
            inner = self.activation(inner)
        output: Tensor = self.down_proj(self.dropout(inner))
        return output


class Block(nn.Module):
    """Self-attention, cross-attention in a decoder, and feed-forward; each with a residual connection and a norm."""

    def __init__(self, config: ModelConfig, has_cross_attention: bool = False):
        super().__init__()
        self.attention = SelfAttention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = make_norm(config)
        self.feed_forward_norm = make_norm(config)
        self.cross_attention = CrossAttention(config) if has_cross_attention else None
        self.cross_attention_norm = make_norm(config) if has_cross_attention else None
        self.norm_first = config.norm_first
        self.dropout = nn.Dropout(config.dropout)

    def normed(self, hidden: Tensor, norm: nn.Module) -> Tensor:
        """The input of a sublayer."""
        return norm(hidden) if self.norm_first else hidden

    def add(self, hidden: Tensor, update: Tensor, norm: nn.Module) -> Tensor:
        """The residual connection around a sublayer."""
        hidden = hidden + self.dropout(update)
        return hidden if self.norm_first else norm(hidden)

    def forward(self, hidden: Tensor, inputs: LayerInputs) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(B, T, D) in and out, or (N, D) out at `output_positions`; and the attention weights on request."""
        update, weights = self.attention(self.normed(hidden, self.attention_norm), inputs)
        hidden, cross_weights = self.after_attention(hidden, update, inputs)
        return select_positions(hidden, inputs.output_positions), weights, cross_weights

    def after_attention(self, hidden: Tensor, update: Tensor, inputs: LayerInputs) -> tuple[Tensor, Tensor | None]:
        """The block's output from its input and the output of self-attention, each position by itself."""
        hidden, weights = self.add(hidden, update, self.attention_norm), None
        if self.cross_attention is not None and self.cross_attention_norm is not None and inputs.cross_kv is not None:
            normed = self.normed(hidden, self.cross_attention_norm)
            update, weights = self.cross_attention(normed, inputs.cross_kv, inputs.output_attentions)
            hidden = self.add(hidden, update, self.cross_attention_norm)
        update = self.feed_forward(self.normed(hidden, self.feed_forward_norm))
        return self.add(hidden, update, self.feed_forward_norm), weights


class Stack(nn.Module):
    """Blocks one after the other, and a norm at the end if norms come first."""

    def __init__(self, config: ModelConfig, num_layers: int, has_cross_attention: bool = False):
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(Block(config, has_cross_attention) for _ in range(num_layers))
        self.final_norm = make_norm(config) if config.norm_first else nn.Identity()
        if not config.norm_first_layer:
            self.blocks[0].attention_norm = nn.Identity()
        self.rope = self.local_rope = None
        if config.position_embedding == "rotary":
            length, head_dim = config.max_position_embeddings, config.hidden_size // config.num_heads
            self.rope = PositionTable(length, rotary_angles, head_dim, config.rope_theta)
            if config.sliding_window is not None:
                self.local_rope = PositionTable(length, rotary_angles, head_dim, config.local_rope_theta)

    def layer_inputs(
        self, texts: Tensor, mask: Tensor | None, is_causal: bool, positions: Positions, cache: KVCache | None
    ) -> list[LayerInputs]:
        """The mask and the rope of each layer for texts (B, T, ...): all alike, except for those with a window."""
        inputs = LayerInputs(mask, is_causal, None if self.rope is None else self.rope(positions))
        if self.config.sliding_window is None:
            return [inputs] * len(self.blocks)
        length, device = texts.shape[1], texts.device
        mask = causal_mask(length, mask, device) if is_causal else mask
        keys = torch.arange(length, device=device)[None] if cache is None else cache.key_positions(device)
        near = local_mask(self.config.sliding_window, keys[:, -length:], keys, mask)
        local = LayerInputs(near, False, None if self.local_rope is None else self.local_rope(positions))
        return [local if self.config.is_local(layer) else inputs for layer in range(len(self.blocks))]

    def forward(
        self,
        hidden: Tensor,
        attention_mask: Tensor | None = None,
        is_causal: bool = False,
        positions: Positions | None = None,
        cross_kv: list[CrossKV] | None = None,
        cache: KVCache | None = None,
        output_positions: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """(B, T, D) in and out, or (N, D) out at `output_positions`; and each layer's attention weights on request."""
        positions = slice(0, hidden.shape[1]) if positions is None else positions
        layers = self.layer_inputs(hidden, attention_mask, is_causal, positions, cache)
        attentions, cross_attentions = [], []
        for index, (block, (mask, is_causal, rope, *_)) in enumerate(zip(self.blocks, layers, strict=True)):
            layer_cross_kv = None if cross_kv is None else cross_kv[index]
            layer_cache = None if cache is None else cache.layers[index]
            at = output_positions if index + 1 == len(layers) else None
            inputs = LayerInputs(mask, is_causal, rope, layer_cross_kv, layer_cache, at, output_attentions)
            hidden, weights, cross_weights = block(hidden, inputs)
            attentions += [] if weights is None else [weights]
            cross_attentions += [] if cross_weights is None else [cross_weights]
        return self.final_norm(hidden), attentions, cross_attentions
