"""BPE-dropout: the same text split in other ways, by leaving merges out at random (Provilkov et al., 2020).

The `tokenizers` package has such a dropout, but its chance cannot be seeded, and a run must be able to go on
exactly where it stopped. So the merges are made here; without dropout they give what the package gives.
"""

import heapq
import json
import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError

REMEMBERED = 500_000  # words whose split without dropout is kept


class MergeDropout:
    """The merges of a BPE tokenizer, made with dropout."""

    def __init__(self, tokenizer: Tokenizer):
        if tokenizer.kind != "bpe":
            raise ConfigError(
                f"training.bpe_dropout needs a bpe tokenizer, and this one is {tokenizer.kind}",
                hint="leave it out, or take training.cutoff, which works with every tokenizer",
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
                    hint="leave it out, or take training.cutoff, which works with every tokenizer",
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
