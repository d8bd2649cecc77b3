"""The hashes of what was read, whole and in their short form."""

import lzma

import numpy as np

from headstart.data.example import hashes
from headstart.data.seen import lengthened, seen_before, shortened

READ = hashes(f"text number {number}" for number in range(20_000))
OTHERS = hashes(f"another text, number {number}" for number in range(20_000))


def test_every_text_that_was_read_is_known_by_its_short_form():
    short = lengthened(shortened(READ))
    assert seen_before(READ, short).all()
    assert seen_before(OTHERS, short).sum() <= 2  # by chance one in 50,000 is
    assert seen_before(READ, READ).all()
    assert not seen_before(OTHERS, READ).any()


def test_whole_and_short_forms_go_together():
    both = np.unique(np.concatenate([lengthened(shortened(READ[:9000])), READ[9000:]]))
    assert seen_before(READ, both).all()
    assert np.array_equal(lengthened(shortened(lengthened(shortened(READ)))), lengthened(shortened(READ)))


def test_a_short_form_of_32_bits_is_read_as_one_of_30():
    halves = np.unique((READ >> np.uint64(32)).astype(np.uint32))  # as bases were packed before
    gaps = np.diff(halves, prepend=np.uint32(0)).astype("<u4")
    content = lzma.compress(gaps.view(np.uint8).reshape(-1, 4).T.tobytes(), preset=9)
    assert np.array_equal(np.unique(lengthened(content)), lengthened(shortened(READ)))
    assert seen_before(READ, lengthened(content)).all()


def test_the_short_form_is_short():
    assert len(shortened(READ)) < 2.4 * len(READ)
    assert len(lengthened(shortened(np.zeros(0, np.uint64)))) == 0
