"""Which tokens to hide: single tokens, whole words, or spans."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

SPAN = 0.2  # chance that a span ends after each token (Joshi et al., 2019)
LONGEST_SPAN = 10


@lru_cache(maxsize=8)
def token_kinds(size: int, special_ids: frozenset[int]) -> tuple[Tensor, Tensor]:
    """Which ids are special (V,), and the ids that are not."""
    is_special = torch.zeros(size, dtype=torch.bool)
    is_special[list(special_ids)] = True
    return is_special, (~is_special).nonzero()[:, 0]


def lowest(values: Tensor, count: int) -> Tensor:
    """Where the `count` lowest of (N,) values stand, in order; of equal ones the first. Nothing need be sorted."""
    if count == 0:
        return torch.zeros(0, dtype=torch.long)
    known = values.numpy()
    border = np.partition(known, count - 1)[count - 1]
    is_low = known <= border
    over = int(np.count_nonzero(is_low)) - count
    if over:
        is_low[np.flatnonzero(known == border)[-over:]] = False
    return torch.from_numpy(np.flatnonzero(is_low))


def choose_tokens(may_hide: Tensor, starts: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """`count` positions, each as likely as any other."""
    lot = torch.rand(may_hide.shape, generator=rng).masked_fill(~may_hide, 2.0)
    return lowest(lot, count)


def choose_groups(groups: Tensor, may_hide: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Positions of whole groups drawn at random until `count` is reached; the last group may be cut."""
    number = int(groups.max()) + 1
    order = torch.rand(number, generator=rng)[groups].masked_fill(~may_hide, 2.0)
    return lowest(order, count)


def choose_words(may_hide: Tensor, starts: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Positions of whole words: a word is a token that starts one and those that go on with it."""
    borders = starts | ~may_hide
    borders = borders | torch.cat((torch.ones(1, dtype=torch.bool), ~may_hide[:-1]))
    return choose_groups(borders.long().cumsum(0) - 1, may_hide, count, rng)


def choose_spans(may_hide: Tensor, starts: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Positions of runs of neighbours, of geometric length."""
    ends = torch.rand(may_hide.shape, generator=rng) < SPAN
    ends[LONGEST_SPAN - 1 :: LONGEST_SPAN] = True
    borders = torch.cat((torch.ones(1, dtype=torch.bool), ends[:-1])) | ~may_hide
    borders = borders | torch.cat((torch.ones(1, dtype=torch.bool), ~may_hide[:-1]))
    return choose_groups(borders.long().cumsum(0) - 1, may_hide, count, rng)


UNITS: dict[str, Callable[[Tensor, Tensor, int, torch.Generator], Tensor]] = {
    "token": choose_tokens,
    "word": choose_words,
    "span": choose_spans,
}
