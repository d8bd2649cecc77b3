"""Keys and values of the tokens that a decoder has read, and the masks that say which of them a token attends to."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class LayerKVCache:
    """Keys and values of one layer, of which the first `length` positions are filled."""

    capacity: int = 0  # positions to allocate at first
    length: int = 0
    store: Tensor | None = None  # (2, B, H, capacity, d)

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, H, T, d) of new tokens; returns those of all tokens (B, H, S, d)."""
        start, self.length = self.length, self.length + key.shape[2]
        self.store = self.reserve(key.shape, key)
        self.store[0, :, :, start : self.length] = key
        self.store[1, :, :, start : self.length] = value
        return self.store[0, :, :, : self.length], self.store[1, :, :, : self.length]

    def reserve(self, shape: torch.Size, like: Tensor) -> Tensor:
        """A store with room for `length` positions."""
        if self.store is not None and self.store.shape[3] >= self.length:
            return self.store
        filled = 0 if self.store is None else self.store.shape[3]
        store = like.new_zeros(2, *shape[:2], max(self.length, self.capacity, 2 * filled), shape[3])
        if self.store is not None:
            store[:, :, :, :filled] = self.store
        return store

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        if self.store is not None:
            before, self.store = self.store, self.store.new_zeros(2, len(rows), *self.store.shape[2:])
            torch.index_select(before[:, :, :, : self.length], 1, rows, out=self.store[:, :, :, : self.length])


@dataclass
class KVCache:
    """Keys and values of all layers, and which of the positions that were read are padding.

    Prompts of different lengths are padded. Attention ignores the padding, and each text counts its own positions.
    """

    layers: list[LayerKVCache]
    length: int = 0  # positions that were read, with padding
    mask: Tensor | None = None  # (R, length), True = a token; None = no padding
    cross_kv: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # of each layer (B, H, S, d)
    source_mask: Tensor | None = None  # (B, 1, 1, S), True = a token of the source

    def extend(self, tokens: Tensor, mask: Tensor | None) -> slice | Tensor:
        """Count new tokens (R, T) and return their positions: one range for all texts, or (R, T)."""
        before, self.length = self.length, self.length + tokens.shape[1]
        if self.mask is None and (mask is None or bool(mask.all())):
            return slice(before, self.length)
        old = tokens.new_ones(len(tokens), before, dtype=torch.bool) if self.mask is None else self.mask
        new = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        self.mask = torch.cat((old, new), dim=1)
        return self.key_positions(tokens.device)[:, before:]

    def key_positions(self, device: torch.device) -> Tensor:
        """The position of each token in its text (R or 1, length)."""
        if self.mask is None:
            return torch.arange(self.length, device=device)[None]
        return (self.mask.cumsum(dim=1) - 1).clamp(min=0)

    def attention_mask(self, new: int, device: torch.device) -> tuple[Tensor | None, bool]:
        """The mask (R or 1, 1, T or 1, length) of the `new` last tokens, and whether they attend causally instead."""
        padding = None if self.mask is None else self.mask[:, None, None, :]
        if new == 1 or (new == self.length and padding is None):
            return padding, new > 1
        causal = torch.ones(1, 1, new, self.length, dtype=torch.bool, device=device).tril(self.length - new)
        return causal if padding is None else causal & padding, False

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keep these rows in this order, and these of the sources (by default all).

        In beam search each source has several rows, which are adjacent.
        """
        for layer in self.layers:
            layer.select(rows)
        self.select_masks(rows, sources)

    def select_masks(self, rows: Tensor, sources: Tensor | None) -> None:
        """The same for the masks, and for the keys and values of the sources."""
        self.mask = None if self.mask is None else self.mask[rows]
        if sources is not None:
            self.cross_kv = [(key[sources], value[sources]) for key, value in self.cross_kv]
            self.source_mask = None if self.source_mask is None else self.source_mask[sources]


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
