"""Each way to get more from few labels, as the settings of an ordinary run: exact resume, honest metrics, clear refusals."""

import json

import pytest

import headstart as hs
from headstart.config import merge
from headstart.errors import ConfigError, RunError
from headstart.workflows.compare import compare
from tests.end_to_end.test_resume import interrupt_at, outcome
from tests.helpers.datasets import QUICK, write_corpus, write_labelled

pytestmark = pytest.mark.slow  # whole trainings

TUNING = {
    "training": {
        "max_length": 32,
        "tokens_per_batch": 256,
        "batch_size": 8,
        "max_epochs": 4,
        "save_steps": 3,
        "seed": 5,
    },
    "model": {"dropout": 0.1},
    "optimizer": {"learning_rate": 0.003},
}
METHODS = {
    "plain": {},
    "bpe-dropout": {"training": {"bpe_dropout": 0.2}},
    "cut-off": {"training": {"token_cutoff": 0.2}},
    "r-drop": {"objective": {"r_drop_alpha": 1.0}, "training": {"gradient_accumulation_steps": 2}},
    "reset": {"training": {"reinit_top_layers": 1}},
    "ema": {"training": {"weight_averaging": "ema", "averaging_epochs": 1.0}},
    "last": {"training": {"weight_averaging": "last_epochs", "averaging_epochs": 3}},
    "last, last checkpoint": {
        "training": {"weight_averaging": "last_epochs", "averaging_epochs": 3, "checkpoint_selection": "last"}
    },
    "together": {
        "training": {"bpe_dropout": 0.1, "token_cutoff": 0.1, "weight_averaging": "ema", "reinit_top_layers": 1},
        "objective": {"r_drop_alpha": 0.5},
    },
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A base and a table."""
    folder = tmp_path_factory.mktemp("few")
    write_labelled(folder / "table.tsv", 80)
    corpus = write_corpus(folder / "corpus.txt", 200)
    settings = merge(
        QUICK, {"model": {"num_layers": 2}, "training": {"max_steps": 20}, "objective": {"name": "masked-lm"}}
    )
    hs.pretrain([str(corpus)], folder / "base", settings=settings)
    return folder


def tune(world, out, *, on_event=lambda event: None, **changes):
    return hs.finetune(
        str(world / "base"), str(world / "table.tsv"), out, settings=merge(TUNING, changes), on_event=on_event
    )


@pytest.fixture(scope="module")
def plain(world):
    """What an ordinary run ends with."""
    tune(world, world / "plain")
    return outcome(world / "plain")


QUICKEST = ("together", "last")  # every method is in one of them or in a slow test


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICKEST else pytest.mark.slow) for name in METHODS]
)
def test_a_run_that_stops_goes_on_bit_for_bit_and_differs_from_a_plain_one(world, plain, tmp_path, name):
    tune(world, tmp_path / "whole", **METHODS[name])
    with pytest.raises(InterruptedError):  # inside an epoch, a step after the last save
        tune(world, tmp_path / "stopped", on_event=interrupt_at(20 if name == "last" else 10), **METHODS[name])
    assert json.loads((tmp_path / "stopped" / "run.json").read_text())["status"] == "running"
    hs.resume(tmp_path / "stopped")
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")
    assert (outcome(tmp_path / "whole") == plain) == (name == "plain")


@pytest.mark.parametrize("name", ["bpe-dropout", "cut-off", "together"])
def test_marks_are_taken_on_texts_as_they_stand(world, tmp_path, name):
    done = tune(world, tmp_path / "run", **METHODS[name])
    dataset = hs.load_dataset(str(world / "table.tsv"), hs.load_model(str(tmp_path / "run")).info.config.data)
    table = tmp_path / "valid.tsv"
    table.write_text("text\tlabel\n" + "".join(f"{row.text}\t{row.label}\n" for row in dataset.valid))
    found = hs.evaluate(str(tmp_path / "run"), str(table))
    assert (found.correct, found.count) == (done.score.correct, done.score.count)
    assert found.loss == pytest.approx(done.score.loss, abs=1e-6)


def test_a_rate_of_zero_changes_nothing(world, plain, tmp_path):
    off = {
        "bpe_dropout": 0.0,
        "token_cutoff": 0.0,
        "reinit_top_layers": 0,
        "weight_averaging": "none",
        "averaging_epochs": 7.0,
    }
    tune(world, tmp_path / "off", training=off, objective={"r_drop_alpha": 0.0})
    assert outcome(tmp_path / "off") == plain


def test_the_account_names_the_blocks_that_start_fresh(world, tmp_path):
    plain, reset = (tune(world, tmp_path / "plain"), tune(world, tmp_path / "reset", training={"reinit_top_layers": 1}))
    moved = set(plain.transfer.reused) - set(reset.transfer.reused)
    assert {name.split(".")[2] for name in moved} == {"blocks", "final_norm"}
    assert {name.split(".")[3] for name in moved if ".blocks." in name} == {"1"}
    assert moved <= set(reset.transfer.initialized)
    assert moved <= set(reset.transfer.dropped)


REFUSED = {
    "more layers than there are": ({"training": {"reinit_top_layers": 3}}, "more than the 2 blocks"),
    "fresh and frozen": ({"training": {"reinit_top_layers": 1, "freeze_backbone": True}}, "training.freeze_backbone would never train"),
    "fresh and thawing": ({"training": {"reinit_top_layers": 1, "gradual_unfreezing_epochs": 1}}, "training.gradual_unfreezing_epochs would"),
    "r-drop without dropout": ({"objective": {"r_drop_alpha": 1.0}, "model": {"dropout": 0.0}}, "no dropout"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_make_no_sense_together_are_refused(world, tmp_path, name):
    changes, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words) as caught:
        tune(world, tmp_path / "run", **changes)
    assert caught.value.hint
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_without_merges_is_refused_before_a_run_begins(world, tmp_path):
    settings = merge(
        merge(QUICK, {"tokenizer": {"type": "wordpiece"}}), {"training": {"max_epochs": 1, "bpe_dropout": 0.1}}
    )
    with pytest.raises(ConfigError, match="needs a bpe tokenizer"):
        hs.finetune("scratch", str(world / "table.tsv"), tmp_path / "run", settings=settings)
    with pytest.raises(ConfigError, match="needs a bpe tokenizer"):
        compare(str(world / "table.tsv"), [], tmp_path / "compare", settings=settings)
    search = {"search": ["training.bpe_dropout=0.0:0.2"], "search_only": True}
    other = {**settings, "training": {"max_epochs": 1}}
    with pytest.raises(ConfigError, match="needs a bpe tokenizer"):
        hs.tune("scratch", str(world / "table.tsv"), tmp_path / "tune", settings=other, **search)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("setting", [{"bpe_dropout": 0.1}, {"token_cutoff": 0.1}, {"reinit_top_layers": 1}])
def test_what_is_for_labels_is_refused_in_pretraining(world, tmp_path, setting):
    with pytest.raises(ConfigError, match="is for fine-tuning"):
        hs.pretrain([str(world / "corpus.txt")], tmp_path / "run", settings={"training": setting})


def test_fresh_blocks_without_a_base_are_refused(world, tmp_path):
    with pytest.raises((ConfigError, RunError), match="from scratch every layer is new"):
        hs.finetune(
            "scratch", str(world / "table.tsv"), tmp_path / "run", settings={"training": {"reinit_top_layers": 1}}
        )
