"""Every way to draw, against its plain definition."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.errors import ConfigError
from headstart.generation import sampling as module
from headstart.generation.sampling import (
    GREEDY,
    Sampling,
    candidates,
    inverse_transform,
    penalize_repetition,
    sample,
    stream_of,
    top_k,
    uniform,
)

SCORES = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=12)


def distribution(scores, sampling):
    """The probability of every token (V,)."""
    chances, tokens = candidates(torch.tensor([scores], dtype=torch.float32), sampling)
    whole = torch.zeros(1, len(scores))
    tokens = torch.arange(len(scores))[None] if tokens is None else tokens
    return (whole.scatter(1, tokens, chances) / chances.sum())[0].tolist()


def plain(scores, sampling):
    """The same from the definitions alone, in double precision; None where rounding may decide."""
    weights = [math.exp(score / sampling.temperature) for score in scores]
    order = sorted(range(len(scores)), key=lambda place: (-weights[place], place))
    order = order[: sampling.top_k]
    whole = sum(weights[place] for place in order)
    retained, before = [], 0.0
    for place in order:
        if abs(before - sampling.top_p) < 1e-5 and sampling.top_p < 1:
            return None
        if sampling.top_p < 1 and before >= sampling.top_p:
            break
        retained.append(place)
        before += weights[place] / whole
    for place in order:
        if abs(weights[place] / weights[order[0]] - sampling.min_p) < 1e-5 and place != order[0]:
            return None
    retained = [place for place in retained if weights[place] >= sampling.min_p * weights[order[0]]]
    total = sum(weights[place] for place in retained)
    return [weights[place] / total if place in retained else 0.0 for place in range(len(scores))]


@settings(max_examples=300, deadline=None)
@given(
    scores=SCORES,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 2.5]),
    top_k=st.one_of(st.none(), st.integers(1, 14)),
    top_p=st.sampled_from([0.05, 0.31, 0.62, 0.93, 1.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.21, 1.0]),
    few=st.sampled_from([2, 5, 256]),
)
def test_what_is_left_to_draw_from_is_what_the_definitions_say(scores, temperature, top_k, top_p, min_p, few):
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    wanted = plain(scores, sampling)
    if wanted is None:
        return
    before, module.SHORTLIST = module.SHORTLIST, few  # the first few are ranked first: the answer is the same
    try:
        assert distribution(scores, sampling) == pytest.approx(wanted, abs=1e-5)
    finally:
        module.SHORTLIST = before


@settings(max_examples=100, deadline=None)
@given(scores=SCORES, penalty=st.sampled_from([0.5, 1.0, 1.3, 4.0]), data=st.data())
def test_tokens_of_the_text_so_far_score_less(scores, penalty, data):
    """Keskar et al. (2019): a score above zero is divided, one below is multiplied, each once."""
    history = data.draw(st.lists(st.integers(0, len(scores) - 1), min_size=1, max_size=6))
    found = penalize_repetition(torch.tensor([scores]), torch.tensor([history]), penalty)[0].tolist()
    wanted = [
        (score / penalty if score > 0 else score * penalty) if place in history else score
        for place, score in enumerate(scores)
    ]
    assert found == pytest.approx(wanted, abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(
    chances=st.lists(st.sampled_from([0.0, 1e-9, 0.1, 0.25, 3.0]), min_size=1, max_size=8).filter(any),
    draw=st.floats(0, 1, exclude_max=True, width=32),
)
def test_a_draw_takes_the_token_whose_share_it_falls_in(chances, draw):
    rank = int(inverse_transform(torch.tensor([chances]), torch.tensor([draw]))[0])
    assert chances[rank] > 0
    whole = math.fsum(chances)
    assert math.fsum(chances[:rank]) / whole <= draw + 1e-6
    assert math.fsum(chances[: rank + 1]) / whole >= draw - 1e-6


def test_draws_come_as_often_as_their_chances():
    chances = torch.tensor([[0.5, 0.0, 0.3, 0.2]]).expand(20_000, 4)
    draws = uniform(3, np.array([stream_of(np.array([5]))], dtype=np.uint64), 20_000)[0]
    counts = torch.bincount(inverse_transform(chances, draws), minlength=4) / 20_000
    assert torch.allclose(counts, chances[0], atol=0.012)


def test_chance_is_a_function_of_seed_stream_and_step():
    streams = np.array([stream_of(np.array([5, 6]), number) for number in range(50)], dtype=np.uint64)
    draws = uniform(0, streams, 40)
    assert draws.shape == (50, 40)
    assert torch.equal(uniform(0, streams[7:9], 12), draws[7:9, :12])
    assert len(draws.unique()) > 1990  # 24 bits: a few of 2,000 may meet
    assert not torch.equal(uniform(1, streams, 40), draws)
    assert float(draws.min()) >= 0
    assert float(draws.max()) < 1
    assert abs(float(draws.mean()) - 0.5) < 0.02
    assert abs(float(np.corrcoef(draws[:-1].flatten(), draws[1:].flatten())[0, 1])) < 0.07


def test_the_stream_of_a_prompt_is_its_tokens_and_its_number():
    assert stream_of(np.array([1, 2], np.int32)) == stream_of(np.array([1, 2], np.int64))
    assert len({stream_of(np.array(p), n) for p in ([1, 2], [1], [2, 1], []) for n in range(3)}) == 12


@settings(max_examples=100, deadline=None)
@given(scores=SCORES, count=st.integers(1, 12))
def test_a_ranking_puts_the_first_of_equals_first(scores, count):
    values, indices = top_k(torch.tensor([scores]), min(count, len(scores)))
    wanted = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:count]
    assert indices[0].tolist() == wanted
    assert values[0].tolist() == [scores[place] for place in wanted]


def test_greedy_takes_the_first_of_the_likeliest():
    scores = torch.tensor([[1.0, 3.0, 3.0], [0.0, -1.0, 0.0]])
    for sampling in (GREEDY, Sampling(top_k=1)):
        assert sample(scores, sampling, None, torch.zeros(2)).tolist() == [1, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": math.nan},
        {"top_k": 0},
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"repetition_penalty": 0},
        {"seed": -1},
    ],
    ids=lambda wrong: "-".join(f"{name}-{value}" for name, value in wrong.items()),
)
def test_a_setting_that_means_nothing_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))) as caught:
        Sampling(**wrong)
    assert caught.value.hint
