import dataclasses
import hashlib
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.data import dataset as example
from headstart.data.dataset import WHITE_SPACE, Dataset, Example, hashes, hashes_and_sizes, text_hash

DATASET = Dataset("toy", {"train": [Example("a", "no"), Example("b", "yes"), Example("c", "no")]}, ["no", "yes"])


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


def test_white_space_is_what_python_parts_words_at():
    assert "".join(filter(str.isspace, map(chr, range(sys.maxunicode + 1)))) == WHITE_SPACE


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


@given(st.lists(st.lists(pieces, max_size=8).map("".join), max_size=6), st.integers(1, 9))
def test_hashes_of_many_texts_are_those_of_each(texts, characters):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example, "BATCH_CHARACTERS", characters)
        assert hashes(texts).tolist() == [plain_hash(text) for text in texts]
    found, sizes = hashes_and_sizes(texts)
    assert found.tolist() == [text_hash(text) for text in texts]
    assert sizes.tolist() == [len(text.encode("utf-8", "surrogatepass")) for text in texts]


def test_a_dataset_answers_by_split():
    assert DATASET.train[1] == Example("b", "yes")
    assert DATASET.valid == DATASET.test == []
    assert DATASET.texts("train") == ["a", "b", "c"]
    assert DATASET.targets("train") == [0, 1, 0]
    assert DATASET.balance("train") == {"no": 2, "yes": 1}
    assert DATASET.balance("valid") == {"no": 0, "yes": 0}


def test_an_example_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DATASET.train[0].text = "other"
