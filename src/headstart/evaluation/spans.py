"""Spans in the tags of tokens, as conlleval and seqeval count them: BIO, IOB1, BIOES and tags without a prefix."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

OUTSIDE = "O"
Span = tuple[str, int, int]  # its kind, its first token, and the token after its last


def find_spans(tags: Sequence[str]) -> Iterator[Span]:
    """The spans of one text; an I- or E- that continues nothing begins a span, as in conlleval."""
    kind, start, last = "", 0, OUTSIDE
    for at, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, name = tag.partition("-")
        if not name and tag != OUTSIDE:  # a kind without a prefix
            prefix, name = "I", tag
        continues = (
            tag != OUTSIDE and name == kind and prefix not in ("B", "S", "U") and last not in ("E", "S", "U", "L")
        )
        if kind and not continues:
            yield kind, start, at
            kind = ""
        if tag != OUTSIDE and not continues:
            kind, start = name, at
        last = OUTSIDE if tag == OUTSIDE else prefix


def count_spans(
    truth: Sequence[Sequence[str]], found: Sequence[Sequence[str]]
) -> tuple[np.ndarray, dict[str, Counter[str]]]:
    """For each text its spans that are found, those found in all, and those of the truth (N, 3); the same by kind."""
    names = ("correct", "found", "true")
    counts = np.zeros((len(truth), 3), dtype=np.int64)
    by_kind: dict[str, Counter[str]] = {}
    for row, (expected, answered) in enumerate(zip(truth, found, strict=True)):
        true, own = set(find_spans(expected)), set(find_spans(answered))
        for column, (name, spans) in enumerate(zip(names, (true & own, own, true), strict=True)):
            counts[row, column] = len(spans)
            for kind, _, _ in spans:
                by_kind.setdefault(kind, Counter())[name] += 1
    return counts, by_kind
