import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from headstart.cli.app import app
from headstart.errors import HeadstartError
from headstart.workflows.pretrain import pretrain
from tests.helpers.datasets import QUICK, write_corpus


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSTART_CACHE", str(folder / "cache"))
        settings = {**QUICK, "training": {**QUICK["training"], "max_steps": 3}}
        pretrain([str(write_corpus(folder / "corpus.txt"))], folder / "base", settings=settings)
    return folder


def test_the_command_line_loads_without_torch_or_matplotlib():
    code = "import headstart.cli.app, sys; "
    check = "assert not {'torch', 'matplotlib', 'numpy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code + check]).returncode == 0


@pytest.mark.parametrize("command", [["plot"], ["plot", "attention"], ["plot", "heads"], ["embed"], ["search"]])
def test_every_command_explains_itself(command):
    assert "Usage" in call(*command, "--help").output


def test_attention_prints_its_arrays_as_json(world):
    done = call("plot", "attention", world / "base", "a film", "--json", "--attention-head", 2)
    found = json.loads(done.stdout)
    assert [(each["layer"], each["attention_head"]) for each in found["maps"]] == [(1, 2)]
    np.testing.assert_allclose(np.array(found["maps"][0]["weights"]).sum(axis=-1), 1, atol=1e-4)
    assert "".join(found["queries"][1:-1]).replace("▁", " ").strip() == "a film"


@pytest.mark.slow
def test_plots_are_written_to_out(world, tmp_path):
    done = call("plot", "attention", world / "base", "a film", "--out", tmp_path / "a.html")
    assert f"plotted in {tmp_path / 'a.html'}" in done.output
    call("plot", "masks", "--max-length", 6, "--out", tmp_path / "m.svg")
    call("plot", "positions", world / "base", "--out", tmp_path / "p.svg")
    call(
        "plot", "heads", world / "base", world / "corpus.txt", "--max-texts", 10, "--out", tmp_path / "h.svg", "--quiet"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "h.svg", "m.svg", "p.svg"]


def test_masks_positions_and_heads_print_json_too(world):
    assert len(json.loads(call("plot", "masks", "--json").stdout)) == 6
    assert (
        json.loads(call("plot", "positions", "--width", 8, "--max-length", 5, "--json").stdout)[0]["kind"]
        == "sinusoidal"
    )
    done = call("plot", "heads", world / "base", world / "corpus.txt", "--max-texts", 4, "--json")
    study = json.loads(done.stdout)
    assert len(study["attention_heads"]) == 2
    assert study["attention_heads"][0]["low"] is None  # one part has no interval, and JSON no NaN


def test_a_plot_without_a_file_is_an_error_with_a_hint():
    with pytest.raises(HeadstartError) as caught:
        call("plot", "masks")
    assert "--out" in caught.value.hint


def test_embed_and_nearest_say_what_they_did(world, tmp_path):
    done = call("embed", world / "base", world / "corpus.txt", "--out", tmp_path / "v.npy", "--quiet")
    assert "300 vectors of 16 numbers for 300 texts" in done.output
    first = (world / "corpus.txt").read_text("utf-8").splitlines()[0]
    lines = call("search", world / "base", world / "corpus.txt", first, "--top", 2).stdout.splitlines()
    assert lines[0].split("\t") == ["1.0000", "1", first]
    assert len(lines) == 2
    found = json.loads(call("search", world / "base", world / "corpus.txt", first, "--json").stdout)
    assert found[0]["line"] == 1
    assert len(found) == 5
