import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.config import TokenizerConfig
from headstart.data import words
from headstart.data.tokenizer import Tokenizer, train_tokenizer
from headstart.data.words import Words, splits_by_words

TEXTS = [
    "Le chat dort, l'été 2024 s'en va ; it's 3 o'clock!",
    "un\u00a0mot ? deux  mots\n\ttrois …",
    "naïve 日本語 ☃",
] * 3
PLAIN = train_tokenizer(TEXTS, TokenizerConfig(vocab_size=320))
LOWER = train_tokenizer(TEXTS, TokenizerConfig(vocab_size=320, lowercase=True))
UNIGRAM = train_tokenizer(TEXTS, TokenizerConfig(type="unigram", vocab_size=100))

edges = st.sampled_from(
    [
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "\u00a0",
        "\u2009",
        "\u3000",
        "\u180e",
        "\u200b",
        "\x1c",
        "\x85",
        "'",
        "'s",
        "ΑΣ",
        "İ",
        "e\u0301",
    ]
)
long_words = st.sampled_from(
    ["anticonstitutionnellement", "ÀÉ" * 12, "x" * 15, "x" * 16, "x" * 64, "é" * 33, "a\0", "a\0\0"]
)
texts = st.lists(
    st.one_of(edges, st.text(max_size=6), long_words, st.sampled_from(["chat", "l'été", "2024,", "[MASK]"]))
)


@pytest.mark.parametrize("tokenizer", [PLAIN, LOWER], ids=["plain", "lowercase"])
@settings(max_examples=150, deadline=None)
@given(some=st.lists(texts.map("".join), max_size=6))
def test_word_by_word_gives_the_tokens_of_the_whole_text(tokenizer, some):
    ids, counts = Words(tokenizer.engine.encode).encode(some)
    wanted = tokenizer.engine.encode(some)
    assert counts.tolist() == [len(row) for row in wanted]
    assert ids.tolist() == [number for row in wanted for number in row]


LINES = [
    "Un chat\ndort ici\net là.",
    "dort ici\n\net là",
    "\ndort",
    "ici \ndort",
    "là\n",
    "\u00a0\ndort",
    "\r\ndort ici",
]


@pytest.mark.parametrize("tokenizer", [PLAIN, LOWER], ids=["plain", "lowercase"])
def test_lines_are_words_of_their_own_and_known_ones_stay_what_they_were(tokenizer):
    own, wanted = Words(tokenizer.engine.encode), tokenizer.engine.encode(LINES)
    for _ in range(2):
        ids, counts = own.encode(LINES)
        assert np.split(ids, np.cumsum(counts)[:-1])[0].tolist() == wanted[0]
        assert ids.tolist() == [number for row in wanted for number in row]
    asked = len(own.sizes)
    own.encode([LINES[0]])
    assert len(own.sizes) == asked


def test_thousands_of_words_at_once_give_the_tokens_of_the_whole_text():
    chance = np.random.default_rng(0)
    letters = np.array(list("abcdeéèœ'.,0日"))
    some = [" ".join("".join(chance.choice(letters, chance.integers(1, 20))) for _ in range(200)) for _ in range(50)]
    own, wanted = Words(PLAIN.engine.encode), PLAIN.engine.encode(some)
    for _ in range(2):
        ids, counts = own.encode(some)
        assert counts.tolist() == [len(row) for row in wanted]
        assert ids.tolist() == [number for row in wanted for number in row]
    assert own.short.count > 4000


def test_words_are_remembered_and_forgotten_without_a_trace(monkeypatch):
    monkeypatch.setattr(words, "MOST_WORDS", 5)
    own, asked = Words(PLAIN.engine.encode), [" ".join(f"mot{number}" for number in range(4)), "", "x" * 99]
    for _ in range(4):
        ids, counts = own.encode(asked)
        assert len(ids) == counts.sum()
        assert counts.tolist() == [len(row) for row in PLAIN.engine.encode(asked)]
        asked = [text + " encore" for text in asked]
    assert len(own.sizes) < 20


def test_only_a_tokenizer_that_keeps_words_apart_is_used_word_by_word():
    assert splits_by_words(PLAIN.engine.content)
    assert not splits_by_words(UNIGRAM.engine.content)
    layout = json.loads(PLAIN.engine.content)
    for change in (
        {"pre_tokenizer": {**layout["pre_tokenizer"], "add_prefix_space": True}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"normalizer": {"type": "NFKC"}},
        {"model": {**layout["model"], "dropout": 0.1}},
        {"added_tokens": [{"id": 5, "content": "a b", "special": False}]},
    ):
        assert not splits_by_words(json.dumps({**layout, **change}))


@pytest.mark.parametrize("tokenizer", [PLAIN, UNIGRAM], ids=["bpe", "unigram"])
def test_joined_and_framed_equals_one_by_one(tokenizer: Tokenizer):
    texts = ["", *TEXTS[:3], ""]
    tokens, counts = tokenizer.add_special_tokens_flat(*tokenizer.encode_flat(texts))
    one_by_one = [tokenizer.add_special_tokens(ids, 10**6) for ids in tokenizer.encode(texts)]
    assert np.array_equal(tokens, np.concatenate(one_by_one))
    assert counts.tolist() == [len(row) for row in one_by_one]
    assert tokenizer.encode([]) == []
