"""Hashes of texts are stable; packed fingerprints of training texts recognise them."""

import hashlib
import lzma
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.data.text_io import hashes, is_contaminated, pack_fingerprints, text_hash, unpack_fingerprints

WHITE_SPACE = "".join(filter(str.isspace, map(chr, range(0x3001))))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0xE4A6A0577479B2B4),
        ("Good", 0x70666058C66F7E96),
        ("good", 0x07878FD8745BB530),
        ("Une très bonne lecture !", 0x0887DFA3490B4429),
        ("😀 日本語", 0xFD867AC0DE2600DF),
    ],
)
def test_a_hash_stays_the_same_for_ever(text, expected):
    assert text_hash(text) == expected


def test_a_hash_is_blind_to_white_space_and_composition_but_not_to_case():
    assert text_hash("  tre\u0300s \t\n bon ") == text_hash("tr\u00e8s bon")
    assert text_hash("Good") != text_hash("good")


@given(st.text(st.characters(exclude_categories=[]), max_size=50))
def test_any_string_has_an_unsigned_64_bit_hash(text):
    assert 0 <= text_hash(text) < 2**64
    assert text_hash(f" {text}\n") == text_hash(text)


def test_hashes_are_one_unsigned_array():
    found = hashes(["a", "b", "a"])
    assert found.dtype == np.uint64
    assert found.tolist() == [text_hash("a"), text_hash("b"), text_hash("a")]
    assert hashes([]).shape == (0,)


def plain_hash(text):
    """`text_hash` as its words say it."""
    normal = " ".join(unicodedata.normalize("NFC", text).split())
    digest = hashlib.blake2b(normal.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


pieces = st.one_of(
    st.sampled_from(WHITE_SPACE),
    st.sampled_from(
        ["mot", "l’été", " ", "«", "e\u0301", "\u0301", "\u2126", "\u200b", "日", "\x00", "\x7f", "\ud800"]
    ),
    st.text(max_size=3),
)


@given(st.lists(st.lists(pieces, max_size=8).map("".join), max_size=6))
def test_hashes_of_many_texts_are_those_of_each(texts):
    assert hashes(texts).tolist() == [plain_hash(text) for text in texts]


READ = hashes(f"text number {number}" for number in range(20_000))
OTHERS = hashes(f"another text, number {number}" for number in range(20_000))


def test_every_text_that_was_read_is_known_by_its_short_form():
    short = unpack_fingerprints(pack_fingerprints(READ))
    assert is_contaminated(READ, short).all()
    assert is_contaminated(OTHERS, short).sum() <= 2  # by chance one in 50,000 is
    assert is_contaminated(READ, READ).all()
    assert not is_contaminated(OTHERS, READ).any()


def test_whole_and_short_forms_go_together():
    both = np.unique(np.concatenate([unpack_fingerprints(pack_fingerprints(READ[:9000])), READ[9000:]]))
    assert is_contaminated(READ, both).all()
    assert np.array_equal(
        unpack_fingerprints(pack_fingerprints(unpack_fingerprints(pack_fingerprints(READ)))),
        unpack_fingerprints(pack_fingerprints(READ)),
    )


def test_a_short_form_of_32_bits_is_read_as_one_of_30():
    halves = np.unique((READ >> np.uint64(32)).astype(np.uint32))  # as bases were packed before
    gaps = np.diff(halves, prepend=np.uint32(0)).astype("<u4")
    content = lzma.compress(gaps.view(np.uint8).reshape(-1, 4).T.tobytes(), preset=9)
    assert np.array_equal(np.unique(unpack_fingerprints(content)), unpack_fingerprints(pack_fingerprints(READ)))
    assert is_contaminated(READ, unpack_fingerprints(content)).all()


def test_the_short_form_is_short():
    assert len(pack_fingerprints(READ)) < 2.4 * len(READ)
    assert len(unpack_fingerprints(pack_fingerprints(np.zeros(0, np.uint64)))) == 0
