"""Other sets that the settings name: found from any folder, and not part of a packed base."""

import pytest

from headstart.errors import ConfigError
from headstart.inference.loaded_model import with_absolute_paths
from headstart.workflows.finetune import finetune
from headstart.workflows.package import package
from headstart.workflows.resume import resume
from tests.helpers.datasets import QUICK, write_labelled

pytestmark = pytest.mark.slow  # whole trainings, one after the other

APART = {
    "data": {"exclude_eval_texts_of": ["apart.tsv"]},
    "model": QUICK["model"],
    "training": {"max_epochs": 2, "max_length": 32, "save_steps": 3},
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    for seed, name in enumerate(("data", "more", "apart")):
        write_labelled(tmp_path / f"{name}.tsv", 60, seed=seed)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_finds_its_other_sets_from_any_folder(place, monkeypatch):
    def interrupt(event):
        if getattr(event, "step", 0) >= 4:
            raise InterruptedError

    finetune("scratch", "data.tsv", "whole", settings=APART)
    with pytest.raises(InterruptedError):
        finetune("scratch", "data.tsv", "stopped", settings=APART, on_event=interrupt)
    monkeypatch.chdir(place / "elsewhere")
    resume(place / "stopped")
    left, right = (place / name / "model.safetensors" for name in ("whole", "stopped"))
    assert left.read_bytes() == right.read_bytes()
    packed = package(place / "whole", "xx-small", place / "packed")
    assert str(place) not in (packed.path / "run.json").read_text()


def test_names_of_built_in_sets_are_no_paths(place):
    (place / "imdb").mkdir()
    found = with_absolute_paths(
        {"data": {"exclude_eval_texts_of": ["imdb", "more.tsv"]}, "training": {"max_epochs": 1}}
    )
    assert found == {
        "data": {"exclude_eval_texts_of": ["imdb", str(place / "more.tsv")]},
        "training": {"max_epochs": 1},
    }
    assert with_absolute_paths(None) == {}
    for wrong in (
        {"data": "imdb"},
        {"data": {"exclude_eval_texts_of": [3]}},
        {"data": {"exclude_eval_texts_of": "more.tsv"}},
    ):
        assert with_absolute_paths(wrong) == wrong
        with pytest.raises(ConfigError):
            finetune("scratch", "data.tsv", "wrong", settings=wrong)
