"""A base's advice: read with the recipe, carried by run and base, followed by what is fine-tuned from it alone."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from headstart.cli.app import app
from headstart.config import merge
from headstart.errors import ConfigError
from headstart.training.events import Note
from headstart.workflows.advice import GIVES_WAY, advice_under, check_advice, followed
from headstart.workflows.compare import compare
from headstart.workflows.finetune import finetune, finetune_config
from headstart.workflows.pack import pack
from headstart.workflows.recipe import run_recipe
from headstart.workflows.run import load_trained
from tests.worlds_of_text import write_corpus, write_labelled

RECIPE = """
title = "a small one with advice"
preset = "tiny"

[body]
layers = 1
width = 16
attention_heads = 2
feed_forward = 24
max_length = 64

[tokenizer]
vocabulary = 300

[objective]
name = "masked-lm"

[training]
length = 32
batch_tokens = 256

[finetune.optimizer]
learning_rate = 0.004
layer_decay = 0.9

[finetune.schedule]
kind = "cosine"

[finetune.training]
steps = 3
length = 32
cutoff = 0.1

[finetune.body]
dropout = 0.25

[finetune.objective]
pooling = "max"

[texts.corpus]
path = "corpus.txt"

[[stages]]
name = "only"
mix = { corpus = 1 }
training = { steps = 3 }
"""
ADVICE = {
    "optimizer": {"learning_rate": 0.004, "layer_decay": 0.9},
    "schedule": {"kind": "cosine"},
    "training": {"steps": 3, "length": 32, "cutoff": 0.1},
    "body": {"dropout": 0.25},
    "objective": {"pooling": "max"},
}
SMALL = {"layers": 1, "width": 16, "attention_heads": 2, "max_length": 64}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    write_corpus(folder / "corpus.txt", 120)
    write_labelled(folder / "table.tsv", 60)
    (folder / "recipe.toml").write_text(RECIPE)
    run_recipe(folder / "recipe.toml", folder, folder / "run")
    pack(str(folder / "run"), "advised", folder / "bases", measure=str(folder / "corpus.txt"))
    return folder


def base(world):
    return load_trained(str(world / "bases" / "advised"))


def listen_to(told):
    return lambda event: told.append(event.text) if isinstance(event, Note) else None


def test_run_and_base_carry_the_advice_and_the_stages_do_not(world):
    assert base(world).info.advice == ADVICE
    assert load_trained(str(world / "run")).info.advice == ADVICE
    assert load_trained(str(world / "run" / "stages" / "01-only")).info.advice == {}


def test_the_card_shows_it(world):
    card = (world / "bases" / "advised" / "card.md").read_text()
    part = card.split("## Fine-tuning it")[1].split("\n## ")[0]
    assert "headstart finetune advised DATA" in part
    for words in ("[optimizer]", "learning_rate = 0.004", 'pooling = "max"'):
        assert words in part


def test_it_stands_over_the_preset_and_under_the_user(world):
    trained = base(world)
    advised, objective = finetune_config(trained, None, {})
    assert (advised.optimizer.learning_rate, advised.optimizer.layer_decay) == (0.004, 0.9)
    assert (advised.training.steps, advised.training.epochs, advised.training.cutoff) == (3, None, 0.1)
    assert advised.body.dropout == 0.25
    assert objective.pooling == "max"
    usual, _ = finetune_config(trained, None, {}, is_control=True)
    assert usual.optimizer.weight_decay == advised.optimizer.weight_decay  # of which the advice says nothing
    assert usual.optimizer.learning_rate != 0.004
    settings = {
        "optimizer": {"learning_rate": 0.5},
        "training": {"epochs": 2},
        "body": {"dropout": 0.0},
        "objective": {"name": "classify", "pooling": "mean"},
    }
    own, objective = finetune_config(trained, None, settings)
    assert (own.optimizer.learning_rate, own.optimizer.layer_decay) == (0.5, 0.9)
    assert (own.training.steps, own.training.epochs, own.training.cutoff) == (None, 2, 0.1)
    assert own.body.dropout == 0.0
    assert objective.pooling == "mean"


def test_naming_the_same_objective_keeps_what_is_advised_of_it(world):
    assert finetune_config(base(world), None, {"objective": {"name": "classify"}})[1].pooling == "max"


def test_what_is_followed_is_told_and_no_more(world):
    trained = base(world)
    config, _ = finetune_config(trained, None, {})
    told = followed(ADVICE, {}, config)
    assert told.startswith("optimizer.learning_rate=0.004, optimizer.layer_decay=0.9, schedule.kind=cosine")
    settings = {
        "optimizer": {"learning_rate": 0.004},
        "training": {"epochs": 1},
        "schedule": {"kind": "linear"},
    }
    config, _ = finetune_config(trained, None, settings)
    told = followed(ADVICE, settings, config)
    for name in ("learning_rate", "steps", "kind"):
        assert name not in told
    assert "training.cutoff=0.1" in told
    assert followed(ADVICE, ADVICE, finetune_config(trained, None, ADVICE)[0]) == ""


@pytest.mark.parametrize("name", GIVES_WAY)
def test_advice_gives_way_where_it_excludes_what_the_user_asks_for(world, name):
    values = {"freeze": True, "unfreeze_every": 1.0, "reset_layers": 1, "average": "last"}
    asked = {"training": {name: {"sharded": True, "minutes": 1.0, "tokens": 100}.get(name) or values[name]}}
    for other in GIVES_WAY[name]:
        trained = base(world)
        trained = replace(trained, info=replace(trained.info, advice={"training": {other: values[other]}}))
        assert finetune_config(trained, None, {})[0].training.model_dump()[other] == values[other]
        config, _ = finetune_config(trained, None, asked)
        assert config.training.model_dump()[other] != values[other]
        assert followed(trained.info.advice, asked, config) == ""
    assert advice_under({"training": {"average": "ema"}}, {"training": {"minutes": 1}}) == {
        "training": {"average": "ema"}
    }


@pytest.mark.parametrize(
    ("advice", "problem"),
    [
        ({"optimiser": {}}, "optimiser"),
        ({"data": {"labels": 8}}, "data"),
        ({"optimizer": 3}, "no table"),
        ({"optimizer": {"learning_rat": 0.1}}, "learning_rat"),
        ({"optimizer": {"learning_rate": -1}}, "learning_rate"),
        ({"objective": {"poling": "max"}}, "poling"),
        ({"objective": {"pooling": "most"}}, "pooling"),
        ({"objective": {"name": "causal-lm"}}, "reads no labels"),
        ({"objective": {"pooling": "pooler"}}, "no pooler"),
        ({"objective": {"r_drop": 1.0}, "body": {"dropout": 0.0}}, "no dropout"),
        ({"body": {"width": 32}}, "body.width"),
        ({"body": {"pooler": False}}, "body.pooler"),
        ({"training": {"device": "cuda"}}, "each user"),
        ({"training": {"seed": 3}}, "each user"),
        ({"training": {"epochs": 3, "steps": 3}}, "given twice"),
        ({"training": {"length": 65}}, "max_length"),
        ({"training": {"reset_layers": 2}}, "reset_layers 2"),
        ({"training": {"freeze": True, "unfreeze_every": 1}}, "exclude each other"),
    ],
)
def test_wrong_advice_is_refused_with_the_recipe(advice, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        check_advice(advice, "tiny", SMALL, is_whole=True)
    assert "the recipe's [finetune]" in str(caught.value)
    assert caught.value.hint


def test_what_depends_on_a_shape_that_is_not_known_yet_is_not_judged():
    check_advice({"objective": {"pooling": "pooler"}}, "tiny", {}, is_whole=False)
    check_advice({"body": {"pooler": True}, "objective": {"pooling": "pooler"}}, "tiny", SMALL, is_whole=True)
    check_advice(ADVICE, "tiny", SMALL, is_whole=True)


def test_a_wrong_key_in_a_recipe_dies_before_anything_is_trained(world, tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("layer_decay", "layer_dcay"))
    words = ["pretrain", "--recipe", tmp_path / "recipe.toml", "--data", world, "--out", tmp_path / "run"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert "layer_dcay" in str(result.exception)
    assert "layer_decay" in result.exception.hint
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_finetune_follows_it_says_so_and_does_not_hand_it_on(world, tmp_path):
    told = []
    base, table = str(world / "bases" / "advised"), str(world / "table.tsv")
    finetune(base, table, tmp_path / "tuned", on_event=listen_to(told))
    line = next(line for line in told if line.startswith(f"settings recommended by {base}: "))
    assert "optimizer.learning_rate=0.004" in line
    info = json.loads((tmp_path / "tuned" / "run.json").read_text())
    assert info["settings"]["optimizer"]["learning_rate"] == 0.004
    assert info["settings"]["objective"]["pooling"] == "max"
    assert info["advice"] == {}
    told.clear()
    finetune(base, table, tmp_path / "own", settings=ADVICE, on_event=listen_to(told))
    assert not any("advice" in line for line in told)
    left, right = (tmp_path / name / "model.safetensors" for name in ("tuned", "own"))
    assert left.read_bytes() == right.read_bytes()
    words = ["finetune", base, table, "--out", tmp_path / "set", "--set", "optimizer.learning_rate=0.002"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    own = json.loads((tmp_path / "set" / "run.json").read_text())["settings"]["optimizer"]
    assert (own["learning_rate"], own["layer_decay"]) == (0.002, 0.9)


@pytest.mark.slow
def test_a_comparison_gives_it_to_the_arms_of_the_base_alone(world, tmp_path):
    found = compare(
        str(world / "table.tsv"),
        [str(world / "bases" / "advised")],
        tmp_path / "compared",
        seeds=1,
        settings={"training": {"length": 32, "epochs": 1}},
    )
    assert found.settings["scratch"]["optimizer"]["learning_rate"] != 0.004
    assert found.settings["scratch"]["objective"].get("pooling", "auto") == "auto"
    assert found.settings["advised fine-tuned"]["optimizer"]["learning_rate"] == 0.004
    assert found.settings["advised frozen"]["optimizer"]["learning_rate"] == pytest.approx(0.04)
    assert found.arm("advised fine-tuned").twin == "scratch"
    notes = [note for note in found.notes if "advised uses its recommended settings" in note]
    assert len(notes) == 1
    assert "training.cutoff=0.1" in notes[0]
    assert "training.steps" not in notes[0]
    assert "length" not in notes[0]


@pytest.mark.slow
def test_a_search_stands_on_it(world, tmp_path):
    pytest.importorskip("optuna")
    from headstart.workflows.tune import tune

    told = []
    found = tune(
        str(world / "bases" / "advised"),
        str(world / "table.tsv"),
        tmp_path / "tune",
        trials=1,
        only=True,
        search=["optimizer.learning_rate=1e-3:1e-2:log"],
        on_event=listen_to(told),
    )
    assert found.standing.values["optimizer.learning_rate"] == pytest.approx(0.004)
    line = next(line for line in told if line.startswith("settings recommended"))
    assert "learning_rate" not in line
    assert "optimizer.layer_decay=0.9" in line


@pytest.mark.slow
def test_advice_may_change_when_all_is_trained(world, tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    run_recipe(tmp_path / "recipe.toml", world, tmp_path / "run")
    before = (tmp_path / "run" / "stages" / "01-only" / "run.json").stat().st_mtime_ns
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("0.004", "0.003"))
    run_recipe(tmp_path / "recipe.toml", world, tmp_path / "run")
    advice = load_trained(str(tmp_path / "run")).info.advice
    assert advice == merge(ADVICE, {"optimizer": {"learning_rate": 0.003}})
    assert (tmp_path / "run" / "stages" / "01-only" / "run.json").stat().st_mtime_ns == before
