"""Decontamination: texts held out for evaluation stay out of training, and a run records the hashes of what it read."""

import lzma
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headstart.config import DataConfig
from headstart.data.dataset import Dataset, text_hash
from headstart.data.datasets import load_dataset
from headstart.errors import DataError

PACKED_BITS = 30  # of each hash: about one text in 1,000 is then taken for one of a million
LOW = np.uint64(64 - PACKED_BITS)
HALF = np.uint64(32)
# random bytes have nothing in common with their neighbours, which these options would look for
PACKING = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 0, "pb": 0}]

Hashes = NDArray[np.uint64]


def evaluation_hashes(names: Sequence[str]) -> Hashes:
    """The hashes of the validation and test texts of labelled sets (columns `text` and `label`)."""
    found = [np.zeros(0, np.uint64)]
    for name in names:
        dataset = load_dataset(name, DataConfig(), with_test=True)
        found += [dataset.hashes(split) for split in ("valid", "test")]
    return np.unique(np.concatenate(found))


def exclude_evaluation_texts(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """The dataset without the validation and test texts of the named sets."""
    excluded = frozenset(evaluation_hashes(names).tolist())
    splits = {
        name: [row for row in rows if text_hash(row.text) not in excluded] for name, rows in dataset.splits.items()
    }
    if not all(splits.values()):
        raise DataError(
            f"data.exclude_eval_texts_of leaves {dataset.name} no text to learn from, or none to validate on",
            hint="its texts are evaluation texts of the sets named there: train on others",
        )
    count = sum(map(len, dataset.splits.values())) - sum(map(len, splits.values()))
    notes = [f"{count:,} rows left out by data.exclude_eval_texts_of"] * bool(count)
    return replace(dataset, splits=splits, notes=[*dataset.notes, *notes])


@dataclass(frozen=True)
class ExcludeTexts:
    """The texts without those that have one of the hashes; can be read as often as `texts` can."""

    texts: Iterable[str]
    hashes: Hashes

    def __iter__(self) -> Iterator[str]:
        excluded = frozenset(self.hashes.tolist())
        return (text for text in self.texts if not excluded or text_hash(text) not in excluded)


def is_contaminated(hashes: Hashes, train_fingerprints: Hashes) -> NDArray[np.bool_]:
    """Which of the hashes are among those of the training texts, whole or packed."""
    return np.isin(hashes, train_fingerprints) | np.isin(hashes >> LOW << LOW, train_fingerprints)


def pack_fingerprints(hashes: Hashes) -> bytes:
    """The first bits of each hash, as gaps between neighbours, byte by byte of the gaps, compressed."""
    halves = np.unique((hashes >> LOW << LOW >> HALF).astype(np.uint32))
    gaps = np.diff(halves, prepend=np.uint32(0)).astype("<u4")
    planes = gaps.view(np.uint8).reshape(-1, 4).T  # (4, N): the rarely filled high bytes lie together
    return lzma.compress(planes.tobytes(), filters=PACKING)


def unpack_fingerprints(content: bytes) -> Hashes:
    """The hashes that `pack_fingerprints` packed; the bits that it dropped are zero."""
    planes = np.frombuffer(lzma.decompress(content), np.uint8).reshape(4, -1)
    gaps = np.ascontiguousarray(planes.T).view("<u4").ravel()
    return np.cumsum(gaps, dtype=np.uint64) << HALF >> LOW << LOW
