"""A search: equal for equal seeds, equal after a kill, and its best settings are an ordinary settings file."""

import json
import os
import random
import signal
import sys
from dataclasses import asdict

import optuna
import pytest
from typer.testing import CliRunner

import headstart as hs
from headstart.cli.app import app
from headstart.config import merge
from headstart.errors import ConfigError, RunError
from headstart.training.callbacks import Saved, StepDone
from headstart.workflows.tune import TrialResult
from tests.end_to_end.test_resume import in_child, killed_after
from tests.helpers.datasets import QUICK, write_corpus, write_labelled

pytestmark = pytest.mark.slow  # whole trainings

SETTINGS = {"training": {"max_length": 32, "batch_size": 8, "save_steps": 2}}
SEARCH = [
    "optimizer.learning_rate=1e-4:3e-2:log",
    "training.max_epochs=1:2:int",
    "objective.label_smoothing=0.0:0.2",
    "optimizer.name=adamw,adam",
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A base, a table, and a search that was never stopped."""
    folder = tmp_path_factory.mktemp("tune")
    write_labelled(folder / "table.tsv", 60)
    corpus = write_corpus(folder / "corpus.txt", 60)
    base = merge(QUICK, {"training": {"max_steps": 5}, "objective": {"name": "masked-lm"}})
    hs.pretrain([str(corpus)], folder / "base", settings=base)
    search(folder, folder / "whole")
    return folder


def search(world, out, **more):
    wanted = {"trials": 10, "folds": 2, "search": SEARCH, "search_only": True, "settings": SETTINGS, **more}
    return hs.tune(str(world / "base"), str(world / "table.tsv"), out, **wanted)


def trials(out):
    """All of the ended trials that a stop must not change, read from the journal as any user of optuna reads it."""
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(out / "trials.log")))
    study = optuna.load_study(study_name="headstart", storage=storage)
    content = [asdict(TrialResult.of(trial)) for trial in study.trials if trial.state.is_finished()]
    return [{key: value for key, value in trial.items() if key != "seconds"} for trial in content]


def test_a_search_finds_what_it_says_and_keeps_it(world):
    out = world / "whole"
    found = json.loads((out / "result.json").read_text())
    assert [trial["number"] for trial in found["trials"]] == list(range(10))
    finished = [trial for trial in found["trials"] if trial["state"] == "finished"]
    assert found["best"]["value"] == max(trial["value"] for trial in finished)
    assert all(trial["value"] == pytest.approx(sum(trial["folds"]) / 2) for trial in finished)
    assert {trial["state"] for trial in found["trials"]} <= {"finished", "pruned"}
    first = found["trials"][0]["values"]
    assert first["optimizer.learning_rate"] == 1e-3  # tiny's own
    assert first["training.max_epochs"] == 2  # the nearest to tiny's 15
    assert found["texts"] == 60
    assert found["scored"] == "2 folds"
    assert found["provenance"]["command"]
    assert (out / "trials.png").stat().st_size > 1000
    assert (out / "trials.svg").read_text().startswith("<?xml")


def test_a_killed_search_resumes_to_the_same_end(world, tmp_path):
    out = tmp_path / "died"
    for stop in (3, 4, 9):

        def die(event, stop=stop):
            if getattr(event, "name", "") == f"trial {stop}":
                raise InterruptedError

        with pytest.raises(InterruptedError):
            search(world, out, on_event=die)
        assert len(trials(out)) == stop
    hs.resume(out)
    assert trials(out) == trials(world / "whole")
    assert (out / "best.toml").read_bytes() == (world / "whole" / "best.toml").read_bytes()
    assert hs.resume(out) is None


@pytest.mark.slow
def test_a_search_killed_at_random_moments_ends_as_if_it_never_stopped(world, tmp_path):
    chance, kills = random.Random(3), 0
    out = tmp_path / "killed"
    while kills < 8 and killed_after(lambda: search(world, out), chance.uniform(0.05, 1.5)):
        kills += 1
    search(world, out)
    assert trials(out) == trials(world / "whole")
    assert (out / "best.toml").read_bytes() == (world / "whole" / "best.toml").read_bytes()


def left(out):
    """What a trial keeps only until it is over."""
    return [path.name for path in out.iterdir() if path.name == "checkpoints" or ".lock" in path.suffixes]


def test_a_search_killed_after_every_save_makes_no_save_twice(world, tmp_path):
    out, saves = tmp_path / "killed", []
    search(world, tmp_path / "short", trials=4, on_event=lambda event: saves.append(event))
    saves = [event for event in saves if isinstance(event, Saved)]
    assert len(saves) > 8

    def kill(event):
        if isinstance(event, Saved):
            os.kill(os.getpid(), signal.SIGKILL)

    for _ in saves:
        os.waitpid(in_child(lambda: search(world, out, trials=4, on_event=kill)), 0)
        assert not (out / "result.json").exists()
        assert "checkpoints" in left(out)
    search(world, out, trials=4, on_event=kill)  # which would end the tests
    assert trials(out) == trials(world / "whole")[:4]
    assert left(out) == []


def test_a_search_that_died_between_two_folds_keeps_the_first(world, tmp_path):
    fits = []

    def count(event):
        if isinstance(event, StepDone) and event.step == 1:
            fits.append(event)
            if len(fits) == 4:  # the second fold of trial 1
                raise InterruptedError

    with pytest.raises(InterruptedError):
        search(world, tmp_path / "died", trials=2, on_event=count)
    assert left(tmp_path / "died") == []
    fits.clear()
    search(world, tmp_path / "died", trials=2, on_event=count)
    assert len(fits) == 1
    assert trials(tmp_path / "died") == trials(world / "whole")[:2]
    assert left(tmp_path / "died") == []


def test_a_pruned_trial_leaves_no_state_behind(world, tmp_path, monkeypatch):
    monkeypatch.setattr("optuna.trial.Trial.should_prune", lambda trial: True)
    saved = []
    with pytest.raises(RunError, match=r"no trial .* finished"):
        search(world, tmp_path / "pruned", trials=2, on_event=saved.append)
    assert any(isinstance(event, Saved) for event in saved)
    assert [trial["state"] for trial in trials(tmp_path / "pruned")] == ["pruned", "pruned"]
    assert left(tmp_path / "pruned") == []


def test_a_disk_that_is_full_ends_the_search_and_counts_against_no_trial(world, tmp_path, monkeypatch):
    def full(*given):
        raise RunError("cannot write: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("headstart.workflows.compare_cells.save_checkpoint", full)
        with pytest.raises(RunError, match="No space left"):
            search(world, tmp_path / "full", trials=2)
    assert trials(tmp_path / "full") == []
    search(world, tmp_path / "full", trials=2)
    assert trials(tmp_path / "full") == trials(world / "whole")[:2]


def test_more_trials_go_on_where_fewer_ended(world, tmp_path):
    search(world, tmp_path / "short", trials=3)
    before = trials(tmp_path / "short")
    search(world, tmp_path / "short", trials=5)
    assert trials(tmp_path / "short")[:3] == before == trials(world / "whole")[:3]
    assert trials(tmp_path / "short") == trials(world / "whole")[:5]


def test_the_best_settings_are_a_settings_file(world, tmp_path):
    best = world / "whole" / "best.toml"
    words = ["finetune", str(world / "base"), str(world / "table.tsv"), "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, [*words, "--config", str(best), "--quiet"])
    assert result.exit_code == 0, (result.output, result.exception)
    own = hs.load_model(str(tmp_path / "run")).info.config
    values = json.loads((world / "whole" / "result.json").read_text())["best"]["values"]
    assert own.optimizer.learning_rate == values["optimizer.learning_rate"]
    assert own.training.max_epochs == values["training.max_epochs"]
    assert own.training.max_length == 32


def test_another_search_into_the_same_folder_is_refused(world):
    with pytest.raises(RunError, match="a search with another metric and pruner") as caught:
        search(world, world / "whole", metric="loss", pruner="none")
    assert "exactly the same command" in caught.value.hint
    assert len(trials(world / "whole")) == 10


def test_the_command_shows_a_table_and_json(world, tmp_path):
    words = ["tune", str(world / "base"), str(world / "table.tsv"), "--out", str(tmp_path / "t"), "--trials", "2",
             "--metric", "loss", "--pruner", "hyperband", "--search-only", "--search", SEARCH[0], "--epochs", "1",
             "--max-length", "32", "--train-size", "20", "--folds", "2"]  # fmt: skip
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "optimizer.learning_rate" in result.stdout
    assert "so it is optimistic" in " ".join(result.stdout.split())
    again = CliRunner().invoke(app, [*words, "--json"])
    found = json.loads(again.stdout)
    assert found["texts"] == 20  # folds of the labels alone
    assert found["direction"] == "minimize"
    assert found["best"]["value"] == min(trial["value"] for trial in found["trials"] if trial["state"] == "finished")


def test_a_trial_that_diverges_is_recorded_and_the_search_continues(world, tmp_path):
    found = search(
        world, tmp_path / "t", trials=3, folds=None, search=["optimizer.learning_rate=1e-3:1e30:log"],
        settings={"training": {**SETTINGS["training"], "max_epochs": 2}},
    )  # fmt: skip
    states = [trial.state for trial in found.trials]
    assert "failed" in states
    assert all("diverged" in trial.reason for trial in found.trials if trial.state == "failed")
    assert found.best.state == "finished"


def test_invalid_values_are_refused_before_anything_is_trained(world, tmp_path):
    for row, words in (
        ("optimizer.learning_rat=1:2", "no setting is called"),
        ("model.num_layers=1,2", "model.num_layers of"),
        ("training.batch_size=1.5:9.5", "cannot be 1.5"),
        ("optimizer.name=adamw,sgd", "cannot be 'sgd'"),
    ):
        with pytest.raises(ConfigError, match=words):
            search(world, tmp_path / "t", search=[row], settings={"training": {"max_length": 32}})
        assert not (tmp_path / "t").exists()
    for more, words in (
        ({"metric": "acuracy"}, "no metric"),
        ({"pruner": "median "}, "no pruner"),
        ({"trials": 0}, "allows no trial"),
    ):
        with pytest.raises(ConfigError, match=words):
            search(world, tmp_path / "t", **more)


def test_without_optuna_one_sentence_says_what_to_install(world, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match="needs the optuna package") as caught:
        search(world, tmp_path / "t")
    assert "headstart[tune]" in caught.value.hint
