"""Pairs to learn translation from, split anew each epoch by BPE-dropout (Provilkov et al., 2020) on both sides."""

from collections.abc import Sequence

import numpy as np

from headstart.batch import Row
from headstart.config import TrainingConfig
from headstart.data.fresh_loader import check_dropout, dropout_of
from headstart.data.loader import Loader, TextLoader
from headstart.data.parallel import PairExample
from headstart.data.tokenizer import Tokenizer

Sides = tuple[Tokenizer, Tokenizer]  # what splits translations, and what splits sources


def translation_loader(
    rows: Sequence[Row], examples: Sequence[PairExample], tokenizers: Sides, training: TrainingConfig
) -> Loader:
    """The loader of the rows to learn from; they are the same in every epoch unless the settings say otherwise."""
    if not training.bpe_dropout:
        return TextLoader(rows, training.batch_tokens, training.batch_examples, training.seed)
    return SplitAnewLoader(rows, examples, tokenizers, training)


def check_both(examples: Sequence[PairExample], tokenizers: Sides, training: TrainingConfig) -> None:
    """Refuse tokenizers that BPE-dropout cannot split for, before anything is written."""
    for tokenizer, texts in zip(tokenizers, _texts(examples), strict=True):
        check_dropout(tokenizer, texts, training)


def _texts(examples: Sequence[PairExample]) -> tuple[list[str], list[str]]:
    return [example.target for example in examples], [example.source for example in examples]


class SplitAnewLoader(TextLoader):
    """Batches are those of the plain rows, so that an epoch is counted without splitting; rows are split when fetched.

    What dropout adds to a batch comes on top of its budget; a pair that it makes too long is read as it was.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        examples: Sequence[PairExample],
        tokenizers: Sides,
        training: TrainingConfig,
    ):
        super().__init__(rows, training.batch_tokens, training.batch_examples, training.seed)
        assert len(rows) == len(examples), (len(rows), len(examples))
        self.tokenizers, self.rate, self.longest = tokenizers, training.bpe_dropout, training.length
        self.dropouts = [dropout_of(tokenizer) for tokenizer in tokenizers]
        self.words = [
            dropout.words(texts) for dropout, texts in zip(self.dropouts, _texts(examples), strict=True)
        ]

    def fetch(self, numbers: np.ndarray, epoch: int) -> list[Row]:
        """The pairs with these numbers, as they are split in that epoch."""
        return [self._split(int(number), epoch) for number in numbers]

    def _split(self, number: int, epoch: int) -> Row:
        chance = np.random.Generator(np.random.PCG64([self.seed, epoch, number]))
        target, source = (
            tokenizer.frame(ids := dropout.split(words[number], self.rate, chance), len(ids) + 2)
            for tokenizer, dropout, words in zip(self.tokenizers, self.dropouts, self.words, strict=True)
        )
        is_long = max(len(target), len(source)) > self.longest
        return self.rows[number] if is_long else Row(target, source=source)
