"""Training texts as each epoch reads them: split anew, with tokens taken out; a pure function of seed and epoch."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from headstart.batch import Row
from headstart.config import DataConfig, TrainingConfig
from headstart.data.bpe_dropout import MergeDropout
from headstart.data.loader import Loader, TextLoader
from headstart.data.tokenizer import Tokenizer

SPLITTING, CUTTING = 1, 2  # what a chance is for, so that the two never share one


class FreshLoader:
    """Rows that `read` gives anew for each epoch, in the batches of a `TextLoader`."""

    def __init__(
        self,
        read: Callable[[int], Sequence[Row]],
        batch_tokens: int,
        batch_examples: int | None = None,
        seed: int = 0,
    ):
        self.in_epoch = lru_cache(maxsize=2)(
            lambda epoch: TextLoader(read(epoch), batch_tokens, batch_examples, seed)
        )
        self.counts: dict[int, int] = {}

    def count(self, epoch: int) -> int:
        """How many batches an epoch has."""
        if epoch not in self.counts:
            self.counts[epoch] = self.in_epoch(epoch).count(epoch)
        return self.counts[epoch]

    def batches(self, epoch: int) -> list[np.ndarray]:
        """The row numbers of each batch of an epoch, in order."""
        return self.in_epoch(epoch).batches(epoch)

    def fetch(self, numbers: np.ndarray, epoch: int) -> list[Row]:
        """The rows with these numbers, as that epoch reads them."""
        return self.in_epoch(epoch).fetch(numbers, epoch)


def training_loader(
    rows: Sequence[Row],
    texts: Sequence[str],
    tokenizer: Tokenizer,
    training: TrainingConfig,
    data: DataConfig,
) -> Loader:
    """The loader of the rows to learn from; they are the same in every epoch unless the settings say otherwise."""
    sizes = (training.batch_tokens, training.batch_examples, training.seed)
    if not training.bpe_dropout and not training.cutoff:
        return TextLoader(rows, *sizes)
    reads: list[Callable[[Sequence[Row], int], Sequence[Row]]] = []
    if training.bpe_dropout:
        dropout = dropout_of(tokenizer)
        words = dropout.words(texts)

        def split(rows: Sequence[Row], epoch: int) -> list[Row]:
            return [
                Row(
                    tokenizer.frame(
                        dropout.split(
                            own, training.bpe_dropout, _chance(training.seed, epoch, number, SPLITTING)
                        ),
                        training.length,
                        data.keep,
                    ),
                    row.label,
                )
                for number, (row, own) in enumerate(zip(rows, words, strict=True))
            ]

        reads.append(split)
    if training.cutoff:
        is_special = np.zeros(tokenizer.size, dtype=bool)
        is_special[list(tokenizer.special_ids)] = True
        reads.append(
            lambda rows, epoch: [
                cut_off(row, training.cutoff, is_special, _chance(training.seed, epoch, number, CUTTING))
                for number, row in enumerate(rows)
            ]
        )

    def read(epoch: int) -> Sequence[Row]:
        changed = rows
        for change in reads:
            changed = change(changed, epoch)
        return changed

    return FreshLoader(read, *sizes)


@lru_cache(maxsize=4)
def dropout_of(tokenizer: Tokenizer) -> MergeDropout:
    """One for each tokenizer, so that the models of a comparison share what it remembers."""
    return MergeDropout(tokenizer)


def check_dropout(tokenizer: Tokenizer, texts: Sequence[str], training: TrainingConfig) -> None:
    """Refuse a tokenizer that the settings ask too much of, by its kind and by a look at a few texts."""
    if training.bpe_dropout:
        dropout_of(tokenizer).words(texts[:20])


def cut_off(row: Row, rate: float, is_special: np.ndarray, chance: np.random.Generator) -> Row:
    """The row without a random `rate` of its ordinary tokens: specials stay, and so does one ordinary token.

    Token cut-off (Shen et al., 2020) sets a token's vector to zero and hides it from attention. Here it is taken out
    and the others close up: nothing in any body, causal or recurrent, and no pooling can then see that it was there.
    """
    ordinary = np.flatnonzero(~is_special[row.tokens])
    count = min(round(rate * len(ordinary)), len(ordinary) - 1)
    if count < 1:
        return row
    gone = chance.choice(ordinary, count, replace=False)
    segments = None if row.segments is None else np.delete(row.segments, gone)
    return Row(np.delete(row.tokens, gone), row.label, segments)


def _chance(seed: int, epoch: int, number: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, epoch, number, purpose]))
