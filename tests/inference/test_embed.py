import json
from itertools import pairwise

import numpy as np
import pytest

from headstart.batch import EncodedExample
from headstart.config import TokenizerConfig
from headstart.data.tokenizer_training import train_tokenizer
from headstart.errors import ConfigError, DataError, RunError
from headstart.inference.embed import (
    GrowingArray,
    contextual_vectors,
    embed,
    nearest_texts,
    open_encoder,
    text_vectors,
    word_span,
    write_together,
)
from headstart.workflows.finetune import finetune
from headstart.workflows.pretrain import pretrain
from tests.helpers.datasets import QUICK, write_corpus, write_labelled

TEXTS = ["a wonderful film", "the plot was dreadful", "music", "", "a very very long and quite boring story indeed"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A bidirectional base, a causal one and a classifier, three steps each."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSTART_CACHE", str(folder / "cache"))
        corpus = str(write_corpus(folder / "corpus.txt"))
        for objective in ("masked-lm", "causal-lm"):
            settings = {**QUICK, "objective": {"name": objective}}
            settings["training"] = {**QUICK["training"], "max_steps": 3}
            pretrain([corpus], folder / objective, settings=settings)
        data = str(write_labelled(folder / "labelled.tsv"))
        short = {"training": {"max_steps": 3, "max_length": 32}}
        finetune(str(folder / "masked-lm"), data, folder / "classifier", settings=short)
    return folder


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(text + "\n" for text in TEXTS), "utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("run", "pool"),
    [("masked-lm", "cls"), ("masked-lm", "mean"), ("causal-lm", "mean"), ("causal-lm", "last"), ("classifier", "mean")],
)
@pytest.mark.slow
def test_vectors_are_in_the_order_of_the_texts_and_independent_of_the_batch(runs, texts, tmp_path, run, pool):
    found = embed(str(runs / run), texts, tmp_path / "vectors.npy", pool=pool)
    vectors = np.load(tmp_path / "vectors.npy", allow_pickle=False)
    assert vectors.shape == (found.vectors, found.width) == (5, 16)
    assert vectors.dtype == np.float32
    for text, vector in zip(TEXTS, vectors, strict=True):
        np.testing.assert_allclose(text_vectors(str(runs / run), [text], pool=pool)[0], vector, atol=1e-5)
    reverse = text_vectors(str(runs / run), TEXTS[::-1], pool=pool)[::-1]
    np.testing.assert_allclose(reverse, vectors, atol=1e-5)


def test_many_chunks_are_the_same_as_one(runs, texts, tmp_path, monkeypatch):
    embed(str(runs / "masked-lm"), texts, tmp_path / "one.npy", pool="token")
    monkeypatch.setattr("headstart.inference.embed.CHUNK_TEXTS", 2)
    counts = []
    embed(str(runs / "masked-lm"), texts, tmp_path / "many.npy", pool="token", on_done=counts.append)
    assert counts == [2, 4, 5]
    np.testing.assert_allclose(np.load(tmp_path / "one.npy"), np.load(tmp_path / "many.npy"), atol=1e-5)
    np.testing.assert_array_equal(np.load(tmp_path / "one.offsets.npy"), np.load(tmp_path / "many.offsets.npy"))


def test_token_vectors_come_with_offsets_and_pieces_that_fit(runs, texts, tmp_path):
    found = embed(str(runs / "masked-lm"), texts, tmp_path / "vectors.npy", pool="token")
    vectors, offsets = np.load(tmp_path / "vectors.npy"), np.load(tmp_path / "vectors.offsets.npy")
    pieces = [json.loads(line) for line in (tmp_path / "vectors.pieces.jsonl").read_text("utf-8").splitlines()]
    assert [path.name for path in found.extra_files] == ["vectors.offsets.npy", "vectors.pieces.jsonl"]
    assert len(offsets) == len(TEXTS) + 1
    assert offsets[-1] == len(vectors) == found.vectors
    assert np.diff(offsets).tolist() == [len(each) for each in pieces]
    assert "".join(pieces[2][1:-1]).replace("▁", " ").strip() == "music"
    means = [vectors[start:end].mean(axis=0) for start, end in pairwise(offsets)]
    np.testing.assert_allclose(text_vectors(str(runs / "masked-lm"), TEXTS, pool="mean"), means, atol=1e-5)


def test_texts_that_were_cut_are_counted(runs, texts, tmp_path):
    short, encode = {"training": {"max_length": 6}}, open_encoder(str(runs / "masked-lm")).tokenizer.encode
    found = embed(str(runs / "masked-lm"), texts, tmp_path / "vectors.npy", settings=short)
    assert found.cut == sum(len(ids) > 4 for ids in encode(TEXTS)) > 0
    assert found.length == 6


def test_a_base_reads_all_that_its_positions_reach_and_a_classifier_its_own_length(runs):
    assert open_encoder(str(runs / "masked-lm")).config.training.max_length == 64
    assert open_encoder(str(runs / "classifier")).config.training.max_length == 32


@pytest.mark.parametrize("content", ["", "text\tlabel\n"])
def test_an_empty_file_is_a_sentence_and_a_hint_and_leaves_nothing(runs, tmp_path, content):
    file = tmp_path / ("empty.tsv" if content else "empty.txt")
    file.write_text(content)
    with pytest.raises(DataError) as caught:
        embed(str(runs / "masked-lm"), str(file), tmp_path / "vectors.npy")
    assert caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    with pytest.raises(DataError):
        nearest_texts(str(runs / "masked-lm"), str(file), "a film")


@pytest.mark.parametrize(
    ("run", "out", "changes", "problem"),
    [
        ("causal-lm", "v.npy", {"pool": "cls"}, "sees only itself"),
        ("masked-lm", "v.npy", {"pool": "meen"}, "no pool is called"),
        ("masked-lm", "v.csv", {}, ".npy"),
        ("masked-lm", "v.npy", {"settings": {"training": {"max_length": 65}}}, "64 tokens at most"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_and_a_hint(runs, texts, tmp_path, run, out, changes, problem):
    with pytest.raises(ConfigError) as caught:
        embed(str(runs / run), texts, tmp_path / out, **changes)
    assert problem in str(caught.value)
    assert caught.value.hint


def test_a_run_that_is_not_there_is_a_sentence(texts, tmp_path):
    with pytest.raises(RunError):
        embed(str(tmp_path / "nowhere"), texts, tmp_path / "v.npy")


def test_the_nearest_text_to_one_of_the_file_is_itself(runs, texts):
    for number, text in enumerate(TEXTS, start=1):
        if text:
            found = nearest_texts(str(runs / "masked-lm"), texts, text, top=3)
            assert (found[0].line, found[0].text) == (number, text)
            assert found[0].cosine == pytest.approx(1, abs=1e-5)
            assert [each.cosine for each in found] == sorted((each.cosine for each in found), reverse=True)


def test_nearest_is_by_cosine_over_all_chunks(runs, texts, monkeypatch):
    monkeypatch.setattr("headstart.inference.embed.CHUNK_TEXTS", 2)
    vectors = text_vectors(str(runs / "masked-lm"), ["a dull film", *TEXTS])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = {text: float(cosine) for text, cosine in zip(TEXTS, vectors[1:] @ vectors[0], strict=True) if text}
    found = nearest_texts(str(runs / "masked-lm"), texts, "a dull film", top=2)
    assert [each.text for each in found] == sorted(cosines, key=cosines.__getitem__, reverse=True)[:2]


def test_one_word_has_another_vector_in_another_text(runs):
    texts = ["the music was moving", "the music was dreadful", "the music was moving"]
    vectors = contextual_vectors(str(runs / "masked-lm"), texts, "Music")
    assert vectors.shape == (3, 16)
    np.testing.assert_allclose(vectors[0], vectors[2], atol=1e-6)
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-4


@pytest.mark.parametrize("word", ["opera", "usic", " "])
def test_a_word_that_does_not_stand_in_a_text_is_a_sentence(runs, word):
    with pytest.raises(DataError) as caught:
        contextual_vectors(str(runs / "masked-lm"), ["the music was moving"], word)
    assert caught.value.hint


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "characters"])
@pytest.mark.parametrize("text", ["The music, the music: was moving.", "Élan! It was music", "music 日本 x"])
def test_the_tokens_of_a_word_spell_it_in_every_kind_of_tokenizer(kind, text):
    corpus = ["the music was moving, and the film was not: Élan!", "it was music for the people. 日本 x"] * 20
    tokenizer = train_tokenizer(corpus, TokenizerConfig(type=kind, vocab_size=300))
    row = EncodedExample(tokenizer.add_special_tokens(tokenizer.encode([text])[0], 100))
    start, end = word_span(tokenizer, row, "music", text)
    assert tokenizer.decode(row.tokens[start:end]).strip() == "music"


def test_one_string_instead_of_a_list_is_refused():
    with pytest.raises(TypeError, match="list of strings"):
        text_vectors("en-tiny", "a film")


@pytest.mark.parametrize("parts", [[], [0], [1], [3, 0, 7], [250] * 41])
def test_a_grown_array_is_the_rows_that_were_added(tmp_path, parts):
    rows = [np.random.default_rng(at).normal(size=(count, 3)).astype(np.float32) for at, count in enumerate(parts)]
    with GrowingArray(tmp_path / "grown.npy", (3,), np.float32) as grown:
        for part in rows:
            grown.append(part)
    found = np.load(tmp_path / "grown.npy", allow_pickle=False)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.concatenate([np.zeros((0, 3), np.float32), *rows]))


def test_numbers_without_width_grow_too(tmp_path):
    with GrowingArray(tmp_path / "grown.npy", (), np.int64) as grown:
        grown.append(np.arange(5))
    np.testing.assert_array_equal(np.load(tmp_path / "grown.npy"), np.arange(5))


def test_a_grown_array_can_be_mapped_without_reading_it(tmp_path):
    with GrowingArray(tmp_path / "grown.npy", (2,), np.float32) as grown:
        grown.append(np.ones((4, 2)))
    assert np.load(tmp_path / "grown.npy", mmap_mode="r").shape == (4, 2)


def test_when_writing_fails_nothing_is_left_and_old_files_stay(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    paths[0].write_text("old")

    def write(parts):
        for part in parts:
            part.write_text("new")
        raise ValueError

    with pytest.raises(ValueError):
        write_together(paths, write)
    assert paths[0].read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_is_a_sentence_with_a_hint(tmp_path):
    def write(parts):
        raise OSError(28, "No space left on device")

    with pytest.raises(RunError) as caught:
        write_together([tmp_path / "a", tmp_path / "b"], write)
    assert caught.value.hint
