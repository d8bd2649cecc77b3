"""Decontamination: texts held out for evaluation stay out of training, and a run records the hashes of what it read."""

import lzma
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headstart.config import DataConfig
from headstart.data.dataset import Dataset, text_hash
from headstart.data.datasets import load_dataset
from headstart.errors import DataError

KEPT = 30  # the bits of a hash that the short form keeps: about one text in 1,000 is then taken for one of a million
LOW = np.uint64(64 - KEPT)
HALF = np.uint64(32)
# random bytes have nothing in common with their neighbours, which is what these would look for
PACKING = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 0, "pb": 0}]

Hashes = NDArray[np.uint64]


def apart_hashes(names: Sequence[str]) -> NDArray[np.uint64]:
    """The hashes of the validation and test texts of labelled sets (columns `text` and `label`)."""
    found = [np.zeros(0, np.uint64)]
    for name in names:
        dataset = load_dataset(name, DataConfig(), with_test=True)
        found += [dataset.hashes(split) for split in ("valid", "test")]
    return np.unique(np.concatenate(found))


def without_apart(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """The dataset without rows whose text is set apart for judging in any of the named sets."""
    never = frozenset(apart_hashes(names).tolist())
    splits = {
        name: [row for row in rows if text_hash(row.text) not in never]
        for name, rows in dataset.splits.items()
    }
    left = sum(map(len, dataset.splits.values())) - sum(map(len, splits.values()))
    if not all(splits.values()):
        raise DataError(
            f"{dataset.name} has no text to learn from, or none to validate on, that data.exclude_eval_texts_of leaves",
            hint="its texts are those of a set that is kept apart: train on others",
        )
    notes = [f"{left:,} rows left out: data.exclude_eval_texts_of keeps their texts for judging"] * bool(left)
    return replace(dataset, splits=splits, notes=[*dataset.notes, *notes])


def spared(texts: Iterable[str], never: NDArray[np.uint64]) -> Iterable[str]:
    """The texts but those whose hash is in `never`; can be read as often as `texts` can."""
    return _Spared(texts, frozenset(never.tolist())) if len(never) else texts


class _Spared:
    def __init__(self, texts: Iterable[str], never: frozenset[int]):
        self.texts, self.never = texts, never

    def __iter__(self) -> Iterator[str]:
        return (text for text in self.texts if text_hash(text) not in self.never)


def seen_before(hashes: Hashes, seen: Hashes) -> NDArray[np.bool_]:
    """Which of the hashes are among those seen, whole or in their short form."""
    return np.isin(hashes, seen) | np.isin(hashes >> LOW << LOW, seen)


def shortened(seen: Hashes) -> bytes:
    """The first bits of each hash, as gaps between neighbours, byte by byte of the gaps, compressed."""
    halves = np.unique((seen >> LOW << LOW >> HALF).astype(np.uint32))
    gaps = np.diff(halves, prepend=np.uint32(0)).astype("<u4")
    planes = gaps.view(np.uint8).reshape(-1, 4).T  # (4, N): the rarely filled high bytes lie together
    return lzma.compress(planes.tobytes(), filters=PACKING)


def lengthened(content: bytes) -> Hashes:
    """What `shortened` gave, each as a hash whose other bits are empty."""
    planes = np.frombuffer(lzma.decompress(content), np.uint8).reshape(4, -1)
    gaps = np.ascontiguousarray(planes.T).view("<u4").ravel()
    return np.cumsum(gaps, dtype=np.uint64) << HALF >> LOW << LOW
