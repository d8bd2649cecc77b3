"""Multi-head attention: a fast path for work and a watched path that also returns the weights."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.config import ModelConfig
from headstart.models.cache import Past
from headstart.models.dropout import drop
from headstart.models.flat import Flat
from headstart.models.norm import make_norm


class _Rotation(torch.autograd.Function):
    """Written into one new tensor without copies in between; the way back is the turn the other way."""

    @staticmethod
    def forward(ctx, x, cos, sin):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, 1)

    @staticmethod
    def backward(ctx, slope):  # type: ignore[no-untyped-def]
        cos, sin = ctx.saved_tensors
        return _turned(slope, cos, sin, -1), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, way: int) -> Tensor:
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    turned = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.mul(first, cos, out=turned[..., :half]).addcmul_(second, sin, value=-way)
    torch.mul(second, cos, out=turned[..., half:]).addcmul_(first, sin, value=way)
    return turned


def rotate(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair of numbers by the angle of its position (Su et al., 2021); halves are paired as in Llama.

    `x` is (B, T, …, D/A), with any number of dimensions between; `turns` are (T, D/A), or (B, T, D/A) where rows
    stand at different positions.
    """
    half = x.shape[-1] // 2
    between = (1,) * (x.ndim - 3)
    cos, sin = (turn[..., :half].view(*turn.shape[:-1], *between, half).to(x.dtype) for turn in turns)
    if torch.compiler.is_compiling():  # the compiler fuses the plain form, and cannot follow the other
        first, second = x[..., :half], x[..., half:]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return _Rotation.apply(x, cos, sin) if x.requires_grad else _turned(x, cos, sin, 1)


class Attention(nn.Module):
    """Self-attention with all attention heads in one projection."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attention_heads = config.num_heads
        self.key_value_heads = config.num_kv_heads or config.num_heads
        self.head_width = config.hidden_size // config.num_heads
        self.dropout = config.attention_dropout
        inner = (config.num_heads + 2 * self.key_value_heads) * self.head_width
        self.qkv_proj = nn.Linear(config.hidden_size, inner, bias=config.bias)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)
        self.query_norm = make_norm(config, self.head_width) if config.qk_norm else None
        self.key_norm = make_norm(config, self.head_width) if config.qk_norm else None

    def _split(self, hidden: Tensor, turns: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = hidden.shape
        asked, shared = self.attention_heads, self.key_value_heads  # A, K
        merged = self.qkv_proj(hidden).view(batch, length, asked + 2 * shared, self.head_width)
        projected, value = merged.split((asked + shared, shared), dim=2)  # queries and keys turn together
        if self.query_norm is not None and self.key_norm is not None:
            query, key = projected.split((asked, shared), dim=2)
            projected = torch.cat((self.query_norm(query), self.key_norm(key)), dim=2)
        if turns is not None:
            projected = rotate(projected, turns)
        query, key = projected.to(value.dtype).transpose(1, 2).split((asked, shared), dim=1)
        value = value.transpose(1, 2)
        if shared != asked:  # each of K serves A / K queries
            key, value = (part.repeat_interleave(asked // shared, dim=1) for part in (key, value))
        return query, key, value  # (B, A, T, D/A) each

    def _merge(self, mixed: Tensor, places: Tensor | None = None) -> Tensor:
        return self.out_proj(at(mixed.transpose(1, 2).flatten(2), places))  # (B, A, T, D/A) -> (B, T, D)

    def forward(
        self,
        hidden: Tensor,
        mask: Tensor | None,
        causal: bool,
        turns: tuple[Tensor, Tensor] | None,
        places: Tensor | None = None,
    ) -> Tensor:
        """Each position's mixture of the positions it may see; `mask` is True where a key may be read.

        With `places`, only the mixtures there are made (N, D).
        """
        query, key, value = self._split(hidden, turns)
        mixed = mix(query, key, value, mask, causal, self.dropout if self.training else 0.0)
        return self._merge(mixed, places)

    def flat(
        self,
        hidden: Tensor,
        flat: Flat,
        mask: Tensor | None,
        causal: bool,
        turns: tuple[Tensor, Tensor] | None,
        places: Tensor | None = None,
    ) -> Tensor:
        """What `forward` gives in evaluation at real tokens alone: (N, D) in, (N, D) out, or those at `places`."""
        query, key, value = (flat.spread(part) for part in self._split(hidden[None], turns))
        mixed = mix(query, key, value, mask, causal, 0.0)
        return self._merge(mixed, flat.places if places is None else places)

    def watch(
        self, hidden: Tensor, mask: Tensor | None, causal: bool, turns: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """What `forward` gives without dropout, and the weights (B, A, T, T) behind it."""
        query, key, value = self._split(hidden, turns)
        mixed, weights = watched(query, key, value, visible(hidden.shape[1], causal, mask, hidden.device))
        return self._merge(mixed), weights

    def read(
        self,
        hidden: Tensor,
        mask: Tensor | None,
        causal: bool,
        turns: tuple[Tensor, Tensor] | None,
        past: Past,
    ) -> Tensor:
        """What `forward` gives at new positions alone, the keys and values of earlier ones being remembered."""
        query, key, value = self._split(hidden, turns)
        key, value = past.extend(key, value)
        mixed = F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal)
        return self._merge(mixed)


class CrossAttention(nn.Module):
    """Queries from one text, keys and values from another: how a decoder reads what the encoder made of the source."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attention_heads = config.num_heads
        self.head_width = config.hidden_size // config.num_heads
        self.dropout = config.attention_dropout
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)
        self.kv_proj = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=config.bias)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)
        self.query_norm = make_norm(config, self.head_width) if config.qk_norm else None
        self.key_norm = make_norm(config, self.head_width) if config.qk_norm else None

    def remember(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, A, S, D/A) of the encoder's vectors (B, S, D)."""
        batch, length, _ = memory.shape
        merged = self.kv_proj(memory).view(batch, length, 2, self.attention_heads, self.head_width)
        key, value = merged.unbind(2)
        if self.key_norm is not None:
            key = self.key_norm(key).to(value.dtype)
        return key.transpose(1, 2), value.transpose(1, 2)

    def _query(self, hidden: Tensor, sources: int) -> Tensor:
        """(B, A, T, D/A); several rows a source, as in beam search, stand one after the other in T."""
        query = self.q_proj(hidden).view(sources, -1, self.attention_heads, self.head_width)
        if self.query_norm is not None:
            query = self.query_norm(query).to(hidden.dtype)
        return query.transpose(1, 2)

    def _merge(self, mixed: Tensor, shape: torch.Size) -> Tensor:
        return self.out_proj(mixed.transpose(1, 2).reshape(shape))

    def forward(self, hidden: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Each position's mixture of the source; `mask` (B, 1, 1, S) is True where a key may be read."""
        query = self._query(hidden, key.shape[0])
        mixed = mix(query, key, value, mask, False, self.dropout if self.training else 0.0)
        return self._merge(mixed, hidden.shape)

    def watch(self, hidden: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """What `forward` gives without dropout, and the weights (B, A, T, S) behind it."""
        mixed, weights = watched(self._query(hidden, key.shape[0]), key, value, mask)
        return self._merge(mixed, hidden.shape), weights


def at(hidden: Tensor, places: Tensor | None) -> Tensor:
    """The vectors (N, D) at `places` of the flattened (B * T) positions; all of them (B, T, D) when that is None."""
    return hidden if places is None else hidden.flatten(0, 1).index_select(0, places)


def mix(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, dropout: float
) -> Tensor:
    """Each query's mixture of the values (B, A, T, D/A); `mask` is True where a key may be read.

    A CPU has no fused attention with dropout, and torch draws its mask number by number there.
    """
    if not dropout or query.device.type != "cpu":
        return F.scaled_dot_product_attention(query, key, value, mask, dropout_p=dropout, is_causal=causal)
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)  # (B, A, T, S)
    seen = visible(query.shape[2], causal, mask, query.device)
    if seen is not None:
        scores = scores.masked_fill_(~seen, float("-inf"))
    return drop(scores.softmax(dim=-1), dropout, True) @ value


def watched(query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention written out: the mixture, and the weights (B, A, T, S) behind it."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # (B, A, T, S)
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = scores.softmax(dim=-1)
    return weights @ value, weights


def visible(length: int, causal: bool, mask: Tensor | None, device: torch.device) -> Tensor | None:
    """True where a query (row) may read a key (column): the square causal mask joined with the padding mask."""
    if not causal:
        return mask
    square = torch.ones(length, length, dtype=torch.bool, device=device).tril()  # (T, T)
    return square if mask is None else square & mask


def within(length: int, window: int, seen: Tensor | None, device: torch.device) -> Tensor:
    """`seen`, at most `window` tokens away; every query reads itself, so that padding far from any text reads something."""
    place = torch.arange(length, device=device)
    distance = (place[:, None] - place[None, :]).abs()  # (T, T)
    near = distance <= window
    return near if seen is None else (near & seen) | (distance == 0)
