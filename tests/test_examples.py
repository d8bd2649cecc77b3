"""The files for schedulers can be used as they stand: their words are torchrun's and ours, and the Slurm ones run."""

import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from headstart.checkpoint import has_checkpoint
from headstart.cli.app import app
from tests.helpers.datasets import QUICK, flags, write_corpus
from tests.helpers.processes import free_port, wait_for

EXAMPLES = Path(__file__).parents[1] / "examples"
SLURM = EXAMPLES / "slurm"


def yaml_words(path: Path) -> list[str]:
    """The words of a container's command in a manifest."""
    block = re.search(r"command:\n((?:\s+- .*\n)+)", path.read_text())
    words = [line.strip().removeprefix("- ") for line in block[1].splitlines()]
    return shlex.split(words[2]) if words[:2] == ["sh", "-c"] else words


def sbatch_words(path: Path) -> list[str]:
    """The words after srun in a job's script."""
    text = path.read_text().replace("\\\n", " ")
    line = next(line for line in text.splitlines() if line.startswith("srun "))
    return shlex.split(line)[1:]


@pytest.mark.parametrize(
    "path", sorted([*SLURM.glob("*.sbatch"), *EXAMPLES.glob("*/pre*.yaml")]), ids=lambda path: path.name
)
def test_every_flag_in_a_job_is_known(path):
    words = yaml_words(path) if path.suffix == ".yaml" else sbatch_words(path)
    words = words[words.index("headstart") + 1 :]
    command = typer.main.get_command(app).commands[words[0]]
    known = {option for parameter in command.params for option in parameter.opts}
    used = {word.split("=")[0] for word in words if word.startswith("--")}
    assert used
    assert used <= known


@pytest.mark.parametrize(
    "path", [SLURM / "pretrain.sbatch", EXAMPLES / "kubernetes" / "pretrain.yaml"], ids=lambda path: path.name
)
def test_torchrun_takes_its_words(path):
    from torch.distributed.run import parse_args

    words = yaml_words(path) if path.suffix == ".yaml" else sbatch_words(path)
    words = words[words.index("torchrun") + 1 :]
    values = {"$SLURM_NNODES": "2", "$processes": "8", "$SLURM_JOB_ID": "1"}
    found = parse_args([values.get(word, word) for word in words])
    assert found.module
    assert found.training_script == "headstart"
    assert found.max_restarts > 0


def test_manifests_name_what_they_hold():
    manifest = (EXAMPLES / "kubernetes" / "pretrain.yaml").read_text()
    service = re.search(r"kind: Service\nmetadata:\n  name: (\S+)", manifest)[1]
    job = re.search(r"kind: Job\nmetadata:\n  name: (\S+)", manifest)[1]
    assert f"subdomain: {service}" in manifest
    assert f"job-name: {job}" in manifest
    assert f"--rdzv-endpoint={job}-0.{service}:29500" in manifest
    assert len(set(re.findall(r"(?:completions: |parallelism: |--nnodes=)(\d+)", manifest))) == 1


@pytest.mark.parametrize("name", ["tokenize.yaml", "pretrain.yaml"])
def test_jobs_claim_the_storage_that_is_there(name):
    claim = (EXAMPLES / "kubernetes" / "claim.yaml").read_text()
    claimed = re.findall(r"claimName: (\S+)", (EXAMPLES / "kubernetes" / name).read_text())
    assert claimed == re.findall(r"kind: PersistentVolumeClaim\nmetadata:\n  name: (\S+)", claim)


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)


def one_machine(folder: Path) -> dict[str, str]:
    """The variables of a job, with a scheduler of one machine that writes down what it receives."""
    tools = folder / "tools"
    tools.mkdir()
    program(tools / "scontrol", f'echo "$@" >> {folder}/calls; echo 127.0.0.1')
    program(tools / "srun", 'while [[ "$1" == --* ]]; do shift; done; exec "$@"')
    program(tools / "torchrun", f'exec {sys.executable} -m torch.distributed.run "$@"')
    program(tools / "headstart", f'exec {sys.executable} -m headstart "$@"')
    slurm = {"SLURM_NNODES": 1, "SLURM_JOB_ID": 7, "SLURM_JOB_NODELIST": "here", "SLURM_CPUS_PER_TASK": 2}
    slurm |= {"PROCESSES_PER_NODE": 2, "PORT": free_port(), "SLURM_ARRAY_TASK_ID": 0, "SLURM_ARRAY_TASK_COUNT": 1}
    variables = {**os.environ, **{name: str(value) for name, value in slurm.items()}}
    return variables | {"PATH": f"{tools}:{os.environ['PATH']}", "HEADSTART_CACHE": str(folder / "cache")}


@pytest.mark.slow
def test_the_slurm_jobs_run_with_a_scheduler_of_one_machine(tmp_path):
    corpus, run, variables = (write_corpus(tmp_path / "corpus.txt"), tmp_path / "runs" / "base", one_machine(tmp_path))

    def job(name, *words):
        line = ["bash", str(SLURM / name), str(corpus), *map(str, words), *flags(QUICK), "--quiet"]
        done = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "all are ready" in job("tokenize.sbatch")
    assert "base ready" in job("pretrain.sbatch", run, "--steps", 3)
    assert "2 processes" in json.loads((run / "result.json").read_text())["provenance"]["machine"]
    assert "requeue" not in (tmp_path / "calls").read_text()


@pytest.mark.slow
def test_a_slurm_job_whose_time_is_over_saves_and_queues_again(tmp_path):
    corpus, run, variables = (write_corpus(tmp_path / "corpus.txt"), tmp_path / "runs" / "base", one_machine(tmp_path))
    line = ["bash", str(SLURM / "pretrain.sbatch"), str(corpus), str(run), *flags(QUICK), "--quiet", "--steps"]
    job = subprocess.Popen(
        [*line, "100000"], env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        wait_for(lambda: (run / "log.jsonl").is_file() and '"step"' in (run / "log.jsonl").read_text(), job)
        job.send_signal(signal.SIGTERM)
        said, _ = job.communicate(timeout=120)
    finally:
        job.kill()
    assert job.returncode != 0
    assert "requeue 7" in (tmp_path / "calls").read_text(), said
    assert has_checkpoint(run / "checkpoints")
