"""The largest scores and their places, however many there are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.generation.reader import likeliest, ranked


def by_sorting(scores, count):
    values, places = scores.sort(dim=-1, descending=True, stable=True)
    return values[..., :count], places[..., :count]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.sampled_from([1, 4, 80]),
    vocabulary=st.sampled_from([5, 127, 900, 1024, 3001]),
    count=st.integers(1, 9),
    kinds=st.sampled_from([3, 50, 10**6]),
    barred=st.sampled_from([0.0, 0.5, 0.995]),
    seed=st.integers(0, 1000),
)
def test_ranked_is_the_beginning_of_a_stable_sort(rows, vocabulary, count, kinds, barred, seed):
    """With scores that are often equal, or never; with many tokens out of reach; with groups that do not fit."""
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, kinds, (rows, vocabulary), generator=rng).float()
    scores[torch.rand(scores.shape, generator=rng) < barred] = -torch.inf
    count = min(count, vocabulary)
    values, places = ranked(scores, count)
    expected, where = by_sorting(scores, count)
    assert torch.equal(values, expected)
    within = expected > -torch.inf
    assert torch.equal(places[within], where[within])
    assert torch.equal(scores.gather(1, places), values)


@pytest.mark.parametrize("vocabulary", [1, 7, 300, 4001])
def test_the_likeliest_is_the_first_of_the_largest(vocabulary):
    scores = torch.randint(0, 5, (6, vocabulary), generator=torch.Generator().manual_seed(0)).float()
    scores[0] = -torch.inf
    found = likeliest(scores)
    assert found.tolist() == [int((row == row.max()).nonzero()[0]) for row in scores]
    assert found.dtype == torch.long
