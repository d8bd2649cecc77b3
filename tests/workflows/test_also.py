"""More tables to learn from: found from any folder, told where they have no use, and no part of a packed base."""

import json

import pytest
from typer.testing import CliRunner

from headstart.cli.app import app
from headstart.errors import ConfigError
from headstart.workflows.compare import compare
from headstart.workflows.finetune import finetune
from headstart.workflows.pack import pack
from headstart.workflows.places import placed
from headstart.workflows.pretrain import pretrain
from headstart.workflows.resume import resume
from headstart.workflows.score import evaluate
from headstart.workflows.tune import tune
from tests.worlds_of_text import QUICK, write_corpus, write_labelled

pytestmark = pytest.mark.slow  # whole trainings, one after the other

MORE = {
    "data": {"also": ["more.tsv"], "apart": ["apart.tsv"]},
    "body": QUICK["body"],
    "training": {"epochs": 2, "length": 32, "save_every": 3},
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

    finetune("scratch", "data.tsv", "whole", settings=MORE)
    with pytest.raises(InterruptedError):
        finetune("scratch", "data.tsv", "stopped", settings=MORE, on_event=interrupt)
    monkeypatch.chdir(place / "elsewhere")
    resume(place / "stopped")
    left, right = (place / name / "model.safetensors" for name in ("whole", "stopped"))
    assert left.read_bytes() == right.read_bytes()
    packed = pack(place / "whole", "xx-small", place / "packed")
    said = (packed.path / "run.json").read_text()
    assert json.loads(said)["settings"]["data"]["also"] == []
    assert str(place) not in said


def test_more_is_learnt_from_in_every_fold_and_judged_in_none(place):
    words = {"arms": ["classical"], "labels": None, "seeds": 1, "settings": MORE}
    alone, both = (
        compare("data.tsv", [], place / out, folds=2, **{**words, "settings": settings})
        for out, settings in (
            ("alone", {**MORE, "data": {}}),
            ("both", {**MORE, "data": {"also": ["more.tsv"]}}),
        )
    )
    assert len(both.truth) == len(alone.truth)
    assert both.arms[0].labels == alone.arms[0].labels + 60


def test_names_of_built_in_sets_are_no_paths(place):
    (place / "imdb").mkdir()
    found = placed({"data": {"also": ["imdb", "more.tsv"]}, "training": {"epochs": 1}})
    assert found == {"data": {"also": ["imdb", str(place / "more.tsv")]}, "training": {"epochs": 1}}
    assert placed(None) == {}
    for wrong in ({"data": "imdb"}, {"data": {"also": [3]}}, {"data": {"also": "more.tsv"}}):
        assert placed(wrong) == wrong
        with pytest.raises(ConfigError):
            finetune("scratch", "data.tsv", "wrong", settings=wrong)


def test_where_it_has_no_use_it_is_told(place):
    write_corpus(place / "corpus.txt", 60)
    also = {"data": {"also": ["more.tsv"]}}
    with pytest.raises(
        ConfigError, match=r"data\.also is for labelled texts, and pretraining reads raw ones"
    ):
        pretrain(["corpus.txt"], "base", settings={**QUICK, **also})
    with pytest.raises(ConfigError, match=r"data\.label_pattern is for labelled texts"):
        pretrain(["corpus.txt"], "base", settings={**QUICK, "data": {"label_pattern": "(x)"}})
    with pytest.raises(ConfigError, match=r"data\.also is for labelled texts, not for --pair"):
        finetune("scratch", "data.tsv", "translator", pair="en-fr", settings=also)
    with pytest.raises(ConfigError, match=r"data\.also would be lost"):
        tune("scratch", "data.tsv", "tuned", folds=2, settings={"data": {"also": ["more.tsv"], "labels": 20}})
    with pytest.raises(ConfigError, match=r"data\.also is to learn from"):
        evaluate("run", "data.tsv", settings=also)
    told = CliRunner().invoke(app, ["data", "data.tsv", "--set", "data.also=more.tsv"])
    assert told.exit_code
    assert not any((place / name).exists() for name in ("base", "translator"))
