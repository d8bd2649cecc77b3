"""Beam search: the most probable texts that a search of bounded width finds, with their scores.

At every step the `width` best continuations of a source's live hypotheses are looked at: those that end are done, the
others live on. A hypothesis' score is its log-probability over a length penalty (Wu et al., 2016):
`((5 + length) / 6) ** penalty`, its end counted. Hypotheses that ended come before those that were cut.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from headstart.batch import Batch
from headstart.errors import ConfigError
from headstart.generation.generate import LEAVING, Rules, Text, decode, rooms, staying
from headstart.generation.reader import Reader, ranked_sums, start


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
    is_scored: bool = True  # False = a search of width 1, which ranks nothing, may leave its scores out: nan

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
        texts = decode(reader, batch, rules, most=room.tolist(), scored=beam.is_scored)
        return [[_likeliest(text, beam.penalty)] for text in texts]
    search = Search(reader, rules, beam, room)
    search.run(batch)
    return search.found


def _likeliest(text: Text, penalty: float) -> Hypothesis:
    """The one hypothesis of a search of width 1, which is greedy and so has nothing to rank."""
    if text.log_probabilities is None:
        return Hypothesis(text.tokens, math.nan, math.nan, text.is_cut)
    marks = text.log_probabilities
    total = sum(marks)
    return Hypothesis(text.tokens, total / ((5 + len(marks)) / 6) ** penalty, total, text.is_cut)


class Search:
    """The sources still searched; B of them, W rows each (one at the start). What is counted is kept off the device."""

    def __init__(self, reader: Reader, rules: Rules, beam: Beam, room: Tensor):
        self.reader, self.rules, self.beam, self.room = reader, rules, beam, room.cpu().numpy()
        rows, self.longest = len(room), int(self.room.max())
        self.penalties = length_penalties(self.longest + 1, beam.penalty).numpy()
        self.found: list[list[Hypothesis]] = [[] for _ in range(rows)]
        self.owners = np.arange(rows)  # (B,), the number of each source still searched
        self.totals = np.zeros((rows, 1), np.float32)  # (B, W), log-probabilities; -inf = nothing there
        self.histories = np.zeros((rows, 1, self.longest), np.int64)  # (B, W, longest), filled up to now
        self.pool = _Pool.empty(rows, beam.best, self.longest)
        self.gains = torch.empty(0)  # (R, V), written over at every step

    def run(self, batch: Batch) -> None:
        """Search until every source is done."""
        memory, vectors = start(self.reader, batch, self.longest)
        device = self.reader.device
        for step in range(self.longest):
            rows, tokens = self._continue(vectors, step)
            self._finish(tokens, step)
            kept = self._leave(self._done(step))
            if kept is not None:
                rows, tokens = rows[kept], tokens[kept]
            if not len(rows):
                return
            rows = rows.ravel()
            if kept is not None or len(rows) != len(vectors) or (rows != np.arange(len(rows))).any():
                sources = None if kept is None else torch.from_numpy(kept).to(device)
                memory.select(torch.from_numpy(rows).to(device), sources)
            vectors = self.reader.read(torch.from_numpy(tokens.reshape(-1, 1)).to(device), memory)[:, 0]

    def _continue(self, vectors: Tensor, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Take the `width` best continuations: of which row (B, W), by which token (B, W)."""
        sources, before = self.totals.shape
        gains = self.rules.bar(self._gains(vectors), step)  # (B * W, V)
        self.totals, parents, tokens = ranked_sums(self.totals, gains, self.beam.width)
        rows = parents + np.arange(sources)[:, None] * before
        self.histories = self.histories.reshape(-1, self.longest)[rows]
        self.histories[:, :, step] = tokens
        return rows, tokens

    def _gains(self, vectors: Tensor) -> Tensor:
        """The log-probability of every token (B * W, V); always in the same place, since new memory is slow."""
        scores = self.reader.score(vectors)
        if len(self.gains) < len(scores):
            self.gains = torch.empty_like(scores)
        return torch.log_softmax(scores, -1, out=self.gains[: len(scores)])

    def _finish(self, tokens: np.ndarray, step: int) -> None:
        """Move the hypotheses that end, or have no room left, from the live ones to the pool."""
        ends = tokens == self.rules.last
        over = ends | (self.room <= step + 1)[:, None]  # (B, W)
        if over.any():
            totals = np.where(over, self.totals, np.float32(-np.inf))
            self.pool.add(totals, totals / self.penalties[step + 1], ~ends, self.histories, step + 1)
            self.totals = np.where(over, np.float32(-np.inf), self.totals)

    def _done(self, step: int) -> np.ndarray:
        """Which sources (B,) have nothing left to find.

        A log-probability only falls, so a live hypothesis never scores above what it has now over the largest penalty
        yet to come. As good as the worst in the pool is not good enough: of equals the one found first stays.
        """
        best = self.totals.max(axis=1)
        done = best == -np.inf
        if self.beam.stops_early:
            largest = np.maximum(self.penalties[step + 2], self.penalties[self.room])
            done |= self.pool.worst() >= best / largest
        return done

    def _leave(self, done: np.ndarray) -> np.ndarray | None:
        """Let sources that are done go, with what was found; gives those that stay (B,), None = all of them."""
        count = int(done.sum())
        if not count:
            return None
        if count * LEAVING < len(done) and self.reader.positions is None:
            self.totals[done] = -np.inf  # later: leaving copies the others' memory
            return None
        for owner, found in zip(self.owners[done].tolist(), self.pool.take(done), strict=True):
            self.found[owner] = found
        kept = staying(done)
        self.owners, self.room, self.totals = self.owners[kept], self.room[kept], self.totals[kept]
        self.histories = self.histories[kept]
        self.pool = self.pool.keep(kept)
        return kept


@dataclass
class _Pool:
    """The best hypotheses of each source that are over, best first; `N` places, cut and worthless while empty."""

    scores: np.ndarray  # (B, N), log-probability over penalty; -inf = an empty place
    totals: np.ndarray  # (B, N), log-probability
    is_cut: np.ndarray  # (B, N)
    lengths: np.ndarray  # (B, N), tokens
    tokens: np.ndarray  # (B, N, longest)

    @staticmethod
    def empty(sources: int, places: int, longest: int) -> "_Pool":
        """A pool in which nothing is over."""
        shape = (sources, places)
        nothing, counts = np.full(shape, -np.inf, np.float32), np.zeros(shape, np.int64)
        return _Pool(nothing, nothing, np.ones(shape, bool), counts, np.zeros((*shape, longest), np.int64))

    def add(
        self, totals: np.ndarray, scores: np.ndarray, is_cut: np.ndarray, histories: np.ndarray, length: int
    ) -> None:
        """Take in hypotheses (B, W), all of one length; those whose total is -inf do not count."""
        places = self.scores.shape[1]
        scores = np.concatenate((self.scores, scores), axis=1)
        is_cut = np.concatenate((self.is_cut, is_cut | (totals == -np.inf)), axis=1)
        order = np.lexsort((-scores, is_cut), axis=1)[:, :places]  # stable: of equals the first found stays
        self.scores = np.take_along_axis(scores, order, 1)
        self.is_cut = np.take_along_axis(is_cut, order, 1)
        self.totals = np.take_along_axis(np.concatenate((self.totals, totals), axis=1), order, 1)
        lengths = np.concatenate((self.lengths, np.full(totals.shape, length)), axis=1)
        self.lengths = np.take_along_axis(lengths, order, 1)
        tokens = np.concatenate((self.tokens, histories), axis=1)
        self.tokens = np.take_along_axis(tokens, order[:, :, None], 1)

    def worst(self) -> np.ndarray:
        """The score (B,) that a new hypothesis has to beat; -inf while there is a place for it."""
        return np.where(self.is_cut[:, -1], np.float32(-np.inf), self.scores[:, -1])

    def keep(self, sources: np.ndarray) -> "_Pool":
        """The pool of these sources alone."""
        return _Pool(*(getattr(self, each.name)[sources] for each in fields(self)))

    def take(self, sources: np.ndarray) -> list[list[Hypothesis]]:
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
