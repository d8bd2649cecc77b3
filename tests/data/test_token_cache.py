import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.config import DataConfig, TokenizerConfig
from headstart.data import token_cache as module
from headstart.data.documents import Documents, open_documents
from headstart.data.text_io import hashes, text_hash
from headstart.data.token_cache import default_cache, find_prepared, is_held_out, join, prepare, prepare_share
from headstart.data.tokenizer_training import train_tokenizer
from headstart.errors import DataError, RunError

TOKENIZER = train_tokenizer(["some words to learn from"], TokenizerConfig(vocab_size=261))
LINES = [f"document number {number} of the corpus" for number in range(3000)]


@pytest.fixture
def small(monkeypatch):
    """Shards and batches so small that a few lines make many."""
    monkeypatch.setattr(module, "PIECE_CHARACTERS", 5000)
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 2000)


def write(folder: Path, lines: list[str]) -> Documents:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "corpus.txt").write_text("\n".join(lines), encoding="utf-8")
    return open_documents(str(folder / "corpus.txt"), DataConfig(document_separator="line"))


def rows(stream):
    """Each document's tokens."""
    ends = stream.document_ends().tolist()
    return [stream.slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def contents(corpus):
    """Every file of a prepared corpus with its bytes."""
    return {path.name: path.read_bytes() for path in corpus.folder.iterdir()}


texts = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=30)


@settings(deadline=None, max_examples=25)
@given(st.lists(texts, min_size=1, max_size=60), st.integers(1, 200), st.integers(1, 200), st.data())
def test_prepared_documents_decode_to_what_they_were(tmp_path_factory, lines, shard, batch, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_CHARACTERS", shard)
        patch.setattr(module, "BATCH_CHARACTERS", batch)
        patch.setattr(module, "HELD_OUT", 3)
        folder = tmp_path_factory.mktemp("corpus")
        corpus = prepare(write(folder, lines), TOKENIZER, folder / "cache")
        for part, stream in (("train", corpus.train), ("valid", corpus.valid)):
            is_valid = is_held_out(hashes(lines))
            wanted = [line for line, held in zip(lines, is_valid, strict=True) if held == (part == "valid")]
            found = rows(stream)
            assert [TOKENIZER.decode(row) for row in found] == wanted
            assert all((row[0], row[-1]) == (TOKENIZER.bos_id, TOKENIZER.eos_id) for row in found)
            assert stream.hashes().tolist() == [text_hash(line) for line in wanted]
            assert stream.documents == corpus.documents[part] == len(wanted)
            assert stream.text_bytes == sum(len(line.encode()) for line in wanted)
        whole = np.concatenate([np.zeros(0, np.int32), *rows(corpus.train)])
        start, stop = data.draw(st.integers(0, len(whole) + 9)), data.draw(st.integers(0, len(whole) + 9))
        assert np.array_equal(corpus.train.slice(start, stop), whole[start:stop])
        assert len(corpus.train) == len(whole)


def test_slices_cut_the_stream_and_the_last_is_short(small, tmp_path):
    stream = prepare(write(tmp_path, LINES), TOKENIZER, tmp_path / "cache").train
    count = -(-len(stream) // 999)
    blocks = [stream.slice(index * 999, (index + 1) * 999) for index in range(count)]
    assert len(stream.shards) > 10
    assert np.array_equal(np.concatenate(blocks), stream.slice(0, len(stream)))
    assert len(stream.slice(count * 999, (count + 1) * 999)) == 0


def test_joined_streams_follow_each_other(small, tmp_path):
    corpus = prepare(write(tmp_path, LINES), TOKENIZER, tmp_path / "cache")
    both = join([corpus.valid, corpus.train])
    assert len(both) == len(corpus.valid) + len(corpus.train)
    assert both.documents == len(LINES)
    assert np.array_equal(both.slice(0, len(corpus.valid)), corpus.valid.slice(0, len(corpus.valid)))


def test_a_stream_can_be_sent_to_another_process(small, tmp_path):
    stream = prepare(write(tmp_path, LINES), TOKENIZER, tmp_path / "cache").train
    sent = pickle.dumps(stream)
    assert len(sent) < 20_000
    assert np.array_equal(pickle.loads(sent).slice(10, 9000), stream.slice(10, 9000))


def test_about_one_document_in_two_hundred_is_held_out_whatever_the_split_of_its_dataset():
    all_hashes = hashes(f"text {number}" for number in range(20_000))
    for ending in range(10):  # datasets are split by the last digit
        assert 1 <= is_held_out(all_hashes[all_hashes % 10 == ending]).sum() <= 30


def test_the_second_preparation_reads_nothing(small, tmp_path, monkeypatch):
    documents = write(tmp_path, LINES)
    first = prepare(documents, TOKENIZER, tmp_path / "cache")
    monkeypatch.setattr(module, "_write_missing_pieces", None)
    again = prepare(documents, TOKENIZER, tmp_path / "cache")
    assert (again.folder, len(again.train)) == (first.folder, len(first.train))
    assert np.array_equal(again.hashes(), first.hashes())


def test_another_text_or_tokenizer_gets_another_place(small, tmp_path):
    one = prepare(write(tmp_path / "a", LINES), TOKENIZER, tmp_path / "cache")
    two = prepare(write(tmp_path / "b", LINES[1:]), TOKENIZER, tmp_path / "cache")
    other = train_tokenizer(["other words, other words"], TokenizerConfig(vocab_size=265))
    three = prepare(write(tmp_path / "a", LINES), other, tmp_path / "cache")
    assert len({one.folder, two.folder, three.folder}) == 3


@pytest.mark.parametrize("calls", [1, 7, 40])
@pytest.mark.slow
def test_a_stopped_preparation_goes_on_where_it_was(small, tmp_path, monkeypatch, calls):
    documents = write(tmp_path, LINES)
    whole = contents(prepare(documents, TOKENIZER, tmp_path / "whole"))
    reported = []

    def stop(done, total):
        reported.append(done)
        if len(reported) == calls:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(documents, TOKENIZER, tmp_path / "cache", stop)
    encoded = count_encoded(monkeypatch)
    finished = len(list((tmp_path / "cache").rglob("train-*.tokens.npy")))
    assert contents(prepare(documents, TOKENIZER, tmp_path / "cache")) == whole
    assert (len(encoded) < len(LINES)) == (finished > 0)


def count_encoded(monkeypatch):
    """A list that grows by each text that is encoded from now on."""
    encoded, encode = [], TOKENIZER.encode_flat
    monkeypatch.setattr(TOKENIZER, "encode_flat", lambda texts: encoded.extend(texts) or encode(texts))
    return encoded


def torn(path: Path):
    path.write_bytes(path.read_bytes()[:-10])


def swollen(path: Path):
    path.write_bytes(path.read_bytes() + b"more")


def emptied(path: Path):
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("train-00003.tokens.npy", torn),
        ("train-00000.tokens.npy", swollen),
        ("train-00001.documents.npy", emptied),
        ("valid-00000.tokens.npy", Path.unlink),
        ("index.json", torn),
    ],
)
@pytest.mark.slow
def test_what_is_torn_is_prepared_again(small, tmp_path, name, damage):
    documents = write(tmp_path, LINES)
    corpus = prepare(documents, TOKENIZER, tmp_path / "cache")
    whole = contents(corpus)
    damage(corpus.folder / name)
    assert contents(prepare(documents, TOKENIZER, tmp_path / "cache")) == whole


PROGRAM = """
import sys, time
from pathlib import Path
from headstart.config import DataConfig
from headstart.data import token_cache as corpus
from headstart.data.documents import open_documents
from headstart.data.tokenizer import Tokenizer
corpus.PIECE_CHARACTERS, corpus.BATCH_CHARACTERS = 5000, 2000
text, tokenizer, cache, pause = sys.argv[1:]
def report(done, total):
    print(done, flush=True)
    time.sleep(float(pause))
corpus.prepare(open_documents(text, DataConfig(document_separator="line")), Tokenizer.load(Path(tokenizer)), Path(cache), report)
"""


def start(tmp_path: Path, pause: float):
    TOKENIZER.save(tmp_path / "tokenizer")
    words = [tmp_path / "corpus.txt", tmp_path / "tokenizer", tmp_path / "cache", pause]
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, words)], stdout=subprocess.PIPE, env=environment, text=True
    )


@pytest.mark.slow
def test_a_killed_preparation_leaves_no_wrong_cache(small, tmp_path):
    documents = write(tmp_path, LINES)
    whole = contents(prepare(documents, TOKENIZER, tmp_path / "whole"))
    for lines_heard in (5, 20, 30):
        process = start(tmp_path, 0.005)
        for _ in range(lines_heard):
            process.stdout.readline()
        process.kill()
        process.wait()
        process.stdout.close()
    found = contents(prepare(documents, TOKENIZER, tmp_path / "cache"))
    assert {name: raw for name, raw in found.items() if not name.endswith(".part")} == whole


@pytest.mark.slow
def test_two_preparations_at_once_agree(small, tmp_path):
    documents = write(tmp_path, LINES)
    whole = contents(prepare(documents, TOKENIZER, tmp_path / "whole"))
    processes = [start(tmp_path, 0.001) for _ in range(2)]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    assert contents(prepare(documents, TOKENIZER, tmp_path / "cache")) == whole


@pytest.mark.parametrize("count", [1, 3, 50])
@pytest.mark.slow
def test_shares_prepared_apart_are_the_whole(small, tmp_path, monkeypatch, count):
    documents = write(tmp_path, LINES)
    whole = contents(prepare(documents, TOKENIZER, tmp_path / "whole"))
    for number in reversed(range(count)):
        assert find_prepared(documents, TOKENIZER, tmp_path / "cache") is None
        own, pieces = prepare_share(documents, TOKENIZER, tmp_path / "cache", number, count)
        assert own == len(range(number, pieces, count))
    encoded = count_encoded(monkeypatch)
    assert contents(prepare(documents, TOKENIZER, tmp_path / "cache")) == whole
    assert prepare_share(documents, TOKENIZER, tmp_path / "cache", 0, count)[1] == pieces > 10
    assert not encoded


def test_a_share_that_is_missing_is_prepared_by_whoever_needs_it(small, tmp_path, monkeypatch):
    documents = write(tmp_path, LINES)
    whole = contents(prepare(documents, TOKENIZER, tmp_path / "whole"))
    for number in (0, 2):
        prepare_share(documents, TOKENIZER, tmp_path / "cache", number, 3)
    encoded = count_encoded(monkeypatch)
    assert contents(prepare(documents, TOKENIZER, tmp_path / "cache")) == whole
    assert 0 < len(encoded) < len(LINES) / 2


def test_progress_rises_to_the_total(small, tmp_path):
    reported = []
    documents = write(tmp_path, LINES)
    prepare(documents, TOKENIZER, tmp_path / "cache", lambda done, total: reported.append((done, total)))
    assert reported == sorted(reported)
    assert reported[-1] == (documents.expected_bytes, documents.expected_bytes)


def test_what_was_left_out_is_remembered(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\ngood text\t1\n\t1\n")
    for _ in range(2):
        documents = open_documents(str(tmp_path / "a.tsv"), DataConfig())
        assert prepare(documents, TOKENIZER, tmp_path / "cache").skips == {"the text is empty": 1}


def test_a_corpus_without_documents_is_told_as_such(tmp_path):
    with pytest.raises(DataError, match="no documents"):
        prepare(write(tmp_path, [""]), TOKENIZER, tmp_path / "cache")


def test_a_cache_that_cannot_be_written_says_where_to_put_it(tmp_path):
    documents = write(tmp_path, LINES[:3])
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.raises(RunError) as caught:
        prepare(documents, TOKENIZER, tmp_path / "cache")
    assert "HEADSTART_CACHE" in caught.value.hint


def test_tokens_take_two_bytes_where_the_vocabulary_allows(small, tmp_path):
    corpus = prepare(write(tmp_path, LINES[:9]), TOKENIZER, tmp_path / "cache")
    assert np.load(corpus.folder / "train-00000.tokens.npy").dtype == np.uint16
    assert corpus.train.slice(0, 5).dtype == np.int32
    assert json.loads((corpus.folder / "index.json").read_text())["shards"][0]["documents"] == corpus.train.documents


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADSTART_CACHE", str(tmp_path / "mine"))
    assert default_cache() == tmp_path / "mine"
    monkeypatch.delenv("HEADSTART_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "headstart"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == tmp_path / ".cache" / "headstart"
