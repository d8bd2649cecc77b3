"""A run directory says which format it has, and one that cannot be read gets one clear sentence."""

import json
import shutil

import pytest

from headstart.errors import HeadstartError
from headstart.inference.loaded_model import FORMAT_VERSION, RunInfo, load_model
from headstart.pretrained import shipped_bases


@pytest.fixture
def run(tmp_path):
    """A copy of a pretrained base, as a plain directory."""
    path = tmp_path / "run"
    shutil.copytree(shipped_bases()["en-tiny"], path)
    return path


def change(run, **fields):
    content = json.loads((run / "run.json").read_text())
    for name in ("format_version", "format"):
        content.pop(name, None)
    (run / "run.json").write_text(json.dumps({**fields, **content}))


def test_run_json_stores_its_format_version(run):
    assert json.loads((run / "run.json").read_text())["format_version"] == FORMAT_VERSION
    assert RunInfo.read(run).to_dict()["format_version"] == FORMAT_VERSION


@pytest.mark.parametrize(
    ("fields", "words", "hint"),
    [
        ({"format": 1}, "earlier headstart \\(format 1", "train the run again"),
        ({"format_version": FORMAT_VERSION + 1}, "newer headstart", "upgrade headstart"),
    ],
)
def test_a_run_of_another_format_gets_one_sentence_with_a_hint(run, fields, words, hint):
    change(run, **fields)
    with pytest.raises(HeadstartError, match=words) as caught:
        RunInfo.read(run)
    assert hint in caught.value.hint


def test_a_file_that_describes_no_run_is_refused(run):
    (run / "run.json").write_text("[]")
    with pytest.raises(HeadstartError, match="does not describe a run"):
        RunInfo.read(run)


def test_a_base_loads_by_name_without_its_weights():
    loaded = load_model("en-tiny", with_weights=False)
    assert loaded.weights == {}
    assert loaded.tokenizer.size == loaded.info.vocab_size
    assert len(loaded.train_fingerprints) > 1000
