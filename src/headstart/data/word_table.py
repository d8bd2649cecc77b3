"""Words looked up many at a time: a table of arrays, so that no word of a text becomes an object of its own."""

from secrets import randbits

import numpy as np
from numpy.typing import NDArray

LONGEST = 15  # bytes of a word that a key holds beside its length
ROOM = LONGEST + 1  # bytes that must follow the last word where keys are read
SMALLEST, SMALL = 10, 16  # bits of a slot's number: in an empty table, and up to which it grows in leaps

Places = NDArray[np.int64]
Half = NDArray[np.uint64]

# The bits of each half of a key that a word of so many bytes fills.
FIRST = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(LONGEST + 1)], np.uint64)
SECOND = np.array([(1 << 8 * max(size - 8, 0)) - 1 for size in range(LONGEST + 1)], np.uint64)


def make_keys(text: bytes, starts: Places, sizes: Places, marks: NDArray[np.uint8]) -> tuple[Half, Half]:
    """Each word of `text` as two numbers that no other word has, apart by its mark (below 16) as well.

    Words are of 1 to `LONGEST` bytes; `ROOM` bytes follow the last one.
    """
    window = np.ndarray((len(text) - 7,), "<u8", text, strides=(1,))  # the eight bytes from each place on
    first, second = window[starts], window[starts + 8]
    first &= FIRST[sizes]
    second &= SECOND[sizes]
    second |= (sizes.astype(np.uint64) | marks.astype(np.uint64) << np.uint64(4)) << np.uint64(56)
    return first, second


class WordTable:
    """The numbers that keys were given, in slots that a key is led to by its hash; at most every second slot is taken."""

    def __init__(self) -> None:
        self.count = 0
        # Drawn anew each time: nobody can write words that all lead to one slot. What is found does not depend on them.
        self.factors = [np.uint64(randbits(64) | 1) for _ in range(2)]
        self._clear(SMALLEST)

    def _clear(self, bits: int) -> None:
        self.bits = bits
        self.keys = np.zeros((1 << bits, 2), np.uint64)  # a second half of 0 is a free slot
        self.numbers = np.zeros(1 << bits, np.int32)

    def _slots(self, first: Half, second: Half) -> Places:
        mixed = first * self.factors[0] + second * self.factors[1]
        return (mixed >> np.uint64(64 - self.bits)).astype(np.int64)

    def find(self, first: Half, second: Half, following: int) -> tuple[Places, Places]:
        """The number of each key, and where the new ones stand, which are given the numbers from `following` on."""
        slots = self._slots(first, second)
        found, is_own, is_free = self._look(slots, first, second)
        fresh = [np.zeros(0, np.int64)]
        left = np.arange(len(first))
        while True:
            left, slots, is_free = left[~is_own], slots[~is_own], is_free[~is_own]
            if not len(left):
                return found, np.concatenate(fresh)
            taken, at = np.unique(slots[is_free], return_index=True)
            if self._grow(self.count + len(taken)):
                slots = self._slots(first[left], second[left])
            else:
                new = left[is_free][at]
                self.keys[taken, 0], self.keys[taken, 1] = first[new], second[new]
                self.numbers[taken] = np.arange(following, following + len(new))
                self.count, following = self.count + len(new), following + len(new)
                fresh.append(new)
                slots = slots + ~is_free & len(self.keys) - 1  # a slot that was free is looked at again
            found[left], is_own, is_free = self._look(slots, first[left], second[left])

    def _look(self, slots: Places, first: Half, second: Half) -> tuple[Places, NDArray[np.bool_], NDArray[np.bool_]]:
        """The number in each slot, whether it is the key's, and whether the slot is free."""
        keys = self.keys.take(slots, axis=0)
        is_own = (keys[:, 0] == first) & (keys[:, 1] == second)
        return self.numbers.take(slots).astype(np.int64), is_own, keys[:, 1] == 0

    def _grow(self, count: int) -> bool:
        """Make room for `count` keys; whether the table had to be laid out anew."""
        if 2 * count <= len(self.keys):
            return False
        is_taken = self.keys[:, 1] != 0
        keys, numbers = self.keys[is_taken], self.numbers[is_taken]
        self._clear(max((2 * count).bit_length(), min(self.bits + 3, SMALL)))
        slots = self._slots(keys[:, 0], keys[:, 1])
        while len(slots):
            free = np.flatnonzero(self.keys[slots, 1] == 0)
            taken, at = np.unique(slots[free], return_index=True)
            settled = free[at]
            self.keys[taken], self.numbers[taken] = keys[settled], numbers[settled]
            slots = np.delete(slots, settled) + 1 & (len(self.keys) - 1)
            keys, numbers = np.delete(keys, settled, axis=0), np.delete(numbers, settled)
        return True
