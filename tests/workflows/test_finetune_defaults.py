"""Recommended settings of a base: read with the recipe, stored by run and base, used where they fit the data."""

import json
import tomllib
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from headstart.cli.app import app
from headstart.config import merge
from headstart.errors import ConfigError
from headstart.inference.loaded_model import load_model
from headstart.training.callbacks import Note
from headstart.workflows.compare import compare
from headstart.workflows.finetune import finetune
from headstart.workflows.finetune_defaults import DatasetFacts, describe, finetune_config, uses_recommendation
from headstart.workflows.package import package
from headstart.workflows.recipe import read_recipe, resolve_stages, run_recipe
from tests.helpers.datasets import write_corpus, write_labelled

RECIPE = """
title = "a small one with recommended settings"
preset = "tiny"

[model]
num_layers = 1
hidden_size = 16
num_heads = 2
intermediate_size = 24
max_position_embeddings = 64

[tokenizer]
vocab_size = 300

[objective]
name = "masked-lm"

[training]
max_length = 32
tokens_per_batch = 256

[finetune_defaults.optimizer]
learning_rate = 0.004
layerwise_lr_decay = 0.9

[finetune_defaults.lr_schedule]
name = "cosine"

[finetune_defaults.training]
max_steps = 3
max_length = 32
token_cutoff = 0.1

[finetune_defaults.model]
dropout = 0.25

[finetune_defaults.objective]
pooling = "max"

[texts.corpus]
path = "corpus.txt"

[[stages]]
name = "only"
mix = { corpus = 1 }
training = { max_steps = 3 }
"""
RECOMMENDED = {
    "optimizer": {"learning_rate": 0.004, "layerwise_lr_decay": 0.9},
    "lr_schedule": {"name": "cosine"},
    "training": {"max_steps": 3, "max_length": 32, "token_cutoff": 0.1},
    "model": {"dropout": 0.25},
    "objective": {"pooling": "max"},
}
FACTS = DatasetFacts(60, ("bad", "good"), 20.0)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    write_corpus(folder / "corpus.txt", 120)
    write_labelled(folder / "table.tsv", 60)
    (folder / "recipe.toml").write_text(RECIPE)
    run_recipe(folder / "recipe.toml", folder, folder / "run")
    package(str(folder / "run"), "recommending", folder / "bases", eval_data=str(folder / "corpus.txt"))
    return folder


def base(world):
    return load_model(str(world / "bases" / "recommending"))


def listen_to(messages):
    return lambda event: messages.append(event.text) if isinstance(event, Note) else None


def test_run_and_base_keep_them_and_the_stages_do_not(world):
    assert base(world).info.finetune_defaults == RECOMMENDED
    assert load_model(str(world / "run")).info.finetune_defaults == RECOMMENDED
    assert load_model(str(world / "run" / "stages" / "01-only")).info.finetune_defaults == {}


def test_the_card_shows_it(world):
    card = (world / "bases" / "recommending" / "card.md").read_text()
    part = card.split("## Fine-tuning")[1].split("\n## ")[0]
    assert "headstart finetune recommending DATA" in part
    for words in ("[optimizer]", "learning_rate = 0.004", 'pooling = "max"'):
        assert words in part


def test_it_stands_over_the_preset_and_under_the_user(world):
    trained = base(world)
    found, objective = finetune_config(trained, None, {})
    assert (found.optimizer.learning_rate, found.optimizer.layerwise_lr_decay) == (0.004, 0.9)
    assert (found.training.max_steps, found.training.max_epochs, found.training.token_cutoff) == (3, None, 0.1)
    assert found.model.dropout == 0.25
    assert objective.pooling == "max"
    usual, _ = finetune_config(trained, None, {}, is_control=True)
    assert usual.optimizer.weight_decay == found.optimizer.weight_decay  # of which the base says nothing
    assert usual.optimizer.learning_rate != 0.004
    settings = {
        "optimizer": {"learning_rate": 0.5},
        "training": {"max_epochs": 2},
        "model": {"dropout": 0.0},
        "objective": {"name": "classify", "pooling": "mean"},
    }
    own, objective = finetune_config(trained, None, settings)
    assert (own.optimizer.learning_rate, own.optimizer.layerwise_lr_decay) == (0.5, 0.9)
    assert (own.training.max_steps, own.training.max_epochs, own.training.token_cutoff) == (None, 2, 0.1)
    assert own.model.dropout == 0.0
    assert objective.pooling == "mean"


def test_naming_the_same_objective_keeps_what_is_recommended_of_it(world):
    assert finetune_config(base(world), None, {"objective": {"name": "classify"}})[1].pooling == "max"


def test_they_are_used_where_they_fit_and_the_user_leaves_any_to_them(world):
    trained = base(world)

    def is_used(facts, given):
        config, objective = finetune_config(trained, None, given, data=facts)
        return uses_recommendation(trained, facts, config, objective, given)

    short = DatasetFacts(60, ("bad", "good"), 3.0)
    assert is_used(FACTS, {})
    assert not is_used(short, {})
    assert finetune_config(trained, None, {}, data=short)[0].optimizer.learning_rate != 0.004
    assert is_used(FACTS, {"optimizer": {"learning_rate": 0.004}, "training": {"max_epochs": 1}})
    assert not is_used(FACTS, RECOMMENDED)


@pytest.mark.parametrize(
    ("recommended", "given"),
    [
        ({"freeze_backbone": True}, {"gradual_unfreezing_epochs": 1.0}),
        ({"freeze_backbone": True}, {"reinit_top_layers": 1}),
        ({"gradual_unfreezing_epochs": 1.0}, {"freeze_backbone": True}),
        ({"gradual_unfreezing_epochs": 1.0}, {"reinit_top_layers": 1}),
        ({"gradual_unfreezing_epochs": 1.0}, {"fsdp": True}),
        ({"reinit_top_layers": 1}, {"freeze_backbone": True}),
        ({"reinit_top_layers": 1}, {"gradual_unfreezing_epochs": 1.0}),
        ({"weight_averaging": "last_epochs"}, {"max_minutes": 1.0}),
        ({"weight_averaging": "last_epochs"}, {"max_tokens": 100}),
    ],
)
def test_they_give_way_where_they_exclude_what_the_user_asks_for(world, recommended, given):
    trained = base(world)
    defaults = {"training": recommended}
    trained = replace(trained, info=replace(trained.info, finetune_defaults=defaults))
    ((key, value),) = recommended.items()
    assert finetune_config(trained, None, {}, data=FACTS)[0].training.model_dump()[key] == value
    config, _ = finetune_config(trained, None, {"training": given}, data=FACTS)
    assert config.training.model_dump()[key] != value
    assert config.training.model_dump().items() >= given.items()


def test_the_line_at_the_start_tells_no_setting_of_the_user(world):
    config, _ = finetune_config(base(world), None, {}, data=FACTS)
    assert "learning rate 0.004" in describe(config, {})
    given = {"optimizer": {"learning_rate": 0.002}}
    config, _ = finetune_config(base(world), None, given, data=FACTS)
    assert "learning rate" not in describe(config, given)


@pytest.mark.parametrize(
    ("defaults", "problem"),
    [
        ({"optimiser": {}}, "optimiser"),
        ({"tokenizer": {"vocab_size": 400}}, "tokenizer"),
        ({"data": {"train_size": 8}}, "data"),
        ({"optimizer": 3}, "optimizer .*cannot be 3"),
        ({"optimizer": {"learning_rat": 0.1}}, "learning_rat"),
        ({"optimizer": {"learning_rate": -1}}, "learning_rate"),
        ({"objective": {"poling": "max"}}, "poling"),
        ({"objective": {"pooling": "most"}}, "pooling"),
        ({"objective": {"name": "causal-lm"}}, "reads no labels"),
        ({"objective": {"pooling": "pooler"}}, "no pooler"),
        ({"objective": {"r_drop_alpha": 1.0}, "model": {"dropout": 0.0}}, "no dropout"),
        ({"model": {"hidden_size": 32}}, "model.hidden_size"),
        ({"training": {"device": "cuda"}}, "every user"),
        ({"training": {"seed": 3}}, "every user"),
        ({"training": {"max_epochs": 3, "max_steps": 3}}, "given twice"),
        ({"training": {"max_length": 65}}, "max_length"),
        ({"training": {"reinit_top_layers": 2}}, "reinit_top_layers 2"),
        ({"training": {"freeze_backbone": True, "gradual_unfreezing_epochs": 1}}, "exclude each other"),
    ],
)
def test_wrong_ones_are_refused_with_the_recipe(world, defaults, problem):
    content = {**tomllib.loads(RECIPE), "finetune_defaults": defaults}
    with pytest.raises(ConfigError, match=problem) as caught:
        resolve_stages(read_recipe(content, world, {}, 1.0))
    assert "finetune_defaults" in str(caught.value)
    assert caught.value.hint


def test_a_pooler_may_be_added(world):
    defaults = {"model": {"pooler": True}, "objective": {"pooling": "pooler"}}
    content = {**tomllib.loads(RECIPE), "finetune_defaults": defaults}
    assert len(resolve_stages(read_recipe(content, world, {}, 1.0))) == 1


def test_a_wrong_key_in_a_recipe_dies_before_anything_is_trained(world, tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("layerwise_lr_decay", "layerwise_lr_dcay"))
    words = ["pretrain", "--recipe", tmp_path / "recipe.toml", "--data-root", world, "--out", tmp_path / "run"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert "layerwise_lr_dcay" in str(result.exception)
    assert "layerwise_lr_decay" in result.exception.hint
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_finetune_follows_it_says_so_and_does_not_hand_it_on(world, tmp_path):
    messages = []
    base, table = str(world / "bases" / "recommending"), str(world / "table.tsv")
    finetune(base, table, tmp_path / "tuned", on_event=listen_to(messages))
    line = next(line for line in messages if line.startswith(f"settings recommended by {base}: "))
    assert "learning rate 0.004" in line
    info = json.loads((tmp_path / "tuned" / "run.json").read_text())
    assert info["settings"]["optimizer"]["learning_rate"] == 0.004
    assert info["settings"]["objective"]["pooling"] == "max"
    assert info["finetune_defaults"] == {}
    messages.clear()
    finetune(base, table, tmp_path / "own", settings=RECOMMENDED, on_event=listen_to(messages))
    assert not any("recommended" in line for line in messages)
    left, right = (tmp_path / name / "model.safetensors" for name in ("tuned", "own"))
    assert left.read_bytes() == right.read_bytes()
    words = ["finetune", base, table, "--out", tmp_path / "set", "--set", "optimizer.learning_rate=0.002"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    own = json.loads((tmp_path / "set" / "run.json").read_text())["settings"]["optimizer"]
    assert (own["learning_rate"], own["layerwise_lr_decay"]) == (0.002, 0.9)


@pytest.mark.slow
def test_a_comparison_gives_it_to_the_arms_of_the_base_alone(world, tmp_path):
    found = compare(
        str(world / "table.tsv"),
        [str(world / "bases" / "recommending")],
        tmp_path / "compared",
        seeds=1,
        settings={"training": {"max_length": 32, "max_epochs": 1}},
    )
    assert found.settings["scratch"]["optimizer"]["learning_rate"] != 0.004
    assert found.settings["scratch"]["objective"].get("pooling", "auto") == "auto"
    assert found.settings["recommending fine-tuned"]["optimizer"]["learning_rate"] == 0.004
    assert found.settings["recommending frozen"]["optimizer"]["learning_rate"] == pytest.approx(0.04)
    assert found.arm("recommending fine-tuned").control == "scratch"
    notes = [note for note in found.notes if "recommending uses its recommended settings" in note]
    assert len(notes) == 1


@pytest.mark.slow
def test_a_search_stands_on_it(world, tmp_path):
    pytest.importorskip("optuna")
    from headstart.workflows.tune import tune

    messages = []
    found = tune(
        str(world / "bases" / "recommending"),
        str(world / "table.tsv"),
        tmp_path / "tune",
        trials=1,
        search_only=True,
        search=["optimizer.learning_rate=1e-3:1e-2:log"],
        on_event=listen_to(messages),
    )
    assert found.default.values["optimizer.learning_rate"] == pytest.approx(0.004)
    line = next(line for line in messages if line.startswith("settings recommended"))
    assert "learning rate" not in line
    assert "texts of up to 32 tokens" in line


@pytest.mark.slow
def test_they_may_change_when_all_is_trained(world, tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    run_recipe(tmp_path / "recipe.toml", world, tmp_path / "run")
    before = (tmp_path / "run" / "stages" / "01-only" / "run.json").stat().st_mtime_ns
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("0.004", "0.003"))
    run_recipe(tmp_path / "recipe.toml", world, tmp_path / "run")
    defaults = load_model(str(tmp_path / "run")).info.finetune_defaults
    assert defaults == merge(RECOMMENDED, {"optimizer": {"learning_rate": 0.003}})
    assert (tmp_path / "run" / "stages" / "01-only" / "run.json").stat().st_mtime_ns == before
