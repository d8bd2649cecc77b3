"""Beam search: the most probable texts that a search of bounded width finds, with their scores.

At every step the `width` best continuations of a source's live hypotheses are looked at: those that end are done, the
others live on. A hypothesis' score is its log-probability over a length penalty (Wu et al., 2016):
`((5 + length) / 6) ** penalty`, its end counted. Hypotheses that ended come before those that were cut.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F

from headstart.batch import Batch
from headstart.errors import ConfigError
from headstart.generation.decode import LEAVING, Rules, Text, decode, rooms
from headstart.generation.reader import Reader, ranked, start


@dataclass(frozen=True)
class Hypothesis:
    """One text that a search found, without the token that ends it."""

    tokens: list[int]
    score: float  # log-probability over length penalty; a search sorts by it
    log_probability: float  # the model's, of the whole text, its end included unless it is cut
    is_cut: bool  # True = the length ran out before the text ended


@dataclass(frozen=True)
class Beam:
    """How a search goes."""

    width: int = 5
    best: int = 1  # hypotheses to give back
    penalty: float = 0.6  # above 0 longer texts gain, below 0 shorter ones; 0 = plain log-probability
    stops_early: bool = True  # as soon as nothing better can come; changes no result

    def __post_init__(self) -> None:
        if not 1 <= self.best <= self.width:
            raise ConfigError(
                f"a search of width {self.width} cannot give the {self.best} best",
                hint="the width is at least the number of texts wanted, and that is 1 or more",
            )
        if not math.isfinite(self.penalty):
            raise ConfigError(f"the length penalty cannot be {self.penalty}", hint="0.6 is usual, 0 is none")


def length_penalties(longest: int, penalty: float) -> Tensor:
    """What a log-probability is divided by, for each length from 0 to `longest`."""
    table = ((5 + torch.arange(longest + 1, dtype=torch.float64)) / 6) ** penalty
    return (table.cummax(0) if penalty >= 0 else table.cummin(0)).values.float()  # monotone to the last bit


@torch.inference_mode()
def beam_search(
    reader: Reader, batch: Batch, rules: Rules, beam: Beam = Beam(), *, most: Sequence[int] | None = None
) -> list[list[Hypothesis]]:
    """The best hypotheses of every row of the batch, in its order, each list sorted from the best.

    `most` limits rows one by one. What a row gets does not depend on the others, nor on `stops_early`.
    """
    batch = batch.to(reader.device)
    room = rooms(reader, batch, rules, most)
    assert int(room.min()) > 0, "a text has room for one token at least"
    if beam.width == 1:
        texts = decode(reader, batch, rules, most=room.tolist(), scored=True)
        return [[_likeliest(text, beam.penalty)] for text in texts]
    search = Search(reader, rules, beam, room)
    search.run(batch)
    return search.found


def _likeliest(text: Text, penalty: float) -> Hypothesis:
    """The one hypothesis of a search of width 1, which is greedy and so has nothing to rank."""
    marks = text.log_probabilities or []
    total = sum(marks)
    return Hypothesis(text.tokens, total / ((5 + len(marks)) / 6) ** penalty, total, text.is_cut)


class Search:
    """The sources still searched; B of them, W rows each (one at the start)."""

    def __init__(self, reader: Reader, rules: Rules, beam: Beam, room: Tensor):
        self.reader, self.rules, self.beam, self.room = reader, rules, beam, room
        rows, self.longest, device = len(room), int(room.max()), room.device
        self.penalties = length_penalties(self.longest + 1, beam.penalty).to(device)
        self.found: list[list[Hypothesis]] = [[] for _ in range(rows)]
        self.owners = torch.arange(rows, device=device)  # (B,), the number of each source still searched
        self.totals = torch.zeros(rows, 1, device=device)  # (B, W), log-probabilities; -inf = nothing there
        self.histories = torch.zeros(rows, 1, 0, dtype=torch.long, device=device)  # (B, W, T)
        self.pool = _Pool.empty(rows, beam.best, self.longest, device)

    def run(self, batch: Batch) -> None:
        """Search until every source is done."""
        memory, vectors = start(self.reader, batch, self.longest)
        for step in range(self.longest):
            rows, tokens = self._continue(self.reader.score(vectors), step)
            self._finish(tokens, step)
            kept = self._leave(self._done(step))
            if kept is not None:
                rows, tokens = rows[kept], tokens[kept]
            if not len(rows):
                return
            if kept is not None or not self._is_same(rows, len(vectors)):
                memory.select(rows.flatten(), kept)
            vectors = self.reader.read(tokens.view(-1, 1), memory)[:, 0]

    def _continue(self, scores: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Take the `width` best continuations: of which row (B, W), by which token (B, W)."""
        sources, before = self.totals.shape
        each = min(self.beam.width, scores.shape[-1])
        gains, places = ranked(self.rules.bar(scores.log_softmax(dim=-1), step), each)  # (B * W, each)
        gains = gains.clamp(max=0).view(sources, before, each)
        totals = (self.totals[:, :, None] + gains).flatten(1)  # (B, W * each)
        spare = self.beam.width - totals.shape[1]
        if spare > 0:  # a vocabulary smaller than the width: the first is named again, and counts for nothing
            totals = F.pad(totals, (0, spare), value=-torch.inf)
            places = F.pad(places.reshape(sources, -1), (0, spare))
        order = totals.sort(dim=-1, descending=True, stable=True)
        self.totals, chosen = order.values[:, : self.beam.width], order.indices[:, : self.beam.width]
        tokens = places.reshape(sources, -1).gather(1, chosen)
        parents = (chosen // each).clamp_(max=before - 1)
        past = self.histories.gather(1, parents[:, :, None].expand(-1, -1, step))
        self.histories = torch.cat((past, tokens[:, :, None]), dim=2)
        return parents + torch.arange(sources, device=parents.device)[:, None] * before, tokens

    @staticmethod
    def _is_same(rows: Tensor, before: int) -> bool:
        """Whether every row goes on where it was, so that nothing moves in memory."""
        return rows.numel() == before and bool((rows.flatten() == _count(rows)).all())

    def _finish(self, tokens: Tensor, step: int) -> None:
        """Move the hypotheses that end, or have no room left, from the live ones to the pool."""
        ends = tokens == self.rules.last
        over = ends | (self.room <= step + 1)[:, None]  # (B, W)
        if over.any():
            totals = self.totals.masked_fill(~over, -torch.inf)
            self.pool.add(totals, totals / self.penalties[step + 1], ~ends, self.histories)
            self.totals = self.totals.masked_fill(over, -torch.inf)

    def _done(self, step: int) -> Tensor:
        """Which sources (B,) have nothing left to find.

        A log-probability only falls, so a live hypothesis never scores above what it has now over the largest penalty
        yet to come. As good as the worst in the pool is not good enough: of equals the one found first stays.
        """
        best = self.totals.amax(dim=1)
        done = best == -torch.inf
        if self.beam.stops_early:
            largest = torch.maximum(self.penalties[step + 2], self.penalties[self.room])
            done |= self.pool.worst() >= best / largest
        return done

    def _leave(self, done: Tensor) -> Tensor | None:
        """Let sources that are done go, with what was found; gives those that stay (B,), None = all of them."""
        count = int(done.sum())
        if not count:
            return None
        if (
            count * LEAVING < len(done) and self.reader.positions is None
        ):  # later: leaving copies the others' memory
            self.totals = self.totals.masked_fill(done[:, None], -torch.inf)
            return None
        for owner, found in zip(self.owners[done].tolist(), self.pool.take(done), strict=True):
            self.found[owner] = found
        kept = (~done).nonzero()[:, 0]
        self.owners, self.room, self.totals = self.owners[kept], self.room[kept], self.totals[kept]
        self.histories = self.histories[kept]
        self.pool = self.pool.keep(kept)
        return kept


def _count(like: Tensor) -> Tensor:
    return torch.arange(like.numel(), device=like.device)


@dataclass
class _Pool:
    """The best hypotheses of each source that are over, best first; `N` places, cut and worthless while empty."""

    scores: Tensor  # (B, N), log-probability over penalty; -inf = an empty place
    totals: Tensor  # (B, N), log-probability
    is_cut: Tensor  # (B, N)
    lengths: Tensor  # (B, N), tokens
    tokens: Tensor  # (B, N, longest)

    @staticmethod
    def empty(sources: int, places: int, longest: int, device: torch.device) -> "_Pool":
        """A pool in which nothing is over."""
        shape = (sources, places)
        nothing = torch.full(shape, -torch.inf, device=device)
        counts = torch.zeros(shape, dtype=torch.long, device=device)
        tokens = torch.zeros(*shape, longest, dtype=torch.long, device=device)
        return _Pool(nothing, nothing, torch.ones(shape, dtype=torch.bool, device=device), counts, tokens)

    def add(self, totals: Tensor, scores: Tensor, is_cut: Tensor, histories: Tensor) -> None:
        """Take in hypotheses (B, W, T), all of one length; those whose total is -inf do not count."""
        length, places = histories.shape[2], self.scores.shape[1]
        scores = torch.cat((self.scores, scores), dim=1)
        is_cut = torch.cat((self.is_cut, is_cut | (totals == -torch.inf)), dim=1)
        order = scores.argsort(dim=1, descending=True, stable=True)
        order = order.gather(1, is_cut.gather(1, order).long().argsort(dim=1, stable=True))[:, :places]
        self.scores, self.is_cut = scores.gather(1, order), is_cut.gather(1, order)
        self.totals = torch.cat((self.totals, totals), dim=1).gather(1, order)
        new = torch.full_like(histories[:, :, 0], length)
        self.lengths = torch.cat((self.lengths, new), dim=1).gather(1, order)
        longer = F.pad(histories, (0, self.tokens.shape[2] - length))
        deep = order[:, :, None].expand(-1, -1, self.tokens.shape[2])
        self.tokens = torch.cat((self.tokens, longer), dim=1).gather(1, deep)

    def worst(self) -> Tensor:
        """The score (B,) that a new hypothesis has to beat; -inf while there is a place for it."""
        return self.scores[:, -1].masked_fill(self.is_cut[:, -1], -torch.inf)

    def keep(self, sources: Tensor) -> "_Pool":
        """The pool of these sources alone."""
        return _Pool(*(getattr(self, each.name)[sources] for each in fields(self)))

    def take(self, sources: Tensor) -> list[list[Hypothesis]]:
        """What was found for these sources."""
        columns = [getattr(self, each.name)[sources].tolist() for each in fields(self)]
        return [
            [
                Hypothesis(tokens[: length - (not is_cut)], score, total, is_cut)
                for score, total, is_cut, length, tokens in zip(*source, strict=True)
                if total > -math.inf
            ]
            for source in zip(*columns, strict=True)
        ]
