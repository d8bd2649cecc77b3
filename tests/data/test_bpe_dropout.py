"""Merges made by us: without dropout the tokenizer's own, with it those of the paper, and never another text."""

import json
from collections import Counter
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.config import TokenizerConfig
from headstart.data.augmentation import BPEDropout
from headstart.data.tokenizer import Tokenizer
from headstart.data.tokenizer_training import open_tokenizer, train_tokenizer
from headstart.errors import ConfigError

TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "the slower brown dog slept, and the foxes quickly jumped over it",
    "aaaa aaab baab abab aaaaaaa bbbb abba",
    "Été à la plage: les étoiles étaient éteintes.",
    "naïve café 北京市 東京 Ω≈ç√∫",
] * 4


@cache
def learnt(lowercase: bool = False) -> Tokenizer:
    return train_tokenizer(TEXTS, TokenizerConfig(type="bpe", vocab_size=420, lowercase=lowercase))


def chance(*numbers: int) -> np.random.Generator:
    return np.random.default_rng(numbers)


@pytest.mark.parametrize("lowercase", [False, True])
@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.one_of(st.sampled_from("aab the fox\n"), st.characters(exclude_categories=["Cs"]))))
def test_without_dropout_a_text_is_split_as_the_tokenizer_splits_it(lowercase, text):
    dropout = BPEDropout(learnt(lowercase))
    (words,) = dropout.words([text])  # refuses a difference by itself
    assert dropout.split(words, 0.0, chance(0)) == learnt(lowercase).encode([text])[0].tolist()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(["the", "quickly", "aaaaaaa", "北京市", "étoiles", "fox\n"]), max_size=12),
    st.floats(0.01, 0.99),
    st.integers(0, 1000),
)
def test_with_dropout_the_text_stays_the_same(parts, rate, seed):
    dropout, text = BPEDropout(learnt()), " ".join(parts)
    (words,) = dropout.words([text])
    ids = dropout.split(words, rate, chance(seed))
    assert learnt().decode(ids) == text
    assert ids == dropout.split(words, rate, chance(seed))


def by_definition(dropout: BPEDropout, word: str, rate: float) -> dict[tuple[int, ...], float]:
    """The probability of every split: at each step each possible merge is left out at `rate`, the best of the rest made."""

    @cache
    def after(symbols: tuple[int, ...]) -> dict[tuple[int, ...], float]:
        pairs = enumerate(pairwise(symbols))
        merges = sorted((dropout.rank[pair], at) for at, pair in pairs if pair in dropout.rank)
        found: Counter[tuple[int, ...]] = Counter({symbols: rate ** len(merges)})
        for step, (rank, at) in enumerate(merges):
            merged = (*symbols[:at], dropout.merges[rank][2], *symbols[at + 2 :])
            for split, share in after(merged).items():
                found[split] += rate**step * (1 - rate) * share
        return found

    return dict(after(tuple(dropout.vocabulary[character] for character in word)))


@pytest.mark.parametrize(("word", "rate"), [("aaaa", 0.3), ("quick", 0.1), ("quickly", 0.5), ("abab", 0.8)])
def test_splits_come_as_often_as_the_definition_says(word, rate):
    dropout, tries = BPEDropout(learnt()), 4000
    expected = by_definition(dropout, word, rate)
    assert sum(expected.values()) == pytest.approx(1)
    rng = chance(7)
    found = Counter(tuple(dropout.split([word], rate, rng)) for _ in range(tries))
    assert set(found) <= set(expected)
    assert len(expected) > 2
    for split, share in expected.items():
        spread = (share * (1 - share) / tries) ** 0.5
        assert abs(found[split] / tries - share) < 5 * spread + 1e-3, split


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "characters"])
def test_other_kinds_of_tokenizer_are_refused_with_a_way_out(kind):
    tokenizer = train_tokenizer(TEXTS, TokenizerConfig(type=kind, vocab_size=200))
    with pytest.raises(ConfigError, match=f"needs a bpe tokenizer, and this one is {kind}") as caught:
        BPEDropout(tokenizer)
    assert "training.token_cutoff" in caught.value.hint


def test_a_tokenizer_that_does_more_than_merge_is_refused(tmp_path):
    layout = json.loads(learnt().engine.files()["tokenizer.json"])
    token = {"id": learnt().size, "content": "fox", "single_word": False, "lstrip": False, "rstrip": False}
    layout["added_tokens"].append({**token, "normalized": True, "special": False})
    (tmp_path / "tokenizer.json").write_text(json.dumps(layout))
    dropout = BPEDropout(open_tokenizer(tmp_path))
    with pytest.raises(ConfigError, match="does more than merge"):
        dropout.words(["the foxes"])


def test_merges_written_in_the_older_way_are_read_too(tmp_path):
    layout = json.loads(learnt().engine.files()["tokenizer.json"])
    merges = layout["model"]["merges"]
    layout["model"]["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    (tmp_path / "tokenizer.json").write_text(json.dumps(layout))
    assert BPEDropout(open_tokenizer(tmp_path)).merges == BPEDropout(learnt()).merges
