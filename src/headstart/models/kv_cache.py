"""What a decoder remembers of the tokens it has read, so that each new one is read alone."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

ROUND = 16  # places are looked at in such steps: below, a CPU takes products and softmax number by number
TIDY = 4  # steps after which a shared past is looked through for what nobody sees any more
Views = tuple[Tensor, Tensor]  # keys (B * A, D/A, places), values (B * A, places, D/A)
Crossing = tuple[Tensor, Tensor, Tensor | None]  # such views of a source, and what hides its padding
Moved = tuple[Tensor, Tensor]  # places, and what is put there; all else stays where it is


def moves(rows: Tensor) -> Moved | None:
    """How to come by these rows with few copies: where only some, taken from behind the others, fill gaps.

    None = all have to be copied; so it is off the CPU, where looking at rows takes longer than moving them.
    """
    if rows.device.type != "cpu":
        return None
    places = (rows != torch.arange(len(rows))).nonzero()[:, 0]
    fillers = rows[places]
    return (places, fillers) if bool((fillers >= len(rows)).all()) else None


def rounded(count: int) -> int:
    """`count`, or the next multiple of ROUND."""
    return -(-count // ROUND) * ROUND


@dataclass
class Past:
    """One layer's keys and values, of which the first `length` places are filled; the rest is finite.

    A place holds one token of one row, or, where the W rows of a source share their past, W of them lie one after the
    other for each token that the rows have read.
    """

    store: Tensor | None = None  # (2, B, A, room, D/A)
    length: int = 0
    room: int = 0  # places to make room for at the start
    spare: Tensor | None = None  # where keys and values were before they last moved
    views: Views | None = None  # what `append` gave
    reach: int = 0  # places in these views

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values (R, A, length, D/A), with those of the new positions at the end."""
        start, stop = self.length, self.length + key.shape[2]
        store = self._with_room(key.shape, stop, key)
        assert store.shape[1] == key.shape[0], "rows that share their past are read one token at a time"
        store[0, :, :, start:stop] = key
        store[1, :, :, start:stop] = value
        self.length, self.views = stop, None
        return store[0, :, :, :stop], store[1, :, :, :stop]

    def append(self, new: Tensor) -> Views:
        """All keys and values as products read them, with those of each row's new token (2, B, A, W, D/A) at the end.

        Places beyond `length`, up to a multiple of ROUND, are in it too: whoever looks hides them.
        """
        start, stop = self.length, self.length + new.shape[3]
        store = self._with_room(new.shape[1:], stop, new)
        store.narrow(3, start, stop - start).copy_(new)
        self.length = stop
        if self.views is None or stop > self.reach:
            self.reach = rounded(stop)
            keys, values = (part.flatten(0, 1).narrow(1, 0, self.reach) for part in store)
            self.views = keys.transpose(1, 2), values
        return self.views

    def _with_room(self, shape: tuple[int, ...] | torch.Size, stop: int, like: Tensor) -> Tensor:
        """The store, grown if it ends before `stop`."""
        if self.store is None or stop > self.store.shape[3]:
            room = rounded(max(stop, self.room, 2 * self.length))
            grown = like.new_zeros(2, shape[0], shape[1], room, shape[3])
            if self.store is not None:
                grown[:, :, :, : self.length] = self.store[:, :, :, : self.length]
            self.store, self.views = grown, None
        return self.store

    def select(self, rows: Tensor, moved: Moved | None = None) -> None:
        """Keep these rows (or sources), in this order; one may be taken more than once. `moved` is what `moves` gave."""
        if self.store is None:
            return
        used, self.views = self.length, None
        if moved is not None:
            places, fillers = moved
            self.store[:, places, :, :used] = self.store[:, fillers, :, :used]
            self.store = self.store[:, : len(rows)]
            return
        before, self.store = self.store, self._second(len(rows), self.store)
        torch.index_select(before.narrow(3, 0, used), 1, rows, out=self.store.narrow(3, 0, used))
        self.spare = before

    def _second(self, rows: int, like: Tensor) -> Tensor:
        """A place to copy to: what the last copy left, since memory that is new to the process is slow."""
        if self.spare is None or self.spare.shape[1] < rows or self.spare.shape[2:] != like.shape[2:]:
            return like.new_zeros(2, rows, *like.shape[2:])
        return self.spare[:, :rows]

    def gather(self, places: Tensor) -> None:
        """Keep these places (B, count) of each source alone, in this order."""
        assert self.store is not None
        store, count = self.store, places.shape[1]
        _, sources, heads, room, width = store.shape
        first = torch.arange(sources * heads, device=places.device).view(sources, heads, 1) * room
        numbers = (first + places[:, None]).flatten()
        for part in store:
            found = part.flatten(0, 2).index_select(0, numbers)
            part.narrow(2, 0, count).copy_(found.view(sources, heads, count, width))
        self.length, self.views = count, None


@dataclass
class Cache:
    """All layers' pasts, and what is known of each row.

    Rows may hold prompts of different lengths: padding stays where it was read and is never looked at, and each row
    counts its own positions. While no row holds padding, all stand at the same position, and nothing is counted.

    Where rows of one source share their past, a row that takes another's place copies nothing: what both have read
    stays where it is, and only who sees it changes.
    """

    pasts: list[Past]
    shares: bool = False  # True = rows of one source share their past once they are several
    length: int = 0  # positions read so far, padding included
    places: Tensor | None = None  # (R,), the position of each row's next token; None = `length`, for all
    real: Tensor | None = None  # (R, length), True = a real token was read there; None = everywhere
    unseen: Tensor | None = None  # (R, room), -inf where a row sees no shared place, else 0; None = not shared yet
    desk: object = None  # what a step keeps here from one token to the next
    moves: int = 0  # times that rows which share took others' places
    sources: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # each layer's (B, A, S, D/A)
    source_mask: Tensor | None = None  # (B, 1, 1, S), True where the source may be read
    _crossings: list[Crossing] | None = None  # what `crossings` gave
    _tail: Tensor | None = None  # zeros, and ROUND times -inf

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

    def veil(self, rows: int) -> Tensor | None:
        """What hides from each row's next token, once it has a place, the places that `Past.append` shows too many.

        None = nothing; (1, 1, places) where all rows see the same; (B, 1, W, places) else.
        """
        if self.unseen is not None:
            return self._shared_veil(rows)
        if self.real is not None:
            return added(self.real[:, None, None, :])
        if self.length % ROUND == 0:
            return None
        if self._tail is None or self.length > len(self._tail) - ROUND:
            self._tail = F.pad(torch.zeros(2 * self.length + ROUND), (0, ROUND), value=-torch.inf)
        start = len(self._tail) - ROUND - self.length
        return self._tail[start : start + rounded(self.length)].view(1, 1, -1)

    def _shared_veil(self, rows: int) -> Tensor:
        """Every row sees its own new place beside what it saw."""
        assert self.unseen is not None
        used, sources = self.pasts[0].length, self._sources()
        each = rows // sources
        reach = rounded(used + each)
        if reach > self.unseen.shape[1]:
            self.unseen = F.pad(self.unseen, (0, 2 * reach - self.unseen.shape[1]), value=-torch.inf)
        own = self.unseen.view(sources, each, -1)
        own.narrow(2, used, each).diagonal(dim1=1, dim2=2).zero_()
        return own.narrow(2, 0, reach)[:, None]

    def _sources(self) -> int:
        """How many sources there are, or rows where these share nothing."""
        store = self.pasts[0].store
        assert store is not None
        return store.shape[1]

    def crossings(self) -> list[Crossing]:
        """Each layer's sources as products of matrices read them, for as long as they stay."""
        if self._crossings is None:
            mask, hidden = self.source_mask, None
            if mask is not None and not bool(mask.all()):
                heads = self.sources[0][0].shape[1]
                hidden = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)
                hidden = hidden.expand(-1, heads, -1, -1).flatten(0, 1)  # (B * A, 1, S)
            self._crossings = [
                (key.transpose(2, 3).flatten(0, 1), value.flatten(0, 1), hidden) for key, value in self.sources
            ]
        return self._crossings

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keep these rows in this order, and of the sources those named (all by default).

        Rows of one source stand together, and where they share their past a row stays with its source.
        """
        if not self.shares:
            moved = moves(rows)
            for past in self.pasts:
                past.select(rows, moved)
        elif self.pasts[0].store is not None:
            self._share(rows, sources)
        self.places = None if self.places is None else self.places[rows]
        self.real = None if self.real is None else self.real[rows]
        if sources is not None:
            moved = moves(sources)
            self.sources = [(_kept(key, sources, moved), _kept(value, sources, moved)) for key, value in self.sources]
            self._crossings = None
            self.source_mask = None if self.source_mask is None else self.source_mask[sources]

    def _share(self, rows: Tensor, sources: Tensor | None) -> None:
        """Let each row see what the row whose place it takes saw; what lies there moves only with its source."""
        if self.unseen is not None:
            self.unseen = self.unseen[rows]
        elif len(rows) > (self._sources() if sources is None else len(sources)):
            seen = torch.ones(1, self.length, dtype=torch.bool) if self.real is None else self.real[rows]
            self.unseen = added(seen.expand(len(rows), -1))
        if sources is not None:
            moved = moves(sources)
            for past in self.pasts:
                past.select(sources, moved)
        self.moves += 1
        if self.unseen is not None and self.moves % TIDY == 0:
            self._tidy()

    def _tidy(self) -> None:
        """Give up the places that no row of their source sees any more."""
        assert self.unseen is not None
        used, sources = self.pasts[0].length, self._sources()
        own = self.unseen.view(sources, -1, self.unseen.shape[1])  # (B, W, room)
        live = (own[:, :, :used] == 0).any(dim=1)  # (B, used)
        count = int(live.sum(dim=1).max())
        if rounded(count) == rounded(used):
            return
        places = live.byte().argsort(dim=1, descending=True, stable=True)[:, :count]
        for past in self.pasts:
            past.gather(places)
        found = own.gather(2, places[:, None].expand(-1, own.shape[1], -1)).flatten(0, 1)
        self.unseen = F.pad(found, (0, rounded(count) - count), value=-torch.inf)


def _kept(part: Tensor, rows: Tensor, moved: Moved | None) -> Tensor:
    """These rows of a tensor that may be written over."""
    if moved is None:
        return part[rows]
    part[moved[0]] = part[moved[1]]
    return part[: len(rows)]


def added(seen: Tensor) -> Tensor:
    """What is added to scores (…, places) to hide what is not seen, up to a multiple of ROUND places."""
    shape = (*seen.shape[:-1], rounded(seen.shape[-1]))
    veil = torch.full(shape, -torch.inf, device=seen.device)
    veil[..., : seen.shape[-1]].masked_fill_(seen, 0)
    return veil


def laid_out(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values (B, A, S, D/A) in the order in which a CPU reads them at every step, which indexing keeps."""
    if key.device.type != "cpu":
        return key, value
    return key.transpose(2, 3).contiguous().transpose(2, 3), value.contiguous()


def new_cache(layers: int, room: int) -> Cache:
    """A cache in which nothing has been read."""
    return Cache([Past(room=room) for _ in range(layers)])
