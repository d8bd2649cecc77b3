"""Splitting text word by word, each different word once: most of a text is words that were split before.

A byte-level tokenizer never joins what stands on two sides of a single space, and how it splits one side does not depend
on the other. So a text is the words between its spaces, each with its space in front, one after the other.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from threading import Lock

import numpy as np
from numpy.typing import NDArray

LONGEST_WORD = 64  # characters; a text with a longer one is split as a whole
MOST_WORDS = 1_000_000  # remembered; then all are forgotten
DOUBTFUL = "\u180e\u200b\ufeff"  # white space to some readers and not to others
LINES = 500  # new words that are split together
UNSAFE = -1

Split = Callable[[list[str]], list[list[int]]]


def splits_by_words(content: str) -> bool:
    """Whether the tokenizer with this JSON text splits a text as it splits its words: byte-level, and nothing else done."""
    layout = json.loads(content)
    model, before = layout["model"], layout.get("pre_tokenizer") or {}
    normal = layout.get("normalizer") or {"type": None}
    return (
        model.get("type") == "BPE"
        and not model.get("dropout")
        and before.get("type") == "ByteLevel"
        and before.get("use_regex", True) is True
        and before.get("add_prefix_space") is False
        and normal["type"] in (None, "Lowercase")
        and all(token["special"] for token in layout.get("added_tokens", []))
    )


class Words:
    """The tokens of every word that was seen, the words that begin a text apart from those after a space."""

    def __init__(self, split: Split):
        self.split, self.lock = split, Lock()
        self.line_end = split(["\n"])[0][0]
        self._forget()

    def _forget(self) -> None:
        self.first: dict[str, int] = {}
        self.later: dict[str, int] = {}
        self.ids = np.zeros(0, np.int32)
        self.sizes = np.zeros(0, np.int64)
        self.starts = np.zeros(0, np.int64)

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids of all texts one after the other, and how many each text has."""
        with self.lock:  # a server's threads share one tokenizer
            return self._encode(texts)

    def _encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        words = [text.split(" ") for text in texts]
        self._learn(words)
        first, later = self.first, self.later
        places = np.fromiter(
            chain.from_iterable((first[own[0]], *map(later.__getitem__, own[1:])) for own in words), np.int64
        )
        counts = np.fromiter(map(len, words), np.int64, len(words))
        if len(places) and places.min() == UNSAFE:
            return self._in_part(texts, places, counts)
        return self._joined(places, counts)

    def _joined(
        self, places: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The tokens of known words; `counts` are the words of each text, none of which is empty."""
        sizes = self.sizes[places]
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        spots = np.repeat(self.starts[places] - (ends - sizes), sizes) + np.arange(total)
        borders = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(counts)])]
        return self.ids[spots], np.diff(borders)

    def _in_part(
        self, texts: Sequence[str], places: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The same where some texts hold what words cannot tell: those are split as a whole."""
        owners = np.repeat(np.arange(len(texts)), counts)
        whole = np.unique(owners[places == UNSAFE])
        is_whole = np.zeros(len(texts), bool)
        is_whole[whole] = True
        ids, sizes = self._joined(places[~is_whole[owners]], counts[~is_whole])
        known = iter(np.split(ids, np.cumsum(sizes)[:-1]) if len(sizes) else [])
        split = iter(self.split([texts[number] for number in whole]))
        rows = [np.array(next(split), np.int32) if one else next(known) for one in is_whole]
        return np.concatenate([np.zeros(0, np.int32), *rows]), np.array([len(row) for row in rows], np.int64)

    def _learn(self, words: list[list[str]]) -> None:
        """Split the words that are new."""
        if len(self.sizes) > MOST_WORDS:
            self._forget()
        self._add(self.first, {own[0] for own in words} - self.first.keys(), "")
        later: set[str] = set()
        later.update(*words)
        self._add(self.later, later - self.later.keys(), " ")

    def _add(self, known: dict[str, int], fresh: Iterable[str], before: str) -> None:
        safe = []
        for word in fresh:
            if _is_safe(word):
                safe.append(before + word)
            else:
                known[word] = UNSAFE
        if not safe:
            return
        lines = [word for word in safe if "\n" not in word]
        others = [word for word in safe if "\n" in word] if len(lines) < len(safe) else []
        count, skip = len(self.sizes), len(before)
        known.update((word[skip:], count + place) for place, word in enumerate([*lines, *others]))
        for ids, sizes in (self._split_lines(lines), _flat(self.split(others))):
            self.ids, self.sizes = np.concatenate([self.ids, ids]), np.concatenate([self.sizes, sizes])
        self.starts = np.cumsum(self.sizes) - self.sizes

    def _split_lines(self, words: list[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The tokens of many words, split as texts of lines: a line end is always a token of its own."""
        texts = ["\n".join(words[at : at + LINES]) + "\n" for at in range(0, len(words), LINES)]
        ids, _ = _flat(self.split(texts))
        ends = np.flatnonzero(ids == self.line_end)
        assert len(ends) == len(words), "a line end was joined to its neighbours"
        return np.delete(ids, ends), np.diff(ends, prepend=-1) - 1


def _flat(rows: list[list[int]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Rows one after the other, and how long each is."""
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    return np.fromiter(chain.from_iterable(rows), np.int32, int(sizes.sum())), sizes


def _is_safe(word: str) -> bool:
    """Whether nothing but the space decides where the word begins and ends."""
    if not 0 < len(word) <= LONGEST_WORD:
        return False
    first, last = word[0], word[-1]
    return not (first.isspace() or last.isspace() or first in DOUBTFUL or last in DOUBTFUL)
