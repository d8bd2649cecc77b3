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

from headstart.config import ModelConfig
from headstart.constants import GATED_ACTIVATIONS
from headstart.errors import ConfigError, pick
from headstart.models.kv_cache import KVCache, LayerKVCache

Positions = slice | Tensor  # the same range for all texts, or (B, T)
Rope = tuple[Tensor, Tensor]  # cosines and sines (T, d / 2) or (B, T, d / 2)
CrossKV = tuple[Tensor, Tensor, Tensor | None]  # keys, values (B, H, S, d) and mask (B, 1, 1, S) of the source


# --- Norm and positions -----------------------------------------------------------------------------------------------


def make_norm(config: ModelConfig, size: int | None = None) -> nn.Module:
    """RMSNorm or LayerNorm of `size` numbers, by default the hidden size."""
    size = config.hidden_size if size is None else size
    if config.norm == "rms":
        return nn.RMSNorm(size, eps=config.norm_eps)
    return nn.LayerNorm(size, eps=config.norm_eps, bias=config.bias)


def sinusoids(length: int, size: int) -> Tensor:
    """The (T, D) sine and cosine waves of Vaswani et al. (2017)."""
    position = torch.arange(length, dtype=torch.float)[:, None]  # (T, 1)
    rate = torch.exp(torch.arange(0, size, 2, dtype=torch.float) * (-math.log(10000.0) / size))
    waves = torch.zeros(length, size)
    waves[:, 0::2] = torch.sin(position * rate)
    waves[:, 1::2] = torch.cos(position * rate[: size // 2])
    return waves


def rotary_angles(length: int, head_dim: int, theta: float) -> Tensor:
    """Cosines and sines (T, d), half of the columns each, of the rotation at every position (Su et al., 2021)."""
    # The quotient is that of `transformers`: at large positions, the last bit of a rate changes an angle.
    rate = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float), rate)
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


class PositionTable(nn.Module):
    """A row for each position, computed by `make(length)`; it grows with the longest text."""

    table: Tensor

    def __init__(self, make: Callable[[int], Tensor], length: int):
        super().__init__()
        self.make = make
        self.register_buffer("table", make(length), persistent=False)

    def forward(self, positions: Positions) -> Tensor:
        """The rows at `positions`."""
        length = count_positions(positions)
        if length > len(self.table):
            self.table = self.make(max(length, 2 * len(self.table))).to(self.table)
        return self.table[positions]


def count_positions(positions: Positions) -> int:
    """One more than the largest position."""
    return positions.stop if isinstance(positions, slice) else int(positions.max()) + 1


class Rotary(nn.Module):
    """Rotates pairs of dimensions by the angle of their position (Su et al., 2021); halves are paired as in Llama."""

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        """(B, T, H, d) in and out."""
        cos, sin = (part.unsqueeze(-2).to(x.dtype) for part in rope)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Embedding(nn.Module):
    """Token embeddings plus sinusoidal or learned positions; rotary positions belong to the stack."""

    def __init__(self, config: ModelConfig, vocab_size: int):
        super().__init__()
        self.config = config
        size, length = config.hidden_size, config.max_position_embeddings
        self.token_embedding = nn.Embedding(vocab_size, size)
        is_learned, is_sinusoidal = (config.position_embedding == kind for kind in ("learned", "sinusoidal"))
        self.position_embedding = nn.Embedding(length, size) if is_learned else None
        self.sinusoids = PositionTable(partial(sinusoids, size=size), length) if is_sinusoidal else None
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
        if self.sinusoids is not None:
            output: Tensor | None = self.sinusoids(positions)
            return output
        if self.position_embedding is None:
            return None
        length, limit = count_positions(positions), self.config.max_position_embeddings
        if length > limit:
            raise ConfigError(
                f"a text of {length} tokens is longer than the {limit} learned positions",
                hint="cut the text with --set training.max_length, or use rotary or sinusoidal positions",
            )
        return self.position_embedding.weight[positions]


# --- Attention --------------------------------------------------------------------------------------------------------


class ScaledDotProductAttention(nn.Module):
    """softmax(Q K^T / sqrt(d)) V, with dropout of the attention weights in training."""

    def __init__(self, dropout: float):
        super().__init__()
        self.dropout = dropout

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, with_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Vectors (B, H, T, d), and the attention weights (B, H, T, S) on request."""
        dropout = self.dropout if self.training else 0.0
        if not with_weights:
            return F.scaled_dot_product_attention(query, key, value, mask, dropout, is_causal), None
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # (B, H, T, S)
        mask = causal_mask(query.shape[2], mask, query.device) if is_causal else mask
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        weights = F.dropout(scores.softmax(dim=-1), dropout)
        return weights @ value, weights


def causal_mask(length: int, mask: Tensor | None, device: torch.device) -> Tensor:
    """True where a query (row) may attend to a key (column): itself and earlier ones, unless `mask` hides them."""
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()  # (T, T)
    return causal if mask is None else causal & mask


def local_mask(window: int, positions: Tensor, key_positions: Tensor, mask: Tensor | None) -> Tensor:
    """`mask` without keys that are more than `window` tokens away; padding attends to itself at least."""
    distance = (positions[:, :, None] - key_positions[:, None, :]).abs()  # (B or 1, T, S)
    near = (distance <= window)[:, None]
    near = near if mask is None else near & mask
    diagonal = near.shape[3] - near.shape[2]  # the queries are the last T of the S tokens
    return near | torch.ones_like(near[0, 0]).tril(diagonal).triu(diagonal)


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

    def project(self, hidden: Tensor, rope: Rope | None) -> tuple[Tensor, Tensor, Tensor]:
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

    def forward(
        self,
        hidden: Tensor,
        attention_mask: Tensor | None = None,
        is_causal: bool = False,
        rope: Rope | None = None,
        cache: LayerKVCache | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) in and out, and the attention weights (B, H, T, S) on request.

        With a `cache`, the keys and values of earlier tokens come from it.
        """
        query, key, value = self.project(hidden, rope)
        if cache is not None:
            key, value = cache.update(key, value)
        mixed, weights = self.attend(query, key, value, attention_mask, is_causal, output_attentions)
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

    def forward(self, hidden: Tensor, cross_kv: CrossKV, output_attentions: bool) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) in and out; in beam search, B is a multiple of the sources, and hypotheses of one are adjacent."""
        key, value, mask = cross_kv
        query = self.q_proj(hidden).view(len(key), -1, self.num_heads, self.head_dim)  # hypotheses along T
        if self.query_norm is not None:
            query = self.query_norm(query).to(hidden.dtype)
        mixed, weights = self.attend(query.transpose(1, 2), key, value, mask, False, output_attentions)
        return self.out_proj(mixed.transpose(1, 2).reshape(hidden.shape)), weights


# --- Feed-forward, block, stack ---------------------------------------------------------------------------------------

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

    def _add(self, hidden: Tensor, update: Tensor, norm: nn.Module) -> Tensor:
        hidden = hidden + self.dropout(update)
        return hidden if self.norm_first else norm(hidden)

    def forward(
        self,
        hidden: Tensor,
        attention_mask: Tensor | None = None,
        is_causal: bool = False,
        rope: Rope | None = None,
        cross_kv: CrossKV | None = None,
        cache: LayerKVCache | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(B, T, D) in and out, and the weights of self-attention and of cross-attention on request."""
        normed = self.normed(hidden, self.attention_norm)
        update, weights = self.attention(normed, attention_mask, is_causal, rope, cache, output_attentions)
        hidden, cross_weights = self.after_attention(hidden, update, cross_kv, output_attentions)
        return hidden, weights, cross_weights

    def after_attention(
        self, hidden: Tensor, update: Tensor, cross_kv: CrossKV | None = None, output_attentions: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The block's output from its input and the output of self-attention, each position by itself."""
        hidden, weights = self._add(hidden, update, self.attention_norm), None
        if self.cross_attention is not None and self.cross_attention_norm is not None and cross_kv is not None:
            normed = self.normed(hidden, self.cross_attention_norm)
            update, weights = self.cross_attention(normed, cross_kv, output_attentions)
            hidden = self._add(hidden, update, self.cross_attention_norm)
        update = self.feed_forward(self.normed(hidden, self.feed_forward_norm))
        return self._add(hidden, update, self.feed_forward_norm), weights


class LayerInputs(NamedTuple):
    """What a layer reads besides the hidden vectors."""

    attention_mask: Tensor | None  # (B, 1, 1 or T, S)
    is_causal: bool
    rope: Rope | None


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
            self.rope = self._rope_table(config.rope_theta)
            self.local_rope = None if config.sliding_window is None else self._rope_table(config.local_rope_theta)

    def _rope_table(self, theta: float) -> PositionTable:
        head_dim = self.config.hidden_size // self.config.num_heads
        make = partial(rotary_angles, head_dim=head_dim, theta=theta)
        return PositionTable(make, self.config.max_position_embeddings)

    def scale_residual_init(self, std: float) -> None:
        """The deeper the stack, the smaller the initial output of each sublayer (Radford et al., 2019)."""
        names = ("attention.out_proj", "feed_forward.down_proj", "cross_attention.out_proj")
        outputs = [part for block in self.blocks for name, part in block.named_modules() if name in names]
        for linear in outputs:
            nn.init.normal_(linear.weight, std=std / math.sqrt(len(outputs)))

    def layer_inputs(
        self,
        length: int,
        mask: Tensor | None,
        is_causal: bool,
        positions: Positions,
        cache: KVCache | None,
        device: torch.device,
    ) -> list[LayerInputs]:
        """The inputs of each layer for `length` tokens at `positions`: all alike, except for those with a window."""

        def rope(table: PositionTable | None) -> Rope | None:
            if table is None:
                return None
            cos, sin = table(positions).chunk(2, dim=-1)
            return cos, sin

        inputs = LayerInputs(mask, is_causal, rope(self.rope))
        if self.config.sliding_window is None:
            return [inputs] * len(self.blocks)
        mask = causal_mask(length, mask, device) if is_causal else mask
        keys = torch.arange(length, device=device)[None] if cache is None else cache.key_positions(device)
        near = local_mask(self.config.sliding_window, keys[:, -length:], keys, mask)
        local = LayerInputs(near, False, rope(self.local_rope))
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
        """(B, T, D) in and out, and each layer's self-attention and cross-attention weights on request.

        With `output_positions` (N,) of the flattened (B * T) positions, the output is (N, D).
        """
        length = hidden.shape[1]
        positions = slice(0, length) if positions is None else positions
        layers = self.layer_inputs(length, attention_mask, is_causal, positions, cache, hidden.device)
        attentions, cross_attentions = [], []
        for index, (block, inputs) in enumerate(zip(self.blocks, layers, strict=True)):
            hidden, weights, cross_weights = block(
                hidden,
                *inputs,
                cross_kv=None if cross_kv is None else cross_kv[index],
                cache=None if cache is None else cache.layers[index],
                output_attentions=output_attentions,
            )
            attentions += [] if weights is None else [weights]
            cross_attentions += [] if cross_weights is None else [cross_weights]
        return self.final_norm(select_positions(hidden, output_positions)), attentions, cross_attentions


def select_positions(hidden: Tensor, positions: Tensor | None) -> Tensor:
    """The vectors (N, D) at `positions` of the flattened (B * T) positions, or all of them (B, T, D)."""
    return hidden if positions is None else hidden.flatten(0, 1).index_select(0, positions)
