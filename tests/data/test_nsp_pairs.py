import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.data.corpus_loaders import PairLoader
from headstart.errors import DataError
from tests.helpers.tiny_models import VOCABULARY

FIRST, LAST, STOP, LINE = VOCABULARY.bos_id, VOCABULARY.eos_id, 7, 11


class Documents:
    """A stream of documents in memory."""

    def __init__(self, documents):
        framed = [[FIRST, *document, LAST] for document in documents]
        self.tokens = np.array([token for document in framed for token in document], np.int32)
        self.ends = np.cumsum([len(document) for document in framed])

    def __len__(self):
        return len(self.tokens)

    def slice(self, start, stop):
        return self.tokens[start:stop]

    def document_ends(self):
        return self.ends


sentence = st.lists(st.integers(12, 39), min_size=1, max_size=6).map(lambda words: [*words, STOP])
document = st.lists(sentence, min_size=1, max_size=8).map(lambda parts: [token for part in parts for token in part])


@settings(max_examples=60, deadline=None)
@given(documents=st.lists(document, min_size=2, max_size=8), epoch=st.integers(0, 3), room=st.integers(8, 30))
def test_labels_are_balanced_and_right_by_construction(documents, epoch, room):
    stream = Documents(documents)
    try:
        loader = PairLoader(stream, "sentence", VOCABULARY, room, 64, seed=1)
    except DataError:
        assert all(document.count(STOP) == 1 for document in documents)
        return
    numbers = np.concatenate(loader.batches(epoch))
    assert sorted(numbers.tolist()) == list(range(len(loader.stretches)))
    rows = loader.fetch(numbers, epoch)
    labels = [row.label for row in rows]
    assert abs(2 * sum(labels) - len(labels)) <= 1
    for number, row in zip(numbers, rows, strict=True):
        (a, a_end), (b, b_end) = loader.spans(int(number), epoch, row.label)
        owner = np.searchsorted(stream.ends, a, side="right")
        other = np.searchsorted(stream.ends, b, side="right")
        assert (a_end == b) if row.label == 0 else (owner != other)
        assert b_end > b
        assert stream.tokens[a_end - 1] == STOP  # A ends where a sentence does
        assert len(row.tokens) <= room
        assert len(row.tokens) == len(row.segments)
        assert row.tokens[0] == FIRST
        assert row.tokens[-1] == LAST
        inner = int((row.segments == 0).sum())
        assert row.tokens[inner - 1] == LAST
        assert not set(row.tokens[1 : inner - 1].tolist()) & VOCABULARY.special_ids
        assert not set(row.tokens[inner:-1].tolist()) & VOCABULARY.special_ids


def test_what_is_a_sentence_is_a_setting():
    documents = [[20, LINE, 21, 22], [30, LINE, 31], [33, 34]]
    lines = PairLoader(Documents(documents), "line", VOCABULARY, 16, 64, seed=0, shuffled=False)
    assert len(lines.stretches) == 2
    whole = PairLoader(Documents([[20 + n] * 4 for n in range(9)]), "document", VOCABULARY, 11, 64, seed=0)
    for number in range(len(whole.stretches)):
        (_, a_end), (b, _) = whole.spans(number, 0, 0)
        assert b == a_end + 2  # only the two special tokens are between neighbours


def test_a_corpus_without_sentence_breaks_is_refused_with_a_hint():
    with pytest.raises(DataError) as caught:
        PairLoader(Documents([[20, 21, 22], [30, 31]]), "sentence", VOCABULARY, 16, 64, seed=0)
    assert "objective.nsp_unit=document" in caught.value.hint


def test_the_same_seed_and_epoch_give_the_same_pairs():
    stream = Documents([[20, STOP, 21, STOP, 22, STOP]] * 6)
    rows = [
        PairLoader(stream, "sentence", VOCABULARY, 16, 64, seed=seed).fetch(np.arange(6), epoch)
        for seed, epoch in ((1, 0), (1, 0), (1, 1))
    ]
    same = [np.array_equal(a.tokens, b.tokens) for a, b in zip(rows[0], rows[1], strict=True)]
    assert all(same)
    assert any(not np.array_equal(a.tokens, b.tokens) for a, b in zip(rows[0], rows[2], strict=True))
