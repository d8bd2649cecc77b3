"""Pairs to learn translation from, split anew each epoch by BPE-dropout (Provilkov et al., 2020) on both sides."""

import heapq
import json
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from headstart.batch import EncodedExample
from headstart.config import DataConfig, TrainingConfig
from headstart.data.parallel import PairExample
from headstart.data.samplers import Loader, TextLoader
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError

REMEMBERED = 500_000  # words whose split without dropout is kept


class MergeDropout:
    """The merges of a BPE tokenizer, made with dropout."""

    def __init__(self, tokenizer: Tokenizer):
        if tokenizer.kind != "bpe":
            raise ConfigError(
                f"training.bpe_dropout needs a bpe tokenizer, and this one is {tokenizer.kind}",
                hint="leave it out, or take training.token_cutoff, which works with every tokenizer",
            )
        layout = json.loads(tokenizer.engine.files()["tokenizer.json"])
        self.vocabulary: dict[str, int] = layout["model"]["vocab"]
        merges = [
            merge.split(" ") if isinstance(merge, str) else merge for merge in layout["model"]["merges"]
        ]
        number = self.vocabulary
        prefix = len(layout["model"].get("continuing_subword_prefix") or "")
        self.merges = [(number[a], number[b], number[a + b[prefix:]]) for a, b in merges]  # by rank
        self.rank = {(left, right): rank for rank, (left, right, _) in enumerate(self.merges)}
        self.tokenizer = tokenizer
        self._whole: dict[str, tuple[int, list[int]]] = {}  # word -> merges made, ids, without dropout

    def words(self, texts: Sequence[str]) -> list[list[str]]:
        """Each text as the words inside which merges are made; refused when the tokenizer splits in another way."""
        found = [self._words(text) for text in texts]
        for words, ids in zip(found, self.tokenizer.encode(texts), strict=True):
            if not all(word in self._whole or self._is_spelt(word) for word in words) or (
                [number for word in words for number in self._plain(word)[1]] != ids.tolist()
            ):
                raise ConfigError(
                    "this tokenizer does more than merge pairs, so training.bpe_dropout cannot split for it",
                    hint="leave it out, or take training.token_cutoff, which works with every tokenizer",
                )
        return found

    def _words(self, text: str) -> list[str]:
        rust = getattr(self.tokenizer.engine, "rust")  # noqa: B009 - only the learned kind has one
        if rust.normalizer is not None:
            text = rust.normalizer.normalize_str(text)
        if rust.pre_tokenizer is None:
            return [text] if text else []
        return [word for word, _ in rust.pre_tokenizer.pre_tokenize_str(text)]

    def _is_spelt(self, word: str) -> bool:
        return all(character in self.vocabulary for character in word)

    def _plain(self, word: str) -> tuple[int, list[int]]:
        """How many merges a word takes without dropout, and its ids."""
        if word not in self._whole:
            if len(self._whole) >= REMEMBERED:
                self._whole.clear()
            ids = self._merged(word, math.inf, 0.0, None)
            self._whole[word] = (len(word) - len(ids), ids)
        return self._whole[word]

    def split(self, words: Sequence[str], rate: float, chance: np.random.Generator) -> list[int]:
        """The ids of a text's words; at each turn the best merge is made of those that dropout has left."""
        if not rate:
            return [number for word in words for number in self._plain(word)[1]]
        ids: list[int] = []
        before = chance.geometric(rate, len(words)) - 1  # merges that a word makes before one is left out
        for word, kept in zip(words, before.tolist(), strict=True):
            needed, plain = self._plain(word)
            ids += plain if kept >= needed else self._merged(word, kept, rate, chance)
        return ids

    def _merged(self, word: str, kept: float, rate: float, chance: np.random.Generator | None) -> list[int]:
        """A word's ids once `kept` merges were made for sure and, from then on, each left out at `rate`.

        Merges left out come back after the next one is made: what is drawn is the set at each turn.
        """
        symbols = [self.vocabulary[character] for character in word]
        end = len(symbols)
        after, before = list(range(1, end + 1)), list(range(-1, end - 1))
        found = ((self.rank.get(pair), at) for at, pair in enumerate(pairwise(symbols)))
        heap = [(rank, at) for rank, at in found if rank is not None]
        heapq.heapify(heap)
        aside: list[tuple[int, int]] = []
        left_out = -1  # merges still to leave out; not drawn yet
        while heap:
            rank, at = heapq.heappop(heap)
            left, right, new = self.merges[rank]
            follows = after[at]
            if symbols[at] != left or follows >= end or symbols[follows] != right:
                continue  # one of the two was merged otherwise since
            if kept == 0:
                assert chance is not None
                left_out = int(chance.geometric(1 - rate)) if left_out < 0 else left_out
                if left_out:
                    aside.append((rank, at))
                    left_out -= 1
                    continue
                kept, left_out = int(chance.geometric(rate)), -1
            kept -= 1
            symbols[at], symbols[follows] = new, -1
            after[at] = after[follows]
            if after[at] < end:
                before[after[at]] = at
            for first, second in ((before[at], at), (at, after[at])):
                if first >= 0 and second < end:
                    next_rank = self.rank.get((symbols[first], symbols[second]))
                    if next_rank is not None:
                        heapq.heappush(heap, (next_rank, first))
            for entry in aside:
                heapq.heappush(heap, entry)
            aside.clear()
        return [symbol for symbol in symbols if symbol >= 0]


SPLITTING, CUTTING = 1, 2  # what a chance is for, so that the two never share one


class FreshLoader:
    """Rows that `read` gives anew for each epoch, in the batches of a `TextLoader`."""

    def __init__(
        self,
        read: Callable[[int], Sequence[EncodedExample]],
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

    def fetch(self, numbers: np.ndarray, epoch: int) -> list[EncodedExample]:
        """The rows with these numbers, as that epoch reads them."""
        return self.in_epoch(epoch).fetch(numbers, epoch)


def training_loader(
    rows: Sequence[EncodedExample],
    texts: Sequence[str],
    tokenizer: Tokenizer,
    training: TrainingConfig,
    data: DataConfig,
) -> Loader:
    """The loader of the rows to learn from; they are the same in every epoch unless the settings say otherwise."""
    sizes = (training.tokens_per_batch, training.batch_size, training.seed)
    if not training.bpe_dropout and not training.token_cutoff:
        return TextLoader(rows, *sizes)
    reads: list[Callable[[Sequence[EncodedExample], int], Sequence[EncodedExample]]] = []
    if training.bpe_dropout:
        dropout = dropout_of(tokenizer)
        words = dropout.words(texts)

        def split(rows: Sequence[EncodedExample], epoch: int) -> list[EncodedExample]:
            return [
                EncodedExample(
                    tokenizer.frame(
                        dropout.split(
                            own, training.bpe_dropout, _chance(training.seed, epoch, number, SPLITTING)
                        ),
                        training.max_length,
                        data.truncation_side,
                    ),
                    row.label,
                )
                for number, (row, own) in enumerate(zip(rows, words, strict=True))
            ]

        reads.append(split)
    if training.token_cutoff:
        is_special = np.zeros(tokenizer.size, dtype=bool)
        is_special[list(tokenizer.special_ids)] = True
        reads.append(
            lambda rows, epoch: [
                cut_off(
                    row, training.token_cutoff, is_special, _chance(training.seed, epoch, number, CUTTING)
                )
                for number, row in enumerate(rows)
            ]
        )

    def read(epoch: int) -> Sequence[EncodedExample]:
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


def cut_off(
    row: EncodedExample, rate: float, is_special: np.ndarray, chance: np.random.Generator
) -> EncodedExample:
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
    return EncodedExample(np.delete(row.tokens, gone), row.label, segments)


def _chance(seed: int, epoch: int, number: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, epoch, number, purpose]))


Sides = tuple[Tokenizer, Tokenizer]  # what splits translations, and what splits sources


def translation_loader(
    rows: Sequence[EncodedExample],
    examples: Sequence[PairExample],
    tokenizers: Sides,
    training: TrainingConfig,
) -> Loader:
    """The loader of the rows to learn from; they are the same in every epoch unless the settings say otherwise."""
    if not training.bpe_dropout:
        return TextLoader(rows, training.tokens_per_batch, training.batch_size, training.seed)
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
        rows: Sequence[EncodedExample],
        examples: Sequence[PairExample],
        tokenizers: Sides,
        training: TrainingConfig,
    ):
        super().__init__(rows, training.tokens_per_batch, training.batch_size, training.seed)
        assert len(rows) == len(examples), (len(rows), len(examples))
        self.tokenizers, self.rate, self.longest = tokenizers, training.bpe_dropout, training.max_length
        self.dropouts = [dropout_of(tokenizer) for tokenizer in tokenizers]
        self.words = [
            dropout.words(texts) for dropout, texts in zip(self.dropouts, _texts(examples), strict=True)
        ]

    def fetch(self, numbers: np.ndarray, epoch: int) -> list[EncodedExample]:
        """The pairs with these numbers, as they are split in that epoch."""
        return [self._split(int(number), epoch) for number in numbers]

    def _split(self, number: int, epoch: int) -> EncodedExample:
        chance = np.random.Generator(np.random.PCG64([self.seed, epoch, number]))
        target, source = (
            tokenizer.frame(ids := dropout.split(words[number], self.rate, chance), len(ids) + 2)
            for tokenizer, dropout, words in zip(self.tokenizers, self.dropouts, self.words, strict=True)
        )
        is_long = max(len(target), len(source)) > self.longest
        return self.rows[number] if is_long else EncodedExample(target, source=source)
