import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.batch import EncodedExample, TextLoader, sides
from headstart.data.corpus_loaders import BlockLoader, Groups


def padding_share(loader, epoch=0):
    """The share of computed positions that would be padding in an epoch."""
    computed = real = 0
    for numbers in loader.batches(epoch):
        lengths = np.array([sides(row) for row in loader.fetch(numbers, epoch)])  # (N, sides)
        computed += int(lengths.max(axis=0).sum()) * len(lengths)
        real += int(lengths.sum())
    return 1 - real / max(1, computed)


class Numbers:
    """A stream in which every token is its own position."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def slice(self, start, stop):
        return np.arange(start, min(stop, self.size), dtype=np.int32)


@given(
    size=st.integers(2, 400), length=st.integers(1, 30), budget=st.integers(1, 90), epoch=st.integers(0, 5),
    lookahead=st.integers(0, 1),
)  # fmt: skip
def test_blocks_are_whole_apart_and_lose_less_than_one(size, length, budget, epoch, lookahead):
    loader = BlockLoader(Numbers(size), length, budget, seed=3, lookahead=lookahead)
    rows = [row.tokens for numbers in loader.batches(epoch) for row in loader.fetch(numbers, epoch)]
    assert len(loader.batches(epoch)) == loader.count(epoch)
    firsts = np.concatenate([row[: len(row) - lookahead] for row in rows])
    assert len(set(firsts.tolist())) == len(firsts)
    assert len(firsts) > size - lookahead - length or len(rows) == 1
    if size >= length + lookahead:
        assert {len(row) for row in rows} == {length + lookahead}


@given(size=st.integers(2, 300), length=st.integers(1, 30), lookahead=st.integers(0, 1))
def test_blocks_in_order_cover_every_token_once(size, length, lookahead):
    loader = BlockLoader(Numbers(size), length, 64, seed=0, lookahead=lookahead, shuffled=False)
    rows = [row.tokens for numbers in loader.batches(0) for row in loader.fetch(numbers, 0)]
    answered = np.concatenate([row[lookahead:] for row in rows])
    assert answered.tolist() == list(range(lookahead, size))


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=120), budget=st.integers(1, 200), most=st.integers(1, 20),
    epoch=st.integers(0, 3),
)  # fmt: skip
def test_every_text_is_read_once_an_epoch_within_the_budget(lengths, budget, most, epoch):
    rows = [EncodedExample(np.zeros(length, np.int32)) for length in lengths]
    loader = TextLoader(rows, budget, most, seed=1)
    batches = loader.batches(epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(rows)))
    for numbers in batches:
        assert len(numbers) <= most
        assert len(numbers) == 1 or max(lengths[number] for number in numbers) * len(numbers) <= budget


def test_the_order_is_a_function_of_seed_and_epoch():
    rows = [EncodedExample(np.zeros(length, np.int32)) for length in range(1, 60)]
    orders = [
        np.concatenate(TextLoader(rows, 100, seed=seed).batches(epoch)).tolist()
        for seed, epoch in ((1, 0), (1, 0), (1, 1), (2, 0))
    ]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0] != orders[3]


def test_texts_of_like_length_go_together():
    lengths = np.random.default_rng(0).integers(5, 200, 1000)
    rows = [EncodedExample(np.zeros(length, np.int32)) for length in lengths]
    assert padding_share(TextLoader(rows, 2000, seed=0)) < 0.1


def test_groups_are_cut_where_they_are_asked_for():
    groups = Groups(np.arange(10), 4)
    assert [group.tolist() for group in groups] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [group.tolist() for group in groups[1:9]] == [[4, 5, 6, 7], [8, 9]]
    assert groups[-1].tolist() == [8, 9]
    assert len(groups) == 3
    with pytest.raises(IndexError):
        groups[3]


@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=80),
    budget=st.integers(1, 300), epoch=st.integers(0, 3),
)  # fmt: skip
def test_a_source_counts_towards_the_budget_padded_as_it_is(lengths, budget, epoch):
    rows = [EncodedExample(np.zeros(target, np.int32), source=np.zeros(source, np.int32)) for target, source in lengths]
    loader = TextLoader(rows, budget, seed=1)
    batches = loader.batches(epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(rows)))
    computed = 0
    for numbers in batches:
        longest = [max(lengths[number][side] for number in numbers) for side in (0, 1)]
        assert len(numbers) == 1 or sum(longest) * len(numbers) <= budget
        computed += sum(longest) * len(numbers)
    real = sum(map(sum, lengths))
    assert padding_share(loader, epoch) == 1 - real / computed


def test_pairs_of_like_length_go_together():
    chance = np.random.default_rng(0)
    targets = chance.integers(5, 60, 2000)
    sources = np.maximum(3, targets + chance.integers(-4, 5, 2000))
    rows = [
        EncodedExample(np.zeros(target, np.int32), source=np.zeros(source, np.int32))
        for target, source in zip(targets, sources, strict=True)
    ]
    assert padding_share(TextLoader(rows, 4000, seed=0)) < 0.15


def test_no_texts_are_no_batches():
    assert TextLoader([], 100, shuffled=False).batches(0) == []


def test_texts_are_read_apart_where_padding_would_be_more_than_allowed():
    rows = [EncodedExample(np.arange(length)) for length in (40, 3, 5, 4, 38, 5, 3, 39)]
    together = TextLoader(rows, 1000, shuffled=False)
    apart = TextLoader(rows, 1000, shuffled=False, padding=8)
    assert len(together.batches(0)) == 1
    assert [sorted(map(int, batch)) for batch in apart.batches(0)] == [[1, 2, 3, 5, 6], [0, 4, 7]]
    for batch in apart.batches(0):
        lengths = [len(rows[number].tokens) for number in batch]
        assert max(lengths) * len(lengths) - sum(lengths) <= 8
