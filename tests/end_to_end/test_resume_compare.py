"""A comparison that dies loses nothing: its finished models are not trained again, and the current one is resumed."""

import json
import os
import random
import shutil
import signal
import time

import pytest

import headstart as hs
from headstart.atomic_io import write_json, write_text
from headstart.config import merge
from headstart.errors import Stopped
from headstart.results import plain
from headstart.training.callbacks import Saved, Stage, StepDone
from headstart.workflows import compare as compare_module
from headstart.workflows import compare_cells
from headstart.workflows.compare import compare, compare_objectives
from tests.end_to_end import test_resume
from tests.end_to_end.test_resume import deaths, in_child, killed_after
from tests.helpers.datasets import QUICK, write_corpus, write_labelled

pytestmark = pytest.mark.slow  # whole comparisons

TRAINING = {"max_length": 32, "max_epochs": 2, "batch_size": 8, "save_steps": 3}
SETTINGS = {"training": TRAINING, "optimizer": {"learning_rate": 0.01}}
TIMES = ("seconds", "started", "provenance")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A table and two bases."""
    folder = tmp_path_factory.mktemp("compare")
    write_labelled(folder / "table.tsv", 60)
    corpus = write_corpus(folder / "corpus.txt", 60)
    base = merge(QUICK, {"training": {"max_steps": 5}, "model": {"dropout": 0.1}, "objective": {"name": "masked-lm"}})
    for seed, name in enumerate(("base", "other")):
        hs.pretrain([str(corpus)], folder / name, settings=merge(base, {"training": {"seed": seed}}))
    return folder


@pytest.fixture
def plainly(monkeypatch):
    """Comparisons that write what they found without drawing it, which takes most of the time of a small one."""

    def write(out, found):
        write_json(out / "comparison.json", plain(found))
        write_text(out / "report.html", "")

    monkeypatch.setattr(compare_module, "write_comparison", write)


def jobs(world):
    table, base = str(world / "table.tsv"), str(world / "base")
    averaged = merge(
        SETTINGS, {"training": {"weight_averaging": "last_epochs", "averaging_epochs": 1, "bpe_dropout": 0.1}}
    )
    averaged = merge(averaged, {"objective": {"r_drop_alpha": 1.0}})
    return {
        "every arm": lambda out, **more: compare(table, [base], out, seeds=2, settings=SETTINGS, **more),
        "folds and ensemble": lambda out, **more: compare(
            table, [base], out, seeds=2, folds=2, arms=("fine-tuned", "ensemble"), settings=averaged, **more
        ),
        "budgets and own settings": lambda out, **more: compare(
            table, {base: {}, str(world / "other"): {"training": {"max_epochs": 1, "gradual_unfreezing_epochs": 1}}}, out,
            seeds=1, labels=[20, 40], arms=("scratch", "fine-tuned"), settings=SETTINGS, **more,
        ),
    }  # fmt: skip


def timeless(content):
    """JSON without what a clock says."""
    if isinstance(content, dict):
        return {key: timeless(value) for key, value in content.items() if key not in TIMES}
    return [timeless(value) for value in content] if isinstance(content, list) else content


def outcome(out):
    """What must not depend on having been killed: what every model answered, and what was concluded."""
    assert not (out / "checkpoints").exists()
    files = [*sorted((out / "arms").glob("*.json")), out / "comparison.json"]
    own = str(out.parent)  # in the settings, where a tokenizer is a path
    return {path.name: timeless(json.loads(path.read_text().replace(own, ""))) for path in files}


class Watch:
    """What happens, by fit: the steps that were reported or evaluated; it dies when the fit of a number saves at a step."""

    def __init__(self, fit=-1, step=0, die=None):
        self.fit, self.step, self.die, self.steps = fit, step, die, []

    def __call__(self, event):
        if isinstance(event, Stage) and ", seed" in event.name:
            self.steps.append([])
        elif hasattr(event, "step"):
            self.steps[-1].append(event.step)
            is_there = len(self.steps) == self.fit + 1 and event.step >= self.step
            if self.die is not None and is_there and isinstance(event, Saved):
                self.die()


def interrupt():
    raise InterruptedError


@pytest.mark.parametrize("fit", [1, 2, 3, 5])
def test_the_current_fit_resumes_from_its_checkpoint(world, tmp_path, plainly, fit):
    """Fits: classical, scratch, frozen and fine-tuned of a seed, then those of the next without classical."""
    work = jobs(world)["every arm"]
    work(tmp_path / "whole")
    with pytest.raises(InterruptedError):
        work(tmp_path / "died", on_event=Watch(fit, 6, interrupt))
    newest = sorted((tmp_path / "died" / "checkpoints").glob("*/step-*"))[-1]
    assert newest.name == "step-000000006"
    watch = Watch()
    hs.resume(tmp_path / "died", watch)
    assert watch.steps[:fit] == [[]] * fit  # finished before, and not trained again
    assert min(watch.steps[fit]) > 6  # neither its first step nor the evaluations before it
    assert all(min(steps) == 0 for steps in watch.steps[fit + 1 :])  # a model is evaluated before any step
    assert outcome(tmp_path / "died") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("job", ["every arm", "folds and ensemble", "budgets and own settings"])
def test_a_comparison_killed_at_random_moments_ends_as_if_it_never_stopped(world, tmp_path, plainly, job):
    work, start = jobs(world)[job], time.monotonic()
    work(tmp_path / "whole")
    whole = time.monotonic() - start
    chance, run, kills = random.Random(job), tmp_path / "killed", 0
    while not (run / "compare.json").exists():
        kills += killed_after(lambda: work(run), chance.uniform(0.2, 0.9) * whole)
    while kills < 6 and killed_after(lambda: hs.resume(run), chance.uniform(0.1, 0.7) * whole):
        kills += 1
    hs.resume(run)
    assert outcome(run) == outcome(tmp_path / "whole")


@pytest.mark.parametrize("job", ["folds and ensemble", "budgets and own settings"])
def test_a_comparison_killed_after_every_save_makes_no_save_twice(world, tmp_path, plainly, job):
    work, run, saves = jobs(world)[job], tmp_path / "killed", []
    work(tmp_path / "whole", on_event=lambda event: saves.append(event) if isinstance(event, Saved) else None)
    assert len(saves) > 5

    def kill(event):
        if isinstance(event, Saved):
            os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(in_child(lambda: work(run, on_event=kill)), 0)
    for _ in saves:
        assert not (run / "report.html").exists()
        os.waitpid(in_child(lambda: hs.resume(run, kill)), 0)
    assert (run / "report.html").exists()
    assert outcome(run) == outcome(tmp_path / "whole")


def test_a_comparison_whose_resume_dies_before_any_file_call_loses_nothing(tmp_path, plainly, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(test_resume, "WRITERS", {*test_resume.WRITERS, compare_module.__file__})
    table = str(write_labelled(tmp_path / "table.tsv", 24))
    settings = merge(merge(QUICK, SETTINGS), {"training": {"save_steps": 2}})

    def work(out, **more):
        compare(table, out=out, seeds=1, arms=("scratch",), settings=settings, **more)

    work(tmp_path / "whole")
    with pytest.raises(InterruptedError):
        work(tmp_path / "started", on_event=Watch(0, 2, interrupt))
    for run in deaths(tmp_path / "started", least=60):
        hs.resume(run)
        assert outcome(run) == outcome(tmp_path / "whole"), run


def test_state_that_a_finished_fit_left_behind_is_not_taken_for_the_next_one_s(world, tmp_path, plainly):
    """As after a death between a fit's result and the removal of its state; both are fits of one arm."""
    work, run = jobs(world)["folds and ensemble"], tmp_path / "died"
    work(tmp_path / "whole")
    saved = []

    def die(event):
        if isinstance(event, Stage) and "fold 2" in event.name:
            shutil.copytree(saved[0], run / "checkpoints")
            raise InterruptedError
        if isinstance(event, Saved) and not saved:
            saved.append(shutil.copytree(run / "checkpoints", tmp_path / "saved"))

    with pytest.raises(InterruptedError):
        work(run, on_event=die)
    watch = Watch()
    hs.resume(run, watch)
    assert [min(steps, default=None) for steps in watch.steps] == [None, 0, 0, 0]
    assert outcome(run) == outcome(tmp_path / "whole")


def test_other_settings_start_the_fit_over(world, tmp_path, plainly):
    """As when a newer headstart reads a preset otherwise: its state is none of this fit."""
    work, run = jobs(world)["every arm"], tmp_path / "died"
    with pytest.raises(InterruptedError):
        work(run, on_event=Watch(1, 6, interrupt))
    content = json.loads((run / "compare.json").read_text())
    content["inputs"]["settings"]["training"]["batch_size"] = 4
    (run / "compare.json").write_text(json.dumps(content))
    watch = Watch()
    hs.resume(run, watch)
    assert min(watch.steps[1]) == 0


def test_a_signal_saves_the_fit_under_way_and_says_how_to_go_on(world, tmp_path, plainly):
    table, run = str(world / "table.tsv"), tmp_path / "stopped"
    settings = merge(merge(QUICK, SETTINGS), {"training": {"save_steps": 1000}})

    def work(out, **more):
        compare(table, out=out, seeds=2, arms=("scratch",), settings=settings, **more)

    def ask(event):
        if isinstance(event, StepDone) and event.step == 10:
            signal.raise_signal(signal.SIGTERM)

    work(tmp_path / "whole")
    with pytest.raises(Stopped) as stopped:
        work(run, on_event=ask)
    assert stopped.value.again == f"headstart resume {run}"
    watch = Watch()
    hs.resume(run, watch)
    assert min(watch.steps[0]) > 10
    assert outcome(run) == outcome(tmp_path / "whole")


def test_a_model_that_is_finished_when_a_signal_comes_is_saved(world, tmp_path, plainly, monkeypatch):
    predict = compare_cells.predict_probabilities

    def interrupted(*given):
        signal.raise_signal(signal.SIGTERM)  # the first is answered gently; there is no second
        return predict(*given)

    monkeypatch.setattr(compare_cells, "predict_probabilities", interrupted)
    with pytest.raises(Stopped):
        jobs(world)["every arm"](tmp_path / "stopped")
    assert len(list((tmp_path / "stopped" / "arms").iterdir())) == 2  # classical and scratch
    assert not (tmp_path / "stopped" / "checkpoints").exists()


def test_objectives_that_were_interrupted_go_on_with_their_bases_and_arms(world, tmp_path, plainly):
    def work(out, on_event=lambda event: None):
        compare_objectives(
            str(world / "table.tsv"), [str(world / "corpus.txt")], ["causal-lm", "masked-lm"], out, tokens=2000,
            pretraining={**QUICK, "training": {**QUICK["training"], "save_steps": 3}}, settings=SETTINGS, seeds=1,
            arms=("scratch", "fine-tuned"), on_event=on_event,
        )  # fmt: skip

    work(tmp_path / "whole")
    saved = []

    def die_at(*numbers):
        def listen(event):
            if isinstance(event, Saved):
                saved.append(event.step)
                if len(saved) in numbers:
                    raise InterruptedError

        return listen

    for number in (2, 5, 9):
        with pytest.raises(InterruptedError):
            work(tmp_path / "died", die_at(number))
    work(tmp_path / "died", die_at())
    for base in ("causal-lm", "masked-lm"):
        weights = [tmp_path / name / "bases" / base / "model.safetensors" for name in ("whole", "died")]
        assert weights[0].read_bytes() == weights[1].read_bytes()
    assert outcome(tmp_path / "died" / "compare") == outcome(tmp_path / "whole" / "compare")
