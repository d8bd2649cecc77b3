"""Texts that are for judging, and so are read by no training, wherever else they stand."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headstart.config import DataConfig
from headstart.data.example import Dataset, text_hash
from headstart.data.sources import load_dataset
from headstart.errors import DataError


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
            f"{dataset.name} has no text to learn from, or none to validate on, that data.apart leaves",
            hint="its texts are those of a set that is kept apart: train on others",
        )
    notes = [f"{left:,} rows left out: data.apart keeps their texts for judging"] * bool(left)
    return replace(dataset, splits=splits, notes=[*dataset.notes, *notes])


def spared(texts: Iterable[str], never: NDArray[np.uint64]) -> Iterable[str]:
    """The texts but those whose hash is in `never`; can be read as often as `texts` can."""
    return _Spared(texts, frozenset(never.tolist())) if len(never) else texts


class _Spared:
    def __init__(self, texts: Iterable[str], never: frozenset[int]):
        self.texts, self.never = texts, never

    def __iter__(self) -> Iterator[str]:
        return (text for text in self.texts if text_hash(text) not in self.never)
