"""Whole jobs in many processes: one base for any number of them, restarts, signals, and what is refused."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from headstart.config import merge
from headstart.errors import ConfigError, Stopped
from headstart.training.launch import RankInfo, check_process_count, rank_info
from headstart.workflows.finetune import finetune
from headstart.workflows.pretrain import pretrain
from headstart.workflows.resume import resume
from tests.helpers.datasets import QUICK, flags, write_corpus, write_labelled
from tests.helpers.processes import free_port, in_processes, wait_for

HEADSTART = [sys.executable, "-m", "headstart"]
CAUSAL = merge(QUICK, {"objective": {"name": "causal-lm"}})


def weights(run: Path):
    return load_file(run / "model.safetensors")


def check_alike(run: Path, other: Path):
    """Two runs found the same, up to the order in which numbers were added."""
    one, two = weights(run), weights(other)
    assert one.keys() == two.keys()
    for name in one:
        assert np.allclose(one[name], two[name], atol=2e-5), name
    curves = [json.loads((path / "result.json").read_text())["curve"] for path in (run, other)]
    for some, others in zip(*curves, strict=True):
        assert some == pytest.approx(others, rel=1e-4)


def steps_of(run: Path):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if line["event"] == "step"]


def start(*words, **variables) -> subprocess.Popen:
    environment = {**os.environ, **variables}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*HEADSTART, *map(str, words)], env=environment, **pipes)


def children(parent: int) -> list[int]:
    """The processes that `parent` started and that are still there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(path.parent.name))
    return sorted(found)


def left_over(folder: Path) -> list[str]:
    """What still runs of the commands that name something in this folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in lines if str(folder) in line]


def stop_at(step: int):
    """A listener that asks for an end, once, as a scheduler does."""
    sent = []

    def listen(event):
        if getattr(event, "step", 0) >= step and not sent:
            sent.append(event)
            os.kill(os.getpid(), signal.SIGTERM)

    return listen


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_a_run_goes_on_with_any_number_of_processes(tmp_path, sharded):
    corpus, run = write_corpus(tmp_path / "corpus.txt"), tmp_path / "run"
    wanted = merge(
        CAUSAL, {"training": {"max_steps": 24, "gradient_accumulation_steps": 2, "fsdp": sharded, "eval_steps": 8}}
    )
    pretrain([str(corpus)], tmp_path / "whole", settings=wanted)

    def go(work):
        try:
            work()
        except Stopped:
            return "stopped"
        return "finished"

    first = lambda: go(lambda: pretrain([str(corpus)], run, settings=wanted, on_event=stop_at(5)))
    assert in_processes(4, first) == ["stopped"] * 4
    assert in_processes(2, lambda: go(lambda: resume(run, stop_at(10)))) == ["stopped"] * 2
    assert go(lambda: resume(run, stop_at(17))) == "stopped"
    assert in_processes(2, lambda: go(lambda: resume(run))) == ["finished"] * 2
    check_alike(run, tmp_path / "whole")
    assert steps_of(run) == steps_of(tmp_path / "whole")


@pytest.mark.slow
def test_fine_tuning_in_many_processes_marks_every_text_once(tmp_path):
    corpus, table = write_corpus(tmp_path / "corpus.txt"), write_labelled(tmp_path / "table.tsv")
    pretrain([str(corpus)], tmp_path / "base", settings=merge(CAUSAL, {"training": {"max_steps": 10}}))
    tune = lambda out: finetune(
        str(tmp_path / "base"),
        str(table),
        out,
        settings={"training": {"max_epochs": 2, "batch_size": 7}, "model": {"dropout": 0.0}},
    )
    alone = tune(tmp_path / "alone")
    together = in_processes(3, lambda: tune(tmp_path / "together"))
    check_alike(tmp_path / "alone", tmp_path / "together")
    for found in together:
        assert (found.score.count, found.score.correct) == (alone.score.count, alone.score.correct)
    written = json.loads((tmp_path / "together" / "result.json").read_text())
    assert "3 processes" in written["provenance"]["machine"]


@pytest.mark.slow
def test_a_worker_that_is_killed_is_started_again_and_no_step_is_counted_twice(tmp_path):
    corpus, run = write_corpus(tmp_path / "corpus.txt"), tmp_path / "run"
    wanted = merge(CAUSAL, {"training": {"max_steps": 400, "save_steps": 20}})
    pretrain([str(corpus)], tmp_path / "whole", settings=wanted)
    process = start("pretrain", corpus, "--out", run, *flags(wanted), "--nproc", 2, "--max-restarts", 3, "--quiet")
    wait_for(lambda: len(list((run / "checkpoints").glob("step-*"))) == 2, process)
    before = children(process.pid)
    assert len(before) == 2
    os.kill(before[1], signal.SIGKILL)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    check_alike(run, tmp_path / "whole")
    assert steps_of(run) == steps_of(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_launcher_saves_and_leaves_nobody_behind(tmp_path, kind, code):
    corpus, run = write_corpus(tmp_path / "corpus.txt"), tmp_path / "run"
    wanted = merge(CAUSAL, {"training": {"max_steps": 5000, "save_steps": 100000}})
    process = start("pretrain", corpus, "--out", run, *flags(wanted), "--nproc", 2, "--quiet")
    wait_for(lambda: (run / "log.jsonl").exists() and len(steps_of(run)) > 2, process)
    workers = children(process.pid)
    process.send_signal(kind)
    _, said = process.communicate(timeout=100)
    assert process.returncode == code, said
    assert f"headstart resume {run}" in said
    assert "Traceback" not in said
    assert len(list((run / "checkpoints").glob("step-*"))) == 1
    assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()]
    shutil.copytree(run, tmp_path / "copy")
    again = start("pretrain", corpus, "--out", run, *flags(wanted), "--nproc", 2, "--quiet")
    _, said = again.communicate(timeout=100)
    assert again.returncode == 2
    assert said.startswith(f"error: {run} already holds a run"), said


@pytest.mark.slow
def test_workers_end_with_their_torchrun(tmp_path):
    corpus, run = write_corpus(tmp_path / "corpus.txt"), tmp_path / "run"
    wanted = merge(CAUSAL, {"training": {"max_steps": 5000}})
    process = start("pretrain", corpus, "--out", run, *flags(wanted), "--nproc", 2, "--quiet")
    wait_for(lambda: (run / "log.jsonl").exists() and len(steps_of(run)) > 1, process)
    workers = children(process.pid)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while [worker for worker in workers if Path(f"/proc/{worker}").exists()]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert list((run / "checkpoints").glob("step-*"))


@pytest.mark.slow
def test_plain_torchrun_finds_its_own_run_and_refuses_another(tmp_path):
    corpus, run = write_corpus(tmp_path / "corpus.txt"), tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    wanted = flags(merge(CAUSAL, {"training": {"max_steps": 10}}))
    command = ["pretrain", str(corpus), "--out", str(run), *wanted, "--quiet"]

    def job(count, *words):
        line = [*torchrun, str(count), "-m", "headstart", *words]
        return subprocess.run(line, capture_output=True, text=True, timeout=200)

    first = job(2, *command)
    assert first.returncode == 0, first.stderr
    run = start(*command[:3], tmp_path / "listened", *wanted, "--nproc", 2)
    shown = "".join(run.communicate(timeout=200))
    steps = re.findall(r"training: epoch[^\n]*step\s+(\d+)", shown)
    assert len(steps) == len(set(steps)) > 1, shown  # one bar for both processes
    again = job(1, *command)  # a job that a scheduler starts again
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout
    other = job(1, *command, "--seed", "3")
    assert other.returncode != 0
    assert "holds a run with other settings" in other.stderr


@pytest.mark.slow
def test_what_cannot_work_is_told_once_and_without_a_traceback(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.txt")

    def refused(*words, code=2, **variables):
        done = start(*words, **variables)
        out, said = done.communicate(timeout=100)
        assert done.returncode == code, said
        assert "Traceback" not in said + out
        assert said.count("error:") == 1, said
        assert not left_over(tmp_path)
        return said

    go = ["pretrain", corpus, "--out", tmp_path / "run", "--steps", 3, "--quiet", "--nproc"]
    assert "--nproc 9999 is more than" in refused(*go, 9999)
    assert "objective" in refused(*go, 2, "--objective", "classify")
    dying = tmp_path / "dying"
    dying.mkdir()
    (dying / "sitecustomize.py").write_text("import os\nos.environ.get('RANK') == '1' and os.kill(os.getpid(), 9)\n")
    path = os.pathsep.join([str(dying), os.environ.get("PYTHONPATH", "")])
    assert "process 1 was killed by signal 9" in refused(*go, 2, code=1, PYTHONPATH=path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        meet = f"127.0.0.1:{taken.getsockname()[1]}"
        assert "is in use by something else" in refused(*go, 2, "--nodes", 2, "--rdzv-endpoint", meet)
    assert "go with --nproc" in refused(*go[:-1], "--max-restarts", 2)
    many = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    assert "runs in one process" in refused("compare", "x.tsv", **many)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_machines_with_other_settings_are_told_so(tmp_path):
    corpus, meet = write_corpus(tmp_path / "corpus.txt"), f"127.0.0.1:{free_port()}"
    many = ["--nproc", 1, "--nodes", 2, "--rdzv-endpoint", meet, "--quiet", "--steps", 3, *flags(CAUSAL)]
    both = [start("pretrain", corpus, "--out", tmp_path / f"run{seed}", "--seed", seed, *many) for seed in (0, 1)]
    said = [process.communicate(timeout=200)[1] for process in both]
    assert [process.returncode for process in both] == [2, 2], said
    assert sorted(text.count("error:") for text in said) == [0, 1]
    assert "training.seed is" in "".join(said)
    assert "Traceback" not in "".join(said)
    assert not left_over(tmp_path)


@pytest.fixture
def two_hosts():
    """Two network namespaces with a cable between them, as (name, device, address) each."""
    names = [f"headstart{os.getpid()}{letter}" for letter in "ab"]
    hosts = [(name, f"hs{os.getpid()}{name[-1]}", f"10.77.99.{place}") for place, name in enumerate(names, 1)]
    (_, one, _), (_, two, _) = hosts
    ip = lambda *words: subprocess.run(["ip", *words], check=True, capture_output=True)
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", one, "netns", names[0], "type", "veth", "peer", "name", two, "netns", names[1])
        for name, device, address in hosts:
            ip("-n", name, "address", "add", f"{address}/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
        pytest.skip(f"network namespaces are not permitted here: {error}")
    yield hosts
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


@pytest.mark.slow
def test_a_machine_that_vanishes_ends_the_run_in_a_sentence_and_it_can_be_resumed(tmp_path, two_hosts):
    corpus, run = write_corpus(tmp_path / "corpus.txt"), tmp_path / "run"
    wanted = merge(CAUSAL, {"training": {"max_steps": 100000, "save_steps": 20, "ddp_timeout_minutes": 0.1}})
    meet = f"{two_hosts[0][2]}:29533"
    both = []
    for name, device, _ in two_hosts:
        words = ["pretrain", corpus, "--out", run, *flags(wanted), "--quiet"]
        words += ["--nproc", 1, "--nodes", 2, "--rdzv-endpoint", meet]
        line = ["ip", "netns", "exec", name, *HEADSTART, *map(str, words)]
        variables = {**os.environ, "GLOO_SOCKET_IFNAME": device}
        both.append(subprocess.Popen(line, env=variables, stderr=subprocess.PIPE, text=True))
    try:
        wait_for(lambda: list((run / "checkpoints").glob("step-*")), both[0])
        name, device, _ = two_hosts[1]
        subprocess.run(["ip", "-n", name, "link", "set", device, "down"], check=True)
        said = [process.communicate(timeout=100)[1] for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [2, 2], said
    for each in said:  # for the second machine it is the rendezvous that has vanished
        assert "another process of this run has died or fallen silent" in each
        assert "Traceback" not in each
    saved = max(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*"))
    with pytest.raises(Stopped):
        resume(run, stop_at(saved + 1))
    assert steps_of(run) == sorted(set(steps_of(run)))


@pytest.mark.slow
def test_the_same_command_twice_gives_the_same_bytes(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.txt")
    wanted = merge(QUICK, {"objective": {"name": "masked-lm"}, "model": {"dropout": 0.1}})
    wanted = merge(wanted, {"training": {"max_steps": 12, "deterministic": True}})
    for out in ("one", "two"):
        in_processes(2, lambda out=out: pretrain([str(corpus)], tmp_path / out, settings=wanted).tokens)
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (
        tmp_path / "two" / "model.safetensors"
    ).read_bytes()


def test_a_place_is_read_from_what_torchrun_tells():
    assert rank_info({}) == RankInfo()
    variables = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    variables |= {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert rank_info(variables) == RankInfo(3, 8, 1, 2, 2, is_launched=True, is_job=True)
    assert rank_info({**variables, "HEADSTART_LAUNCHED": "1"}).may_resume
    assert not rank_info({**variables, "HEADSTART_LAUNCHED": "1", "TORCHELASTIC_RESTART_COUNT": "0"}).may_resume
    with pytest.raises(ConfigError, match="starts nothing"):
        check_process_count(0, "cpu")
