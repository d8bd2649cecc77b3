"""A run that dies loses nothing: killed anywhere, resumed, it ends with the bytes of a run that never stopped."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headstart.atomic_io
import headstart.checkpoint
from headstart.config import merge
from headstart.errors import RunError
from headstart.training import callbacks
from headstart.workflows import run_dir
from headstart.workflows.finetune import finetune
from headstart.workflows.pretrain import pretrain
from headstart.workflows.resume import resume
from tests.helpers.datasets import QUICK, flags, write_corpus, write_labelled
from tests.helpers.parallel_datasets import TASKS, write_aligned

SAVING = {"training": {"save_steps": 3, "seed": 5}, "model": {"dropout": 0.1}}


def settings(**training):
    return merge(merge(QUICK, SAVING), {"training": training})


def in_child(work) -> int:
    """The process id of a child that does `work` and leaves; a fork, so that it starts in no time."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return child


def killed_after(work, seconds: float) -> bool:
    """Do `work` in a child and kill it -9 after so long; whether it was killed before it was done."""
    child = in_child(work)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0
            return False
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def outcome(run):
    """What must not depend on having been killed: every byte of the weights, and the metrics on the way."""
    result = json.loads((run / "result.json").read_text())
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    steps = [(entry["step"], entry["loss"], entry.get("learning_rate")) for entry in log]
    return (run / "model.safetensors").read_bytes(), result["curve"], steps


def has_started(run) -> bool:
    """Whether a kill left something to resume: before that, a user gives the first command again."""
    return (run / "run.json").exists()


def jobs(tmp_path):
    corpus, table = write_corpus(tmp_path / "corpus.txt"), write_labelled(tmp_path / "table.tsv")
    masked = merge(settings(max_steps=40), {"objective": {"name": "masked-lm"}, "optimizer": {"name": "muon"}})
    causal = merge(settings(max_tokens=9000, gradient_accumulation_steps=2), {"objective": {"name": "causal-lm"}})
    pairs = write_aligned(tmp_path / "pairs", TASKS["reverse"], count=150)
    translating = merge(
        settings(max_epochs=4, tokens_per_batch=1024, gradient_accumulation_steps=2),
        {"tokenizer": {"type": "characters", "shared_vocab": False}, "lr_schedule": {"warmup_steps": 20}},
    )
    few = settings(
        max_epochs=6,
        batch_size=8,
        bpe_dropout=0.1,
        token_cutoff=0.1,
        weight_averaging="last_epochs",
        averaging_epochs=4,
    )
    few = merge(few, {"objective": {"r_drop_alpha": 1.0}})
    return {
        "masked-lm": lambda out: pretrain([str(corpus)], out, settings=masked),
        "causal-lm": lambda out: pretrain([str(corpus)], out, settings=causal),
        "classify": lambda out: finetune("scratch", str(table), out, settings=settings(max_epochs=6, batch_size=8)),
        "thawing": lambda out: finetune(
            "scratch", str(table), out, settings=settings(max_epochs=6, batch_size=8, gradual_unfreezing_epochs=1)
        ),
        "translate": lambda out: finetune("scratch", str(pairs), out, pair="src-trg", settings=translating),
        "few-labels": lambda out: finetune("scratch", str(table), out, settings=few),
    }


@pytest.mark.slow
@pytest.mark.parametrize("job", ["masked-lm", "causal-lm", "classify", "thawing", "translate", "few-labels"])
def test_a_run_killed_at_random_moments_ends_as_if_it_never_stopped(tmp_path, job):
    work = jobs(tmp_path)[job]
    start = time.monotonic()
    work(tmp_path / "whole")
    whole = time.monotonic() - start
    chance = random.Random(job)
    for trial in range(3):
        run = tmp_path / f"killed-{trial}"
        ask = lambda run=run: resume(run) if has_started(run) else work(run)
        kills = 0
        while kills < 5 and killed_after(ask, chance.uniform(0.02, 0.9) * whole):
            kills += 1
        ask()
        assert outcome(run) == outcome(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_killed_while_it_saves_ends_as_if_it_never_stopped(tmp_path):
    """With a save after every step and a wide body, nearly all of the time is spent saving."""
    corpus = write_corpus(tmp_path / "corpus.txt")
    often = merge(
        settings(max_steps=12, save_steps=1), {"model": {"hidden_size": 256, "num_layers": 2, "intermediate_size": 512}}
    )
    often = merge(often, {"objective": {"name": "masked-lm"}})
    pretrain([str(corpus)], tmp_path / "whole", settings=often)
    run, chance, kills = tmp_path / "killed", random.Random(0), 0
    ask = lambda: resume(run) if has_started(run) else pretrain([str(corpus)], run, settings=often)
    while kills < 12 and killed_after(ask, chance.uniform(0.05, 0.5)):
        kills += 1
    ask()
    assert outcome(run) == outcome(tmp_path / "whole")


# What touches files, as the interpreter sees it: dying before each of these calls meets every state of the disk.
FILE_CALLS = {"open", "write", "flush", "close", "fsync", "replace", "rename", "unlink", "rmdir", "mkdir"}
FILE_CALLS |= {"serialize_file"}
WRITERS = {module.__file__ for module in (headstart.atomic_io, headstart.checkpoint, callbacks, run_dir)}
DEPTH = 6  # frames between a call and who called it: a tree is removed by functions that call each other


def is_file_call(frame, kind: str, function) -> bool:
    """Whether one of the modules that write a run is about to touch a file, by itself or through a library."""
    if kind != "c_call" or function.__name__ not in FILE_CALLS:
        return False
    for _ in range(DEPTH):
        if frame is None or frame.f_code.co_filename in WRITERS:
            return frame is not None
        frame = frame.f_back
    return False


def dying_before(work, number: int):
    """`work`, cut off without a farewell before its file call of that number; with 0 it writes how many there are."""

    def watched() -> None:
        made = 0

        def watch(frame, kind, function) -> None:
            nonlocal made
            if is_file_call(frame, kind, function):
                made += 1
                if made == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(watch)
        work()
        sys.setprofile(None)
        if number == 0:
            Path("calls").write_text(str(made))

    return watched


def deaths(started: Path, least: int):
    """A copy of a run that was started for each file call of its resume, which died before that call."""

    def died_before(number: int) -> Path:
        run = started.with_name(f"run-{number}")
        shutil.copytree(started, run)
        os.waitpid(in_child(dying_before(lambda: resume(run), number)), 0)
        return run

    died_before(0)
    count = int(Path("calls").read_text())
    assert count > least
    for number in range(1, count + 1):
        run = died_before(number)
        yield run
        shutil.rmtree(run)


@pytest.mark.slow
def test_a_resume_that_dies_before_any_of_its_file_calls_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = write_labelled(tmp_path / "table.tsv", count=24)
    wanted = settings(max_epochs=2, batch_size=8)
    finetune("scratch", str(table), tmp_path / "whole", settings=wanted)
    with pytest.raises(InterruptedError):
        finetune("scratch", str(table), tmp_path / "started", settings=wanted, on_event=interrupt_at(4))
    assert (tmp_path / "started" / "checkpoints" / "step-000000003").is_dir()
    for run in deaths(tmp_path / "started", least=40):
        resume(run)
        assert outcome(run) == outcome(tmp_path / "whole"), run


@pytest.mark.slow
def test_a_torn_checkpoint_gives_way_to_the_one_before(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.txt")
    wanted = merge(settings(max_steps=12), {"objective": {"name": "masked-lm"}})
    pretrain([str(corpus)], tmp_path / "whole", settings=wanted)
    run = tmp_path / "torn"
    with pytest.raises(InterruptedError):
        pretrain([str(corpus)], run, settings=wanted, on_event=interrupt_at(10))
    newest = sorted((run / "checkpoints").iterdir())[-1]
    assert newest.name == "step-000000009"
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    resume(run)
    assert outcome(run) == outcome(tmp_path / "whole")


def interrupt_at(step):
    def listen(event):
        if getattr(event, "step", 0) >= step:
            raise InterruptedError

    return listen


def test_before_the_first_checkpoint_a_run_starts_over(tmp_path):
    table = write_labelled(tmp_path / "table.tsv")
    wanted = settings(max_epochs=2, save_steps=1000)
    finetune("scratch", str(table), tmp_path / "whole", settings=wanted)
    with pytest.raises(InterruptedError):
        finetune("scratch", str(table), tmp_path / "stopped", settings=wanted, on_event=interrupt_at(1))
    resume(tmp_path / "stopped")
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


def test_a_finished_run_is_left_as_it_is(tmp_path):
    table = write_labelled(tmp_path / "table.tsv")
    finetune("scratch", str(table), tmp_path / "run", settings=settings(max_epochs=1))
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert resume(tmp_path / "run") is None
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.name != ".lock"} == {
        path: content for path, content in before.items() if path.name != ".lock"
    }


def test_data_that_changed_since_is_refused(tmp_path):
    table = write_labelled(tmp_path / "table.tsv")
    with pytest.raises(InterruptedError):
        finetune("scratch", str(table), tmp_path / "run", settings=settings(max_epochs=3), on_event=interrupt_at(2))
    write_labelled(table, seed=9)
    with pytest.raises(RunError, match="has changed"):
        resume(tmp_path / "run")


def test_pairs_that_changed_since_are_refused(tmp_path):
    pairs = write_aligned(tmp_path / "pairs", TASKS["copy"], count=60)
    with pytest.raises(InterruptedError):
        finetune(
            "scratch", str(pairs), tmp_path / "run", pair="src-trg", settings=settings(max_epochs=2),
            on_event=interrupt_at(1),
        )  # fmt: skip
    write_aligned(tmp_path / "pairs", TASKS["copy"], count=60, seed=9)
    with pytest.raises(RunError, match="has changed"):
        resume(tmp_path / "run")


@pytest.mark.slow
def test_what_a_killed_run_had_started_may_let_go_of_it_a_moment_later(tmp_path):
    """A run that dies while it starts a command leaves, for a moment, a copy of itself that holds its lock."""
    table, run = write_labelled(tmp_path / "table.tsv"), tmp_path / "run"
    wanted = settings(max_epochs=2, save_steps=1)
    finetune("scratch", str(table), tmp_path / "whole", settings=wanted)

    def dies_while_it_starts_a_command(event):
        if getattr(event, "step", 0) >= 2:
            if os.fork() == 0:
                time.sleep(0.5)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)

    child = in_child(
        lambda: finetune("scratch", str(table), run, settings=wanted, on_event=dies_while_it_starts_a_command)
    )
    os.waitpid(child, 0)
    resume(run)
    assert outcome(run) == outcome(tmp_path / "whole")


def test_two_processes_cannot_train_one_run(tmp_path, monkeypatch):
    monkeypatch.setattr("headstart.workflows.run_dir.LOCK_TIMEOUT", 0.1)
    table = write_labelled(tmp_path / "table.tsv")
    run, events = tmp_path / "run", []

    def meddle(event):
        if not events and (run / "run.json").exists():
            with pytest.raises(RunError, match="another process"):
                resume(run)
            events.append(event)

    finetune("scratch", str(table), run, settings=settings(max_epochs=1), on_event=meddle)
    assert events


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, kind, code):
    corpus = write_corpus(tmp_path / "corpus.txt")
    wanted = merge(settings(max_steps=400, save_steps=100000), {"objective": {"name": "causal-lm"}})
    pretrain([str(corpus)], tmp_path / "whole", settings=wanted)
    run = tmp_path / "run"
    command = [sys.executable, "-m", "headstart", "pretrain", str(corpus), "--out", str(run), *flags(wanted)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    log = run / "log.jsonl"
    while process.poll() is None and not (log.exists() and len(log.read_text().splitlines()) > 4):
        time.sleep(0.01)
    process.send_signal(kind)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert f"headstart resume {run}" in said
    assert "Traceback" not in said
    assert list((run / "checkpoints").glob("step-*"))
    resume(run)
    assert outcome(run) == outcome(tmp_path / "whole")


@pytest.mark.slow
def test_a_fine_tuning_that_died_in_its_first_save_still_starts_from_its_base(tmp_path):
    corpus, table = write_corpus(tmp_path / "corpus.txt"), write_labelled(tmp_path / "table.tsv")
    pretrain(
        [str(corpus)], tmp_path / "base", settings=merge(settings(max_steps=30), {"objective": {"name": "masked-lm"}})
    )
    tuning = {"training": {"max_epochs": 2, "max_length": 32, "save_steps": 1000}}
    finetune(str(tmp_path / "base"), str(table), tmp_path / "whole", settings=tuning)
    run = tmp_path / "stopped"
    with pytest.raises(InterruptedError):
        finetune(str(tmp_path / "base"), str(table), run, settings=tuning, on_event=interrupt_at(1))
    (run / "checkpoints" / ".step-000000001.123.part").mkdir(parents=True)
    torn = run / "checkpoints" / "step-000000001"
    torn.mkdir()
    (torn / "state.json").write_text("{")
    resume(run)
    assert outcome(run) == outcome(tmp_path / "whole")


def test_a_run_that_died_before_it_began_does_not_block_its_folder(tmp_path):
    table, run = write_labelled(tmp_path / "table.tsv"), tmp_path / "run"
    run.mkdir()
    for name in (".lock", "tokenizer.json", ".tokenizer.json.77.part"):
        (run / name).write_text("")
    finetune("scratch", str(table), run, settings=settings(max_epochs=1))
    assert (run / "model.safetensors").exists()
