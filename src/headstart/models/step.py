"""One more token a row, in few operations: what a body's `read` gives, where most of a step is not arithmetic.

On a CPU a small model spends more time on the way to its matrix products than in them, so here a stack of blocks is
laid out once as plain functions over (R, D), and attention is two products of matrices, which on one query a row are
quicker than torch's attention. Prompts are read by `read`, and both share one cache.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.config import ModelConfig
from headstart.models.backbones import CausalBackbone, EncoderDecoderBackbone
from headstart.models.desk import Desk
from headstart.models.kv_cache import Cache, Crossing, Past, added
from headstart.models.packed import PackedLinear
from headstart.models.transformer import Attention, Block, CrossAttention, Embedding, FeedForward, Turns

Map = Callable[[Tensor], Tensor]
Put = Callable[[Tensor, Tensor], Tensor]  # what is mapped, and where it goes


def make_step(body: CausalBackbone | EncoderDecoderBackbone) -> "Step | None":
    """The body's step with the weights it has now, or None where `read` is as good: off the CPU, or not in float32."""
    is_plain = body.table.device.type == "cpu" and body.table.dtype == torch.float32
    return Step(body) if is_plain else None


class Step:
    """A body that has read its prompts, and now reads one token a row at a time."""

    def __init__(self, body: CausalBackbone | EncoderDecoderBackbone):
        self.config, self.embedding, self.place = body.config, body.embedding, _Placing(body.embedding)
        stack = body.decoder if isinstance(body, EncoderDecoderBackbone) else body.stack
        self.layers = [_Layer(block, body.config, number) for number, block in enumerate(stack.each())]
        self.final_norm = _norm(stack.final_norm)
        self.can_share = (
            body.config.sliding_window is None
        )  # a window is counted in positions, which shared places have not

    def __call__(self, tokens: Tensor, cache: Cache) -> Tensor:
        """The vectors (R, D) of each row's next token (R, 1), which the cache then remembers."""
        places = cache.advance(tokens, None)
        hidden, turns = self.place(tokens, places, cache.length)
        window, far = self.config.sliding_window, (cache.veil(len(hidden)), turns)
        near = far
        if window is not None:
            seen = cache.near(places, window, hidden.device)
            near = (added(seen), _signed(self.embedding.near_turns(places)))
        desk = self._desk(len(hidden), cache)
        sources: Sequence[Crossing | None] = cache.crossings() or [None] * len(self.layers)
        for layer, past, source in zip(self.layers, cache.pasts, sources, strict=True):
            hidden = layer(hidden, *(near if layer.is_local else far), past, source, desk)
        return self.final_norm(hidden)

    def _desk(self, rows: int, cache: Cache) -> Desk:
        store = cache.pasts[0].store
        sources = (rows if store is None else store.shape[1], cache.sources[0][0].shape[0] if cache.sources else 0)
        if not isinstance(cache.desk, Desk) or (cache.desk.rows, cache.desk.sources) != (rows, sources):
            cache.desk = Desk(rows, sources, self.config)
        return cache.desk


class _Placing:
    """`Embedding.at` for one token a row."""

    def __init__(self, embedding: Embedding):
        self.embedding, self.kind = embedding, embedding.config.position_embedding
        bare = embedding.token_type_embedding is None and isinstance(embedding.norm, nn.Identity)
        self.is_bare = bare and self.kind != "learned"
        self.known: Tensor | None = None  # the sines that `sin` was made of
        self.sin = torch.empty(0)

    def __call__(self, tokens: Tensor, places: slice | Tensor, reach: int) -> tuple[Tensor, Turns | None]:
        """Vectors (R, D), and turns (R or 1, 1, D/A) as `_signed` gives them; places are one for all, or (R, 1)."""
        embedding = self.embedding
        if not self.is_bare:
            hidden, turns = embedding.at(tokens, places, reach)
            return hidden[:, 0], _signed(turns)
        embedding.reach(places, reach)
        hidden = torch.embedding(embedding.token_embedding.weight, tokens[:, 0])
        if embedding.scale != 1.0:
            hidden.mul_(embedding.scale)
        own = places if isinstance(places, slice) else places[:, 0]
        if self.kind == "sinusoidal":
            hidden.add_(embedding.waves[own])
        return hidden, self._turns(own) if self.kind == "rotary" else None

    def _turns(self, own: slice | Tensor) -> Turns:
        if self.known is not self.embedding.sin:  # it grows with the texts
            self.known = self.embedding.sin
            self.sin = _swapped(self.known)
        return self.embedding.cos[own].unsqueeze(1), self.sin[own].unsqueeze(1)


class _Layer:
    """A block whose every part is at hand; what it is given it may write over."""

    def __init__(self, block: Block, config: ModelConfig, number: int):
        self.norm_first, self.is_local = block.norm_first, config.is_local(number)
        self.attention = _SelfAttention(block.attention, config)
        self.cross = None if block.cross_attention is None else _Crossing(block.cross_attention)
        self.attention_norm, self.feed_forward_norm = (_norm(block.attention_norm), _norm(block.feed_forward_norm))
        self.cross_norm = None if block.cross_attention_norm is None else _norm(block.cross_attention_norm)
        self.bent, self.narrow = _bent(block.feed_forward), _added_to(block.feed_forward.down_proj)

    def __call__(
        self, hidden: Tensor, veil: Tensor | None, turns: Turns | None, past: Past, source: Crossing | None, desk: Desk
    ) -> Tensor:
        """(R, D) in, (R, D) out."""
        attention, cross, cross_norm = self.attention, self.cross, self.cross_norm
        if self.norm_first:
            attention(self.attention_norm(hidden), hidden, veil, turns, past, desk)
            if cross is not None and cross_norm is not None and source is not None:
                cross(cross_norm(hidden), hidden, source, desk)
            return self.narrow(self.bent(self.feed_forward_norm(hidden), desk.wide), hidden)
        hidden = self.attention_norm(attention(hidden, hidden, veil, turns, past, desk))
        if cross is not None and cross_norm is not None and source is not None:
            hidden = cross_norm(cross(hidden, hidden, source, desk))
        return self.feed_forward_norm(self.narrow(self.bent(hidden, desk.wide), hidden))


class _SelfAttention:
    """`Attention.read` for one new position."""

    def __init__(self, attention: Attention, config: ModelConfig):
        self.half = attention.head_width // 2
        asked, scale = attention.attention_heads * attention.head_width, attention.head_width**-0.5
        is_normed = attention.query_norm is not None  # after a norm a scale in the map would be lost
        self.inward = _put(attention.qkv_proj, 0 if is_normed else asked, scale)
        self.outward = _added_to(attention.out_proj)
        self.query_norm = None if attention.query_norm is None else _norm(attention.query_norm, scale)
        self.key_norm = None if attention.key_norm is None else _norm(attention.key_norm)

    def __call__(
        self, read: Tensor, hidden: Tensor, veil: Tensor | None, turns: Turns | None, past: Past, desk: Desk
    ) -> Tensor:
        """What `read` (R, D) finds, added to `hidden` (R, D); `veil` is that of the cache."""
        self.inward(read, desk.merged)
        if self.query_norm is not None and self.key_norm is not None:
            desk.queries.copy_(self.query_norm(desk.queries))
            desk.keys.copy_(self.key_norm(desk.keys))
        if turns is not None:
            cos, sin = turns
            swapped = desk.turning.roll(self.half, -1)
            desk.turning.mul_(cos).addcmul_(swapped, sin)
        if desk.spread is not None:
            torch.index_select(desk.few, 1, desk.spread, out=desk.parts)
        keys, values = past.append(desk.new)
        return self.outward(desk.own(keys, values, veil), hidden)


class _Crossing:
    """`CrossAttention.forward` for one new position a row; rows of one source stand together."""

    def __init__(self, cross: CrossAttention):
        asked, scale = cross.attention_heads * cross.head_width, cross.head_width**-0.5
        self.asking = _put(cross.q_proj, 0 if cross.query_norm is not None else asked, scale)
        self.outward = _added_to(cross.out_proj)
        self.query_norm = None if cross.query_norm is None else _norm(cross.query_norm, scale)

    def __call__(self, read: Tensor, hidden: Tensor, source: Crossing, desk: Desk) -> Tensor:
        """What `read` (R, D) finds in the source, added to `hidden` (R, D)."""
        self.asking(read, desk.crossed)
        if self.query_norm is not None:
            desk.across.asked.copy_(self.query_norm(desk.across.asked))
        return self.outward(desk.across(*source), hidden)


def _scaled(linear: nn.Linear | PackedLinear, first: int, scale: float) -> tuple[Tensor, Tensor | None]:
    """Weights and biases with which the first numbers of what a map gives are times `scale`."""
    factor = torch.ones(len(linear.weight))
    factor[:first] = scale
    bias = None if linear.bias is None else linear.bias.detach() * factor
    return linear.weight.detach() * factor[:, None], bias


def _put(linear: nn.Module, scaled: int = 0, scale: float = 1.0) -> Put:
    """A linear map (R, in) to (R, out), which it fills; the first `scaled` numbers are times `scale`."""
    assert isinstance(linear, PackedLinear | nn.Linear)
    weight, bias = _scaled(linear, scaled, scale)
    if isinstance(linear, PackedLinear):
        packed = PackedLinear(weight, bias) if scaled else linear
        return lambda x, place: place.copy_(packed(x))
    turned = weight.t().contiguous()  # the order that is read fastest for one row
    if bias is None:
        return lambda x, place: torch.mm(x, turned, out=place)
    return lambda x, place: torch.addmm(bias, x, turned, out=place)


def _added_to(linear: nn.Module) -> Put:
    """A linear map (R, in) to (R, out), added to what is there."""
    if isinstance(linear, PackedLinear):
        return lambda x, place: place.add_(linear(x))
    assert isinstance(linear, nn.Linear)
    turned = linear.weight.detach().t().contiguous()
    if linear.bias is None:
        return lambda x, place: place.addmm_(x, turned)
    bias = linear.bias.detach()
    return lambda x, place: place.addmm_(x, turned).add_(bias)


def _norm(norm: nn.Module, scale: float = 1.0) -> Map:
    """A norm as a function, what it gives times `scale`; no norm gives what it is given."""
    if isinstance(norm, nn.LayerNorm):
        shape, weight, small = norm.normalized_shape, norm.weight.detach() * scale, norm.eps
        bias = None if norm.bias is None else norm.bias.detach() * scale
        return lambda x: torch.layer_norm(x, shape, weight, bias, small, False)
    if isinstance(norm, nn.RMSNorm):
        return _root_mean_square(norm, scale)
    assert isinstance(norm, nn.Identity)
    return lambda x: x


def _root_mean_square(norm: nn.RMSNorm, scale: float) -> Map:
    """In four operations: torch has seven for it on a CPU."""
    width = norm.normalized_shape[0]
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    gain, least = norm.weight.detach() * (scale * math.sqrt(width)), torch.tensor(math.sqrt(width * eps))

    def normed(x: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x / size.hypot_(least)).mul_(gain)

    return normed


def _bent(part: FeedForward) -> Put:
    """A feed-forward part up to the map that narrows; where the wide vectors go is used on the way."""
    widen, activation = _put(part.up_proj), part.activation
    if part.is_gated:

        def gated(x: Tensor, place: Tensor) -> Tensor:
            gate, value = widen(x, place).chunk(2, dim=-1)
            return activation(gate).mul_(value)

        return gated
    if activation is F.relu:
        return lambda x, place: widen(x, place).relu_()
    return lambda x, place: activation(widen(x, place))


def _signed(turns: Turns | None) -> Turns | None:
    """Turns (R or 1, 1, D/A) for a vector times the cosines plus its halves, swapped, times these sines."""
    if turns is None:
        return None
    cos, sin = (turn.view(-1, 1, turn.shape[-1]) for turn in turns)
    return cos, _swapped(sin)


def _swapped(sin: Tensor) -> Tensor:
    half = sin.shape[-1] // 2
    return torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
