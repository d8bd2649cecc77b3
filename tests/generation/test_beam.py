"""Beam search against its plain definition, against exhaustive search, and against itself."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart import fast
from headstart.errors import ConfigError
from headstart.generation.beam_search import Beam, Search, beam_search, length_penalties
from headstart.generation.generate import Rules, decode, log_probabilities
from headstart.models import BACKBONES
from tests.helpers.tiny_models import SHAPES
from tests.helpers.toy_decoders import TableDecoder, alone, body_batch, every_text, model_decoder, toy_batch

CACHED = [kind for kind, body in BACKBONES.items() if hasattr(body, "decode")]


@pytest.fixture(autouse=True, scope="module", params=[True, False], ids=["fast", "plain"])
def _fast(request):
    fast.set_enabled(request.param)
    yield
    fast.set_enabled(True)


PENALTIES = st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0])
EXACT = 1e-4


def whole(hypothesis, rules):
    """The tokens with the one that ends them."""
    return hypothesis.tokens + ([] if hypothesis.is_cut else [rules.last])


def penalised(log_probs, penalty):
    return sum(log_probs) / ((5 + len(log_probs)) / 6) ** penalty


def texts_of(found):
    return [[(each.tokens, each.is_cut) for each in source] for source in found]


def same(one, other):
    """The same hypotheses with the same scores; equal scores may stand in either order."""
    assert [len(source) for source in one] == [len(source) for source in other]
    for left, right in zip(one, other, strict=True):
        assert [each.score for each in left] == pytest.approx([each.score for each in right], abs=EXACT)
        for mine, theirs in zip(left, right, strict=True):
            near = [each for each in right if abs(each.score - mine.score) < EXACT]
            assert (mine.tokens, mine.is_cut) in [(each.tokens, each.is_cut) for each in near] or len(near) > 1
            assert mine.is_cut == theirs.is_cut


def plain_search(decoder, source, rules, beam):
    """Beam search as one would write it down: lists, one source, everything read again, nothing stopped early."""
    live, over = [([], 0.0)], []
    while live and len(live[0][0]) < rules.most:
        texts = [text for text, _ in live]
        batch = toy_batch([source] * len(live))
        cache = decoder.new_cache(batch, 0)
        tokens = torch.tensor([[0, *text] for text in texts])
        log_probs = decoder.logits(decoder.decode(tokens, cache)[:, -1]).log_softmax(dim=-1).tolist()
        grown = [
            ([*text, token], total + log_probs[row][token])
            for row, (text, total) in enumerate(live)
            for token in range(len(log_probs[row]))
            if token not in rules.banned and not (token == rules.last and len(text) < rules.least)
        ]
        best = sorted(grown, key=lambda pair: -pair[1])[: beam.width]  # stable
        over += [pair for pair in best if pair[0][-1] == rules.last]
        live = [pair for pair in best if pair[0][-1] != rules.last]
    scored = [
        (text[-1:] != [rules.last], total / ((5 + len(text)) / 6) ** beam.penalty, text) for text, total in over + live
    ]
    return sorted(scored, key=lambda each: (each[0], -each[1]))[: beam.best]


@st.composite
def worlds(draw, most=4):
    """A table of scores and rules for it."""
    vocabulary = draw(st.integers(2, 4))
    decoder = TableDecoder(vocabulary, draw(st.integers(0, 9999)), draw(st.sampled_from([0.5, 2.0, 5.0])))
    banned = tuple(draw(st.lists(st.integers(0, vocabulary - 1), max_size=int(vocabulary > 2))))
    last = draw(st.sampled_from([token for token in range(vocabulary) if token not in banned]))
    rules = Rules(last, draw(st.integers(1, most)), draw(st.integers(0, 3)), banned)
    return decoder, vocabulary, rules


def is_near(log_probs, best):
    """Whether two of the scores around those wanted are so near that rounding orders them."""
    ordered = sorted(log_probs, reverse=True)[: best + 1]
    return any(left - right < EXACT for left, right in pairwise(ordered))


@settings(max_examples=120, deadline=None)
@given(world=worlds(), penalty=PENALTIES, best=st.integers(1, 5), early=st.booleans())
def test_a_width_that_covers_everything_finds_the_best_there_is(world, penalty, best, early):
    decoder, vocabulary, rules = world
    texts = list(every_text(vocabulary, rules))
    log_probs = log_probabilities(decoder, toy_batch([3] * len(texts)), texts)
    scored = [
        (text[-1:] != [rules.last], -penalised(log_prob, penalty), text)
        for log_prob, text in zip(log_probs, texts, strict=True)
    ]
    wanted = sorted(scored)[:best]
    beam = Beam(width=max(best, len(texts)), best=best, penalty=penalty, stops_early=early)
    (found,) = beam_search(decoder, toy_batch([3]), rules, beam)
    assert [each.score for each in found] == pytest.approx([-score for _, score, _ in wanted], abs=EXACT)
    assert [each.is_cut for each in found] == [is_cut for is_cut, _, _ in wanted]
    if not is_near([-score for _, score, _ in scored], best):
        assert [whole(each, rules) for each in found] == [text for _, _, text in wanted]


@settings(max_examples=120, deadline=None)
@given(world=worlds(most=7), penalty=PENALTIES, width=st.integers(1, 6), data=st.data())
def test_a_search_of_any_width_is_the_plain_one(world, penalty, width, data):
    decoder, _, rules = world
    beam = Beam(width, data.draw(st.integers(1, width)), penalty)
    sources = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=5))
    for source, found in zip(sources, beam_search(decoder, toy_batch(sources), rules, beam), strict=True):
        wanted = plain_search(decoder, source, rules, beam)
        assert [each.score for each in found] == pytest.approx([score for _, score, _ in wanted], abs=EXACT)
        if not is_near([score for _, score, _ in wanted], width):
            assert [whole(each, rules) for each in found] == [text for _, _, text in wanted]


@settings(max_examples=120, deadline=None)
@given(world=worlds(most=12), penalty=PENALTIES, width=st.integers(1, 6), data=st.data())
def test_stopping_early_changes_nothing_and_reads_less(world, penalty, width, data):
    decoder, _, rules = world
    best = data.draw(st.integers(1, width))
    batch = toy_batch(data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=6)))
    decoder.read_rows = 0
    early = beam_search(decoder, batch, rules, Beam(width, best, penalty))
    read, decoder.read_rows = decoder.read_rows, 0
    late = beam_search(decoder, batch, rules, Beam(width, best, penalty, stops_early=False))
    assert read <= decoder.read_rows
    same(early, late)


def test_the_early_stop_does_stop():
    decoder, batch, rules = TableDecoder(4, seed=1, scale=3.0), toy_batch(range(8)), Rules(1, 60)
    beam_search(decoder, batch, rules, Beam(4))
    read, decoder.read_rows = decoder.read_rows, 0
    beam_search(decoder, batch, rules, Beam(4, stops_early=False))
    assert 4 * read < decoder.read_rows


@settings(max_examples=60, deadline=None)
@given(world=worlds(most=8), width=st.integers(1, 6), penalty=PENALTIES, even=st.booleans(), data=st.data())
def test_a_batch_finds_what_each_source_finds_alone(world, width, penalty, even, data):
    """Also where every score is equal and a stable rule alone decides."""
    decoder, vocabulary, rules = world
    decoder = TableDecoder(vocabulary, scale=0.0) if even else decoder
    sources = data.draw(st.lists(st.integers(0, 7), min_size=2, max_size=9))
    own = data.draw(st.lists(st.integers(1, 9), min_size=len(sources), max_size=len(sources)))
    beam = Beam(width, width, penalty)
    together = beam_search(decoder, toy_batch(sources), rules, beam, most=own)
    one_by_one = [
        beam_search(decoder, toy_batch([source]), rules, beam, most=[most])[0]
        for source, most in zip(sources, own, strict=True)
    ]
    assert texts_of(together) == texts_of(one_by_one)
    same(together, one_by_one)


@settings(max_examples=60, deadline=None)
@given(world=worlds(most=8), penalty=PENALTIES, even=st.booleans())
def test_width_one_is_greedy(world, penalty, even):
    decoder, vocabulary, rules = world
    decoder = TableDecoder(vocabulary, scale=0.0) if even else decoder
    batch = toy_batch(range(8))
    texts = decode(decoder, batch, rules, scored=True)
    search = Search(decoder, rules, Beam(1, 1, penalty), torch.full((8,), rules.most))
    search.run(batch)
    for text, (found,) in zip(texts, search.found, strict=True):
        assert (found.tokens, found.is_cut) == (text.tokens, text.is_cut)
        assert found.log_probability == pytest.approx(sum(text.log_probabilities), abs=EXACT)
    same(beam_search(decoder, batch, rules, Beam(1, 1, penalty)), search.found)


@settings(max_examples=60, deadline=None)
@given(world=worlds(most=8), penalty=PENALTIES, width=st.integers(1, 8))
def test_hypotheses_are_sorted_and_no_two_are_alike(world, penalty, width):
    decoder, _, rules = world
    for found in beam_search(decoder, toy_batch(range(8)), rules, Beam(width, width, penalty)):
        assert found == sorted(found, key=lambda each: (each.is_cut, -each.score))
        assert max(Counter((tuple(each.tokens), each.is_cut) for each in found).values()) == 1
        for each in found:
            assert rules.last not in each.tokens
            assert not set(rules.banned) & set(each.tokens)
            assert each.is_cut == (len(each.tokens) == rules.most)
            assert each.is_cut or len(each.tokens) >= rules.least


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", CACHED)
def test_a_score_is_that_of_the_text_when_it_is_given(kind, shape):
    decoder, batch = model_decoder(kind, shape), body_batch(kind, [4, 1, 6, 3])
    rules, beam = Rules(3, 9, banned=(0, 1)), Beam(4, 4, 0.8)
    found = beam_search(decoder, batch, rules, beam)
    for rank in range(4):
        log_probs = log_probabilities(decoder, batch, [whole(source[rank], rules) for source in found])
        for source, log_prob in zip(found, log_probs, strict=True):
            assert source[rank].log_probability == pytest.approx(sum(log_prob), abs=EXACT)
            assert source[rank].score == pytest.approx(penalised(log_prob, 0.8), abs=EXACT)


@pytest.mark.parametrize("kind", CACHED)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 99), penalty=PENALTIES, lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4))
@pytest.mark.slow
def test_bodies_of_few_tokens_are_searched_to_the_end(kind, seed, penalty, lengths):
    """Real bodies: a covering width is exhaustive, width one is greedy, batches and the early stop change nothing."""
    vocabulary, rules = 4, Rules(1, 3)
    decoder = model_decoder(kind, vocabulary=vocabulary, seed=seed)
    batch = body_batch(kind, lengths, vocabulary, seed)
    texts = list(every_text(vocabulary, rules))
    found = beam_search(decoder, batch, rules, Beam(len(texts), 2, penalty))
    same(found, beam_search(decoder, batch, rules, Beam(len(texts), 2, penalty, stops_early=False)))
    narrow = beam_search(decoder, batch, rules, Beam(1, 1, penalty))
    for row, (best, second) in enumerate(found):
        one = alone(batch, row)
        log_probs = [sum(log_probabilities(decoder, one, [text])[0]) for text in texts]
        scores = [
            (text[-1:] != [1], -log_prob / ((5 + len(text)) / 6) ** penalty)
            for text, log_prob in zip(texts, log_probs, strict=True)
        ]
        first, next_ = sorted(scores)[:2]
        assert (best.is_cut, best.score) == (first[0], pytest.approx(-first[1], abs=EXACT))
        assert (second.is_cut, second.score) == (next_[0], pytest.approx(-next_[1], abs=EXACT))
        assert narrow[row][0].tokens == decode(decoder, one, rules)[0].tokens


@pytest.mark.parametrize("kind", CACHED)
def test_sources_and_rows_stay_together_when_others_leave(kind):
    """Many sources that end at different times, some with little room, in one batch and alone."""
    decoder = model_decoder(kind, vocabulary=9, seed=3)
    batch = body_batch(kind, [1, 5, 2, 7, 3, 3, 6, 4, 2, 1, 8, 5], 9, seed=2)
    own = [9, 3, 12, 1, 15, 4, 15, 15, 2, 8, 15, 6]
    rules, beam = Rules(1, 15), Beam(4, 3, 0.6)
    together = beam_search(decoder, batch, rules, beam, most=own)
    assert len({len(source[0].tokens) for source in together}) > 3
    for row in range(12):
        same([together[row]], beam_search(decoder, alone(batch, row), rules, beam, most=[own[row]]))


@pytest.mark.parametrize("width", [2, 5])
@pytest.mark.parametrize("kind", CACHED)
def test_a_large_vocabulary_is_searched_as_a_small_one(kind, width, monkeypatch):
    """Neither ranking groups of tokens first nor sharing a past changes what is found."""
    decoder, batch = model_decoder(kind, vocabulary=1000), body_batch(kind, [4, 1, 6, 3, 2, 5], 1000)
    rules, search = Rules(last=3, most=24, banned=(0, 1)), Beam(width, width)
    found = beam_search(decoder, batch, rules, search)
    if fast.is_enabled():
        monkeypatch.setattr(decoder.backbone.step, "can_share", False)
    monkeypatch.setattr("headstart.fast.beam_search.GROUP_SIZE", 10**6)
    same(found, beam_search(decoder, batch, rules, search))


def test_a_search_of_width_one_may_leave_its_scores_out():
    decoder, batch = model_decoder("causal"), body_batch("causal", [4, 1, 6])
    scored_search, quick = (beam_search(decoder, batch, Rules(3, 9), Beam(1, is_scored=each)) for each in (True, False))
    assert texts_of(scored_search) == texts_of(quick)
    assert all(math.isnan(each.score) and math.isnan(each.log_probability) for (each,) in quick)


@pytest.mark.parametrize("kind", CACHED)
def test_learned_positions_bound_a_search(kind):
    decoder = model_decoder(kind, "learned-geglu", max_position_embeddings=8)
    batch = body_batch(kind, [6, 2, 8, 5])
    found = beam_search(decoder, batch, Rules(3, 50, least=50), Beam(3))
    prompt = batch.attention_mask.sum(dim=1).tolist()
    assert [len(source[0].tokens) for source in found] == [9 - length for length in prompt]


def test_the_length_penalty_is_that_of_the_paper():
    assert length_penalties(5, 0.0).tolist() == [1.0] * 6
    for alpha in (-0.7, 0.6, 1.0):
        wanted = [((5 + length) ** alpha) / (6**alpha) for length in range(8)]
        assert length_penalties(7, alpha).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("wrong", [{"width": 0}, {"best": 0}, {"width": 3, "best": 4}, {"penalty": math.inf}], ids=str)
def test_a_search_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError) as caught:
        Beam(**wrong)
    assert caught.value.hint
