"""What a decoder remembers of the tokens it has read, so that each new one is read alone."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

Crossing = tuple[
    Tensor, Tensor, Tensor | None
]  # keys (B * A, D/A, S), values (B * A, S, D/A), what hides padding


@dataclass
class Past:
    """One layer's keys and values (R, A, room, D/A), of which the first `length` positions are filled."""

    keys: Tensor | None = None
    values: Tensor | None = None
    length: int = 0
    room: int = 0  # positions to make room for at the start
    spare: tuple[Tensor, Tensor] | None = None  # where keys and values were before they last moved

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, with those of the new positions at the end."""
        stop = self.length + key.shape[2]
        if self.keys is None or self.values is None or stop > self.keys.shape[2]:
            self._grow(key, max(stop, self.room, 2 * self.length))
        assert self.keys is not None
        assert self.values is not None
        self.keys[:, :, self.length : stop] = key
        self.values[:, :, self.length : stop] = value
        self.length = stop
        return self.keys[:, :, :stop], self.values[:, :, :stop]

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """What `extend` gives for one new position (R, A, D/A), rows and attention heads in one: (R * A, length, D/A)."""
        if self.keys is None or self.values is None or self.length == self.keys.shape[2]:
            self._grow(key[:, :, None], max(self.length + 1, self.room, 2 * self.length))
        assert self.keys is not None
        assert self.values is not None
        self.keys.select(2, self.length).copy_(key)
        self.values.select(2, self.length).copy_(value)
        self.length += 1
        return self.keys.flatten(0, 1)[:, : self.length], self.values.flatten(0, 1)[:, : self.length]

    def _grow(self, like: Tensor, room: int) -> None:
        shape = (like.shape[0], like.shape[1], room, like.shape[3])
        keys, values = like.new_empty(shape), like.new_empty(shape)
        if self.keys is not None and self.values is not None:
            keys[:, :, : self.length] = self.keys[:, :, : self.length]
            values[:, :, : self.length] = self.values[:, :, : self.length]
        self.keys, self.values = keys, values

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be taken more than once."""
        if self.keys is None or self.values is None:
            return
        old, self.keys, self.values = (self.keys, self.values), *self._second(len(rows), self.keys)
        for before, after in zip(old, (self.keys, self.values), strict=True):
            torch.index_select(before[:, :, : self.length], 0, rows, out=after[:, :, : self.length])
        self.spare = old

    def _second(self, rows: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Two places to copy to: those that the last copy left, since memory that is new to the process is slow."""
        if self.spare is None or len(self.spare[0]) < rows or self.spare[0].shape[1:] != like.shape[1:]:
            shape = (rows, *like.shape[1:])
            return like.new_empty(shape), like.new_empty(shape)
        return self.spare[0][:rows], self.spare[1][:rows]


@dataclass
class Cache:
    """All layers' pasts, and what is known of each row.

    Rows may hold prompts of different lengths: padding stays where it was read and is never looked at, and each row
    counts its own positions. While no row holds padding, all stand at the same position, and nothing is counted.
    """

    pasts: list[Past]
    length: int = 0  # positions read so far, padding included
    places: Tensor | None = None  # (R,), the position of each row's next token; None = `length`, for all
    real: Tensor | None = None  # (R, length), True = a real token was read there; None = everywhere
    sources: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # each layer's (B, A, S, D/A)
    source_mask: Tensor | None = None  # (B, 1, 1, S), True where the source may be read
    _crossings: list[Crossing] | None = None  # what `crossings` gave

    def advance(self, tokens: Tensor, real: Tensor | None) -> slice | Tensor:
        """Note that `tokens` (R, T) are read next; gives their positions: a range for all rows, or (R, T)."""
        if self.real is None and (real is None or bool(real.all())):
            self.length += tokens.shape[1]
            return slice(self.length - tokens.shape[1], self.length)
        if self.real is None or self.places is None:  # from here on, rows differ
            self.real = torch.ones(len(tokens), self.length, dtype=torch.bool, device=tokens.device)
            self.places = torch.full((len(tokens),), self.length, device=tokens.device)
        real = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
        places = self.places[:, None] + real.cumsum(dim=1) - 1
        self.places = self.places + real.sum(dim=1)
        self.real = torch.cat((self.real, real), dim=1)
        self.length += tokens.shape[1]
        return places.clamp(min=0)

    def mask(self, new: int, device: torch.device) -> tuple[Tensor | None, bool]:
        """What the last `new` positions may see: a mask (R, 1, new or 1, length) or none, and whether it is causal."""
        if new == 1:
            return (None if self.real is None else self.real[:, None, None, :]), False
        if new == self.length and self.real is None:
            return None, True
        square = torch.ones(new, self.length, dtype=torch.bool, device=device).tril(self.length - new)
        return (square if self.real is None else square & self.real[:, None, None, :]), False

    def near(self, places: slice | Tensor, window: int, device: torch.device) -> Tensor:
        """What positions at `places` may see of the `window` tokens before them: a mask (R or 1, 1, T, length)."""
        keys = torch.arange(self.length, device=device)[None]  # (R or 1, length)
        if isinstance(places, slice):
            places = keys[:, places]
        if self.real is not None:
            keys = self.real.cumsum(dim=1) - 1
        distance = places[:, :, None] - keys[:, None, :]  # (R, T, length)
        seen = (distance >= 0) & (distance <= window)
        return (seen if self.real is None else seen & self.real[:, None, :])[:, None]

    def crossings(self) -> list[Crossing]:
        """Each layer's sources as products of matrices read them, for as long as they stay."""
        if self._crossings is None:
            mask = self.source_mask
            hidden = None
            if mask is not None and not bool(mask.all()):
                hidden = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)
            self._crossings = [
                (key.transpose(2, 3).flatten(0, 1), value.flatten(0, 1), hidden)
                for key, value in self.sources
            ]
        return self._crossings

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keep these rows in this order, and of the sources those named (all by default)."""
        for past in self.pasts:
            past.select(rows)
        self.places = None if self.places is None else self.places[rows]
        self.real = None if self.real is None else self.real[rows]
        if sources is not None:
            self.sources = [(key[sources], value[sources]) for key, value in self.sources]
            self._crossings = None
            self.source_mask = None if self.source_mask is None else self.source_mask[sources]


def laid_out(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values (B, A, S, D/A) in the order in which a CPU reads them at every step, which indexing keeps."""
    if key.device.type != "cpu":
        return key, value
    return key.transpose(2, 3).contiguous().transpose(2, 3), value.contiguous()


def new_cache(layers: int, room: int) -> Cache:
    """A cache in which nothing has been read."""
    return Cache([Past(room=room) for _ in range(layers)])
