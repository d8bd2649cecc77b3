"""Pretraining on mixed corpora, and on from a base."""

import json

import numpy as np
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from headstart.cli.app import app
from headstart.config import DataConfig, ModelConfig, merge
from headstart.data.documents import parse_mixture
from headstart.data.text_io import hashes
from headstart.errors import ConfigError, DataError, RunError
from headstart.inference.loaded_model import load_model
from headstart.training.callbacks import Note
from headstart.workflows.pretrain import adaptation_defaults, count_tokens, pretrain
from headstart.workflows.resume import resume
from tests.helpers.datasets import QUICK, write_corpus, write_labelled

pytestmark = pytest.mark.slow  # whole trainings, one after the other

MASKED = merge(QUICK, {"objective": {"name": "masked-lm"}, "training": {"max_steps": 8, "save_steps": 3}})
GOING_ON = {"objective": {"name": "masked-lm"}, "training": MASKED["training"]}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    write_corpus(folder / "one.txt", 120)
    write_corpus(folder / "two.txt", 60, seed=7)
    pretrain([str(folder / "one.txt")], folder / "base", settings=MASKED)
    return folder


def interrupt_at(step):
    def listen(event):
        if getattr(event, "step", 0) >= step:
            raise InterruptedError

    return listen


def test_weights_decide_how_much_an_epoch_reads_and_are_kept(world, tmp_path):
    one, two = str(world / "one.txt"), str(world / "two.txt")
    epochs = {"training": {"max_epochs": 1}}
    plain = pretrain([one, two], tmp_path / "plain", settings=merge(MASKED, epochs))
    weighted = pretrain({one: 1, two: 3.5}, tmp_path / "weighted", settings=merge(MASKED, epochs))
    assert weighted.tokens > 1.5 * plain.tokens
    inputs = json.loads((tmp_path / "weighted" / "run.json").read_text())["inputs"]
    assert [(each["corpus"], each["weight"]) for each in inputs["mix"]] == [(one, 1.0), (two, 3.5)]


def test_a_mix_that_was_stopped_ends_as_if_it_never_had(world, tmp_path):
    mix = [f"{world / 'one.txt'}=0.3", f"{world / 'two.txt'}=1.7"]
    pretrain(mix, tmp_path / "whole", settings=MASKED)
    with pytest.raises(InterruptedError):
        pretrain(mix, tmp_path / "stopped", settings=MASKED, on_event=interrupt_at(7))
    resume(tmp_path / "stopped")
    for name in ("model.safetensors", "train_fingerprints.npy"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_run_goes_on_from_a_base_with_all_it_has(world, tmp_path):
    notes = []
    done = pretrain(
        [str(world / "two.txt")],
        tmp_path / "on",
        base=str(world / "base"),
        settings=merge(GOING_ON, {"optimizer": {"learning_rate": 1e-9}}),
        on_event=lambda event: notes.append(event.text) if isinstance(event, Note) else None,
    )
    base, on = load_model(str(world / "base")), load_model(str(done.path))
    assert on.tokenizer.fingerprint == base.tokenizer.fingerprint
    assert on.info.config.model == base.info.config.model
    for name, weight in base.weights.items():  # with such a rate nothing moves but what was there
        assert np.allclose(weight, on.weights[name], atol=1e-5), name
    assert any("weights reused, 0 weights initialized, 0 weights dropped" in note for note in notes)
    assert on.info.transfer is not None
    two = hashes((world / "two.txt").read_text().splitlines())
    assert np.isin(base.train_fingerprints, on.train_fingerprints).all()
    assert np.isin(two, on.train_fingerprints).sum() >= 55  # the rest is held out


def test_a_run_from_a_base_that_was_stopped_ends_as_if_it_never_had(world, tmp_path):
    def work(out, **more):
        pretrain([str(world / "two.txt")], tmp_path / out, base=str(world / "base"), settings=GOING_ON, **more)

    work("whole")
    for step in (1, 7):  # before any checkpoint, and after one
        with pytest.raises(InterruptedError):
            work(f"stopped-{step}", on_event=interrupt_at(step))
        resume(tmp_path / f"stopped-{step}")
        for name in ("model.safetensors", "train_fingerprints.npy"):
            left, right = (tmp_path / run / name for run in ("whole", f"stopped-{step}"))
            assert left.read_bytes() == right.read_bytes()


def test_another_objective_keeps_the_heads_that_fit(world, tmp_path):
    settings = merge(GOING_ON, {"objective": {"name": "causal+masked"}})
    pretrain([str(world / "two.txt")], tmp_path / "on", base=str(world / "base"), settings=settings)
    moved = json.loads((tmp_path / "on" / "run.json").read_text())["transfer"]
    assert not moved["initialized"]
    assert not moved["dropped"]


def test_a_classifier_can_go_on_as_a_language_model(world, tmp_path):
    from headstart.workflows.finetune import finetune

    table = write_labelled(tmp_path / "table.tsv")
    tuning = {"training": {"max_epochs": 1, "max_length": 32}, "model": {"dropout": 0.2}}
    finetune(str(world / "base"), str(table), tmp_path / "tuned", settings=tuning)
    pretrain([str(world / "two.txt")], tmp_path / "on", base=str(tmp_path / "tuned"), settings=GOING_ON)
    on = load_model(str(tmp_path / "on"))
    assert on.info.config.model.dropout == 0  # that of fine-tuning stays there
    assert any(name.startswith("heads.class") for name in on.info.transfer["dropped"])
    texts = [line.split("\t")[0] for line in table.read_text().splitlines()[1:]]
    assert np.isin(hashes(texts), on.train_fingerprints).sum() > 40


@pytest.mark.parametrize(
    ("over", "more", "problem"),
    [
        ({"model": {"hidden_size": 32}}, {}, "model.hidden_size"),
        ({"tokenizer": {"vocab_size": 500}}, {}, "tokenizer.vocab_size"),
        ({"tokenizer": {"type": "unigram"}}, {}, "another tokenizer"),
        ({"objective": {"name": "causal-lm"}}, {}, "bidirectional"),
        ({"model": {"widht": 16}}, {}, "widht"),
        ({}, {"preset": "small"}, "model."),
        ({}, {"base": "no-such-base"}, "no run at"),
    ],
)
def test_what_does_not_fit_the_base_is_answered(world, tmp_path, over, more, problem):
    with pytest.raises((ConfigError, RunError), match=problem) as caught:
        pretrain(
            [str(world / "two.txt")],
            tmp_path / "on",
            settings=merge(GOING_ON, over),
            **{"base": str(world / "base"), **more},
        )
    assert caught.value.hint
    assert not (tmp_path / "on").exists()


def test_the_command_goes_on_from_a_base(world, tmp_path):
    words = [f"{world / 'one.txt'}=2", f"{world / 'two.txt'}=0.5", "--init-from", str(world / "base")]
    given = ["--steps", "2", "--max-length", "32", "--out", str(tmp_path / "on")]
    result = CliRunner().invoke(app, ["pretrain", *words, *given])
    assert result.exit_code == 0, (result.output, result.exception)
    assert "weights reused" in " ".join(result.output.split())
    assert load_file(tmp_path / "on" / "model.safetensors")


def test_texts_of_a_set_apart_are_never_read(world, tmp_path):
    table = write_labelled(tmp_path / "table.tsv", 400)
    rows = [line.split("\t")[0] for line in table.read_text().splitlines()[1:]]
    (tmp_path / "corpus.txt").write_text("\n".join(rows * 2) + "\n")
    settings = merge(
        MASKED, {"data": {"exclude_eval_texts_of": [str(table)], "deduplicate": True, "document_separator": "line"}}
    )
    pretrain([str(tmp_path / "corpus.txt")], tmp_path / "run", settings=settings)
    from headstart.data.subsets import evaluation_hashes

    held = evaluation_hashes([str(table)])
    seen = load_model(str(tmp_path / "run")).train_fingerprints
    assert len(held) > 50
    assert not np.isin(held, seen).any()
    assert len(seen) > 200


def test_a_finished_classifier_can_be_read_again_though_every_text_was_seen(world, tmp_path):
    from headstart.workflows.finetune import FinetuneJob, finetune
    from headstart.workflows.run_dir import RunDir

    table = write_labelled(tmp_path / "table.tsv")
    rows = [line.split("\t")[0] for line in table.read_text().splitlines()[1:]]
    (tmp_path / "rows.txt").write_text("\n".join(rows) + "\n")
    pretrain([str(tmp_path / "rows.txt")], tmp_path / "base", settings=MASKED)
    tuning = {"training": {"max_epochs": 1, "max_length": 32}}
    done = finetune(str(tmp_path / "base"), str(table), tmp_path / "tuned", settings=tuning)
    assert np.isnan(done.score.leak_free_accuracy)
    assert np.isnan(FinetuneJob.read_result(RunDir.open(tmp_path / "tuned")).score.leak_free_accuracy)


def test_fine_tuning_on_a_set_that_is_kept_apart_is_refused(world, tmp_path):
    from headstart.workflows.finetune import finetune

    table = str(write_labelled(tmp_path / "table.tsv"))
    apart = {"data": {"exclude_eval_texts_of": [table]}, "training": {"max_epochs": 1, "max_length": 32}}
    with pytest.raises(DataError, match="leaves"):
        finetune(str(world / "base"), table, tmp_path / "tuned", settings=apart)


def test_a_small_corpus_gets_settings_of_its_own(world, tmp_path):
    messages = []
    pretrain(
        [str(world / "two.txt")],
        tmp_path / "adapted",
        base=str(world / "base"),
        settings={"training": {"max_steps": 4}},
        on_event=lambda event: messages.append(event.text) if isinstance(event, Note) else None,
    )
    (line,) = [line for line in messages if line.startswith("settings to adapt")]
    assert "learning rate 0.001" in line  # narrow models bear the most
    assert "epochs" not in line  # the user gave the budget
    config = load_model(str(tmp_path / "adapted")).info.config
    assert (config.optimizer.name, config.training.checkpoint_selection, config.training.max_steps) == (
        "adamw",
        "best",
        4,
    )


def test_a_named_preset_and_a_recipe_keep_their_own_settings(world, tmp_path):
    for number, options in enumerate(({"preset": "tiny"}, {"adapts": False})):
        out = tmp_path / str(number)
        pretrain([str(world / "two.txt")], out, base=str(world / "base"), settings=MASKED, **options)
        assert load_model(str(out)).info.config.training.checkpoint_selection == "last"


@pytest.mark.parametrize("tokens", [500, 20_000, 400_000, 5_000_000])
def test_an_adaptation_reads_enough_and_not_too_much(tokens):
    found = adaptation_defaults(tokens, ModelConfig(hidden_size=256))
    training = found["training"]
    assert 3 <= training["max_epochs"] <= 400
    assert training["max_epochs"] * tokens / training["tokens_per_batch"] >= 45 or training["max_epochs"] == 400
    assert found["optimizer"]["learning_rate"] == 5e-4
    wide = adaptation_defaults(tokens, ModelConfig(hidden_size=768))
    assert wide["optimizer"]["learning_rate"] < 1e-4


def test_a_large_corpus_is_not_counted_to_its_end(world, monkeypatch):
    tokenizer = load_model(str(world / "base")).tokenizer
    mix = parse_mixture([str(world / "one.txt")])
    assert 500 < count_tokens(mix, DataConfig(), tokenizer) < 20_000
    monkeypatch.setattr("headstart.workflows.pretrain.COUNTED", 100)
    assert count_tokens(mix, DataConfig(), tokenizer) is None
