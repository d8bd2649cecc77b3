"""Corpora read at their own rates, and documents that are passed over."""

import pickle
from collections import Counter

import numpy as np
import pytest

from headstart.config import DataConfig, TokenizerConfig
from headstart.data.corpus_loaders import BlockLoader, MixedLoader
from headstart.data.documents import MixtureComponent, open_documents, parse_mixture
from headstart.data.token_cache import exclude_documents, join, prepare
from headstart.data.tokenizer_training import train_tokenizer
from headstart.errors import ConfigError, DataError
from tests.helpers.datasets import write_corpus


class Numbers:
    """A stream of consecutive numbers, by which a block is known."""

    def __init__(self, first, count):
        self.first, self.count = first, count

    def __len__(self):
        return self.count

    def slice(self, start, stop):
        return np.arange(self.first + start, self.first + min(stop, self.count), dtype=np.int32)


def mixed(weights=(1, 3, 0.25), sizes=(80, 40, 160), seed=3):
    streams = [Numbers(1000 * (place + 1), size) for place, size in enumerate(sizes)]
    loaders = [BlockLoader(stream, 4, 16, seed) for stream in streams]
    return MixedLoader(loaders, weights, 4, seed)


def read(loader, epoch):
    """How often each corpus's tokens are read in an epoch."""
    rows = [row for batch in loader.batches(epoch) for row in loader.fetch(batch, epoch)]
    return Counter(int(token) for row in rows for token in row.tokens)


def test_a_component_has_its_own_document_separator(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\n")
    corpus = str(tmp_path / "a.txt")
    config = DataConfig(document_separator="line")
    assert list(MixtureComponent(corpus).open(config)) == ["one", "two", "three"]
    assert list(MixtureComponent(corpus, documents="paragraph").open(config)) == ["one\ntwo", "three"]


def test_a_weight_is_how_often_a_text_is_read_for_each_pass_of_the_others():
    loader = mixed()
    over_four = sum((read(loader, epoch) for epoch in range(4)), Counter())
    assert {token: n for token, n in over_four.items() if token < 2000} == dict.fromkeys(range(1000, 1080), 4)
    assert {n for token, n in over_four.items() if 2000 <= token < 3000} == {12}
    assert {n for token, n in over_four.items() if token >= 3000} == {1}  # a quarter each time, all in four
    assert len([token for token in over_four if token >= 3000]) == 160


def test_an_epoch_is_the_same_whenever_it_is_read_and_another_is_not():
    first, again = mixed().batches(2), mixed().batches(2)
    assert all((one == other).all() for one, other in zip(first, again, strict=True))
    assert not np.array_equal(np.concatenate(mixed().batches(0)), np.concatenate(mixed(seed=4).batches(0)))


def test_every_epoch_has_as_many_batches_as_it_says():
    loader = mixed(weights=(0.3, 0.7, 1.1))
    for epoch in range(12):
        assert len(loader.batches(epoch)) == loader.count(epoch)


def test_a_tenth_is_a_tenth_after_any_number_of_epochs():
    loader = mixed(weights=(1, 0.1, 0.1), sizes=(80, 40, 400))
    read_rows = sum(len(loader._rows(2, epoch)) for epoch in range(30))
    assert read_rows == 300


def test_weights_that_leave_nothing_to_read_are_refused():
    with pytest.raises(DataError, match="holds no row"):
        mixed(weights=(0.01, 0.01, 0.001))


def test_weights_are_written_behind_a_name(tmp_path):
    corpus = write_corpus(tmp_path / "a=b.txt")
    assert parse_mixture([str(corpus), f"{corpus}=2.5", "imdb=3"]) == [
        MixtureComponent(str(corpus)),
        MixtureComponent(str(corpus), 2.5),
        MixtureComponent("imdb", 3.0),
    ]
    assert parse_mixture({"imdb": 2}) == [MixtureComponent("imdb", 2.0)]


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("imdb=much", "no number"),
        ("imdb=", "no number"),
        ("imdb=0", "above 0"),
        ("imdb=-1", "above 0"),
        ("imdb=nan", "above 0"),
        ("imdb=inf", "above 0"),
    ],
)
def test_a_weight_that_cannot_be_is_answered(word, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        parse_mixture([word])
    assert caught.value.hint


def test_a_path_with_a_sign_of_equality_is_no_weight():
    assert parse_mixture(["lang=fr/reviews.txt"]) == [MixtureComponent("lang=fr/reviews.txt")]


@pytest.fixture
def parts(tmp_path):
    """Three prepared corpora; the second repeats some of the first, and itself."""
    first = [f"the film number {n} was fine" for n in range(300)]
    second = [f"the book number {n} was fine" for n in range(200)]
    texts = {"a": first, "b": second[:50] + first[100:200] + second, "c": ["only one more text here"]}
    for name, lines in texts.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")
    documents = [open_documents(str(tmp_path / f"{name}.txt"), DataConfig()) for name in texts]
    tokenizer = train_tokenizer(first, TokenizerConfig(vocab_size=300))
    return [prepare(each, tokenizer, tmp_path / "cache") for each in documents], tokenizer


def texts_of(stream, tokenizer):
    ends = stream.document_ends()
    return [tokenizer.decode(stream.slice(a, b)) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def test_each_document_is_read_once_though_it_stands_in_several_texts(parts):
    corpora, tokenizer = parts
    streams = exclude_documents([part.train for part in corpora], np.zeros(0, np.uint64), deduplicate=True)
    all_texts = [texts_of(stream, tokenizer) for stream in streams]
    before = [texts_of(part.train, tokenizer) for part in corpora]
    assert all_texts[0] == before[0]
    together = [text for texts in all_texts for text in texts]
    assert len(together) == len(set(together)) == len({text for texts in before for text in texts})
    for stream, texts in zip(streams, all_texts, strict=True):
        assert stream.documents == len(texts) == len(stream.hashes())
        assert len(stream) == (stream.document_ends()[-1] if len(texts) else 0)
        assert stream.text_bytes == sum(len(text.strip().encode()) for text in texts)


def test_texts_set_apart_are_read_nowhere(parts):
    corpora, _ = parts
    never = corpora[0].train.hashes()[::7]
    streams = exclude_documents([part.train for part in corpora], never, deduplicate=False)
    for before, after in zip(corpora, streams, strict=True):
        assert not np.isin(after.hashes(), never).any()
        assert after.documents == (~np.isin(before.train.hashes(), never)).sum()


def test_streams_with_gaps_join_and_travel(parts):
    corpora, tokenizer = parts
    streams = exclude_documents([part.train for part in corpora], np.zeros(0, np.uint64), deduplicate=True)
    united = pickle.loads(pickle.dumps(join(streams)))
    assert texts_of(united, tokenizer) == [text for stream in streams for text in texts_of(stream, tokenizer)]
    whole = np.concatenate([stream.slice(0, len(stream)) for stream in streams])
    assert np.array_equal(united.slice(0, len(united)), whole)
    for start in range(0, len(united), 37):
        assert np.array_equal(united.slice(start, start + 50), whole[start : start + 50])
