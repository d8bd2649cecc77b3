"""Texts one by one: what a row gets is its own, cached or not, in a batch or alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart import fast
from headstart.batch import Batch
from headstart.errors import ConfigError, DataError
from headstart.generation.generate import ModelDecoder, Rules, decode, log_probabilities, unfinished
from headstart.generation.sampling import GREEDY, Sampling
from headstart.models import BACKBONES
from headstart.models.heads import ClassHead, LanguageHead
from headstart.models.model import Model
from tests.helpers.tiny_models import SHAPES, tiny_config
from tests.helpers.toy_decoders import TableDecoder, alone, body_batch, model_decoder, toy_batch

CACHED = [kind for kind, body in BACKBONES.items() if hasattr(body, "decode")]


@pytest.fixture(autouse=True, scope="module", params=[True, False], ids=["fast", "plain"])
def _fast(request):
    fast.set_enabled(request.param)
    yield
    fast.set_enabled(True)


WAYS = {
    "greedy": GREEDY,
    "drawn": Sampling(temperature=1.5, seed=4),
    "short": Sampling(temperature=1.2, top_k=9, top_p=0.9, min_p=0.02, seed=5),
    "new": Sampling(temperature=0, repetition_penalty=1.7),
}
RULES = Rules(last=3, most=9, banned=(0, 1))


def uncached(decoder, batch, row, rules):
    """The likeliest text, each token found by reading everything again; and its log-probabilities."""
    one, found, log_probs = alone(batch, row), [], []
    tokens = one.tokens
    while len(found) < rules.most:
        real = torch.ones_like(tokens, dtype=torch.bool)
        with torch.no_grad():
            hidden = decoder.backbone(
                Batch(tokens, real, source=one.source, source_attention_mask=one.source_attention_mask)
            )
            scores = decoder.logits(hidden[:, -1]).log_softmax(dim=-1)[0]
        allowed = scores.clone()
        allowed[list(rules.banned)] = -torch.inf
        best = int(allowed.argmax())
        found.append(best)
        log_probs.append(float(scores[best]))
        if best == rules.last:
            break
        tokens = torch.cat((tokens, torch.tensor([[best]])), dim=1)
    return found, log_probs


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", CACHED)
def test_cached_decoding_equals_reading_everything_again(kind, shape):
    decoder, batch = model_decoder(kind, shape), body_batch(kind, [4, 1, 6, 3])
    texts = decode(decoder, batch, RULES, scored=True)
    for row, text in enumerate(texts):
        tokens, log_probs = uncached(decoder, batch, row, RULES)
        assert [*text.tokens, RULES.last][: len(tokens)] == tokens
        assert text.is_cut == (tokens[-1] != RULES.last)
        assert text.log_probabilities == pytest.approx(log_probs, abs=1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", CACHED)
@settings(max_examples=10, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=2, max_size=9), seed=st.integers(0, 99))
@pytest.mark.slow
def test_a_batch_gives_what_each_row_gives_alone(kind, way, lengths, seed):
    decoder, batch = model_decoder(kind, vocabulary=12, seed=seed), body_batch(kind, lengths, 12, seed)
    together = decode(decoder, batch, RULES, WAYS[way], scored=True)
    for row in range(len(lengths)):
        (one,) = decode(decoder, alone(batch, row), RULES, WAYS[way], scored=True)
        assert one.tokens == together[row].tokens
        assert one.is_cut == together[row].is_cut
        assert one.log_probabilities == pytest.approx(together[row].log_probabilities, abs=1e-4)


@pytest.mark.parametrize("kind", CACHED)
@pytest.mark.parametrize("way", WAYS)
def test_the_probability_of_a_text_is_that_with_which_it_was_written(kind, way):
    decoder, batch = model_decoder(kind), body_batch(kind, [4, 1, 6, 3])
    texts = decode(decoder, batch, RULES, WAYS[way], scored=True)
    whole = [text.tokens + ([] if text.is_cut else [RULES.last]) for text in texts]
    for text, log_probs in zip(texts, log_probabilities(decoder, batch, whole), strict=True):
        assert text.log_probabilities == pytest.approx(log_probs, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    vocabulary=st.integers(2, 5),
    most=st.integers(0, 7),
    least=st.integers(0, 4),
    own=st.lists(st.integers(0, 7), min_size=1, max_size=12),
    way=st.sampled_from(sorted(WAYS)),
)
def test_texts_keep_to_the_rules(seed, vocabulary, most, least, own, way):
    decoder = TableDecoder(vocabulary, seed)
    rules = Rules(last=seed % vocabulary, most=most, least=least)
    rows = [row % 8 for row in range(len(own))]
    seen = {row: [] for row in range(len(own))}
    texts = decode(
        decoder, toy_batch(rows), rules, WAYS[way], most=own, on_token=lambda row, token: seen[row].append(token)
    )
    for row, text in enumerate(texts):
        room = min(most, own[row])
        assert rules.last not in text.tokens
        assert text.is_cut == (len(text.tokens) == room)
        assert text.is_cut or least <= len(text.tokens) < room
        assert seen[row] == text.tokens + ([] if text.is_cut else [rules.last])


def test_tokens_are_told_row_by_row_as_they_come():
    seen = []
    texts = decode(TableDecoder(4, seed=2), toy_batch([0, 1]), Rules(1, 4), on_token=lambda *pair: seen.append(pair))
    steps = [pair for step in range(4) for pair in [(row, step) for row in range(2)]]
    written = [text.tokens + ([] if text.is_cut else [1]) for text in texts]
    assert seen == [(row, written[row][step]) for row, step in steps if step < len(written[row])]


def test_finished_rows_leave_the_batch():
    decoder, rules = TableDecoder(3, seed=5), Rules(1, 30)
    texts = decode(decoder, toy_batch([row % 8 for row in range(64)]), rules)
    needed = sum(len(text.tokens) + 1 - text.is_cut for text in texts)
    longest = max(len(text.tokens) + 1 - text.is_cut for text in texts)
    assert needed <= decoder.read_rows < 1.4 * needed < 64 * longest


@given(done=st.lists(st.booleans(), min_size=1, max_size=12))
def test_rows_that_stay_keep_their_place_unless_they_fill_a_gap(done):
    done = np.array(done)
    left = unfinished(done)
    assert sorted(left.tolist()) == np.flatnonzero(~done).tolist()
    assert all(row == place or row >= len(left) for place, row in enumerate(left.tolist()))


@pytest.mark.parametrize("kind", CACHED)
def test_learned_positions_end_a_text_and_not_the_others(kind):
    decoder = model_decoder(kind, "learned-geglu", max_position_embeddings=8)
    batch = body_batch(kind, [6, 2, 8, 5])
    texts = decode(decoder, batch, Rules(last=3, most=50, least=50))
    prompt = batch.attention_mask.sum(dim=1).tolist()
    assert [len(text.tokens) for text in texts] == [9 - length for length in prompt]
    assert all(text.is_cut for text in texts)
    for row in range(4):
        assert decode(decoder, alone(batch, row), Rules(3, 50, 50))[0] == texts[row]


def test_a_prompt_longer_than_the_learned_positions_is_refused():
    decoder = model_decoder("causal", "learned-geglu", max_position_embeddings=8)
    with pytest.raises(DataError, match="prompt of 9 tokens is longer than the 8 positions"):
        decode(decoder, body_batch("causal", [3, 9]), Rules(3, 5))


@pytest.mark.parametrize("head", ["lm", "class"])
@pytest.mark.parametrize("kind", BACKBONES)
def test_only_a_body_that_sees_no_future_under_a_language_head_writes(kind, head):
    config = tiny_config(kind)
    heads = {"lm": LanguageHead(config, 40)} if head == "lm" else {"class": ClassHead(config, 2, "mean", "linear")}
    model = Model(BACKBONES[kind](config, 40), heads)
    if kind in CACHED and head == "lm":
        assert ModelDecoder(model).logits(torch.zeros(1, 16)).shape == (1, 40)
    else:
        with pytest.raises(ConfigError, match="writes no text"):
            ModelDecoder(model)
