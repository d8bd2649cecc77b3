"""Several corpora read at their own rates: which rows an epoch takes of each is a pure function of seed and epoch."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from headstart.batch import Row
from headstart.data.loader import Loader
from headstart.errors import DataError


class MixedLoader:
    """Rows of several loaders in one order; an epoch is one pass over a loader of weight 1.

    Each loader's passes are laid end to end, and an epoch takes the next `weight` passes of them. So a fraction
    leaves nothing out: what one epoch does not reach, the next one reads.
    """

    def __init__(self, loaders: Sequence[Loader], weights: Sequence[float], rows_per_batch: int, seed: int):
        self.loaders, self.rows_per_batch, self.seed = list(loaders), rows_per_batch, seed
        self.sizes = [sum(len(batch) for batch in loader.batches(0)) for loader in loaders]  # rows of a pass
        # A weight as it is written: 0.1 is a tenth, though its binary neighbour is not.
        self.paces = [Fraction(repr(float(w))) * size for w, size in zip(weights, self.sizes, strict=True)]
        if not any(int(pace) for pace in self.paces):
            raise DataError("with these weights an epoch holds no row", hint="give larger weights")

    def _span(self, number: int, epoch: int) -> tuple[int, int]:
        """Where in its endless passes the epoch begins and ends for one loader."""
        pace = self.paces[number]
        return int(epoch * pace), int((epoch + 1) * pace)

    def count(self, epoch: int) -> int:
        """How many batches an epoch has."""
        rows = sum(stop - start for start, stop in (self._span(n, epoch) for n in range(len(self.loaders))))
        return -(-rows // self.rows_per_batch)

    def batches(self, epoch: int) -> list[np.ndarray]:
        """Rows of all loaders, shuffled together and grouped."""
        numbers = np.concatenate([self._rows(number, epoch) for number in range(len(self.loaders))])
        chance = np.random.Generator(np.random.PCG64([self.seed, epoch, 1]))
        numbers = numbers[chance.permutation(len(numbers))]
        return [numbers[at : at + self.rows_per_batch] for at in range(0, len(numbers), self.rows_per_batch)]

    def _rows(self, number: int, epoch: int) -> np.ndarray:
        """The epoch's rows of one loader; a row's number tells its loader, its pass and its number there."""
        size, (start, stop) = self.sizes[number], self._span(number, epoch)
        found = [np.zeros(0, np.int64)]
        for turn in range(start // size, -(-stop // size)) if size else ():
            order = np.concatenate(self.loaders[number].batches(turn)).astype(np.int64)
            kept = order[max(start - turn * size, 0) : stop - turn * size]
            found.append((turn * size + kept) * len(self.loaders) + number)
        return np.concatenate(found)

    def fetch(self, numbers: np.ndarray, epoch: int) -> list[Row]:
        """The rows with these numbers."""
        places, owners = np.divmod(numbers, len(self.loaders))
        turns, own = np.divmod(places, np.array(self.sizes)[owners])
        rows: dict[int, Row] = {}
        for owner, turn in sorted(set(zip(owners.tolist(), turns.tolist(), strict=True))):
            at = np.flatnonzero((owners == owner) & (turns == turn))
            rows.update(zip(at.tolist(), self.loaders[owner].fetch(own[at], turn), strict=True))
        return [rows[at] for at in range(len(numbers))]
