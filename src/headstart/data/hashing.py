"""Hashes of texts: they split datasets, find repeats, and tell which texts a model was trained on."""

import hashlib
import lzma
from collections.abc import Iterable
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

PACKED_BITS = 30  # of each hash: about one text in 1,000 is then taken for one of a million
LOW = np.uint64(64 - PACKED_BITS)
HALF = np.uint64(32)
# Random bytes do not repeat, so the contexts of LZMA (lc, lp, pb) only cost space.
PACKING = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 0, "pb": 0}]

Hashes = NDArray[np.uint64]


def text_hash(text: str) -> int:
    """A stable unsigned 64-bit hash of a text that ignores white space and Unicode composition."""
    normal = " ".join(normalize("NFC", text).split()).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(normal, digest_size=8).digest(), "big")


def hashes(texts: Iterable[str]) -> Hashes:
    """The `text_hash` of each text."""
    return np.fromiter(map(text_hash, texts), np.uint64)


def is_contaminated(hashes: Hashes, train_fingerprints: Hashes) -> NDArray[np.bool_]:
    """Which of the hashes are among those of the training texts, whole or packed."""
    return np.isin(hashes, train_fingerprints) | np.isin(hashes >> LOW << LOW, train_fingerprints)


def pack_fingerprints(hashes: Hashes) -> bytes:
    """The first bits of each hash, as gaps between neighbours, byte by byte of the gaps, compressed."""
    halves = np.unique((hashes >> LOW << LOW >> HALF).astype(np.uint32))
    gaps = np.diff(halves, prepend=np.uint32(0)).astype("<u4")
    planes = gaps.view(np.uint8).reshape(-1, 4).T  # (4, N): the high bytes, mostly zero, are consecutive
    return lzma.compress(planes.tobytes(), filters=PACKING)


def unpack_fingerprints(content: bytes) -> Hashes:
    """The hashes that `pack_fingerprints` packed; the bits that it dropped are zero."""
    planes = np.frombuffer(lzma.decompress(content), np.uint8).reshape(4, -1)
    gaps = np.ascontiguousarray(planes.T).view("<u4").ravel()
    return np.cumsum(gaps, dtype=np.uint64) << HALF >> LOW << LOW
