"""Translators and few-label methods in many processes, and jobs that stay with one."""

import json
import os

import pytest

from headstart.config import merge
from headstart.errors import ConfigError, Stopped
from headstart.workflows.compare import compare
from headstart.workflows.finetune import finetune
from headstart.workflows.resume import resume
from headstart.workflows.tune import tune
from tests.end_to_end.test_many_processes import check_alike, steps_of, stop_at
from tests.helpers.datasets import QUICK, write_labelled
from tests.helpers.parallel_datasets import TASKS, write_aligned
from tests.helpers.processes import in_processes

SMALL = {
    # No biases: that of keys changes no answer, so Adam would make steps of what rounding leaves of its gradient.
    "model": {
        "num_layers": 1,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 64,
        "dropout": 0.0,
        "bias": False,
    },
    "tokenizer": {"type": "characters", "vocab_size": 60, "shared_vocab": False},
    "training": {
        "max_steps": 12,
        "tokens_per_batch": 512,
        "max_length": 64,
        "gradient_accumulation_steps": 2,
        "eval_steps": 4,
    },
    "optimizer": {"learning_rate": 3e-3},
    "lr_schedule": {"name": "linear", "warmup_steps": 4},
}


def ended(work) -> str:
    try:
        work()
    except Stopped:
        return "stopped"
    return "finished"


def refusal(work) -> str:
    try:
        work()
    except ConfigError as error:
        return str(error)
    return "nothing was refused"


@pytest.mark.slow
def test_a_translator_goes_on_with_any_number_of_processes(tmp_path):
    pairs, run = write_aligned(tmp_path / "pairs", TASKS["copy"], count=200), tmp_path / "run"
    train = lambda out, **more: finetune("scratch", str(pairs), out, pair="src-trg", settings=SMALL, **more)
    alone = train(tmp_path / "alone")
    assert in_processes(3, lambda: ended(lambda: train(run, on_event=stop_at(5)))) == ["stopped"] * 3
    assert ended(lambda: resume(run, stop_at(9))) == "stopped"
    # Processes of the user's own torchrun find the run by the command that began it.
    found = in_processes(2, lambda: (train(run), train(run)))
    check_alike(run, tmp_path / "alone")
    assert steps_of(run) == steps_of(tmp_path / "alone")
    for one, again in found:
        for other in (one, again):
            assert (other.score.bleu, other.score.chrf) == (alone.score.bleu, alone.score.chrf)
            assert other.score.loss == pytest.approx(alone.score.loss, rel=1e-4)
            assert other.curve[-1] == pytest.approx(alone.curve[-1], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_few_label_methods_go_on_with_any_number_of_processes(tmp_path, sharded):
    table, run = write_labelled(tmp_path / "table.tsv"), tmp_path / "run"
    methods = {"weight_averaging": "ema", "averaging_epochs": 1.0, "bpe_dropout": 0.1, "token_cutoff": 0.15}
    few = {"max_epochs": 4, "batch_size": 5, "fsdp": sharded, "eval_steps": 3, **methods}
    own = {"training": few, "model": {"dropout": 0.0}, "objective": {"name": "classify"}}
    train = lambda out, **more: finetune("scratch", str(table), out, settings=merge(QUICK, own), **more)
    train(tmp_path / "alone")
    assert in_processes(2, lambda: ended(lambda: train(run, on_event=stop_at(6)))) == ["stopped"] * 2
    assert list((run / "checkpoints").rglob("average.safetensors"))
    assert in_processes(3, lambda: ended(lambda: resume(run, stop_at(13)))) == ["stopped"] * 3
    assert ended(lambda: resume(run)) == "finished"
    check_alike(run, tmp_path / "alone")


@pytest.mark.slow
def test_what_runs_in_one_process_says_so_in_many(tmp_path):
    pairs = write_aligned(tmp_path / "pairs", TASKS["copy"], count=60)
    for name in ("compare", "tune"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.json").write_text(json.dumps({}))
    parts = merge(SMALL, {"training": {"fsdp": True}})

    def ask():
        return [
            refusal(lambda: finetune("scratch", str(pairs), tmp_path / "t", pair="src-trg", settings=parts)),
            refusal(lambda: compare("rotten-tomatoes", out=tmp_path / "c")),
            refusal(lambda: tune("scratch", "rotten-tomatoes", tmp_path / "s")),
            *(refusal(lambda name=name: resume(tmp_path / name)) for name in ("compare", "tune")),
        ]

    for said in in_processes(2, ask):
        assert "a whole copy in each process" in said[0]
        assert all("runs in one process" in each for each in said[1:]), said
    assert sorted(os.listdir(tmp_path)) == ["compare", "pairs", "tune"]
