"""Corpora tokenised ahead: in shares, with one tokenizer for all, and taken up by pretraining."""

import json

import pytest
from typer.testing import CliRunner

from headstart.cli.app import app
from headstart.config import merge
from headstart.data import token_cache as module
from headstart.errors import ConfigError
from headstart.training.callbacks import Stage
from headstart.workflows import pretrain as tokenize_corpus
from headstart.workflows.pretrain import prepare_corpora, pretrain
from tests.helpers.datasets import QUICK, write_corpus


def test_shares_prepared_by_several_jobs_are_taken_up_by_pretraining(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PIECE_CHARACTERS", 3000)
    text = str(write_corpus(tmp_path / "corpus.txt"))
    wanted = merge(QUICK, {"objective": {"name": "causal-lm"}, "training": {"max_steps": 3}})
    found = [prepare_corpora([text], share=(number, 3), settings=wanted)[0] for number in (2, 0, 1)]
    assert [each.tokens is None for each in found] == [True, True, False]
    assert sum(each.own_pieces for each in found) == found[0].pieces > 3
    events = []
    pretrain([text], tmp_path / "run", settings=wanted, on_event=events.append)
    names = [event.name for event in events if isinstance(event, Stage)]
    assert names == ["using the cached bpe tokenizer of this text"]


def test_another_text_or_vocabulary_gets_another_tokenizer(tmp_path):
    text, events = str(write_corpus(tmp_path / "corpus.txt")), []
    for size in (300, 310):
        prepare_corpora([text], settings={"tokenizer": {"vocab_size": size}}, on_event=events.append)
    write_corpus(tmp_path / "corpus.txt", seed=9)
    prepare_corpora([text], settings={"tokenizer": {"vocab_size": 310}}, on_event=events.append)
    names = [event.name for event in events if isinstance(event, Stage)]
    assert names.count("training a bpe tokenizer") == 3


def test_jobs_that_learn_at_once_take_one_tokenizer(tmp_path, monkeypatch):
    text, vocabulary = str(write_corpus(tmp_path / "corpus.txt")), {"tokenizer": {"vocab_size": 300}}
    first, learn = [], tokenize_corpus.resolve_tokenizer

    def late(config, texts):
        own = learn(config.model_copy(update={"vocab_size": 280}), texts)  # as if learning were chance
        monkeypatch.setattr(tokenize_corpus, "resolve_tokenizer", learn)
        first.extend(prepare_corpora([text], settings=vocabulary))
        return own

    monkeypatch.setattr(tokenize_corpus, "resolve_tokenizer", late)
    assert prepare_corpora([text], settings=vocabulary) == first


def test_files_prepared_apart_with_one_tokenizer_are_taken_up_together(tmp_path):
    texts = [str(write_corpus(tmp_path / f"part{seed}.txt", seed=seed)) for seed in range(2)]
    wanted = merge(QUICK, {"objective": {"name": "causal-lm"}, "training": {"max_steps": 3}})
    learnt = prepare_corpora(texts[:1], settings=wanted)[0].tokenizer
    wanted = merge(wanted, {"tokenizer": {"type": learnt}})
    for text in texts:
        assert prepare_corpora([text], settings=wanted)[0].tokens
    events = []
    pretrain(texts, tmp_path / "run", settings=wanted, on_event=events.append)
    assert not [event for event in events if isinstance(event, Stage)]


def test_the_command_says_what_is_done_and_what_is_missing(tmp_path):
    text = str(write_corpus(tmp_path / "corpus.txt"))
    words = ["tokenize", text, "--set", "tokenizer.vocab_size=300", "--quiet"]
    missing = CliRunner().invoke(app, [*words, "--shard", "1/2"])
    assert missing.output.startswith("corpus: 0 of 1 pieces are done here; others are still missing\n")
    done = CliRunner().invoke(app, [*words, "--shard", "0/2"])
    assert done.output.startswith("corpus: 1 of 1 pieces are done here; all are ready: ")
    assert json.loads(CliRunner().invoke(app, [*words, "--json"]).output)[0]["documents"] == 300


@pytest.mark.parametrize("share", ["2/2", "0/0", "x", "1"])
def test_a_share_that_is_none_is_refused(tmp_path, share):
    text = str(write_corpus(tmp_path / "corpus.txt"))
    with pytest.raises(ConfigError):
        CliRunner().invoke(app, ["tokenize", text, "--shard", share], catch_exceptions=False)
