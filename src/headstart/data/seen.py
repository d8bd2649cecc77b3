"""Which texts a training has read: their hashes, and a short form of them that travels with a base."""

import lzma

import numpy as np
from numpy.typing import NDArray

KEPT = 30  # the bits of a hash that the short form keeps: about one text in 1,000 is then taken for one of a million
LOW = np.uint64(64 - KEPT)
HALF = np.uint64(32)
# random bytes have nothing in common with their neighbours, which is what these would look for
PACKING = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 0, "pb": 0}]

Hashes = NDArray[np.uint64]


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
