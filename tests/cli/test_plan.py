"""`headstart plan` and `headstart complexity` as a user types them."""

import json

import pytest
from typer.testing import CliRunner

from headstart.cli.app import app
from headstart.errors import ConfigError


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)


def planned(*words):
    done = call("plan", *words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_lab_language_model_and_classifier_have_their_known_counts():
    assert planned("--preset", "lab")["parameters"]["total"] == 21_018_401
    assert planned("--preset", "lab", "--classes", 2)["parameters"]["total"] == 10_968_602


def test_flags_reach_the_plan():
    found = planned(
        "--preset", "small", "--objective", "causal-lm", "--vocab", 1000, "--batch", 7, "--max-length", 33,
        "--gpu", "rtx3060", "--tokens", 5000, "--epochs", 2, "--price", 1, "--precision", "float32",
        "--optimizer", "adamw", "--set", "model.num_layers=3",
    )  # fmt: skip
    blocks = {block["name"]: block for block in found["parameters"]["blocks"]}
    assert blocks["token embedding"]["total"] == 384_000
    assert blocks["attention qkv"]["times"] == 3
    assert found["memory"]["batch"] == 7
    assert found["memory"]["length"] == 33
    assert found["memory"]["precision"] == "float32"
    assert found["time"]["tokens"] == 10_000
    assert found["verdict"]["device"] == "RTX 3060"
    assert found["devices"] == []


def test_without_a_gpu_every_device_is_listed():
    found = planned("--preset", "tiny")
    assert len(found["devices"]) >= 30
    assert {"device", "fits", "largest_batch", "hours"} <= found["devices"][0].keys()


def test_the_plan_in_words_has_blocks_devices_and_a_verdict():
    done = call("plan", "--preset", "lab", "--tokens", 1_000_000)
    assert done.exit_code == 0, done.output
    for words in ("21,018,401 parameters", "3D² + 3D", "GTX 1050 Ti", "H200", "it trains on"):
        assert words in done.stdout


def test_a_gpu_that_does_not_exist_is_answered_with_the_nearest():
    done = call("plan", "--gpu", "rtx 3061")
    assert isinstance(done.exception, ConfigError)
    assert "RTX 3060" in done.exception.hint


def test_what_does_not_fit_says_what_to_change():
    done = call("plan", "--preset", "small", "--gpu", "gtx 1050 ti", "--batch", 4096, "--max-length", 512)
    assert "it does not fit" in done.stdout
    assert "gradient_accumulation_steps" in done.stdout


@pytest.mark.slow
def test_measuring_times_real_steps():
    assert planned("--preset", "tiny", "--batch", 2, "--max-length", 16, "--calibrate")["time"]["measured"]


@pytest.mark.slow
def test_complexity_draws_and_tells(tmp_path):
    done = call("complexity", "--quick", "--out", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [row["operations"] for row in found["theory"][:3]] == ["n²·d", "n·d²", "k·n·d²"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["complexity.json", "complexity.png", "complexity.svg"]


def test_the_plan_says_whether_it_counts_on_compiled_steps():
    words = ["--preset", "small", "--gpu", "H200", "--tokens", 10**9]
    for chosen, is_compiled in (("true", True), ("false", False), ("auto", True)):
        found = planned(*words, "--set", f"training.compile={chosen}")
        assert found["time"]["compiled"] is is_compiled
        done = call("plan", *words, "--set", f"training.compile={chosen}")
        assert f"a {'compiled' if is_compiled else 'plain'} step" in done.stdout
        assert ("to compile" in done.stdout) is is_compiled
    short = planned("--preset", "small", "--gpu", "H200", "--tokens", 1000, "--set", "training.compile=auto")
    assert short["time"]["compiled"] is False


def test_the_list_of_devices_says_where_steps_are_compiled():
    done = call("plan", "--preset", "small", "--tokens", 10**9, "--set", "training.compile=true")
    assert "GPUs from Volta on" in done.stdout
    assert "plain elsewhere" in " ".join(done.stdout.split())
