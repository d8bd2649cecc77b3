"""The Transformer (Vaswani et al., 2017): norm, positions, embedding, attention, feed-forward, block, stack."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.batch import Batch
from headstart.config import ModelConfig
from headstart.errors import ConfigError, pick
from headstart.models.dropout import drop
from headstart.models.flat import Flat
from headstart.models.kv_cache import Cache, Past


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
    return _Rotation.apply(x, cos, sin) if x.requires_grad else _turned(x, cos, sin, 1)  # type: ignore[no-untyped-call]


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
        self, hidden: Tensor, mask: Tensor | None, causal: bool, turns: tuple[Tensor, Tensor] | None, past: Past
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


def mix(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, dropout: float) -> Tensor:
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


def make_norm(config: ModelConfig, width: int | None = None) -> nn.Module:
    """The norm that the settings name, over `width` numbers (the body's width unless told)."""
    size = config.hidden_size if width is None else width
    if config.norm == "rms":
        return nn.RMSNorm(size, eps=config.norm_eps)
    return nn.LayerNorm(size, eps=config.norm_eps, bias=config.bias)


def sinusoids(length: int, width: int) -> Tensor:
    """The (T, D) sine and cosine waves of Vaswani et al. (2017)."""
    position = torch.arange(length, dtype=torch.float)[:, None]  # (T, 1)
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float) * (-math.log(10000.0) / width))
    waves = torch.zeros(length, width)
    waves[:, 0::2] = torch.sin(position * rate)
    waves[:, 1::2] = torch.cos(position * rate[: width // 2])
    return waves


def rotary_turns(length: int, width: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines (T, D/A) of each position's rotation, the two halves alike."""
    # the quotient is taken as `transformers` takes it: far out, the last bit of a rate turns into an angle
    rate = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float) / width)
    angle = torch.outer(torch.arange(length, dtype=torch.float), rate).repeat(1, 2)
    return angle.cos(), angle.sin()


class Embedding(nn.Module):
    """The token table with sinusoidal, learned or no positions added; rotary ones are handed to attention."""

    waves: Tensor  # (T, D), sinusoidal positions
    cos: Tensor  # (T, D/A), rotary positions
    sin: Tensor
    near_cos: Tensor  # the same in layers that see a window
    near_sin: Tensor

    def __init__(self, config: ModelConfig, vocabulary: int):
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(vocabulary, config.hidden_size)
        self.position_embedding = (
            nn.Embedding(config.max_position_embeddings, config.hidden_size)
            if config.position_embedding == "learned"
            else None
        )
        self.token_type_embedding = nn.Embedding(2, config.hidden_size) if config.token_type_embeddings else None
        self.norm = make_norm(config) if config.embedding_norm else nn.Identity()
        self.scale = math.sqrt(config.hidden_size) if config.scale_embedding else 1.0
        self._fill(config.max_position_embeddings)

    def _fill(self, length: int) -> None:
        config = self.config
        if config.position_embedding == "sinusoidal":
            self.register_buffer("waves", sinusoids(length, config.hidden_size), persistent=False)
        elif config.position_embedding == "rotary":
            cos, sin = rotary_turns(length, config.hidden_size // config.num_heads, config.rope_theta)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)
            if config.sliding_window is not None:
                width = config.hidden_size // config.num_heads
                cos, sin = rotary_turns(length, width, config.local_rope_theta)
                self.register_buffer("near_cos", cos, persistent=False)
                self.register_buffer("near_sin", sin, persistent=False)

    def _reach(self, length: int) -> None:
        if length <= self.config.max_position_embeddings:
            return
        if self.position_embedding is not None:
            raise ConfigError(
                f"a text of {length} tokens is longer than the {self.config.max_position_embeddings} learned positions",
                hint="cut the text with --set training.max_length, or use rotary or sinusoidal positions",
            )
        if self.config.position_embedding == "none":
            return
        known = self.waves if self.config.position_embedding == "sinusoidal" else self.cos
        if length > known.shape[0]:
            self._fill(max(length, 2 * known.shape[0]))  # a text that grows token by token fills it seldom
            self.to(known.device)

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Vectors (B, T, D), and the rotary turns (T, D/A) if positions are rotary."""
        length = batch.tokens.shape[1]
        self._reach(length)
        return self._place(batch.tokens, slice(0, length), batch.segments)

    def at(self, tokens: Tensor, places: slice | Tensor, reach: int) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Vectors and turns of tokens that stand at `places`, a range or (B, T), all of them below `reach`."""
        self.reach(places, reach)
        return self._place(tokens, places, None)

    def reach(self, places: slice | Tensor, reach: int) -> None:
        """Be ready for tokens at `places`, all of them below `reach`."""
        if reach > self.config.max_position_embeddings and isinstance(places, Tensor):
            reach = int(places.max()) + 1  # padding between prompt and answer takes up no position
        self._reach(reach)

    def _place(
        self, tokens: Tensor, places: slice | Tensor, segments: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        hidden = (
            self.token_embedding(tokens) * self.scale if self.scale != 1.0 else self.token_embedding(tokens)
        )  # (B, T, D)
        turns = None
        if self.config.position_embedding == "sinusoidal":
            hidden = hidden + self.waves[places].to(hidden.dtype)
        elif self.position_embedding is not None:
            hidden = hidden + self.position_embedding.weight[places]
        elif self.config.position_embedding == "rotary":
            turns = (self.cos[places], self.sin[places])
        if self.token_type_embedding is not None:
            hidden = hidden + (
                self.token_type_embedding.weight[0] if segments is None else self.token_type_embedding(segments)
            )
        return drop(self.norm(hidden), self.config.dropout, self.training), turns

    def near_turns(self, places: slice | Tensor) -> tuple[Tensor, Tensor] | None:
        """The rotary turns of layers that see a window; known for every length that was read."""
        return (self.near_cos[places], self.near_sin[places]) if self.config.position_embedding == "rotary" else None


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu2": lambda x: F.relu(x).square(),
    "swiglu": F.silu,
    "geglu": F.gelu,
}
GATED = ("swiglu", "geglu")
Turns = tuple[Tensor, Tensor]  # cosines and sines of rotary positions
View = tuple[Tensor | None, bool, Turns | None]  # what a layer may read, causal or not, its turns
Source = tuple[Tensor, Tensor, Tensor | None]  # keys, values and mask of another text


class FeedForward(nn.Module):
    """Widen, bend, narrow; gated activations widen twice and multiply (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.is_gated = config.activation in GATED
        self.activation = pick(ACTIVATIONS, config.activation, "activation")
        inner = config.intermediate_size * (2 if self.is_gated else 1)
        self.up_proj = nn.Linear(config.hidden_size, inner, bias=config.bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.bias)
        self.dropout = config.dropout

    def forward(self, hidden: Tensor) -> Tensor:
        """The same map at every position."""
        wide = self.up_proj(hidden)
        if self.is_gated:
            gate, value = wide.chunk(2, dim=-1)
            wide = self.activation(gate) * value
        else:
            wide = self.activation(wide)
        return self.down_proj(drop(wide, self.dropout, self.training))


class Block(nn.Module):
    """Attention and feed-forward, each added to what came in, with the norm before or after.

    A block that `crosses` also reads another text, between the two.
    """

    def __init__(self, config: ModelConfig, crosses: bool = False):
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = make_norm(config)
        self.feed_forward_norm = make_norm(config)
        self.cross_attention = CrossAttention(config) if crosses else None
        self.cross_attention_norm = make_norm(config) if crosses else None
        self.norm_first = config.norm_first
        self.dropout = config.dropout

    def _drop(self, hidden: Tensor) -> Tensor:
        return drop(hidden, self.dropout, self.training)

    def _read(self, hidden: Tensor) -> Tensor:
        return self.attention_norm(hidden) if self.norm_first else hidden

    def _add(self, hidden: Tensor, mixed: Tensor, norm: nn.Module) -> Tensor:
        hidden = hidden + self._drop(mixed)
        return hidden if self.norm_first else norm(hidden)

    def _finish(self, hidden: Tensor) -> Tensor:
        read = self.feed_forward_norm(hidden) if self.norm_first else hidden
        return self._add(hidden, self.feed_forward(read), self.feed_forward_norm)

    def _cross(self, hidden: Tensor, source: Source | None) -> Tensor:
        """What the source says to each position, added."""
        if self.cross_attention is None or self.cross_attention_norm is None:
            return hidden
        assert source is not None
        read = self.cross_attention_norm(hidden) if self.norm_first else hidden
        return self._add(hidden, self.cross_attention(read, *source), self.cross_attention_norm)

    def forward(
        self,
        hidden: Tensor,
        mask: Tensor | None,
        causal: bool,
        turns: Turns | None,
        source: Source | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """(B, T, D) in, (B, T, D) out; `source` is what a block that crosses reads beside it.

        With `places`, only what stands there comes out (N, D): above attention each position is on its own.
        """
        mixed = self.attention(self._read(hidden), mask, causal, turns, places)
        hidden = at(hidden, places)
        return self._finish(self._cross(self._add(hidden, mixed, self.attention_norm), source))

    def flat(
        self,
        hidden: Tensor,
        flat: Flat,
        mask: Tensor | None,
        causal: bool,
        turns: Turns | None,
        places: Tensor | None = None,
    ) -> Tensor:
        """What `forward` gives in evaluation at real tokens alone: (N, D) in, (N, D) out, or those at `places`."""
        mixed = self.attention.flat(self._read(hidden), flat, mask, causal, turns, places)
        hidden = hidden if places is None else hidden.index_select(0, flat.slots[places])
        return self._finish(self._add(hidden, mixed, self.attention_norm))

    def read(
        self,
        hidden: Tensor,
        mask: Tensor | None,
        causal: bool,
        turns: Turns | None,
        past: Past,
        source: Source | None = None,
    ) -> Tensor:
        """What `forward` gives at new positions, the earlier ones being remembered in `past`."""
        mixed = self.attention.read(self._read(hidden), mask, causal, turns, past)
        return self._finish(self._cross(self._add(hidden, mixed, self.attention_norm), source))

    def watch(
        self, hidden: Tensor, mask: Tensor | None, causal: bool, turns: Turns | None, source: Source | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What `forward` gives, the attention weights (B, A, T, T), and those over the source (B, A, T, S)."""
        mixed, weights = self.attention.watch(self._read(hidden), mask, causal, turns)
        hidden, crossed = self._add(hidden, mixed, self.attention_norm), None
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            assert source is not None
            read = self.cross_attention_norm(hidden) if self.norm_first else hidden
            mixed, crossed = self.cross_attention.watch(read, *source)
            hidden = self._add(hidden, mixed, self.cross_attention_norm)
        return self._finish(hidden), weights, crossed


class Stack(nn.Module):
    """Blocks one above the other, with a norm at the end if norms come first."""

    def __init__(self, config: ModelConfig, layers: int, crosses: bool = False):
        super().__init__()
        self.blocks = nn.ModuleList(Block(config, crosses) for _ in range(layers))
        self.final_norm = make_norm(config) if config.norm_first else nn.Identity()
        if not config.norm_first_layer:
            next(self.each()).attention_norm = nn.Identity()

    def each(self) -> Iterator[Block]:
        """The blocks with their type."""
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block

    def shrink(self, spread: float) -> None:
        """What is added to the stream starts the smaller the deeper the stack (Radford et al., 2019)."""
        for block in self.each():
            added = [block.attention.out_proj, block.feed_forward.down_proj]
            added += [] if block.cross_attention is None else [block.cross_attention.out_proj]
            for outward in added:
                nn.init.normal_(outward.weight, std=spread / math.sqrt(len(added) * len(self.blocks)))

    def looks(
        self,
        config: ModelConfig,
        far: View,
        shape: torch.Size | tuple[int, int],
        table: Embedding,
        places: Tensor | None = None,
    ) -> list[View]:
        """How each layer reads: all of them alike, but for local ones, which see their window by turns of their own.

        Tokens stand at `places`, or at all of T.
        """
        if config.sliding_window is None:
            return [far] * len(self.blocks)
        mask, causal, _ = far
        device = table.token_embedding.weight.device
        seen = visible(shape[1], causal, mask, device)
        turns = table.near_turns(slice(0, shape[1]) if places is None else places)
        near = (within(shape[1], config.sliding_window, seen, device), False, turns)
        return [near if config.is_local(layer) else far for layer in range(len(self.blocks))]

    def through(
        self,
        hidden: Tensor,
        views: Sequence[View],
        sources: Sequence[Source] | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """Vectors (B, T, D) through all blocks; `sources` holds what each block that crosses reads beside them.

        With `places` the last block finishes those alone (N, D).
        """
        last = len(self.blocks) - 1
        for layer, (block, view) in enumerate(zip(self.blocks, views, strict=True)):
            source = None if sources is None else sources[layer]
            hidden = block(hidden, *view, source, places if layer == last else None)
        return self.final_norm(hidden)

    def through_flat(self, hidden: Tensor, flat: Flat, views: Sequence[View], places: Tensor | None = None) -> Tensor:
        """What `through` gives in evaluation at real tokens alone: (N, D) in, (N, D) out, or those at `places`."""
        last = len(self.blocks) - 1
        for layer, (block, view) in enumerate(zip(self.each(), views, strict=True)):
            hidden = block.flat(hidden, flat, *view, places if layer == last else None)
        return self.final_norm(hidden)

    def through_watched(
        self, hidden: Tensor, views: Sequence[View], sources: Sequence[Source] | None = None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """What `through` gives, each layer's weights (B, A, T, T), and those over the source (B, A, T, S)."""
        weights, crossed = [], []
        for layer, (block, view) in enumerate(zip(self.each(), views, strict=True)):
            source = None if sources is None else sources[layer]
            hidden, seen, across = block.watch(hidden, *view, source)
            weights.append(seen)
            crossed += [] if across is None else [across]
        return self.final_norm(hidden), weights, crossed

    def through_read(
        self,
        hidden: Tensor,
        turns: Turns | None,
        cache: Cache,
        places: slice | Tensor,
        config: ModelConfig,
        table: Embedding,
    ) -> Tensor:
        """What `through` gives at the last positions, which stand at `places`; earlier ones are remembered."""
        far = (*cache.mask(hidden.shape[1], hidden.device), turns)
        near = (
            far
            if config.sliding_window is None
            else (cache.near(places, config.sliding_window, hidden.device), False, table.near_turns(places))
        )
        for layer, block in enumerate(self.each()):
            mask, causal, own = near if config.is_local(layer) else far
            source = (*cache.sources[layer], cache.source_mask) if cache.sources else None
            hidden = block.read(hidden, mask, causal, own, cache.pasts[layer], source)
        return self.final_norm(hidden)
