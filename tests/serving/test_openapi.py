"""The description at /openapi.json is true: a fuzzer that reads it finds nothing to complain about."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.clients import running

pytestmark = pytest.mark.slow

BOUNDS = [
    "limits.max_chars=200",
    "limits.max_texts=4",
    "limits.max_new_tokens=8",
]  # so that their edges are met quickly
QUIET = ["--output-truncate", "true", "--suppress-health-check", "all", "--no-color"]


def fuzz(port, folder, *options):
    command = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    assert command, "pip install 'headstart[dev]'"
    address = f"http://127.0.0.1:{port}/openapi.json"
    words = [command, "run", address, "--checks", "all", "--max-examples", "6", "--seed", "1", *QUIET, *options]
    return subprocess.run(words, capture_output=True, text=True, cwd=folder, timeout=900)


def test_a_fuzzer_finds_no_undocumented_response(runs, tmp_path):
    served = [runs / name for name in ("classifier", "base", "translator")]
    with running(*served, settings=BOUNDS, options=["--quiet"]) as (process, port):
        done = fuzz(port, tmp_path, "--exclude-path", "/v1/plan")
        assert done.returncode == 0, done.stdout[-5000:]
        # A plan takes a while, so not every edge of each of its sixteen fields is tried.
        done = fuzz(port, tmp_path, "--include-path", "/v1/plan", "--phases", "fuzzing")
        assert done.returncode == 0, done.stdout[-5000:]
        assert "Traceback" not in process.read_log()


def test_the_same_holds_behind_a_token(runs, tmp_path):
    token = "correct-horse-battery-staple"
    (tmp_path / "token").write_text(token, "utf-8")
    words = ["--quiet", "--token-file", str(tmp_path / "token")]
    with running(runs / "classifier", settings=BOUNDS, options=words) as (process, port):
        header = ["--header", f"Authorization: Bearer {token}", "--exclude-path", "/v1/plan"]
        done = fuzz(port, tmp_path, *header, "--phases", "fuzzing")
        assert done.returncode == 0, done.stdout[-5000:]
        assert token not in process.read_log()
