"""Splitting text word by word, each different word once: most of a text is words that were split before.

A byte-level tokenizer never joins what stands on two sides of a single space or line end, and how it splits one side does
not depend on the other. So a text is the words between those, each with what stands in front of it, one after the other.
"""

import json
from collections.abc import Callable, Sequence
from itertools import chain
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from headstart.data.dataset import WHITE_SPACE
from headstart.data.word_table import LONGEST, ROOM, WordTable, make_keys

LONGEST_WORD = 64  # bytes; a text with a longer one is split as a whole
MOST_WORDS = 1_000_000  # remembered; then all are forgotten
EDGES = WHITE_SPACE + "\u180e\u200b\ufeff"  # white space, to some readers at least: no word begins or ends with it
LINES = 500  # new words that are split together
SPACE, LINE_END = ord(" "), ord("\n")
FIRST, AFTER_SPACE, AFTER_LINE = range(3)  # marks of words, by what stands in front of them
UNSAFE = -1  # tokens of a word that is split only with the text around it

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
    """The tokens of every word that was seen, apart by what they follow: nothing, a space or a line end.

    A word is known by a number. Number 0 is what words cannot tell: a text that holds it is split as a whole.
    """

    def __init__(self, split: Split):
        self.split, self.lock = split, Lock()
        self.line_end = split(["\n"])[0][0]
        self._forget()

    def _forget(self) -> None:
        self.short = WordTable()
        self.long: dict[bytes, int] = {}
        self.ids = np.zeros(0, np.int32)
        self.sizes = np.full(1, UNSAFE, np.int64)  # tokens of each word
        self.starts = np.zeros(1, np.int64)  # where they begin in `ids`

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids of all texts one after the other, and how many each text has."""
        if not texts:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        with self.lock:  # a server's threads share one tokenizer
            return self._encode(texts)

    def _encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        raw = [text.encode("utf-8") for text in texts]
        joined = b" ".join(raw) + b" " * ROOM
        ends = _word_ends(np.frombuffer(joined, np.uint8)[: 1 - ROOM])
        starts = np.concatenate([[0], ends[:-1] + 1])
        lengths = np.fromiter(map(len, raw), np.int64, len(raw)) + 1
        firsts = np.searchsorted(starts, np.cumsum(lengths) - lengths)  # the words that begin a text
        numbers = self._numbers(joined, starts, ends - starts, firsts)
        counts = np.diff(firsts, append=len(starts))
        sizes = self.sizes[numbers]
        if sizes.min() == UNSAFE:
            return self._in_part(texts, numbers, sizes, counts)
        return self._joined(numbers, sizes, counts)

    def _numbers(
        self, text: bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64], firsts: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The number of each word, new ones learnt; `firsts` are those that begin a text."""
        if self.short.count + len(self.long) > MOST_WORDS:
            self._forget()
        marks = np.full(len(starts), AFTER_SPACE, np.uint8)
        marks[np.frombuffer(text, np.uint8)[starts - 1] == LINE_END] = AFTER_LINE
        marks[firsts] = FIRST
        numbers = np.zeros(len(starts), np.int64)
        known = len(self.sizes)
        short = np.flatnonzero((sizes > 0) & (sizes <= LONGEST))
        keys = make_keys(text, starts[short], sizes[short], marks[short])
        numbers[short], new = self.short.find(*keys, known)
        fresh = short[new].tolist()
        for at in np.flatnonzero((sizes > LONGEST) & (sizes <= LONGEST_WORD)).tolist():
            word = bytes([marks[at]]) + text[starts[at] : starts[at] + sizes[at]]
            if word not in self.long:
                self.long[word] = known + len(fresh)
                fresh.append(at)
            numbers[at] = self.long[word]
        spans = zip(starts[fresh].tolist(), (starts + sizes)[fresh].tolist(), strict=True)
        self._learn([text[start:end].decode("utf-8") for start, end in spans], marks[fresh])
        return numbers

    def _joined(
        self, numbers: NDArray[np.int64], sizes: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The tokens of known words; `counts` are the words of each text, none of which is empty."""
        ends = np.cumsum(sizes)
        spots = np.repeat(self.starts[numbers] - ends + sizes, sizes)
        spots += np.arange(len(spots))
        borders = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(counts)])]
        return self.ids[spots], np.diff(borders)

    def _in_part(
        self, texts: Sequence[str], numbers: NDArray[np.int64], sizes: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The same where some texts hold what words cannot tell: those are split as a whole."""
        owners = np.repeat(np.arange(len(texts)), counts)
        whole = np.unique(owners[sizes == UNSAFE])
        is_whole = np.zeros(len(texts), bool)
        is_whole[whole] = True
        is_known = ~is_whole[owners]
        ids, parts = self._joined(numbers[is_known], sizes[is_known], counts[~is_whole])
        whole_ids, whole_parts = _flat(self.split([texts[number] for number in whole]))
        counts = np.empty(len(texts), np.int64)
        counts[is_whole], counts[~is_whole] = whole_parts, parts
        is_whole = np.repeat(is_whole, counts)  # of each token
        joined = np.empty(len(is_whole), np.int32)
        joined[is_whole], joined[~is_whole] = whole_ids, ids
        return joined, counts

    def _learn(self, words: list[str], marks: NDArray[np.uint8]) -> None:
        """Split new words; they are given the next numbers."""
        safe = [at for at, word in enumerate(words) if word.strip(EDGES) == word]
        words = [" " + word if spaced else word for word, spaced in zip(words, marks == AFTER_SPACE, strict=True)]
        lines = [at for at in safe if "\n" not in words[at]]
        others = [at for at in safe if "\n" in words[at]] if len(lines) < len(safe) else []
        sizes = np.full(len(words), UNSAFE, np.int64)
        starts = np.zeros(len(words), np.int64)
        for own, split in ((lines, self._split_lines), (others, self._split_each)):
            ids, counts = split([words[at] for at in own])
            is_line = marks[own] == AFTER_LINE
            ids = np.insert(ids, (np.cumsum(counts) - counts)[is_line], self.line_end)
            sizes[own] = counts + is_line
            starts[own] = len(self.ids) + np.cumsum(sizes[own]) - sizes[own]
            self.ids = np.concatenate([self.ids, ids])
        self.sizes = np.concatenate([self.sizes, sizes])
        self.starts = np.concatenate([self.starts, starts])

    def _split_each(self, words: list[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The tokens of words, split one by one."""
        return _flat(self.split(words))

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


def _word_ends(text: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Where words end: at each space, and at each line end with no white space beside it."""
    is_end = text == SPACE
    is_line = text == LINE_END
    if is_line.any():
        is_end[1:-1] |= is_line[1:-1] & (text[:-2] > SPACE) & (text[2:] > SPACE)
    return np.flatnonzero(is_end)
