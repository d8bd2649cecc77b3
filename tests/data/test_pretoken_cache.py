import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.config import TokenizerConfig
from headstart.data import pretoken_cache
from headstart.data.pretoken_cache import LONGEST_KEY, LOOKAHEAD, KeyTable, PretokenCache, encodes_by_words, make_keys
from headstart.data.tokenizer import CACHED_FROM, Tokenizer, make_tokenizer
from headstart.data.tokenizer_training import train_tokenizer

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
    ids, counts = PretokenCache(tokenizer.engine.encode).encode(some)
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
    own, wanted = PretokenCache(tokenizer.engine.encode), tokenizer.engine.encode(LINES)
    for _ in range(2):
        ids, counts = own.encode(LINES)
        assert np.split(ids, np.cumsum(counts)[:-1])[0].tolist() == wanted[0]
        assert ids.tolist() == [number for row in wanted for number in row]
    count = len(own.sizes)
    own.encode([LINES[0]])
    assert len(own.sizes) == count


def test_thousands_of_words_at_once_give_the_tokens_of_the_whole_text():
    chance = np.random.default_rng(0)
    letters = np.array(list("abcdeéèœ'.,0日"))
    some = [" ".join("".join(chance.choice(letters, chance.integers(1, 20))) for _ in range(200)) for _ in range(50)]
    own, wanted = PretokenCache(PLAIN.engine.encode), PLAIN.engine.encode(some)
    for _ in range(2):
        ids, counts = own.encode(some)
        assert counts.tolist() == [len(row) for row in wanted]
        assert ids.tolist() == [number for row in wanted for number in row]
    assert own.short.count > 4000


def test_words_are_remembered_and_forgotten_without_a_trace(monkeypatch):
    monkeypatch.setattr(pretoken_cache, "MOST_WORDS", 5)
    own, some = PretokenCache(PLAIN.engine.encode), [" ".join(f"mot{number}" for number in range(4)), "", "x" * 99]
    for _ in range(4):
        ids, counts = own.encode(some)
        assert len(ids) == counts.sum()
        assert counts.tolist() == [len(row) for row in PLAIN.engine.encode(some)]
        some = [text + " encore" for text in some]
    assert len(own.sizes) < 20


def test_only_a_tokenizer_that_keeps_words_apart_is_used_word_by_word():
    assert encodes_by_words(PLAIN.engine.content)
    assert not encodes_by_words(UNIGRAM.engine.content)
    layout = json.loads(PLAIN.engine.content)
    for change in (
        {"pre_tokenizer": {**layout["pre_tokenizer"], "add_prefix_space": True}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"normalizer": {"type": "NFKC"}},
        {"model": {**layout["model"], "dropout": 0.1}},
        {"added_tokens": [{"id": 5, "content": "a b", "special": False}]},
    ):
        assert not encodes_by_words(json.dumps({**layout, **change}))


@pytest.mark.parametrize("tokenizer", [PLAIN, UNIGRAM], ids=["bpe", "unigram"])
def test_flat_encoding_with_special_tokens_equals_one_by_one(tokenizer: Tokenizer):
    texts = ["", *TEXTS[:3], ""]
    tokens, counts = tokenizer.add_special_tokens_flat(*tokenizer.encode_flat(texts))
    one_by_one = [tokenizer.add_special_tokens(ids, 10**6) for ids in tokenizer.encode(texts)]
    assert np.array_equal(tokens, np.concatenate(one_by_one))
    assert counts.tolist() == [len(row) for row in one_by_one]
    assert tokenizer.encode([]) == []


def test_a_large_batch_uses_the_cache_unless_fast_paths_are_off(monkeypatch):
    texts = ["Le chat dort."] * (1 + CACHED_FROM // 13)
    tokenizer = make_tokenizer(PLAIN.engine.content)
    tokenizer.encode(texts[:10])
    monkeypatch.setenv("HEADSTART_FAST", "0")
    plain = tokenizer.encode_flat(texts)
    assert "_cache" not in vars(tokenizer)
    monkeypatch.delenv("HEADSTART_FAST")
    cached = tokenizer.encode_flat(texts)
    assert tokenizer._cache.short.count == 3
    assert all(map(np.array_equal, plain, cached))


keys = st.tuples(st.integers(0, 2), st.binary(min_size=1, max_size=LONGEST_KEY))
calls = st.lists(st.lists(keys, max_size=40), max_size=5)


def keys_of(some):
    sizes = np.array([len(word) for _, word in some], np.int64)
    text = b"".join(word for _, word in some) + b"~" * LOOKAHEAD
    return make_keys(text, np.cumsum(sizes) - sizes, sizes, np.array([prefix for prefix, _ in some], np.uint8))


@settings(deadline=None)
@given(calls, st.integers(1, 10))
def test_the_table_numbers_words_as_a_dict_does_while_it_has_room(batches, bits):
    table, known = KeyTable(bits), {}
    for some in batches:
        before = len(known) + 1
        found, fresh = table.find(*keys_of(some), before)
        for number, at in enumerate(fresh.tolist(), start=before):
            assert known.setdefault(some[at], number) == number
        assert all(number in (0, known.get(word)) for word, number in zip(some, found.tolist(), strict=True))
        assert table.count == len(known) <= len(table.keys) / 2
        assert found.all() or 2 * (len(known) + len(set(some))) > len(table.keys)


def test_keys_that_all_lead_to_one_slot_are_still_different():
    table = KeyTable()
    table.factors = [np.uint64(0), np.uint64(0)]
    some = [(prefix, bytes([letter])) for prefix in range(3) for letter in range(200)]
    found, fresh = table.find(*keys_of(some), 7)
    assert sorted(found.tolist()) == list(range(7, 607))
    again, none = table.find(*keys_of(some), 10**6)
    assert (again.tolist(), len(none)) == (found.tolist(), 0)
    assert [found[at] for at in fresh] == list(range(7, 607))
