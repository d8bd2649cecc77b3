"""The tokens of words that were seen before: a byte-level tokenizer then encodes each different word once.

Replaces: the engine's `encode` in `Tokenizer.encode_flat`.   Equal by: tests/data/test_pretoken_cache.py.
Pays: 5.6 times the text per second of transformers (benchmarks/results/speed-cpu-prepare.md).

A byte-level tokenizer never merges across a single space or line end, and the tokens of one side do not depend on the
other. So the tokens of a text are those of its words, each with the space or line end before it.
"""

import json
import os
from collections.abc import Callable, Sequence
from itertools import chain
from secrets import randbits
from threading import Lock

import numpy as np
from numpy.typing import NDArray

LONGEST_KEY = 15  # bytes of a word that a key of the table holds beside its length
LOOKAHEAD = LONGEST_KEY + 1  # bytes that must follow the last word where keys are read
LONGEST_WORD = 64  # bytes; a text with a longer one is encoded as a whole
TABLE_BITS = 21  # of a slot's number in the table of words; memory is used as slots fill
MOST_WORDS = 1_000_000  # in the cache, at most half of the slots; when it has more, it is emptied
INVISIBLE = "\u180e\u200b\ufeff"  # white space to some regular expressions, but not to `str.strip`
LINES = 500  # new words that are encoded as one text
SPACE, LINE_END = ord(" "), ord("\n")
FIRST, AFTER_SPACE, AFTER_LINE = range(3)  # prefixes of words: none, a space, a line end
UNSAFE = -1  # tokens of a word that depend on the text around it

# The bits of each half of a key that a word of so many bytes fills.
LOW_MASK = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(LONGEST_KEY + 1)], np.uint64)
HIGH_MASK = np.array([(1 << 8 * max(size - 8, 0)) - 1 for size in range(LONGEST_KEY + 1)], np.uint64)

Integers = NDArray[np.int64]
Half = NDArray[np.uint64]
Encode = Callable[[list[str]], list[list[int]]]

enabled = True  # training.fast of this process


def is_enabled() -> bool:
    """Whether tokenizers use the cache; HEADSTART_FAST=0 disables it."""
    return enabled and os.environ.get("HEADSTART_FAST", "1") not in ("0", "false")


def encodes_by_words(content: str) -> bool:
    """Whether the tokenizer with this JSON text encodes a text as its words: byte-level BPE without any other step."""
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


class PretokenCache:
    """The tokens of every word that was seen, by the word's number.

    Number 0 is for words that cannot be cached: a text that has one is encoded as a whole.
    """

    def __init__(self, encode: Encode):
        self.encode_texts, self.lock = encode, Lock()
        self.line_end = encode(["\n"])[0][0]
        self._clear()

    def _clear(self) -> None:
        self.short = KeyTable()
        self.long: dict[bytes, int] = {}
        self.ids = np.zeros(0, np.int32)
        self.sizes = np.full(1, UNSAFE, np.int64)  # tokens of each word
        self.starts = np.zeros(1, np.int64)  # where they begin in `ids`

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], Integers]:
        """The ids of all texts one after the other, and how many each text has."""
        if not texts:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        with self.lock:  # a server's threads share one tokenizer
            return self._encode(texts)

    def _encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], Integers]:
        raw = [text.encode("utf-8") for text in texts]
        text = b" ".join(raw) + b" " * LOOKAHEAD
        ends = _word_ends(np.frombuffer(text, np.uint8)[: 1 - LOOKAHEAD])
        starts = np.concatenate([[0], ends[:-1] + 1])
        lengths = np.fromiter(map(len, raw), np.int64, len(raw)) + 1
        firsts = np.searchsorted(starts, np.cumsum(lengths) - lengths)  # the words that begin a text
        numbers = self._numbers(text, starts, ends - starts, firsts)
        counts = np.diff(firsts, append=len(starts))  # words of each text
        sizes = self.sizes[numbers]
        if sizes.min() != UNSAFE:
            return self._gather(numbers, sizes, counts)
        owners = np.repeat(np.arange(len(texts)), counts)
        is_whole = np.zeros(len(texts), bool)
        is_whole[owners[sizes == UNSAFE]] = True
        is_cached = ~is_whole[owners]
        ids, parts = self._gather(numbers[is_cached], sizes[is_cached], counts[~is_whole])
        whole_ids, whole_parts = _flatten(self.encode_texts([texts[at] for at in np.flatnonzero(is_whole).tolist()]))
        counts = np.empty(len(texts), np.int64)
        counts[is_whole], counts[~is_whole] = whole_parts, parts
        is_whole = np.repeat(is_whole, counts)  # of each token
        merged = np.empty(len(is_whole), np.int32)
        merged[is_whole], merged[~is_whole] = whole_ids, ids
        return merged, counts

    def _numbers(self, text: bytes, starts: Integers, sizes: Integers, firsts: Integers) -> Integers:
        """The number of each word, with new words added; `firsts` are those that begin a text."""
        if self.short.count + len(self.long) > MOST_WORDS:
            self._clear()
        prefixes = np.full(len(starts), AFTER_SPACE, np.uint8)
        prefixes[np.frombuffer(text, np.uint8)[starts - 1] == LINE_END] = AFTER_LINE
        prefixes[firsts] = FIRST
        numbers = np.zeros(len(starts), np.int64)
        known = len(self.sizes)
        short = np.flatnonzero((sizes > 0) & (sizes <= LONGEST_KEY))
        keys = make_keys(text, starts[short], sizes[short], prefixes[short])
        numbers[short], new = self.short.find(*keys, known)
        fresh = short[new].tolist()
        for at in np.flatnonzero((sizes > LONGEST_KEY) & (sizes <= LONGEST_WORD)).tolist():
            word = bytes([prefixes[at]]) + text[starts[at] : starts[at] + sizes[at]]
            if word not in self.long:
                self.long[word] = known + len(fresh)
                fresh.append(at)
            numbers[at] = self.long[word]
        spans = zip(starts[fresh].tolist(), (starts + sizes)[fresh].tolist(), strict=True)
        self._add([text[start:end].decode("utf-8") for start, end in spans], prefixes[fresh])
        return numbers

    def _gather(self, numbers: Integers, sizes: Integers, counts: Integers) -> tuple[NDArray[np.int32], Integers]:
        """The tokens of cached words; `counts` are the words of each text, none of which is empty."""
        ends = np.cumsum(sizes)
        indices = np.repeat(self.starts[numbers] - ends + sizes, sizes)
        indices += np.arange(len(indices))
        borders = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(counts)])]
        return self.ids[indices], np.diff(borders)

    def _add(self, words: list[str], prefixes: NDArray[np.uint8]) -> None:
        """Encode new words, which get the next numbers."""
        is_safe = [word == word.strip() == word.strip(INVISIBLE) for word in words]
        spaced = [" " + word if own else word for word, own in zip(words, prefixes == AFTER_SPACE, strict=True)]
        sizes = np.full(len(words), UNSAFE, np.int64)
        starts = np.zeros(len(words), np.int64)
        for has_line_end in (False, True):
            own = [at for at, word in enumerate(spaced) if is_safe[at] and ("\n" in word) == has_line_end]
            chosen = [spaced[at] for at in own]
            ids, counts = _flatten(self.encode_texts(chosen)) if has_line_end else self._encode_lines(chosen)
            is_line = prefixes[own] == AFTER_LINE
            ids = np.insert(ids, (np.cumsum(counts) - counts)[is_line], self.line_end)
            sizes[own] = counts + is_line
            starts[own] = len(self.ids) + np.cumsum(sizes[own]) - sizes[own]
            self.ids = np.concatenate([self.ids, ids])
        self.sizes = np.concatenate([self.sizes, sizes])
        self.starts = np.concatenate([self.starts, starts])

    def _encode_lines(self, words: list[str]) -> tuple[NDArray[np.int32], Integers]:
        """The tokens of many words, encoded as texts of one word a line: a line end is always a token of its own."""
        texts = ["\n".join(words[at : at + LINES]) + "\n" for at in range(0, len(words), LINES)]
        ids, _ = _flatten(self.encode_texts(texts))
        ends = np.flatnonzero(ids == self.line_end)
        assert len(ends) == len(words), "a line end was merged with its neighbours"
        return np.delete(ids, ends), np.diff(ends, prepend=-1) - 1


def _flatten(rows: list[list[int]]) -> tuple[NDArray[np.int32], Integers]:
    """Rows one after the other, and how long each is."""
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    return np.fromiter(chain.from_iterable(rows), np.int32, int(sizes.sum())), sizes


def _word_ends(text: NDArray[np.uint8]) -> Integers:
    """Where words end: at each space, and at each line end with no white space beside it."""
    is_end = text == SPACE
    is_line = text == LINE_END
    if is_line.any():
        is_end[1:-1] |= is_line[1:-1] & (text[:-2] > SPACE) & (text[2:] > SPACE)
    return np.flatnonzero(is_end)


def make_keys(text: bytes, starts: Integers, sizes: Integers, prefixes: NDArray[np.uint8]) -> tuple[Half, Half]:
    """Two numbers for each word, unique to the word and its prefix (below 16).

    Words have 1 to `LONGEST_KEY` bytes; `LOOKAHEAD` bytes follow the last one.
    """
    window = np.ndarray((len(text) - 7,), "<u8", text, strides=(1,))  # the eight bytes from each position on
    low, high = window[starts], window[starts + 8]
    low &= LOW_MASK[sizes]
    high &= HIGH_MASK[sizes]
    high |= (sizes.astype(np.uint64) | prefixes.astype(np.uint64) << np.uint64(4)) << np.uint64(56)
    return low, high


class KeyTable:
    """A hash table in arrays with linear probing, at most half full, that looks up many keys at once."""

    def __init__(self, bits: int = TABLE_BITS) -> None:
        self.bits, self.count = bits, 0
        # Random, so that nobody can write words that all have one hash. The numbers found do not depend on them.
        self.factors = [np.uint64(randbits(64) | 1) for _ in range(2)]
        self.keys = np.zeros((1 << bits, 2), np.uint64)  # a high half of 0 is a free slot
        self.numbers = np.zeros(1 << bits, np.int32)

    def find(self, low: Half, high: Half, next_number: int) -> tuple[Integers, Integers]:
        """The number of each key, and the indices of new keys, which get the numbers from `next_number` on.

        When the table has no room for a new key, it and others that are not found yet get the number 0.
        """
        slots = ((low * self.factors[0] + high * self.factors[1]) >> np.uint64(64 - self.bits)).astype(np.int64)
        found, left = np.zeros(len(low), np.int64), np.arange(len(low))  # `left` are the keys that are looked up again
        fresh = [np.zeros(0, np.int64)]
        while True:
            keys = self.keys.take(slots, axis=0)
            other = np.flatnonzero((keys[:, 0] != low) | (keys[:, 1] != high))
            found[left] = self.numbers.take(slots)
            left, slots, low, high = left[other], slots[other], low[other], high[other]
            is_free = keys[other, 1] == 0
            taken, at = np.unique(slots[is_free], return_index=True)
            if not len(left) or 2 * (self.count + len(taken)) > len(self.keys):
                found[left] = 0
                return found, np.concatenate(fresh)
            self.keys[taken, 0], self.keys[taken, 1] = low[is_free][at], high[is_free][at]
            self.numbers[taken] = np.arange(next_number, next_number + len(taken))
            self.count, next_number = self.count + len(taken), next_number + len(taken)
            fresh.append(left[is_free][at])
            slots = slots + ~is_free & len(self.keys) - 1  # another key may have taken a slot that was free
