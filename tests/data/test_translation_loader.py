"""Both sides of a pair are split anew each epoch, and are the same text however they are split."""

import numpy as np
import pytest

from headstart.batch import TextLoader
from headstart.config import TokenizerConfig, TrainingConfig
from headstart.data.augmentation import AugmentedPairLoader
from headstart.data.parallel import PairExample
from headstart.data.tokenizer_training import train_tokenizer
from headstart.errors import ConfigError
from headstart.workflows.finetune_seq2seq import encode_pairs
from tests.helpers.parallel_datasets import TASKS, pairs_of

EXAMPLES = [PairExample(*pair) for pair in pairs_of(TASKS["number-words"], 60)]


def make(shared=True, **training):
    config = TokenizerConfig(vocab_size=320)
    sources, targets = ([getattr(each, side) for each in EXAMPLES] for side in ("source", "target"))
    if shared:
        tokenizers = (train_tokenizer([*sources, *targets], config),) * 2
    else:
        tokenizers = train_tokenizer(targets, config), train_tokenizer(sources, config)
    rows = encode_pairs(EXAMPLES, tokenizers, None)
    settings = TrainingConfig(tokens_per_batch=200, **training)
    return tokenizers, rows, AugmentedPairLoader(rows, EXAMPLES, tokenizers, settings)


@pytest.mark.parametrize("shared", [True, False])
def test_pairs_are_split_in_other_ways_each_epoch_and_say_the_same(shared):
    (tokenizer, source_tokenizer), rows, loader = make(shared, bpe_dropout=0.3, max_length=64)
    plain = TextLoader(rows, 200, seed=0)
    changed = {0: 0, 1: 0}
    for epoch in changed:
        batches = loader.batches(epoch)
        assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in plain.batches(epoch)]
        for numbers in batches:
            for number, row, again in zip(
                numbers, loader.fetch(numbers, epoch), loader.fetch(numbers, epoch), strict=True
            ):
                np.testing.assert_array_equal(row.tokens, again.tokens)
                assert tokenizer.decode(row.tokens) == EXAMPLES[number].target
                assert source_tokenizer.decode(row.source) == EXAMPLES[number].source
                changed[epoch] += len(row.tokens) > len(rows[number].tokens)
    assert min(changed.values()) > len(EXAMPLES) / 2


def test_a_pair_that_dropout_makes_too_long_is_read_as_it_was():
    _, _, loader = make(bpe_dropout=0.9, max_length=max(len(row.tokens) for row in make()[1]))
    for numbers in loader.batches(0):
        for row in loader.fetch(numbers, 0):
            assert max(len(row.tokens), len(row.source)) <= loader.longest


def test_without_dropout_rows_are_what_they_are():
    _, rows, loader = make()
    numbers = loader.batches(0)[0]
    assert all(
        np.array_equal(row.tokens, rows[number].tokens)
        for number, row in zip(numbers, loader.fetch(numbers, 0), strict=True)
    )


def test_other_tokenizers_are_refused_with_a_hint():
    tokenizer = train_tokenizer(["one two"], TokenizerConfig(type="characters"))
    rows = encode_pairs(EXAMPLES[:2], (tokenizer, tokenizer), None)
    with pytest.raises(ConfigError) as caught:
        AugmentedPairLoader(rows, EXAMPLES[:2], (tokenizer, tokenizer), TrainingConfig(bpe_dropout=0.1))
    assert caught.value.hint
