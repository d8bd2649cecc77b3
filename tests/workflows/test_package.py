"""A run packed as a base: named, listed, used, damaged."""

import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from headstart.cli.app import app
from headstart.config import merge
from headstart.data.text_io import is_contaminated
from headstart.errors import ConfigError, DataError, RunError
from headstart.inference.loaded_model import load_model
from headstart.pretrained import shipped_bases
from headstart.workflows.evaluate import evaluate
from headstart.workflows.finetune import finetune
from headstart.workflows.package import package
from headstart.workflows.pretrain import pretrain
from headstart.workflows.resume import resume
from tests.helpers.datasets import QUICK, write_corpus, write_labelled

pytestmark = pytest.mark.slow  # whole trainings, one after the other

MASKED = merge(
    QUICK, {"objective": {"name": "masked-lm"}, "training": {"max_steps": 40}, "optimizer": {"learning_rate": 0.01}}
)
TUNING = {"training": {"max_epochs": 1, "max_length": 32}}
FACTS = """
title = "a small base for tests"
language = "English"
compute = "a moment"
not_for = ["anything that matters"]

[[data]]
name = "made-up reviews"
licence = "our own"
words = "4 thousand"

[[scores]]
task = "made-up task"
labels = 100
value = 0.9
low = 0.88
high = 0.92
seeds = 5
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A base, a writer and a classifier, each packed."""
    folder = tmp_path_factory.mktemp("world")
    corpus = write_corpus(folder / "corpus.txt", 400)
    table = write_labelled(folder / "table.tsv", 100)
    (folder / "facts.toml").write_text(FACTS)
    pretrain([str(corpus)], folder / "base", settings=MASKED)
    causal = merge(MASKED, {"objective": {"name": "causal-lm"}, "training": {"max_steps": 10}})
    pretrain([str(corpus)], folder / "writer", settings=causal)
    finetune(str(folder / "base"), str(table), folder / "tuned", settings=TUNING)
    package(str(folder / "base"), "xx-test", folder / "bases", max_shard_size=0.01, card=folder / "facts.toml")
    package(str(folder / "writer"), "xx-writer", folder / "bases")
    package(str(folder / "tuned"), "xx-tuned", folder / "bases")
    return folder


@pytest.fixture
def bases(world, monkeypatch):
    monkeypatch.setenv("HEADSTART_BASES", str(world / "bases"))
    return world


def call(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_a_packed_base_is_near_the_run_and_small(bases):
    run, base = load_model(str(bases / "base")), load_model("xx-test")
    for name, weight in run.weights.items():
        assert np.allclose(weight, base.weights[name], atol=float(weight.abs().max()) / 200), name
    assert base.tokenizer.fingerprint == run.tokenizer.fingerprint
    assert is_contaminated(run.train_fingerprints, base.train_fingerprints).all()
    folder = bases / "bases" / "xx-test"
    assert len(list(folder.glob("weights-*"))) > 1
    assert all(path.stat().st_size <= 0.01 * 2**20 for path in folder.glob("weights-*"))
    whole = (bases / "base" / "model.safetensors").stat().st_size
    assert sum(path.stat().st_size for path in folder.glob("weights-*")) < 0.45 * whole


def test_the_loss_of_storing_is_measured_and_put_in_the_card(bases, tmp_path):
    done = package(str(bases / "base"), "again", tmp_path, eval_data=str(bases / "corpus.txt"))
    assert done.measured_on == "corpus.txt"
    assert 0 < abs(done.after["loss"] - done.before["loss"]) < 0.05
    assert 0 < done.weight_error < 0.02
    card = (tmp_path / "again" / "card.md").read_text()
    assert f"{done.before['loss']:.5f}" in card
    assert f"{done.after['loss']:.5f}" in card
    whole = package(str(bases / "base"), "whole", tmp_path, dtype="float32")
    assert whole.before == whole.after
    assert whole.weight_error == 0


def test_what_is_measured_on_is_read_as_the_packed_base_reads_it(bases, tmp_path):
    """Its own table names other columns and other labels than the usual ones."""
    rows = [row.split("\t") for row in (bases / "table.tsv").read_text().splitlines()[1:]]
    stars = {"good": "5", "bad": "1"}
    own = tmp_path / "stars.tsv"
    own.write_text("review_text\tstars\n" + "".join(f"{text}\t{stars[label]}\n" for text, label in rows))
    columns = {"text_column": "review_text", "label_column": "stars"}
    data = {**columns, "label_map": {"good": ["5"], "bad": ["1"]}}
    finetune(str(bases / "base"), str(own), tmp_path / "run", settings={**TUNING, "data": data})
    table = write_labelled(tmp_path / "valid.tsv", 60, seed=5)
    done = package(str(tmp_path / "run"), "starred", tmp_path / "bases", dtype="float32", eval_data=str(table))
    assert done.measured_on == "valid.tsv"
    found = evaluate(str(tmp_path / "bases" / "starred"), str(table))
    assert done.before["accuracy"] == found.accuracy
    assert done.before["loss"] == pytest.approx(found.loss)
    with pytest.raises(DataError, match="no column 'text'"):
        package(str(tmp_path / "run"), "other", tmp_path / "bases", eval_data=str(own))
    assert package(str(tmp_path / "run"), "other", tmp_path / "bases").measured_on.endswith("stars.tsv")


def test_a_card_says_what_is_known_and_what_is_not(bases):
    card = (bases / "bases" / "xx-test" / "card.md").read_text()
    for words in ("a small base for tests", "our own", "0.8800 to 0.9200", "anything that matters", "masked-lm"):
        assert words in card
    other = (bases / "bases" / "xx-writer" / "card.md").read_text()
    assert other.count("Not stated.") >= 3


def test_nothing_of_the_machine_is_packed(bases):
    for name in ("xx-test", "xx-writer", "xx-tuned"):
        for path in (bases / "bases" / name).iterdir():
            if path.suffix in (".json", ".md"):
                assert str(bases) not in path.read_text(), path


def test_bases_are_listed_and_shown(bases):
    listed = call("models")
    assert "xx-test: English" in listed
    assert "made-up task, 100 labels: accuracy 0.9000 (0.8800 to 0.9200)" in listed
    rows = json.loads(call("models", "--json"))
    assert [row["name"] for row in rows] == sorted(shipped_bases())
    assert "## Data and licences" in call("models", "xx-test")


def test_without_any_the_list_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr("headstart.pretrained.base_folders", lambda: [tmp_path])
    assert "no bases come with this version" in call("models")
    assert json.loads(call("models", "--json")) == []


def test_a_base_is_used_by_its_name_wherever_a_run_is(bases, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table, corpus = bases / "table.tsv", bases / "corpus.txt"
    call("finetune", "xx-test", table, "--out", "tuned", "--epochs", 1, "--max-length", 32)
    assert json.loads((tmp_path / "tuned" / "run.json").read_text())["inputs"]["base"] == "xx-test"
    call("evaluate", "xx-test", corpus)
    call("predict", "xx-tuned", bases / "corpus.txt")
    call("generate", "xx-writer", "--tokens", 3, "the film")
    call("embed", "xx-test", corpus, "--out", "vectors.npy")
    call("pretrain", corpus, "--init-from", "xx-test", "--steps", 2, "--max-length", 32, "--out", "on")
    leaks = json.loads(call("evaluate", "tuned", table, "--json"))
    assert leaks["leaked"] > 50  # of its own training
    words = ["--seeds", 2, "--epochs", 1, "--arms", "fine-tuned,scratch", "--set", "training.max_length=32"]
    call("compare", table, "--base", "xx-test", "--out", "compared", *words)


def test_a_run_from_a_base_that_was_stopped_finds_it_again(bases, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "xx-test").mkdir()  # a folder of that name is in the way of nothing
    settings = {"training": {"max_steps": 6, "max_length": 32}}
    run = lambda out, **more: pretrain(
        [str(bases / "corpus.txt")], tmp_path / out, base="xx-test", settings=settings, **more
    )

    def interrupt(event):
        if getattr(event, "step", 0) >= 2:
            raise InterruptedError

    run("whole")
    with pytest.raises(InterruptedError):
        run("stopped", on_event=interrupt)
    resume(tmp_path / "stopped")
    left, right = (tmp_path / name / "model.safetensors" for name in ("whole", "stopped"))
    assert left.read_bytes() == right.read_bytes()


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("weights-00001-of-00002.safetensors", "flip"),
        ("train_fingerprints.xz", "flip"),
        ("tokenizer.json", "flip"),
        ("run.json", "flip"),
        ("card.md", "flip"),
        ("base.json", "flip"),
        ("weights.json", "gone"),
        ("checksums.json", "flip"),
    ],
)
def test_a_damaged_base_is_refused_in_a_sentence(bases, tmp_path, monkeypatch, name, harm):
    shutil.copytree(bases / "bases" / "xx-test", tmp_path / "bases" / "xx-harmed")
    monkeypatch.setenv("HEADSTART_BASES", str(tmp_path / "bases"))
    victim = next((tmp_path / "bases" / "xx-harmed").glob(name.replace("00002", "*") + "*"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(bytes(content))
    if harm == "gone":
        victim.unlink()
    with pytest.raises(RunError) as caught:
        load_model("xx-harmed")
    assert "again" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "more", "problem"),
    [
        ("Bad Name", {}, "cannot be called"),
        ("scratch", {}, "cannot be called"),
        ("imdb", {}, "cannot be called"),
        ("fine", {"dtype": "int4"}, "int4"),
        ("fine", {"eval_data": "no-such-file.txt"}, "no file|neither"),
    ],
)
def test_what_cannot_be_packed_is_answered(bases, tmp_path, name, more, problem):
    from headstart.errors import HeadstartError

    with pytest.raises(HeadstartError, match=problem):
        package(str(bases / "base"), name, tmp_path, **more)
    assert not (tmp_path / name).exists()


def test_texts_that_are_gone_ask_for_others_to_measure_on(bases, tmp_path):
    corpus = write_corpus(tmp_path / "corpus.txt", 300)
    pretrain([str(corpus)], tmp_path / "base", settings=merge(MASKED, {"training": {"max_steps": 2}}))
    corpus.unlink()
    with pytest.raises(RunError, match="cannot be read here") as caught:
        package(str(tmp_path / "base"), "fine", tmp_path)
    assert "--eval-data" in caught.value.hint


def test_a_fault_in_the_card_facts_is_refused(bases, tmp_path):
    (tmp_path / "facts.toml").write_text("[[scores]]\ntask = 'x'\nvalu = 1\n")
    with pytest.raises(ConfigError, match="valu"):
        package(str(bases / "base"), "fine", tmp_path, card=tmp_path / "facts.toml")


def test_a_name_that_is_near_a_base_is_answered_with_it(bases):
    with pytest.raises(RunError) as caught:
        load_model("xx-tst")
    assert "xx-test" in caught.value.hint


def test_an_existing_base_is_left_as_it_is(bases):
    with pytest.raises(RunError, match="exists already"):
        package(str(bases / "base"), "xx-test", bases / "bases")
