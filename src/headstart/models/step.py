"""One more token a row, in few operations: what a body's `read` gives, where most of a step is not arithmetic.

On a CPU a small model spends more time on the way to its matrix products than in them, so here a stack of blocks is
laid out once as plain functions over (R, D), and attention is two products of matrices, which on one query a row are
quicker than torch's attention. Prompts are read by `read`, and both share one cache.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from headstart.config import BodyConfig
from headstart.models.attention import Attention, CrossAttention
from headstart.models.block import Block, FeedForward, Turns
from headstart.models.bodies import CausalBody, EncoderDecoderBody
from headstart.models.cache import Cache, Crossing, Past
from headstart.models.packed import PackedLinear

Map = Callable[[Tensor], Tensor]


def make_step(body: CausalBody | EncoderDecoderBody) -> "Step | None":
    """The body's step with the weights it has now, or None where `read` is as good: off the CPU, or not in float32."""
    is_plain = body.table.device.type == "cpu" and body.table.dtype == torch.float32
    return Step(body) if is_plain else None


class Step:
    """A body that has read its prompts, and now reads one token a row at a time."""

    def __init__(self, body: CausalBody | EncoderDecoderBody):
        self.config, self.embedding = body.config, body.embedding
        stack = body.decoder if isinstance(body, EncoderDecoderBody) else body
        self.layers = [_Layer(block, body.config, number) for number, block in enumerate(stack._each())]
        self.final_norm = _norm(stack.final_norm)

    def __call__(self, tokens: Tensor, cache: Cache) -> Tensor:
        """The vectors (R, D) of each row's next token (R, 1), which the cache then remembers."""
        places = cache.advance(tokens, None)
        hidden, turns = self.embedding.at(tokens, places, cache.length)
        device, window = hidden.device, self.config.window
        mask, _ = cache.mask(1, device)
        far = (_added(mask), _signed(turns))
        near = far
        if window is not None:
            near = (_added(cache.near(places, window, device)), _signed(self.embedding.near_turns(places)))
        hidden = hidden[:, 0]
        sources: Sequence[Crossing | None] = cache.crossings() or [None] * len(self.layers)
        for layer, past, source in zip(self.layers, cache.pasts, sources, strict=True):
            hidden = layer(hidden, *(near if layer.is_local else far), past, source)
        return self.final_norm(hidden)


class _Layer:
    """A block whose every part is at hand."""

    def __init__(self, block: Block, config: BodyConfig, number: int):
        self.norm_first, self.is_local = block.norm_first, config.is_local(number)
        self.attention = _SelfAttention(block.attention, config)
        self.cross = None if block.cross is None else _Crossing(block.cross)
        self.attention_norm, self.feed_forward_norm = (
            _norm(block.attention_norm),
            _norm(block.feed_forward_norm),
        )
        self.cross_norm = None if block.cross_norm is None else _norm(block.cross_norm)
        self.feed_forward = _feed_forward(block.feed_forward)

    def __call__(
        self,
        hidden: Tensor,
        mask: Tensor | None,
        turns: Turns | None,
        past: Past,
        source: Crossing | None,
    ) -> Tensor:
        """(R, D) in, (R, D) out."""
        norm = self.attention_norm
        if self.norm_first:
            hidden = self.attention(norm(hidden), mask, turns, past).add_(hidden)
            if self.cross is not None and self.cross_norm is not None and source is not None:
                hidden = self.cross(self.cross_norm(hidden), *source).add_(hidden)
            return self.feed_forward(self.feed_forward_norm(hidden)).add_(hidden)
        hidden = norm(self.attention(hidden, mask, turns, past).add_(hidden))
        if self.cross is not None and self.cross_norm is not None and source is not None:
            hidden = self.cross_norm(self.cross(hidden, *source).add_(hidden))
        return self.feed_forward_norm(self.feed_forward(hidden).add_(hidden))


class _SelfAttention:
    """`Attention.read` for one new position."""

    def __init__(self, attention: Attention, config: BodyConfig):
        self.inward, self.outward = _linear(attention.inward), _linear(attention.outward)
        self.asked, self.shared = attention.attention_heads, attention.key_value_heads  # A, K
        self.head_width, self.width = attention.head_width, config.width
        self.query_norm = None if attention.query_norm is None else _norm(attention.query_norm)
        self.key_norm = None if attention.key_norm is None else _norm(attention.key_norm)
        self.scale = 1 / math.sqrt(self.head_width)
        self.nothing = torch.zeros(1, 1, 1)

    def __call__(self, hidden: Tensor, mask: Tensor | None, turns: Turns | None, past: Past) -> Tensor:
        """(R, D) in, (R, D) out; `mask` (R, 1, 1, T) is added to the scores."""
        asked, shared, rows = self.asked, self.shared, hidden.shape[0]
        merged = self.inward(hidden).view(rows, asked + 2 * shared, self.head_width)
        asking, value = torch.split_with_sizes(merged, (asked + shared, shared), dim=1)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = torch.split_with_sizes(asking, (asked, shared), dim=1)
            asking = torch.cat((self.query_norm(query), self.key_norm(key)), dim=1)
        if turns is not None:
            cos, sin = turns
            asking = (asking * cos).addcmul_(asking.roll(self.head_width // 2, -1), sin)
        query, key = torch.split_with_sizes(asking, (asked, shared), dim=1)  # (R, A, D/A)
        if shared != asked:
            key, value = (part.repeat_interleave(asked // shared, dim=1) for part in (key, value))
        keys, values = past.append(key, value)  # (R * A, T, D/A)
        query = query.reshape(rows * asked, 1, self.head_width)
        scores = torch.baddbmm(self.nothing, query, keys.transpose(1, 2), beta=0, alpha=self.scale)
        if mask is not None:
            scores.view(rows, asked, 1, -1).add_(mask)
        return self.outward(torch.bmm(scores.softmax(dim=-1), values).view(rows, self.width))


class _Crossing:
    """`CrossAttention.forward` for one new position a row; rows of one source stand together."""

    def __init__(self, cross: CrossAttention):
        self.asking, self.outward = _linear(cross.asking), _linear(cross.outward)
        self.heads, self.head_width = cross.attention_heads, cross.head_width
        self.query_norm = None if cross.query_norm is None else _norm(cross.query_norm)
        self.scale = 1 / math.sqrt(self.head_width)
        self.nothing = torch.zeros(1, 1, 1)

    def __call__(self, hidden: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """(R, D) in, (R, D) out."""
        heads = keys.shape[0]  # B * A
        sources = heads // self.heads
        each = hidden.shape[0] // sources
        query = self.asking(hidden)
        if self.query_norm is not None:
            query = self.query_norm(query.view(-1, self.head_width))
        if each > 1:
            query = query.view(sources, each, self.heads, self.head_width).transpose(1, 2)
        query = query.reshape(heads, each, self.head_width)
        scores = torch.baddbmm(self.nothing, query, keys, beta=0, alpha=self.scale)  # (B * A, R / B, S)
        if mask is not None:
            scores.view(sources, self.heads, each, -1).add_(mask)
        mixed = torch.bmm(scores.softmax(dim=-1), values)
        if each > 1:
            mixed = mixed.view(sources, self.heads, each, self.head_width).transpose(1, 2)
        return self.outward(mixed.reshape(hidden.shape))


def _linear(linear: nn.Module) -> Map:
    """A linear map as a function of (R, in)."""
    if isinstance(linear, PackedLinear):
        return linear.forward
    assert isinstance(linear, nn.Linear)
    turned = linear.weight.detach().t().contiguous()  # the order that is read fastest for one row
    if linear.bias is None:
        return lambda x: torch.mm(x, turned)
    bias = linear.bias.detach()
    return lambda x: torch.addmm(bias, x, turned)


def _norm(norm: nn.Module) -> Map:
    """A norm as a function; no norm gives what it is given."""
    if isinstance(norm, nn.LayerNorm):
        shape, weight, small = norm.normalized_shape, norm.weight.detach(), norm.eps
        bias = None if norm.bias is None else norm.bias.detach()
        return lambda x: torch.layer_norm(x, shape, weight, bias, small, False)
    if isinstance(norm, nn.RMSNorm):
        size, gain, least = norm.normalized_shape, norm.weight.detach(), norm.eps
        return lambda x: torch.rms_norm(x, size, gain, least)
    assert isinstance(norm, nn.Identity)
    return lambda x: x


def _feed_forward(part: FeedForward) -> Map:
    widen, narrow, activation = _linear(part.widen), _linear(part.narrow), part.activation
    if not part.is_gated:
        return lambda x: narrow(activation(widen(x)))

    def gated(x: Tensor) -> Tensor:
        gate, value = widen(x).chunk(2, dim=-1)
        return narrow(activation(gate).mul_(value))

    return gated


def _added(mask: Tensor | None) -> Tensor | None:
    """What is added to scores to hide what a mask hides."""
    if mask is None:
        return None
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)


def _signed(turns: Turns | None) -> Turns | None:
    """Turns (R or 1, 1, D/A) for a vector times the cosines plus its halves, swapped, times these sines."""
    if turns is None:
        return None
    cos, sin = (turn.view(-1, 1, turn.shape[-1]) for turn in turns)
    half = sin.shape[-1] // 2
    return cos, torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
