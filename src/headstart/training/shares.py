"""Which rows of a step a process reads, so that many together read what one would alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headstart.batch import Batch
from headstart.data.samplers import Loader
from headstart.objectives.base import Alphabet, Objective
from headstart.training.runtime import generator_for


@dataclass(frozen=True)
class Share:
    """Rows of one batch of a step: the slice called `number` of `count` even ones."""

    batch: int
    number: int = 0
    count: int = 1

    def rows(self, whole: int) -> tuple[int, int]:
        """The first row, and the one after the last, of a batch of `whole` rows."""
        return whole * self.number // self.count, whole * (self.number + 1) // self.count


def shares(batches: int, rank: int, count: int) -> list[Share]:
    """The shares of one process in a step of so many batches; all processes have equally many.

    Whole batches go round as long as there is one for each process; those that are left are cut.
    """
    whole = batches // count * count
    dealt = [Share(at + rank) for at in range(0, whole, count)]
    return dealt + [Share(at, rank, count) for at in range(whole, batches)]


def collate_share(
    share: Share,
    numbers: Sequence[np.ndarray],
    epoch: int,
    objective: Objective,
    loader: Loader,
    alphabet: Alphabet,
    chance: tuple[int, ...],
) -> Batch:
    """The share's rows as a batch, asked what they would be asked among all rows; idle where it has none.

    `numbers` are the rows of each batch of the step, and `chance` decides the questions.
    """
    own = numbers[share.batch]
    rng = generator_for(*chance, *((share.batch,) if share.batch else ()))
    start, stop = share.rows(len(own))
    is_idle = start == stop
    if is_idle:
        start, stop = 0, 1
    if share.count > 1 and objective.asks_by_row:
        batch = objective.collate(loader.fetch(own[start:stop], epoch), alphabet, rng)
    else:
        batch = objective.collate(loader.fetch(own, epoch), alphabet, rng)
        batch = batch if share.count == 1 else batch.rows(start, stop)
    return replace(batch, is_idle=True) if is_idle else batch
