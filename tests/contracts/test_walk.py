"""A reader can follow a command through the code: how many files it crosses, and how often it goes back and forth."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.datasets import write_corpus, write_labelled

ROOT = Path(__file__).parents[2]

# command -> (files of the package that its calls enter, passes between files of cli and workflows)
LIMITS = {
    "finetune en-tiny reviews.tsv --steps 2 --out run": (39, 21),
    "pretrain corpus.txt --steps 2 --out run": (39, 16),
    "translate en-de-captions sentences.txt": (28, 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", LIMITS)
def test_a_command_crosses_few_files(command, tmp_path):
    write_labelled(tmp_path / "reviews.tsv", 40)
    write_corpus(tmp_path / "corpus.txt", 200)
    (tmp_path / "sentences.txt").write_text("a dog\n")
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.walk", *command.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stderr.splitlines()[-1])
    files, hops = LIMITS[command]
    assert len(found["files"]) <= files, "\n".join(found["files"])
    assert found["hops"] <= hops
