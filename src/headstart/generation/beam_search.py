"""Beam search: the most probable texts that a search of limited width finds, with their scores.

At every step the `width` best continuations of a source's live hypotheses are selected. Those that end are finished, the
others continue. A hypothesis' score is its log-probability over a length penalty (Wu et al., 2016),
`((5 + length) / 6) ** penalty`, its end counted. Hypotheses that ended rank before those that were cut.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headstart.batch import Batch
from headstart.errors import ConfigError
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
            problem = f"a search of width {self.width} cannot give the {self.best} best"
            raise ConfigError(problem, hint="the width is at least the number of texts wanted, and that is 1 or more")
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
    (sources, width), vocab_size = totals.shape, log_probs.shape[1]
    each = min(count, vocab_size)
    best, tokens = top_k(log_probs, each)  # (B * W, each)
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
        # The N best finished hypotheses of each source (B, N), the best first; an empty entry is cut and has the score -inf.
        fields: list[Any] = [("score", np.float32), ("log_probability", np.float32), ("is_cut", bool)]
        self.pool = np.zeros((rows, beam.best), [*fields, ("length", np.int64), ("tokens", np.int64, self.longest)])
        self.pool["score"] = self.pool["log_probability"] = -np.inf
        self.pool["is_cut"] = True
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
            added = np.zeros(over.shape, self.pool.dtype)
            added["log_probability"] = np.where(over, self.totals, np.float32(-np.inf))
            added["score"] = added["log_probability"] / self.penalties[step + 1]
            added["is_cut"] = ~ends | (added["log_probability"] == -np.inf)
            added["length"], added["tokens"] = step + 1, self.histories
            pool = np.concatenate((self.pool, added), axis=1)
            order = np.lexsort((-pool["score"], pool["is_cut"]), axis=1)  # stable: of equal scores the first one stays
            self.pool = np.take_along_axis(pool, order[:, : self.beam.best], 1)
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
            worst = self.pool[:, -1]
            done |= np.where(worst["is_cut"], np.float32(-np.inf), worst["score"]) >= best / largest
        return done

    def _remove(self, done: np.ndarray) -> np.ndarray | None:
        """Remove finished sources and store their results; returns those that are left (B,), None = all of them."""
        count = int(done.sum())
        if not count:
            return None
        if count * MIN_FINISHED < len(done) and self.decoder.max_positions is None:
            self.totals[done] = -np.inf  # removed later, because that copies the cache of the others
            return None
        for number, pool in zip(self.numbers[done].tolist(), self.pool[done].tolist(), strict=True):
            self.found[number] = [
                Hypothesis(tokens[: length - (not is_cut)].tolist(), score, total, is_cut)
                for score, total, is_cut, length, tokens in pool
                if total > -math.inf
            ]
        left = unfinished(done)
        self.numbers, self.limits, self.totals = self.numbers[left], self.limits[left], self.totals[left]
        self.histories = self.histories[left]
        self.pool = self.pool[left]
        return left
