"""Inference on a CPU: linear layers in the memory layout of oneDNN's kernels, and decoding in few operations.

In inference few rows meet large matrices, and much of a call goes into the conversion of the matrix. oneDNN can store it
converted. And a small model spends more time between its matrix products than in them. So for one token per row a stack
of blocks becomes plain functions over (R, D) that write into one workspace, and attention becomes two matrix products, which on one query per row are
faster than torch's attention. Prompts are read by the plain code, into the same cache.

Replaces: `nn.Linear` in inference; `decode` of models/backbones.py for single tokens. Both on a CPU in float32.
Equal by: tests/fast/test_prepacked_linear.py, tests/fast/test_cpu_decoder.py
Pays: benchmarks/results/serve-tiny-cpu-2-cores.md, speed-generate.md and speed-translate.md there
"""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.batch import Batch
from headstart.config import ModelConfig
from headstart.constants import GATED_ACTIVATIONS
from headstart.fast.beam_search import BeamKVCache, CrossViews, LayerBeamCache, mask_bias
from headstart.models.backbones import CausalBackbone, EncoderDecoderBackbone
from headstart.models.heads import LanguageHead
from headstart.models.kv_cache import KVCache, local_mask
from headstart.models.transformer import (
    Block,
    CrossAttention,
    Embedding,
    FeedForward,
    Positions,
    PositionTable,
    SelfAttention,
    count_positions,
)

MIN_NUMEL = 2**17  # of a matrix that is worth converting
SMALL_NUMEL = 2**18  # of a matrix up to which a single row is faster with the plain one
NUM_ROWS = 16  # for which the layout is chosen; it serves other numbers as well
Module = TypeVar("Module", bound=nn.Module)
Function = Callable[[Tensor], Tensor]
Writer = Callable[[Tensor, Tensor], Tensor]  # from an input, and the tensor to write into
SignedRope = tuple[Tensor, Tensor]  # cosines (R or 1, 1, d), and sines with a minus in the first half


def _is_worth_it(weight: Tensor) -> bool:
    """Whether a matrix is large enough, and one that oneDNN can convert."""
    is_plain = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= MIN_NUMEL
    return is_plain and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class PrepackedLinear(nn.Module):
    """`nn.Linear` for inference; a matrix that oneDNN cannot convert stays as it is."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.bias = None if bias is None else bias.detach()
        self.weight, self.packed, self.is_small = weight.detach(), None, weight.numel() <= SMALL_NUMEL
        if _is_worth_it(weight):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, NUM_ROWS)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        if self.packed is None or x.dtype != torch.float32 or (self.is_small and x.numel() == x.shape[-1]):
            return F.linear(x, self.weight, self.bias)
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return output


class PrepackedLanguageHead(LanguageHead):
    """A language-model head whose last layer is prepacked, also if its weights are the token embeddings."""

    prepacked: PrepackedLinear

    def logits(self, hidden: Tensor, table: Tensor) -> Tensor:
        """(..., D) to (..., V)."""
        logits: Tensor = self.prepacked(self.transformed(hidden))
        return logits


def install_prepacked_head(head: nn.Module, table: Tensor) -> None:
    """Prepack the last layer of a language-model head over the token embeddings `table`."""
    if type(head) is LanguageHead:
        head.__class__ = PrepackedLanguageHead
        head.prepacked = PrepackedLinear(*head.projection(table))


def prepack(module: Module) -> Module:
    """A copy of a module for inference, with its linear layers prepacked; other weights are shared with the module."""
    copy = sharing_copy(module)
    for parent in list(copy.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and _is_worth_it(child.weight):
                setattr(parent, name, PrepackedLinear(child.weight, child.bias))
    return copy.eval()


def cast_linears(module: Module, dtype: torch.dtype) -> Module:
    """A copy of a module for autocast to `dtype`, its linear layers cast once and not at every call; the rest is shared."""
    copy = sharing_copy(module)
    for child in copy.modules():
        if type(child) is nn.Linear:
            for name, weight in list(child.named_parameters()):
                setattr(child, name, nn.Parameter(weight.detach().to(dtype), requires_grad=False))
    return copy.eval()


def sharing_copy(module: Module) -> Module:
    """A copy of a module with the module's own weights."""
    shared = {id(weight): weight for weight in (*module.parameters(), *module.buffers())}
    return deepcopy(module, shared)  # what the memo contains is not copied


# --- Decoding -------------------------------------------------------------------------------------------------------


class CPUDecoder:
    """A decoder that has read its prompts, and now reads one token per row."""

    def __init__(self, backbone: CausalBackbone | EncoderDecoderBackbone):
        stack = backbone.decoder if isinstance(backbone, EncoderDecoderBackbone) else backbone.stack
        self.config, self.embedding = backbone.config, _embedding(backbone.embedding)
        self.layers = [_Layer(block, backbone.config, number) for number, block in enumerate(stack.blocks)]
        self.final_norm = _norm(stack.final_norm)
        self.rope, self.local_rope = (
            None if table is None else _RopeTable(table) for table in (stack.rope, stack.local_rope)
        )
        self.can_share = backbone.config.sliding_window is None  # a window counts positions, which sharing changes

    def __call__(self, tokens: Tensor, cache: BeamKVCache) -> Tensor:
        """The vectors (R, D) of each row's next token (R, 1), which the cache then contains."""
        positions = cache.extend(tokens, None)
        hidden = self.embedding(tokens, positions)
        everywhere = (cache.bias(len(hidden)), None if self.rope is None else self.rope(positions))
        local = everywhere
        if self.config.sliding_window is not None:
            keys = cache.key_positions(tokens.device)
            mask = None if cache.mask is None else cache.mask[:, None, None, :]
            near = local_mask(self.config.sliding_window, keys[:, -1:], keys, mask)
            local = (mask_bias(near), None if self.local_rope is None else self.local_rope(positions))
        workspace = self._workspace(len(hidden), cache)
        sources: Sequence[CrossViews | None] = cache.cross_views() or [None] * len(self.layers)
        for layer, layer_cache, source in zip(self.layers, cache.beam_layers(), sources, strict=True):
            hidden = layer(hidden, *(local if layer.is_local else everywhere), layer_cache, source, workspace)
        return self.final_norm(hidden)

    def _workspace(self, rows: int, cache: BeamKVCache) -> "DecodeWorkspace":
        sources = (cache.num_sources(rows), len(cache.cross_kv[0][0]) if cache.cross_kv else 0)
        workspace = cache.workspace
        if not isinstance(workspace, DecodeWorkspace) or (workspace.rows, workspace.sources) != (rows, sources):
            workspace = cache.workspace = DecodeWorkspace(rows, sources, self.config)
        return workspace


class _SingleTokenSteps:
    """Sends single tokens in float32 through a `CPUDecoder`."""

    step: CPUDecoder

    def new_cache(self, batch: Batch, capacity: int) -> KVCache:
        """A cache that the step can share among rows."""
        cache = super().new_cache(batch, capacity)  # type: ignore[misc]
        return BeamKVCache.of(cache, shares=self.step.can_share and not torch.is_autocast_enabled("cpu"))

    def decode(self, tokens: Tensor, cache: KVCache, attention_mask: Tensor | None = None) -> Tensor:
        """The vectors (R, T, D) of each text's next tokens (R, T)."""
        is_step = tokens.shape[1] == 1 and attention_mask is None and not torch.is_autocast_enabled("cpu")
        if is_step and isinstance(cache, BeamKVCache):
            return self.step(tokens, cache)[:, None]
        hidden: Tensor = super().decode(tokens, cache, attention_mask)  # type: ignore[misc]
        return hidden


class CPUCausalBackbone(_SingleTokenSteps, CausalBackbone):
    """A causal backbone whose single tokens go through a `CPUDecoder`."""


class CPUEncoderDecoderBackbone(_SingleTokenSteps, EncoderDecoderBackbone):
    """An encoder-decoder whose single tokens go through a `CPUDecoder`."""


def install_cpu_decoder(backbone: nn.Module) -> None:
    """Give a backbone a decoder with its present weights, if it is on a CPU and in float32."""
    if not isinstance(backbone, CausalBackbone | EncoderDecoderBackbone):
        return
    if backbone.table.device.type != "cpu" or backbone.table.dtype != torch.float32:
        return
    step = CPUDecoder(backbone)
    backbone.__class__ = CPUCausalBackbone if isinstance(backbone, CausalBackbone) else CPUEncoderDecoderBackbone
    assert isinstance(backbone, CPUCausalBackbone | CPUEncoderDecoderBackbone)
    backbone.step = step


class DecodeWorkspace:
    """Tensors that the layers write into one after the other, for R rows.

    `sources` counts the rows or sources with a cache of their own, and the sources that are attended to.
    """

    def __init__(self, rows: int, sources: tuple[int, int], config: ModelConfig):
        self.rows, self.sources = rows, sources
        heads, kv_heads = config.num_heads, config.num_kv_heads or config.num_heads
        head_dim = config.hidden_size // heads
        self.qkv = torch.empty(rows, (heads + 2 * kv_heads) * head_dim)
        parts = self.qkv.view(rows, -1, head_dim)
        self.rotated = parts[:, : heads + kv_heads]
        self.queries, self.keys = self.rotated.split((heads, kv_heads), dim=1)
        self.grouped, self.repeats = parts, None if kv_heads == heads else _repeats(heads, kv_heads)
        if kv_heads != heads:  # keys and values are repeated for the queries that share them
            parts = torch.empty(rows, 3 * heads, head_dim)
        self.parts = parts
        split = parts.view(sources[0], -1, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
        self.new = split[1:]  # (2, B, H, W, d)
        self.self_attention = _Attention(split[0])
        self.cross_query = torch.empty(rows, config.hidden_size)
        if sources[1]:
            self.cross_attention = _Attention(self.cross_query.view(sources[1], -1, heads, head_dim).transpose(1, 2))
        is_gated = config.activation in GATED_ACTIVATIONS
        self.inner = torch.empty(rows, config.intermediate_size * (2 if is_gated else 1))


def _repeats(heads: int, kv_heads: int) -> Tensor:
    """The index among queries, keys and values (H + 2 * kv heads) of each of H queries, keys and values (3H)."""
    each = torch.arange(heads)
    both = heads + kv_heads * torch.arange(2)[:, None] + each // (heads // kv_heads)
    return torch.cat((each, both.flatten()))


class _Attention:
    """Attention over one set of keys and values for the rows of B sources, W rows each."""

    def __init__(self, query: Tensor):
        sources, heads, width, head_dim = self.shape = query.shape  # (B, H, W, d), filled before each call
        batch = (sources * heads, width, head_dim)
        self.input, self.copied = query, None if query.is_contiguous() else torch.empty(query.shape)
        self.query = (query if self.copied is None else self.copied).view(batch)
        self.mixed = torch.empty(batch)
        self.output, self.transposed = self.mixed.view(sources * width, heads * head_dim), None
        if width > 1:
            self.transposed = self.mixed.view(query.shape).transpose(1, 2)  # (B, W, H, d)
            self.output = torch.empty(sources * width, heads * head_dim)
        self.rows = self.output.view(sources, width, heads, head_dim)
        self._allocate(0)

    def _allocate(self, length: int) -> None:
        sources, heads, width, _ = self.shape
        self.length, self.scores = length, torch.empty(sources * heads, width, length)
        self.weights, self.by_source = torch.empty_like(self.scores), self.scores.view(sources, heads, width, -1)

    def __call__(self, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """The output (R, D) of all heads; `bias` is added to the scores."""
        if self.copied is not None:
            self.copied.copy_(self.input)
        if keys.shape[2] != self.length:
            self._allocate(keys.shape[2])
        scores, query = self.scores, self.query
        if bias is None:
            torch.bmm(query, keys, out=scores)
        elif bias.ndim == 3:
            torch.baddbmm(bias, query, keys, out=scores)
        else:
            torch.bmm(query, keys, out=scores)
            self.by_source.add_(bias)
        torch.softmax(scores, -1, out=self.weights)
        torch.bmm(self.weights, values, out=self.mixed)
        if self.transposed is not None:
            self.rows.copy_(self.transposed)
        return self.output


class _RopeTable:
    """Cosines and signed sines of a position table, which grows."""

    def __init__(self, table: PositionTable):
        self.source, self.table = table, torch.empty(0)

    def __call__(self, positions: Positions) -> SignedRope:
        """For one token per row: positions are one for all, or (R, 1)."""
        if self.table is not self.source.table or count_positions(positions) > len(self.table):
            self.source(positions)  # grows
            self.table = self.source.table
            cos, sin = self.table.chunk(2, dim=-1)
            self.cos, self.sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        own = positions if isinstance(positions, slice) else positions[:, 0]
        return self.cos[own].unsqueeze(1), self.sin[own].unsqueeze(1)


def _embedding(embedding: Embedding) -> Callable[[Tensor, Positions], Tensor]:
    """Vectors (R, D) of tokens (R, 1); positions are one for all, or (R, 1)."""
    weight, scale, sinusoids = embedding.token_embedding.weight, embedding.scale, embedding.sinusoids
    others = (embedding.token_type_embedding, embedding.position_embedding)
    if others != (None, None) or not isinstance(embedding.norm, nn.Identity):
        return lambda tokens, positions: embedding(tokens, positions)[:, 0]

    def embed(tokens: Tensor, positions: Positions) -> Tensor:
        hidden = torch.embedding(weight, tokens[:, 0]).mul_(scale)
        if sinusoids is not None:
            hidden.add_(sinusoids(positions if isinstance(positions, slice) else positions[:, 0]))
        return hidden

    return embed


class _Layer:
    """A block as functions; it may overwrite its input."""

    def __init__(self, block: nn.Module, config: ModelConfig, number: int):
        assert isinstance(block, Block)
        self.norm_first, self.is_local = block.norm_first, config.is_local(number)
        self.attention = _SelfAttention(block.attention)
        self.cross = None if block.cross_attention is None else _CrossAttention(block.cross_attention)
        self.attention_norm, self.feed_forward_norm = _norm(block.attention_norm), _norm(block.feed_forward_norm)
        self.cross_norm = None if block.cross_attention_norm is None else _norm(block.cross_attention_norm)
        self.up, self.add_down = _up(block.feed_forward), _adding_linear(block.feed_forward.down_proj)

    def __call__(
        self,
        hidden: Tensor,
        bias: Tensor | None,
        rope: SignedRope | None,
        cache: LayerBeamCache,
        source: CrossViews | None,
        workspace: DecodeWorkspace,
    ) -> Tensor:
        """(R, D) in and out."""
        attention, cross, cross_norm = self.attention, self.cross, self.cross_norm
        if self.norm_first:
            attention(self.attention_norm(hidden), hidden, bias, rope, cache, workspace)
            if cross is not None and cross_norm is not None and source is not None:
                cross(cross_norm(hidden), hidden, source, workspace)
            return self.add_down(self.up(self.feed_forward_norm(hidden), workspace.inner), hidden)
        hidden = self.attention_norm(attention(hidden, hidden, bias, rope, cache, workspace))
        if cross is not None and cross_norm is not None and source is not None:
            hidden = cross_norm(cross(hidden, hidden, source, workspace))
        return self.feed_forward_norm(self.add_down(self.up(hidden, workspace.inner), hidden))


class _SelfAttention:
    """`SelfAttention` for one new token per row."""

    def __init__(self, attention: SelfAttention):
        self.half, scale = attention.head_dim // 2, attention.head_dim**-0.5
        is_normed = attention.query_norm is not None  # a norm would undo a scale before it
        self.qkv_proj = _linear(attention.qkv_proj, 0 if is_normed else attention.num_heads * attention.head_dim, scale)
        self.add_out = _adding_linear(attention.out_proj)
        self.query_norm = None if attention.query_norm is None else _norm(attention.query_norm, scale)
        self.key_norm = None if attention.key_norm is None else _norm(attention.key_norm)

    def __call__(
        self,
        normed: Tensor,
        hidden: Tensor,
        bias: Tensor | None,
        rope: SignedRope | None,
        cache: LayerBeamCache,
        workspace: DecodeWorkspace,
    ) -> Tensor:
        """Attention of `normed` (R, D), added to `hidden` (R, D)."""
        self.qkv_proj(normed, workspace.qkv)
        if self.query_norm is not None and self.key_norm is not None:
            workspace.queries.copy_(self.query_norm(workspace.queries))
            workspace.keys.copy_(self.key_norm(workspace.keys))
        if rope is not None:
            cos, sin = rope
            swapped = workspace.rotated.roll(self.half, -1)
            workspace.rotated.mul_(cos).addcmul_(swapped, sin)
        if workspace.repeats is not None:
            torch.index_select(workspace.grouped, 1, workspace.repeats, out=workspace.parts)
        keys, values = cache.append(workspace.new)
        return self.add_out(workspace.self_attention(keys, values, bias), hidden)


class _CrossAttention:
    """`CrossAttention` for one new token per row; rows of one source are adjacent."""

    def __init__(self, attention: CrossAttention):
        scale = attention.head_dim**-0.5
        is_normed = attention.query_norm is not None
        self.q_proj = _linear(attention.q_proj, 0 if is_normed else attention.num_heads * attention.head_dim, scale)
        self.add_out = _adding_linear(attention.out_proj)
        self.query_norm = None if attention.query_norm is None else _norm(attention.query_norm, scale)

    def __call__(self, normed: Tensor, hidden: Tensor, source: CrossViews, workspace: DecodeWorkspace) -> Tensor:
        """Attention of `normed` (R, D) to the source, added to `hidden` (R, D)."""
        self.q_proj(normed, workspace.cross_query)
        query = workspace.cross_attention.input
        if self.query_norm is not None:
            query.copy_(self.query_norm(query))
        return self.add_out(workspace.cross_attention(*source), hidden)


def _linear(linear: nn.Module, num_scaled: int = 0, scale: float = 1.0) -> Writer:
    """A linear layer (R, in) to (R, out) that writes into a tensor; the first `num_scaled` outputs are scaled."""
    assert isinstance(linear, PrepackedLinear | nn.Linear)
    factor = torch.ones(len(linear.weight))
    factor[:num_scaled] = scale
    weight = linear.weight.detach() * factor[:, None]
    bias = None if linear.bias is None else linear.bias.detach() * factor
    if isinstance(linear, PrepackedLinear):
        packed = PrepackedLinear(weight, bias) if num_scaled else linear
        return lambda x, output: output.copy_(packed(x))
    transposed = weight.t().contiguous()  # the layout that is read fastest for one row
    if bias is None:
        return lambda x, output: torch.mm(x, transposed, out=output)
    return lambda x, output: torch.addmm(bias, x, transposed, out=output)


def _adding_linear(linear: nn.Module) -> Writer:
    """A linear layer (R, in) to (R, out) that adds to a tensor."""
    if isinstance(linear, PrepackedLinear):
        return lambda x, output: output.add_(linear(x))
    assert isinstance(linear, nn.Linear)
    transposed = linear.weight.detach().t().contiguous()
    if linear.bias is None:
        return lambda x, output: output.addmm_(x, transposed)
    bias = linear.bias.detach()
    return lambda x, output: output.addmm_(x, transposed).add_(bias)


def _norm(norm: nn.Module, scale: float = 1.0) -> Function:
    """A norm whose output is scaled."""
    if isinstance(norm, nn.LayerNorm):
        shape, weight, eps = norm.normalized_shape, norm.weight.detach() * scale, norm.eps
        bias = None if norm.bias is None else norm.bias.detach() * scale
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps, False)
    if isinstance(norm, nn.RMSNorm):
        return _rms_norm(norm, scale)
    assert isinstance(norm, nn.Identity)
    return lambda x: x


def _rms_norm(norm: nn.RMSNorm, scale: float) -> Function:
    """In four operations; torch has seven for it on a CPU."""
    size = norm.normalized_shape[0]
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    gain, least = norm.weight.detach() * (scale * math.sqrt(size)), torch.tensor(math.sqrt(size * eps))

    def normed(x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        output: Tensor = (x / length.hypot_(least)).mul_(gain)
        return output

    return normed


def _up(feed_forward: FeedForward) -> Writer:
    """A feed-forward layer up to the down projection."""
    up_proj, activation = _linear(feed_forward.up_proj), feed_forward.activation
    if feed_forward.is_gated:

        def gated(x: Tensor, inner: Tensor) -> Tensor:
            gate, value = up_proj(x, inner).chunk(2, dim=-1)
            return activation(gate).mul_(value)

        return gated
    return lambda x, inner: activation(up_proj(x, inner))
