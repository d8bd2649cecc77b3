"""Each token's part in a text's label, by leaving it out (Zeiler and Fergus, 2014; Li et al., 2016)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headstart.batch import Row

Scores = Callable[[Sequence[Row]], np.ndarray]  # rows to the score of every class (N, C)


@dataclass(frozen=True)
class Parts:
    """What the log-odds of a label lose without each token of a row, its two ends excepted.

    Parts add up to `whole` where every token counts by itself, as in a bag of words; where tokens count together they
    need not, and the difference is what only their company explains.
    """

    label: int
    parts: np.ndarray  # (T - 2,), in nats
    whole: float  # the log-odds less those of a text without tokens


def leave_one_out(row: Row, label: int, scores: Scores) -> Parts:
    """The part of each token between a row's two ends in `label`."""
    tokens = row.tokens
    shorter = [Row(np.delete(tokens, place)) for place in range(1, len(tokens) - 1)]
    found = log_odds(scores([row, Row(tokens[[0, -1]]), *shorter]), label)
    return Parts(label, found[0] - found[2:], float(found[0] - found[1]))


def log_odds(scores: np.ndarray, label: int) -> np.ndarray:
    """How much likelier `label` is than all other classes together, as a logarithm (N,), from scores (N, C)."""
    exact = scores.astype(np.float64)
    others = np.delete(exact, label, axis=1)
    top = others.max(axis=1, keepdims=True)
    return exact[:, label] - top[:, 0] - np.log(np.exp(others - top).sum(axis=1))
