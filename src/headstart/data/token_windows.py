"""Texts with a tag for each token as rows of sub-tokens; a text that is too long is read in overlapping windows."""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from headstart.batch import IGNORE, EncodedExample
from headstart.data.text_io import Example
from headstart.data.tokenizer import Tokenizer

OVERLAP = 0.25  # of a window: sub-tokens on each side that are read, and tagged in another window


def encode_tokens(
    tokenizer: Tokenizer, examples: Sequence[Example], classes: Sequence[str] | None, length: int
) -> list[EncodedExample]:
    """Rows in the order of the texts; every token has its tag, or 0, at the first of its sub-tokens in one row.

    A tag that is not among `classes` counts as the first of these.
    """
    index = {name: number for number, name in enumerate(classes or [])}
    texts, between = [example.text.split(" ") for example in examples], _space(tokenizer)
    encoded = tokenizer.encode([between * (at > 0) + word for words in texts for at, word in enumerate(words)])
    unknown = np.array([tokenizer.unk_id], np.int32)
    pieces = iter([ids[: length - 2] if len(ids) else unknown for ids in encoded])
    rows = []
    for example, words in zip(examples, texts, strict=True):
        tags = [index.get(tag, 0) for tag in (example.label or "").split(" ")] if classes else [0] * len(words)
        rows += _windows(tokenizer, list(islice(pieces, len(words))), tags, length)
    return rows


def _space(tokenizer: Tokenizer) -> str:
    """What comes before a word, so that words are encoded alone as they are inside a text."""
    whole, first, *second = (ids.tolist() for ids in tokenizer.encode(["the film", "the", " film", "film"]))
    return " " if whole == first + second[0] else ""


def _windows(tokenizer: Tokenizer, pieces: list[np.ndarray], tags: list[int], length: int) -> list[EncodedExample]:
    """One row, or overlapping ones, for the tokens of a text; each is tagged where it is farthest from a border."""
    room, sizes = length - 2, np.array([len(piece) for piece in pieces])
    ends = sizes.cumsum()
    starts, rows, done = ends - sizes, [], 0  # tokens that have their row
    while done < len(pieces):
        margin = 0 if ends[-1] <= room else int(room * OVERLAP)
        first = int(np.searchsorted(starts, starts[done] - margin)) if done else 0
        last = int(np.searchsorted(ends, starts[first] + room, side="right"))  # tokens that fit
        if last <= done:  # a long token leaves no room for what comes before it
            first, last = done, done + 1
        is_end = last == len(pieces)
        stop = last if is_end else max(done + 1, int(np.searchsorted(ends, ends[last - 1] - margin, side="right")))
        targets = [np.full(size, IGNORE) for size in sizes[first:last]]
        for at in range(done, stop):
            targets[at - first][0] = tags[at]
        border = np.array([IGNORE])
        tokens = tokenizer.add_special_tokens(np.concatenate(pieces[first:last]), length)
        rows.append(EncodedExample(tokens, targets=np.concatenate([border, *targets, border])))
        done = stop
    return rows
