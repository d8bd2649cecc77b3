"""Beam search: the most probable texts that a search of limited width finds, with their scores.

At every step the `width` best continuations of a source's live hypotheses are selected. Those that end are finished, the
others continue. A hypothesis' score is its log-probability over a length penalty (Wu et al., 2016),
`((5 + length) / 6) ** penalty`, its end counted. Hypotheses that ended rank before those that were cut.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headstart import fast
from headstart.batch import Batch
from headstart.errors import ConfigError
from headstart.fast import beam_search as fast_search
from headstart.generation.generate import (
    MIN_FINISHED,
    Decoder,
    Rules,
    Text,
    decode,
    read_prompts,
    token_limits,
    unfinished,
)
from headstart.generation.sampling import top_k


@dataclass(frozen=True)
class Hypothesis:
    """A text that a search found, without the token that ends it."""

    tokens: list[int]
    score: float  # log-probability over length penalty
    log_probability: float  # of the text, and of its end unless it is cut
    is_cut: bool  # True = the text reached the length limit before its end


@dataclass(frozen=True)
class Beam:
    """Settings of a search."""

    width: int = 5
    best: int = 1  # hypotheses to return
    penalty: float = 0.6  # above 0 favours longer texts, below 0 shorter ones; 0 = none
    stops_early: bool = True  # when no better hypothesis is possible; changes no result
    is_scored: bool = True  # False = a search of width 1 may return nan as scores

    def __post_init__(self) -> None:
        if not 1 <= self.best <= self.width:
            raise ConfigError(
                f"a search of width {self.width} cannot give the {self.best} best",
                hint="the width is at least the number of texts wanted, and that is 1 or more",
            )
        if not math.isfinite(self.penalty):
            raise ConfigError(f"the length penalty cannot be {self.penalty}", hint="0.6 is usual, 0 is none")


def length_penalties(longest: int, penalty: float) -> Tensor:
    """The divisor of a log-probability for each length from 0 to `longest`."""
    table = ((5 + torch.arange(longest + 1, dtype=torch.float64)) / 6) ** penalty
    return (table.cummax(0) if penalty >= 0 else table.cummin(0)).values.float()  # monotone to the last bit


@torch.inference_mode()
def beam_search(
    decoder: Decoder, batch: Batch, rules: Rules, beam: Beam = Beam(), *, most: Sequence[int] | None = None
) -> list[list[Hypothesis]]:
    """The best hypotheses of every row of the batch, in order, each list sorted from the best.

    `most` limits each row by itself. A row's result does not depend on the other rows, nor on `stops_early`.
    """
    batch = batch.to(decoder.device)
    limits = token_limits(decoder, batch, rules, most)
    assert int(limits.min()) > 0, "a text has at least one token"
    if beam.width == 1:
        texts = decode(decoder, batch, rules, most=limits.tolist(), scored=beam.is_scored)
        return [[_greedy_hypothesis(text, beam.penalty)] for text in texts]
    search = Search(decoder, rules, beam, limits)
    search.run(batch)
    return search.found


def _greedy_hypothesis(text: Text, penalty: float) -> Hypothesis:
    if text.log_probabilities is None:
        return Hypothesis(text.tokens, math.nan, math.nan, text.is_cut)
    total, length = sum(text.log_probabilities), len(text.log_probabilities)
    return Hypothesis(text.tokens, total / ((5 + length) / 6) ** penalty, total, text.is_cut)


Sums = tuple[np.ndarray, np.ndarray, np.ndarray]  # sums (B, count) in descending order, their rows and tokens


def top_sums(totals: np.ndarray, log_probs: Tensor, count: int) -> Sums:
    """The `count` largest sums of a source's totals (B, W) and its tokens' log-probabilities (B * W, V).

    Of equal sums that of the first row wins, and within a row that of the most probable token, then of the first. A missing
    sum is -inf, with an arbitrary row and token.
    """
    log_probs = log_probs.view(*totals.shape, -1)
    if not (fast.is_enabled() and fast_search.can_group_sums(log_probs, count)):
        return _top_sums(totals, log_probs, count)
    sums, rows, tokens, is_tied = fast_search.top_sums(totals, log_probs, count)
    if is_tied.any():
        tied = _top_sums(totals[is_tied], log_probs[torch.from_numpy(is_tied)], count)
        sums[is_tied], rows[is_tied], tokens[is_tied] = tied
    return sums, rows, tokens


def _top_sums(totals: np.ndarray, log_probs: Tensor, count: int) -> Sums:
    """The best of every row's best tokens."""
    sources, width, vocab_size = log_probs.shape
    each = min(count, vocab_size)
    best, tokens = top_k(log_probs.flatten(0, 1), each)  # (B * W, each)
    best = best.clamp(max=0).view(sources, width, each)  # a log-probability is never above 0
    sums = (torch.from_numpy(totals).to(log_probs.device)[:, :, None] + best).flatten(1)
    tokens = tokens.reshape(sources, -1)
    missing = count - sums.shape[1]
    if missing > 0:
        sums, tokens = F.pad(sums, (0, missing), value=-torch.inf), F.pad(tokens, (0, missing))
    order = sums.sort(dim=-1, descending=True, stable=True)
    chosen = order.indices[:, :count]
    rows = (chosen // each).clamp_(max=width - 1)
    return order.values[:, :count].cpu().numpy(), rows.cpu().numpy(), tokens.gather(1, chosen).cpu().numpy()


class Search:
    """The unfinished sources; B of them, W rows each (one at the start). Bookkeeping is on the CPU."""

    def __init__(self, decoder: Decoder, rules: Rules, beam: Beam, limits: Tensor):
        self.decoder, self.rules, self.beam, self.limits = decoder, rules, beam, limits.cpu().numpy()
        rows, self.longest = len(limits), int(self.limits.max())
        self.penalties = length_penalties(self.longest + 1, beam.penalty).numpy()
        self.found: list[list[Hypothesis]] = [[] for _ in range(rows)]
        self.numbers = np.arange(rows)  # (B,), of the unfinished sources
        self.totals = np.zeros((rows, 1), np.float32)  # (B, W), log-probabilities; -inf = no hypothesis
        self.histories = np.zeros((rows, 1, self.longest), np.int64)  # (B, W, longest), tokens up to this step
        self.pool = _Pool.empty(rows, beam.best, self.longest)
        self.log_probs = torch.empty(0)  # (R, V), overwritten at every step

    def run(self, batch: Batch) -> None:
        """Search until every source is finished."""
        cache, hidden = read_prompts(self.decoder, batch, self.longest)
        device = self.decoder.device
        for step in range(self.longest):
            rows, tokens = self._continue(hidden, step)
            self._finish(tokens, step)
            left = self._remove(self._done(step))
            if left is not None:
                rows, tokens = rows[left], tokens[left]
            if not len(rows):
                return
            rows = rows.ravel()
            if left is not None or len(rows) != len(hidden) or (rows != np.arange(len(rows))).any():
                sources = None if left is None else torch.from_numpy(left).to(device)
                cache.select(torch.from_numpy(rows).to(device), sources)
            hidden = self.decoder.decode(torch.from_numpy(tokens.reshape(-1, 1)).to(device), cache)[:, 0]

    def _continue(self, hidden: Tensor, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Select the `width` best continuations: of which row (B, W), by which token (B, W)."""
        sources, width = self.totals.shape
        logits = self.decoder.logits(hidden)
        if len(self.log_probs) < len(logits):  # reused, because new memory is slow
            self.log_probs = torch.empty_like(logits)
        log_probs = torch.log_softmax(logits, -1, out=self.log_probs[: len(logits)])  # (B * W, V)
        self.totals, parents, tokens = top_sums(self.totals, self.rules.mask(log_probs, step), self.beam.width)
        rows = parents + np.arange(sources)[:, None] * width
        self.histories = self.histories.reshape(-1, self.longest)[rows]
        self.histories[:, :, step] = tokens
        return rows, tokens

    def _finish(self, tokens: np.ndarray, step: int) -> None:
        """Move hypotheses that end, or reach their limit, to the pool."""
        ends = tokens == self.rules.last
        over = ends | (self.limits <= step + 1)[:, None]  # (B, W)
        if over.any():
            totals = np.where(over, self.totals, np.float32(-np.inf))
            self.pool.add(totals, totals / self.penalties[step + 1], ~ends, self.histories, step + 1)
            self.totals = np.where(over, np.float32(-np.inf), self.totals)

    def _done(self, step: int) -> np.ndarray:
        """Which sources (B,) have nothing left to find.

        A log-probability only falls, so a live hypothesis never scores above its present log-probability over the largest
        penalty to come. A score equal to the worst in the pool is no gain: of equal scores the first one stays.
        """
        best = self.totals.max(axis=1)
        done: np.ndarray = best == -np.inf
        if self.beam.stops_early:
            largest = np.maximum(self.penalties[step + 2], self.penalties[self.limits])
            done |= self.pool.worst() >= best / largest
        return done

    def _remove(self, done: np.ndarray) -> np.ndarray | None:
        """Remove finished sources and store their results; returns those that are left (B,), None = all of them."""
        count = int(done.sum())
        if not count:
            return None
        if count * MIN_FINISHED < len(done) and self.decoder.max_positions is None:
            self.totals[done] = -np.inf  # removed later, because that copies the cache of the others
            return None
        for number, found in zip(self.numbers[done].tolist(), self.pool.take(done), strict=True):
            self.found[number] = found
        left = unfinished(done)
        self.numbers, self.limits, self.totals = self.numbers[left], self.limits[left], self.totals[left]
        self.histories = self.histories[left]
        self.pool = self.pool.select(left)
        return left


@dataclass
class _Pool:
    """The N best finished hypotheses of each source, the best first; an empty entry counts as cut and scores -inf."""

    scores: np.ndarray  # (B, N), log-probability over penalty
    totals: np.ndarray  # (B, N), log-probability
    is_cut: np.ndarray  # (B, N)
    lengths: np.ndarray  # (B, N), tokens
    tokens: np.ndarray  # (B, N, longest)

    @staticmethod
    def empty(sources: int, size: int, longest: int) -> "_Pool":
        """A pool without hypotheses."""
        shape = (sources, size)
        nothing, counts = np.full(shape, -np.inf, np.float32), np.zeros(shape, np.int64)
        return _Pool(nothing, nothing, np.ones(shape, bool), counts, np.zeros((*shape, longest), np.int64))

    def add(
        self, totals: np.ndarray, scores: np.ndarray, is_cut: np.ndarray, histories: np.ndarray, length: int
    ) -> None:
        """Add hypotheses (B, W) of one length; a total of -inf means none."""
        size = self.scores.shape[1]
        scores = np.concatenate((self.scores, scores), axis=1)
        is_cut = np.concatenate((self.is_cut, is_cut | (totals == -np.inf)), axis=1)
        order = np.lexsort((-scores, is_cut), axis=1)[:, :size]  # stable: of equal scores the first one stays
        self.scores = np.take_along_axis(scores, order, 1)
        self.is_cut = np.take_along_axis(is_cut, order, 1)
        self.totals = np.take_along_axis(np.concatenate((self.totals, totals), axis=1), order, 1)
        lengths = np.concatenate((self.lengths, np.full(totals.shape, length)), axis=1)
        self.lengths = np.take_along_axis(lengths, order, 1)
        tokens = np.concatenate((self.tokens, histories), axis=1)
        self.tokens = np.take_along_axis(tokens, order[:, :, None], 1)

    def worst(self) -> np.ndarray:
        """The score (B,) that a new hypothesis has to exceed; -inf while an entry is empty."""
        return np.where(self.is_cut[:, -1], np.float32(-np.inf), self.scores[:, -1])

    def select(self, sources: np.ndarray) -> "_Pool":
        """The pool of these sources."""
        return _Pool(*(getattr(self, each.name)[sources] for each in fields(self)))

    def take(self, sources: np.ndarray) -> list[list[Hypothesis]]:
        """The hypotheses of these sources."""
        columns = [getattr(self, each.name)[sources].tolist() for each in fields(self)]
        return [
            [
                Hypothesis(tokens[: length - (not is_cut)], score, total, is_cut)
                for score, total, is_cut, length, tokens in zip(*source, strict=True)
                if total > -math.inf
            ]
            for source in zip(*columns, strict=True)
        ]
