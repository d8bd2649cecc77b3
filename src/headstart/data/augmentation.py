"""Augmentation of training texts in each epoch: BPE-dropout (Provilkov et al., 2020) and token cutoff."""

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from headstart.batch import EncodedExample, TextLoader
from headstart.config import DataConfig, TrainingConfig
from headstart.data.parallel import PairExample
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError

REMEMBERED = 500_000  # words whose split without dropout is cached
NO_MERGE = 2**31  # the rank of a pair that is not merged
DROPOUT, CUTOFF = 1, 2  # what a random generator is for, so that the two never share one
NO_DROPOUT = "leave it out, or take training.token_cutoff, which works with every tokenizer"


class BPEDropout:
    """A BPE tokenizer that drops merges at random."""

    def __init__(self, tokenizer: Tokenizer):
        if tokenizer.kind != "bpe":
            problem = f"training.bpe_dropout needs a bpe tokenizer, and this one is {tokenizer.kind}"
            raise ConfigError(problem, hint=NO_DROPOUT)
        layout = json.loads(tokenizer.engine.files()["tokenizer.json"])
        self.vocabulary: dict[str, int] = layout["model"]["vocab"]
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in layout["model"]["merges"]]
        number = self.vocabulary
        prefix = len(layout["model"].get("continuing_subword_prefix") or "")
        self.merges = [(number[a], number[b], number[a + b[prefix:]]) for a, b in merges]  # by rank
        self.rank = {(left, right): rank for rank, (left, right, _) in enumerate(self.merges)}
        self.tokenizer = tokenizer
        self._whole: dict[str, tuple[int, list[int]]] = {}  # word -> merges made, ids, without dropout

    def words(self, texts: Sequence[str]) -> list[list[str]]:
        """Each text as the words inside which merges are made; an error when the tokenizer splits in another way."""
        found = [self._words(text) for text in texts]
        for words, ids in zip(found, self.tokenizer.encode(texts), strict=True):
            if not all(word in self._whole or set(word) <= self.vocabulary.keys() for word in words) or (
                [number for word in words for number in self._plain(word)[1]] != ids.tolist()
            ):
                problem = "this tokenizer does more than merge pairs, so training.bpe_dropout cannot split for it"
                raise ConfigError(problem, hint=NO_DROPOUT)
        return found

    def _words(self, text: str) -> list[str]:
        rust = getattr(self.tokenizer.engine, "rust")  # noqa: B009 - only the learned kind has one
        if rust.normalizer is not None:
            text = rust.normalizer.normalize_str(text)
        if rust.pre_tokenizer is None:
            return [text] if text else []
        return [word for word, _ in rust.pre_tokenizer.pre_tokenize_str(text)]

    def _plain(self, word: str) -> tuple[int, list[int]]:
        """How many merges a word takes without dropout, and its ids."""
        if word not in self._whole:
            if len(self._whole) >= REMEMBERED:
                self._whole.clear()
            ids = self._merged(word, math.inf, 0.0, None)
            self._whole[word] = (len(word) - len(ids), ids)
        return self._whole[word]

    def split(self, words: Sequence[str], rate: float, random: np.random.Generator) -> list[int]:
        """The ids of a text's words; at each step the best merge that is not dropped is made."""
        if not rate:
            return [number for word in words for number in self._plain(word)[1]]
        ids: list[int] = []
        certain = random.geometric(rate, len(words)) - 1  # merges that a word makes before one is dropped
        for word, count in zip(words, certain.tolist(), strict=True):
            needed, plain = self._plain(word)
            ids += plain if count >= needed else self._merged(word, count, rate, random)
        return ids

    def _merged(self, word: str, certain: float, rate: float, random: np.random.Generator | None) -> list[int]:
        """A word's ids: the first `certain` merges are made, and from then on each is dropped at `rate`.

        Dropped merges are candidates again after the next merge: what is drawn is the set at each step.
        """
        symbols = [self.vocabulary[character] for character in word]
        ranks = [self.rank.get(pair, NO_MERGE) for pair in pairwise(symbols)]
        while (best := min(ranks, default=NO_MERGE)) != NO_MERGE:
            at = ranks.index(best)
            if certain == 0:
                assert random is not None
                possible = sorted((rank, at) for at, rank in enumerate(ranks) if rank != NO_MERGE)
                dropped = int(random.geometric(1 - rate))
                if dropped >= len(possible):
                    break
                at, certain = possible[dropped][1], int(random.geometric(rate))
            certain -= 1
            symbols[at : at + 2] = [self.merges[ranks[at]][2]]
            ranks[at : at + 1] = []
            for first in range(max(at - 1, 0), min(at + 1, len(ranks))):
                ranks[first] = self.rank.get((symbols[first], symbols[first + 1]), NO_MERGE)
        return symbols


@lru_cache(maxsize=4)
def bpe_dropout_of(tokenizer: Tokenizer) -> BPEDropout:
    """One for each tokenizer, so that the models of a comparison share its cache."""
    return BPEDropout(tokenizer)


def check_bpe_dropout(tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    """Refuse a tokenizer that BPE-dropout does not work with, by a sample of the texts."""
    bpe_dropout_of(tokenizer).words(texts[:20])


def token_cutoff(
    row: EncodedExample, rate: float, is_special: np.ndarray, random: np.random.Generator
) -> EncodedExample:
    """The row without a random `rate` of its ordinary tokens, of which at least one remains.

    Token cutoff (Shen et al., 2020) sets a token's vector to zero and masks it in attention. Here the token is
    removed, which works for every backbone and pooling.
    """
    ordinary = np.flatnonzero(~is_special[row.tokens])
    count = min(round(rate * len(ordinary)), len(ordinary) - 1)
    if count < 1:
        return row
    gone = random.choice(ordinary, count, replace=False)
    segments = None if row.segments is None else np.delete(row.segments, gone)
    return EncodedExample(np.delete(row.tokens, gone), row.label, segments)


class AugmentedTextLoader:
    """Rows that are augmented again for each epoch, in the batches of a `TextLoader`."""

    def __init__(
        self,
        rows: Sequence[EncodedExample],
        texts: Sequence[str],
        tokenizer: Tokenizer,
        training: TrainingConfig,
        data: DataConfig,
    ):
        self.rows, self.tokenizer, self.training, self.data = rows, tokenizer, training, data
        if training.bpe_dropout:
            self.dropout = bpe_dropout_of(tokenizer)
            self.words = self.dropout.words(texts)
        self.is_special = np.zeros(tokenizer.size, dtype=bool)
        self.is_special[list(tokenizer.special_ids)] = True
        self.in_epoch = lru_cache(maxsize=2)(self._make_epoch)
        self.count = lru_cache(maxsize=None)(lambda epoch: self.in_epoch(epoch).count(epoch))

    def _make_epoch(self, epoch: int) -> TextLoader:
        rows = [self._augment(number, epoch) for number in range(len(self.rows))]
        training = self.training
        return TextLoader(rows, training.tokens_per_batch, training.batch_size, training.seed)

    def _augment(self, number: int, epoch: int) -> EncodedExample:
        row, training = self.rows[number], self.training
        if training.bpe_dropout:
            random = np.random.default_rng((training.seed, epoch, number, DROPOUT))
            ids = self.dropout.split(self.words[number], training.bpe_dropout, random)
            tokens = self.tokenizer.add_special_tokens(ids, training.max_length, self.data.truncation_side)
            row = EncodedExample(tokens, row.label)
        if training.token_cutoff:
            random = np.random.default_rng((training.seed, epoch, number, CUTOFF))
            row = token_cutoff(row, training.token_cutoff, self.is_special, random)
        return row

    def batches(self, epoch: int) -> list[np.ndarray]:
        """The row numbers of each batch of an epoch, in order."""
        return self.in_epoch(epoch).batches(epoch)

    def fetch(self, numbers: np.ndarray, epoch: int) -> list[EncodedExample]:
        """The rows with these numbers, as that epoch augments them."""
        return self.in_epoch(epoch).fetch(numbers, epoch)


Tokenizers = tuple[Tokenizer, Tokenizer]  # of the target and of the source


class AugmentedPairLoader(TextLoader):
    """The batches of the plain rows, which are split with BPE-dropout when they are fetched.

    The tokens that dropout adds may exceed the budget of a batch; a pair that becomes too long is read without dropout.
    """

    def __init__(
        self,
        rows: Sequence[EncodedExample],
        examples: Sequence[PairExample],
        tokenizers: Tokenizers,
        training: TrainingConfig,
    ):
        super().__init__(rows, training.tokens_per_batch, training.batch_size, training.seed)
        assert len(rows) == len(examples), (len(rows), len(examples))
        self.tokenizers, self.rate, self.longest = tokenizers, training.bpe_dropout, training.max_length
        sides = [example.target for example in examples], [example.source for example in examples]
        self.dropouts = [bpe_dropout_of(tokenizer) for tokenizer in tokenizers]
        self.words = [dropout.words(texts) for dropout, texts in zip(self.dropouts, sides, strict=True)]

    def fetch(self, numbers: np.ndarray, epoch: int) -> list[EncodedExample]:
        """The pairs with these numbers, as they are split in that epoch."""
        return [self._split(int(number), epoch) for number in numbers]

    def _split(self, number: int, epoch: int) -> EncodedExample:
        random = np.random.default_rng((self.seed, epoch, number))
        target, source = (
            tokenizer.add_special_tokens(ids := dropout.split(words[number], self.rate, random), len(ids) + 2)
            for tokenizer, dropout, words in zip(self.tokenizers, self.dropouts, self.words, strict=True)
        )
        is_long = max(len(target), len(source)) > self.longest
        return self.rows[number] if is_long else EncodedExample(target, source=source)
