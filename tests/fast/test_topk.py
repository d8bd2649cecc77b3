"""The largest logits and their indices, with fast paths and without."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headstart import fast
from headstart.generation.beam_search import top_sums
from headstart.generation.sampling import argmax, top_k


@pytest.fixture(autouse=True, params=[True, False], ids=["fast", "plain"])
def _fast(request, monkeypatch):
    monkeypatch.setattr(fast, "is_enabled", lambda: request.param)


def by_sorting(scores, count):
    values, indices = scores.sort(dim=-1, descending=True, stable=True)
    return values[..., :count], indices[..., :count]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.sampled_from([1, 4, 80]),
    vocabulary=st.sampled_from([5, 127, 900, 1024, 3001]),
    count=st.integers(1, 9),
    kinds=st.sampled_from([3, 50, 10**6]),
    barred=st.sampled_from([0.0, 0.5, 0.995]),
    seed=st.integers(0, 1000),
)
def test_top_k_is_the_beginning_of_a_stable_sort(rows, vocabulary, count, kinds, barred, seed):
    """With scores that are often equal, or never; with many tokens out of reach; with groups that do not fit."""
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, kinds, (rows, vocabulary), generator=rng).float()
    scores[torch.rand(scores.shape, generator=rng) < barred] = -torch.inf
    count = min(count, vocabulary)
    values, indices = top_k(scores, count)
    expected, where = by_sorting(scores, count)
    assert torch.equal(values, expected)
    within = expected > -torch.inf
    assert torch.equal(indices[within], where[within])
    assert torch.equal(scores.gather(1, indices), values)


@pytest.mark.parametrize("vocabulary", [1, 7, 300, 4001])
def test_argmax_is_the_first_of_the_largest(vocabulary):
    scores = torch.randint(0, 5, (6, vocabulary), generator=torch.Generator().manual_seed(0)).float()
    scores[0] = -torch.inf
    found = argmax(scores)
    assert found.tolist() == [int((row == row.max()).nonzero()[0]) for row in scores]
    assert found.dtype == torch.long


def sums_by_sorting(totals, gains, count):
    """All sums of a source, row by row and in a row by what they gain, sorted; for each its row and token."""
    found = []
    for own, rows in zip(totals, gains, strict=True):
        order = [np.argsort(-row, kind="stable") for row in rows]
        every = [
            (own[row] + min(rows[row][token], np.float32(0)), row, token)
            for row in range(len(rows))
            for token in order[row].tolist()
        ]
        every.sort(key=lambda each: -each[0])
        found.append([each for each in every[:count] if each[0] > -np.inf])
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sources=st.sampled_from([1, 3]),
    width=st.sampled_from([1, 2, 5]),
    vocabulary=st.sampled_from([3, 127, 900, 1024]),
    count=st.integers(1, 6),
    kinds=st.sampled_from([3, 50, 10**6]),
    barred=st.sampled_from([0.0, 0.5, 0.995]),
    seed=st.integers(0, 1000),
)
def test_top_sums_are_the_largest_in_a_fixed_order(sources, width, vocabulary, count, kinds, barred, seed):
    """Often equal, or never; with rows and tokens out of reach; with groups that do not fit."""
    chance = np.random.default_rng(seed)
    gains = -chance.integers(0, kinds, (sources, width, vocabulary)).astype(np.float32) / 8
    gains[chance.random(gains.shape) < barred] = -np.inf
    totals = -chance.integers(0, kinds, (sources, width)).astype(np.float32) / 8
    totals[:, 1:][chance.random((sources, width - 1)) < 0.3] = -np.inf
    sums, rows, tokens = top_sums(totals, torch.from_numpy(gains.copy()).flatten(0, 1), count)
    assert sums.shape == rows.shape == tokens.shape == (sources, count)
    for source, expected in enumerate(sums_by_sorting(totals, gains, count)):
        number = len(expected)
        found = zip(sums[source], rows[source], tokens[source], strict=True)
        assert [(total, row, token) for total, row, token in found][:number] == expected
        assert (sums[source, number:] == -np.inf).all()
