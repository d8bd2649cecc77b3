"""Augmented training texts: a function of seed and epoch, within the token budget; the rest stays equal."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.batch import EncodedExample, TextLoader
from headstart.config import DataConfig, TokenizerConfig, TrainingConfig
from headstart.data.augmentation import token_cutoff
from headstart.data.tokenizer import Tokenizer
from headstart.data.tokenizer_training import train_tokenizer
from headstart.workflows.finetune import training_loader
from tests.helpers.datasets import BAD, GOOD, PLAIN
from tests.helpers.tiny_models import VOCABULARY, random_rows

TEXTS = [" ".join([*GOOD[: 1 + n % 5], *PLAIN[n % 9 :], *BAD[: n % 4]]) for n in range(40)]
SPECIAL = np.isin(np.arange(VOCABULARY.size), list(VOCABULARY.special_ids))


@cache
def learnt() -> Tokenizer:
    return train_tokenizer(TEXTS, TokenizerConfig(type="bpe", vocab_size=400))


def plain_rows(length: int) -> list[EncodedExample]:
    encoded = learnt().encode(TEXTS)
    return [EncodedExample(learnt().add_special_tokens(ids, length), number % 2) for number, ids in enumerate(encoded)]


def loader(length=64, **training):
    settings = TrainingConfig(max_length=length, **{"tokens_per_batch": 300, "seed": 3, **training})
    return training_loader(plain_rows(length), TEXTS, learnt(), settings, DataConfig())


def read(one, epoch):
    """Every batch of an epoch as lists of tokens and labels."""
    return [[(row.tokens.tolist(), row.label) for row in one.fetch(numbers, epoch)] for numbers in one.batches(epoch)]


def test_without_augmentation_the_loader_is_the_plain_one():
    assert isinstance(loader(), TextLoader)


CHANGES = [{"bpe_dropout": 0.2}, {"token_cutoff": 0.2}, {"bpe_dropout": 0.1, "token_cutoff": 0.3}]


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: "+".join(changes))
def test_what_an_epoch_reads_depends_on_seed_and_epoch_alone(changes):
    one, again, other = loader(**changes), loader(**changes), loader(**changes, seed=4)
    assert read(one, 0) == read(again, 0)
    later = read(one, 2)
    again.count(5)
    assert read(again, 2) == later != read(one, 0)
    assert read(other, 0) != read(one, 0)


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: "+".join(changes))
def test_every_text_is_read_once_within_the_budget_and_with_its_label(changes):
    fresh = loader(**changes, length=40)
    for epoch in range(3):
        batches = fresh.batches(epoch)
        assert len(batches) == fresh.count(epoch)
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(TEXTS)))
        for numbers in batches:
            rows = fresh.fetch(numbers, epoch)
            longest = max(len(row.tokens) for row in rows)
            assert longest <= 40
            assert len(rows) == 1 or longest * len(rows) <= 300
            assert [row.label for row in rows] == [number % 2 for number in numbers.tolist()]
            for row in rows:
                assert (row.tokens[0], row.tokens[-1]) == (learnt().bos_id, learnt().eos_id)


@settings(max_examples=200, deadline=None)
@given(length=st.integers(2, 60), rate=st.floats(0, 0.99), seed=st.integers(0, 99))
def test_a_share_of_the_ordinary_tokens_is_cut_off_and_the_rest_stays_in_order(length, rate, seed):
    (row,) = random_rows([length], seed)
    cut = token_cutoff(row, rate, SPECIAL, np.random.default_rng(seed))
    ordinary = int((~SPECIAL[row.tokens]).sum())
    assert len(row.tokens) - len(cut.tokens) == max(0, min(round(rate * ordinary), ordinary - 1))
    left = iter(row.tokens.tolist())
    assert all(token in left for token in cut.tokens.tolist())  # a subsequence
    assert [t for t in cut.tokens if SPECIAL[t]] == [t for t in row.tokens if SPECIAL[t]]
    assert cut.label == row.label
    if rate == 0:
        assert cut is row


def test_cut_off_hides_every_place_alike():
    row = EncodedExample(np.concatenate([[2], np.arange(5, 25), [3]]).astype(np.int32))
    counts = np.zeros(VOCABULARY.size)
    for seed in range(2000):
        counts[token_cutoff(row, 0.25, SPECIAL, np.random.default_rng(seed)).tokens] += 1
    assert abs(counts[5:25] / 2000 - 0.75).max() < 0.05
    assert counts[2] == counts[3] == 2000


def test_segments_are_cut_with_their_tokens():
    (row,) = random_rows([20])
    paired = EncodedExample(row.tokens, row.label, np.arange(20))
    cut = token_cutoff(paired, 0.5, SPECIAL, np.random.default_rng(0))
    assert row.tokens[cut.segments].tolist() == cut.tokens.tolist()
