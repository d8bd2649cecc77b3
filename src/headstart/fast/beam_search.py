"""Beam search on a CPU: a KV cache that the rows of one source share, and the largest of many logits.

In beam search a row that continues another one copies nothing: keys and values stay where they are, and only the mask of
the row changes.

Replaces: models/kv_cache.py, for the single tokens of fast/cpu_decoder.py; generation/sampling.py, `top_k`, `argmax`.
Equal by: tests/fast/test_cpu_decoder.py, tests/fast/test_topk.py
Pays: benchmarks/results/speed-translate.md
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from headstart.models.kv_cache import KVCache, LayerKVCache

GROUP_SIZE = 64  # logits whose maximum is looked at first
MIN_NUMEL = 2**16  # logits from which groups are faster
ALIGNMENT = 16  # positions are read in multiples of it; a CPU's matrix product and softmax are slow otherwise
COMPACT_EVERY = 4  # selections after which positions that no row attends to are looked for
KeyValueViews = tuple[Tensor, Tensor]  # keys (B * H, d, S), values (B * H, S, d)
CrossViews = tuple[Tensor, Tensor, Tensor | None]  # the same of a source, and the bias (B, 1, 1, S) that hides padding


def aligned(count: int) -> int:
    """`count`, or the next multiple of ALIGNMENT."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def mask_bias(mask: Tensor) -> Tensor:
    """0 where the mask is True, -inf elsewhere, padded with -inf to a multiple of ALIGNMENT."""
    bias = torch.full((*mask.shape[:-1], aligned(mask.shape[-1])), -torch.inf, device=mask.device)
    bias[..., : mask.shape[-1]].masked_fill_(mask, 0)
    return bias


@lru_cache(maxsize=256)
def _unmasked_bias(length: int) -> Tensor:
    """The bias of `length` positions that all count."""
    return mask_bias(torch.ones(1, 1, length, dtype=torch.bool))


@dataclass
class LayerBeamCache(LayerKVCache):
    """Keys and values of one layer; positions beyond `length` are finite.

    A position holds one token of one row. Where the W rows of a source share the cache, each token that they read takes
    W adjacent positions.
    """

    views: KeyValueViews | None = None  # what `append` returned
    num_viewed: int = 0  # positions in these views

    def append(self, new: Tensor) -> KeyValueViews:
        """Append those of each row's new token (2, B, H, W, d); returns all, up to a multiple of ALIGNMENT."""
        start, self.length = self.length, self.length + new.shape[3]
        store, self.store = self.store, self.reserve(new.shape[1:], new)
        self.store.narrow(3, start, new.shape[3]).copy_(new)
        if self.views is None or self.length > self.num_viewed or self.store is not store:
            self.num_viewed = aligned(self.length)
            keys, values = (part.flatten(0, 1).narrow(1, 0, self.num_viewed) for part in self.store)
            self.views = keys.transpose(1, 2), values
        return self.views

    def reserve(self, shape: torch.Size, like: Tensor) -> Tensor:
        """A store with aligned room for `length` positions."""
        self.capacity = aligned(max(self.capacity, self.length))
        return super().reserve(shape, like)

    def select(self, rows: Tensor) -> None:
        """Keep these rows (or sources), in this order."""
        super().select(rows)
        self.views = None

    def gather(self, positions: Tensor) -> None:
        """Keep these positions (B, count) of each source, in this order."""
        assert self.store is not None
        store, count = self.store, positions.shape[1]
        _, sources, heads, capacity, head_dim = store.shape
        first = torch.arange(sources * heads, device=positions.device).view(sources, heads, 1) * capacity
        indices = (first + positions[:, None]).flatten()
        for part in store:
            found = part.flatten(0, 2).index_select(0, indices)
            part.narrow(2, 0, count).copy_(found.view(sources, heads, count, head_dim))
        self.length, self.views = count, None


@dataclass
class BeamKVCache(KVCache):
    """A cache that rows of one source can share, and the workspace of the decoder that uses it."""

    shares: bool = False  # True = rows of one source share their cache once there are several
    row_bias: Tensor | None = None  # (R, capacity), -inf where a row does not attend to a shared position
    workspace: object = None  # of the decoder
    selections: int = 0  # of rows that share a cache
    _cross_views: list[CrossViews] | None = None

    @staticmethod
    def of(cache: KVCache, shares: bool) -> "BeamKVCache":
        """The same for an empty cache; keys and values of the sources get the layout that a CPU reads fastest."""
        cross_kv = [(k.transpose(2, 3).contiguous().transpose(2, 3), v.contiguous()) for k, v in cache.cross_kv]
        layers: list[LayerKVCache] = [LayerBeamCache(layer.capacity) for layer in cache.layers]
        return BeamKVCache(layers, cross_kv=cross_kv, source_mask=cache.source_mask, shares=shares)

    def beam_layers(self) -> list[LayerBeamCache]:
        """The layers."""
        return [layer for layer in self.layers if isinstance(layer, LayerBeamCache)]

    def bias(self, rows: int) -> Tensor | None:
        """The bias of each row's next scores over what `append` will return: None, (1, 1, S) or (B, 1, W or 1, S)."""
        if self.row_bias is not None:
            return self._shared_bias(self.row_bias, rows)
        if self.mask is not None:
            return mask_bias(self.mask[:, None, None, :])
        return _unmasked_bias(self.length) if self.length % ALIGNMENT else None

    def _shared_bias(self, row_bias: Tensor, rows: int) -> Tensor:
        """Each row attends to its own new position besides those that it attended to."""
        used, sources = self.layers[0].length, self.num_sources(rows)
        width = rows // sources
        needed = aligned(used + width)
        if needed > row_bias.shape[1]:
            self.row_bias = row_bias = F.pad(row_bias, (0, 2 * needed - row_bias.shape[1]), value=-torch.inf)
        own = row_bias.view(sources, width, -1)
        own.narrow(2, used, width).diagonal(dim1=1, dim2=2).zero_()
        return own.narrow(2, 0, needed)[:, None]

    def num_sources(self, rows: int) -> int:
        """The number of sources, or of rows that share nothing."""
        store = self.layers[0].store
        return rows if store is None else store.shape[1]

    def cross_views(self) -> list[CrossViews]:
        """Keys, values and bias of the sources for each layer, as matrix products read them."""
        if self._cross_views is None:
            mask, bias = self.source_mask, None
            if mask is not None and not bool(mask.all()):
                bias = torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)
            self._cross_views = [
                (key.transpose(2, 3).flatten(0, 1), value.flatten(0, 1), bias) for key, value in self.cross_kv
            ]
        return self._cross_views

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keep these rows in this order, and these of the sources (by default all).

        Rows of one source are adjacent; where they share a cache, a row stays with its source.
        """
        if not self.shares:
            super().select(rows, sources)
        else:
            if self.layers[0].store is not None:
                self._select_shared(rows, sources)
            self.select_masks(rows, sources)
        self._cross_views = None if sources is not None else self._cross_views

    def _select_shared(self, rows: Tensor, sources: Tensor | None) -> None:
        """Give each row the bias of the row that it continues; keys and values move only with their source."""
        if self.row_bias is not None:
            self.row_bias = self.row_bias[rows]
        elif len(rows) > (self.num_sources(0) if sources is None else len(sources)):
            mask = torch.ones(1, self.length, dtype=torch.bool) if self.mask is None else self.mask[rows]
            self.row_bias = mask_bias(mask.expand(len(rows), -1))
        if sources is not None:
            for layer in self.layers:
                layer.select(sources)
        self.selections += 1
        if self.row_bias is not None and self.selections % COMPACT_EVERY == 0:
            self._compact(self.row_bias)

    def _compact(self, row_bias: Tensor) -> None:
        """Drop the positions that no row of their source attends to."""
        used, sources = self.layers[0].length, self.num_sources(0)
        own = row_bias.view(sources, -1, row_bias.shape[1])  # (B, W, capacity)
        is_used = (own[:, :, :used] == 0).any(dim=1)  # (B, used)
        count = int(is_used.sum(dim=1).max())
        if aligned(count) == aligned(used):
            return
        positions = is_used.byte().argsort(dim=1, descending=True, stable=True)[:, :count]
        for layer in self.beam_layers():
            layer.gather(positions)
        found = own.gather(2, positions[:, None].expand(-1, own.shape[1], -1)).flatten(0, 1)
        self.row_bias = F.pad(found, (0, aligned(count) - count), value=-torch.inf)


def argmax(logits: Tensor) -> Tensor:
    """The first index (R,) of each row's maximum."""
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    return torch.from_numpy(logits.numpy().argmax(axis=-1))  # numpy is ten times as fast as torch


def top_k(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Each row's `count` largest logits in descending order, and their indices; of equal ones the first wins."""
    if count == logits.shape[-1]:
        return logits.sort(dim=-1, descending=True, stable=True)
    values, indices = _grouped_top_k(logits, count + 1)
    rows = ((values[..., 1:] == values[..., :-1]) & (values[..., 1:] > -torch.inf)).any(dim=-1)
    values, indices = values[..., :count], indices[..., :count]
    if rows.any():  # `topk` guarantees no order of equal values
        order = logits[rows].sort(dim=-1, descending=True, stable=True)
        values[rows], indices[rows] = order.values[..., :count], order.indices[..., :count]
    return values, indices


def _grouped_top_k(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`Tensor.topk`, on a CPU only over the `count` groups with the largest maxima."""
    size = logits.shape[-1] // GROUP_SIZE * GROUP_SIZE
    if logits.device.type != "cpu" or logits.numel() < MIN_NUMEL or count * GROUP_SIZE * 2 > size:
        return logits.topk(count, dim=-1)
    groups = logits[..., :size].unflatten(-1, (-1, GROUP_SIZE))  # (..., V / GROUP_SIZE, GROUP_SIZE)
    chosen = groups.amax(dim=-1).topk(count, dim=-1, sorted=False).indices
    inside = groups.gather(-2, chosen[..., None].expand(*chosen.shape, GROUP_SIZE)).flatten(-2)
    values, found = torch.cat((inside, logits[..., size:]), dim=-1).topk(count, dim=-1)
    own = chosen.gather(-1, (found // GROUP_SIZE).clamp(max=count - 1)) * GROUP_SIZE + found % GROUP_SIZE
    return values, torch.where(found < inside.shape[-1], own, found - inside.shape[-1] + size)
