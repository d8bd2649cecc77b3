"""Characters come as soon as they are whole, and together they are the text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.config import TokenizerConfig
from headstart.data.tokenizer_training import train_tokenizer
from headstart.generation.generate import BROKEN, Unfolding, continuation

TEXTS = ["Hello, wörld! don't — 你好 😀 naïve\nnew line", "the cat isn't here . ' a ' b", "tabs\tand  double  spaces"]
KINDS = ("bpe", "unigram", "wordpiece", "characters")


@pytest.fixture(scope="module")
def tokenizers():
    return {kind: train_tokenizer(TEXTS * 30, TokenizerConfig(type=kind, vocab_size=320)) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_pieces_add_up_to_the_text(tokenizers, kind, data):
    tokenizer = tokenizers[kind]
    tokens = data.draw(st.lists(st.integers(0, tokenizer.size - 1), max_size=12))
    prompt = tokenizer.encode([data.draw(st.sampled_from([*TEXTS, "", "é"]))])[0].tolist()
    unfolding = Unfolding(tokenizer, prompt)
    pieces = [unfolding.add(token) for token in tokens]
    text = "".join([*pieces, unfolding.finish()])
    assert tokenizer.decode(prompt) + text == tokenizer.decode([*prompt, *tokens])
    assert text == continuation(tokenizer, prompt, tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_held_back_that_is_whole(tokenizers, kind):
    tokenizer = tokenizers[kind]
    tokens = tokenizer.encode(["the cat isn't here"])[0].tolist()
    unfolding, shown = Unfolding(tokenizer), ""
    for count, token in enumerate(tokens, start=1):
        shown += unfolding.add(token)
        assert shown == tokenizer.decode(tokens[:count])


def test_no_part_of_a_character_is_ever_shown(tokenizers):
    tokenizer = train_tokenizer(["plain words only"] * 9, TokenizerConfig(type="bpe", vocab_size=261))
    unfolding = Unfolding(tokenizer)
    pieces = [unfolding.add(token) for token in tokenizer.encode(["é 😀!"])[0]]
    assert pieces == ["", "é", " ", "", "", "", "😀", "!"]
    assert [BROKEN in piece for piece in pieces] == [False] * 8


def test_bytes_that_never_became_a_character_show_at_the_end(tokenizers):
    tokenizer = train_tokenizer(["plain words only"] * 9, TokenizerConfig(type="bpe", vocab_size=261))
    first, *_ = tokenizer.encode(["😀"])[0]
    unfolding = Unfolding(tokenizer)
    assert unfolding.add(first) == ""
    assert unfolding.finish() == BROKEN
