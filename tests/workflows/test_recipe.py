"""Recipes on small texts of our own: stages in order, stopped and gone on with, carried elsewhere."""

import json
import shutil
import tomllib

import numpy as np
import pytest
from typer.testing import CliRunner

from headstart.cli.app import app
from headstart.config import merge
from headstart.data.text_io import hashes
from headstart.errors import ConfigError, RunError
from headstart.inference.loaded_model import load_model
from headstart.workflows.finetune import finetune
from headstart.workflows.recipe import run_recipe
from headstart.workflows.resume import resume
from tests.helpers.recipes import TEXT, interrupt_in, make_recipe, outcome, run_small_recipe

pytestmark = pytest.mark.slow  # whole trainings, one after the other


@pytest.fixture
def world(tmp_path):
    return make_recipe(tmp_path)


def test_a_recipe_goes_from_texts_to_a_base_that_every_command_takes(world):
    done = run_small_recipe(world, "run")
    assert done.path == world / "run"
    stages = sorted(path.name for path in (world / "run" / "stages").iterdir())
    assert stages == ["01-general", "02-stars", "03-decay"]
    infos = [json.loads((world / "run" / "stages" / stage / "run.json").read_text()) for stage in stages]
    assert [info["settings"]["training"]["seed"] for info in infos] == [4, 5, 6]
    assert infos[1]["classes"] == ["negative", "positive"]
    assert infos[1]["transfer"]["initialized"]
    assert not infos[2]["transfer"]["initialized"]  # the tied table is the language-model head
    base = load_model(str(world / "run"))
    assert base.info.config.job == "pretrain"
    finetune(
        str(world / "run"),
        str(world / "texts" / "target.tsv"),
        world / "tuned",
        settings={"training": {"max_epochs": 1, "max_length": 32}},
    )
    result = CliRunner().invoke(app, ["evaluate", str(world / "run"), str(world / "texts" / "general.txt")])
    assert result.exit_code == 0, result.output


def test_stage_ends_are_compact_and_leave_training_state_behind(world):
    run_small_recipe(world, "run")
    for stage in (world / "run" / "stages").iterdir():
        files = list(stage.glob("weights-*.safetensors"))
        assert len(files) > 1
        assert all(path.stat().st_size <= 0.01 * 2**20 for path in files)
        assert not (stage / "model.safetensors").exists()
        assert not (stage / "checkpoints").exists()


def test_no_stage_reads_what_is_set_apart(world):
    run_small_recipe(world, "run")
    from headstart.data.subsets import evaluation_hashes

    target = world / "texts" / "target.tsv"
    held = evaluation_hashes([str(target)])
    everything = hashes([line.split("\t")[0] for line in target.read_text().splitlines()[1:]])
    runs = [world / "run", *(world / "run" / "stages").iterdir()]
    for run in runs:
        seen = load_model(str(run)).train_fingerprints
        assert not np.isin(held, seen).any(), run
    assert len(held)
    assert (
        np.isin(everything, load_model(str(world / "run")).train_fingerprints).sum() > 40
    )  # the train part may be read


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "step"), [(1, 1), (1, 7), (2, 2), (3, 1), (3, 5)])
def test_a_recipe_that_was_stopped_ends_as_if_it_never_had(world, stage, step):
    run_small_recipe(world, "whole")
    with pytest.raises(InterruptedError):
        run_small_recipe(world, "stopped", on_event=interrupt_in(stage, step))
    with pytest.raises(RunError, match="not finished"):
        load_model(str(world / "stopped"))
    resume(world / "stopped")
    assert outcome(world / "stopped") == outcome(world / "whole")
    assert resume(world / "stopped") is None


def test_a_recipe_resumes_elsewhere_from_its_copied_stages(world, tmp_path_factory):
    run_small_recipe(world, "whole")
    assert run_small_recipe(world, "first", last_stage=1) is None
    assert len(list((world / "first" / "stages").iterdir())) == 1
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(world / "texts", elsewhere / "data")
    shutil.copytree(world / "first" / "stages", elsewhere / "run" / "stages")
    shutil.copy(world / "recipe.toml", elsewhere / "recipe.toml")
    shutil.rmtree(world / "texts")
    shutil.rmtree(world / "first")
    run_recipe(elsewhere / "recipe.toml", elsewhere / "data", elsewhere / "run")
    assert outcome(elsewhere / "run") == outcome(world / "whole")


def test_only_the_weights_of_the_last_finished_stage_have_to_travel(world):
    run_small_recipe(world, "whole")
    run_small_recipe(world, "run", last_stage=2)
    first, second = sorted((world / "run" / "stages").iterdir())
    for weights in first.glob("weights-*"):
        weights.unlink()
    run_small_recipe(world, "run")
    assert outcome(world / "run") == outcome(world / "whole")
    shutil.rmtree(world / "run" / "stages" / "03-decay")
    (world / "run" / "run.json").unlink()
    for weights in second.glob("weights-*"):
        weights.unlink()
    with pytest.raises(RunError, match=r"02-stars/weights-.* is missing"):
        run_small_recipe(world, "run")


@pytest.mark.parametrize(("stage", "step"), [(2, 2), (3, 5)])
def test_a_stage_stopped_half_way_resumes_elsewhere(world, tmp_path_factory, stage, step):
    run_small_recipe(world, "whole")
    with pytest.raises(InterruptedError):
        run_small_recipe(world, "stopped", on_event=interrupt_in(stage, step))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.move(world / "texts", elsewhere / "data")
    shutil.move(world / "stopped", elsewhere / "run")
    run_recipe(world / "recipe.toml", elsewhere / "data", elsewhere / "run")
    assert outcome(elsewhere / "run") == outcome(world / "whole")


def test_finished_stages_are_not_trained_again(world):
    run_small_recipe(world, "run", last_stage=2)
    before = {path: path.stat().st_mtime_ns for path in (world / "run" / "stages").rglob("*.npy")}
    run_small_recipe(world, "run")
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())
    again = run_small_recipe(world, "run")  # nothing is left to do
    assert again is not None


def test_budgets_are_scaled_and_settings_given_over_all_stages_or_one(world):
    run_small_recipe(world, "run", scale=0.5, settings={"training": {"seed": 9}, "decay": {"training.max_steps": 6}})
    infos = [
        json.loads((world / "run" / "stages" / name / "run.json").read_text())["settings"]["training"]
        for name in ("01-general", "02-stars", "03-decay")
    ]
    assert [(info["max_steps"], info["max_epochs"], info["seed"]) for info in infos] == [
        (4, None, 9),
        (None, 0.5, 10),
        (3, None, 11),
    ]


def test_an_objective_given_over_all_stages_is_that_of_pretraining(world):
    run_small_recipe(
        world, "run", settings={"objective": {"mask_rate": 0.4}, "stars": {"objective.label_smoothing": 0.2}}
    )
    infos = [
        json.loads((world / "run" / "stages" / name / "run.json").read_text())["settings"]["objective"]
        for name in ("01-general", "02-stars", "03-decay")
    ]
    assert [info.get("mask_rate") for info in infos] == [0.4, None, 0.4]
    assert infos[1]["label_smoothing"] == 0.2


def test_a_changed_recipe_does_not_go_on_in_an_old_folder(world):
    run_small_recipe(world, "run", last_stage=1)
    text = (world / "recipe.toml").read_text()
    (world / "recipe.toml").write_text(text.replace("mask_rate = 0.3", "mask_rate = 0.2"))
    with pytest.raises(
        RunError, match=r"another recipe: .*general.settings.objective.mask_rate was 0.3 and is now 0.2"
    ):
        run_small_recipe(world, "run")
    assert "mask_rate = 0.3" in json.loads((world / "run" / "recipe.json").read_text())["text"]
    (world / "run" / "recipe.json").unlink()  # as if only the stages had been copied
    with pytest.raises(RunError, match="other settings"):
        run_small_recipe(world, "run")


def changed(world, **changes):
    """The recipe with some keys replaced."""
    return merge(tomllib.loads((world / "recipe.toml").read_text()), changes)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('path = "general.txt"', 'path = "genral.txt"', "genral.txt"),
        ("mix = { general = 1", "mix = { genral = 1", "genral"),
        ("max_steps = 8", "max_stps = 8", "max_stps"),
        ("general = 1, reviews = 0.5", "general = 0", "above 0"),
        ('kind = "finetune"', 'kind = "tune"', "kind"),
        ('table = "reviews.tsv"', "", "a table and no mix"),
        ('name = "stars"', 'name = "general"', "same name"),
        ('name = "stars"', 'name = "../x"', "cannot be called"),
        ("title =", "titel =", "titel"),
        ('name = "stars"', "", "^name is missing in stage 2;"),
        ('text_column = "review_text"\n\n', 'text_colum = "review_text"\n\n', "text_colum"),
        ("shard_mib = 0.01", 'form = "int4"', "int4"),
        ('eval_texts_of = ["target.tsv"]', 'eval_texts_of = ["targt.tsv"]', "targt.tsv"),
        ("mask_rate = 0.3", "mask_rate = 3.0", "stage general: setting objective.mask_rate"),
        ("tokens = 2000 }", 'tokens = 2000 }\nobjective = { name = "masked-lm", rte = 0.3 }', "'rte'"),
        (
            'kind = "finetune"',
            'kind = "finetune"\nobjective = { mask_rate = 0.3 }',
            "stage stars: classify has no setting",
        ),
    ],
)
def test_a_fault_in_a_recipe_is_refused_before_anything_is_trained(world, old, new, problem):
    assert old in TEXT
    (world / "recipe.toml").write_text(TEXT.replace(old, new))
    with pytest.raises(ConfigError, match=problem) as caught:
        run_small_recipe(world, "run")
    assert caught.value.hint
    assert not (world / "run").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--recipe", "none.toml"], "no recipe at"),
        (["--recipe", "recipe.toml", "--data-root", "texts", "--stop-after-stage", "4"], "no stage 4"),
        (["--recipe", "recipe.toml", "--data-root", "texts", "--budget-scale", "0"], "trains nothing"),
        (["--recipe", "recipe.toml", "--data-root", "texts", "--set", "dcay.training.steps=3"], "dcay"),
        (["--recipe", "recipe.toml", "--data-root", "texts", "--set", "decay.steps=3"], "no setting of the stage"),
        (["--recipe", "recipe.toml", "corpus.txt"], "names its own texts"),
        (["--recipe", "recipe.toml", "--init-from", "base"], "--init-from"),
        (["--stop-after-stage", "2", "corpus.txt"], "--stop-after-stage goes with --recipe"),
        ([], "nothing to read"),
    ],
)
def test_what_does_not_go_together_on_the_command_line_is_answered(world, monkeypatch, words, problem):
    monkeypatch.chdir(world)
    result = CliRunner().invoke(app, ["pretrain", *words, "--out", "run"])
    assert problem in str(result.exception)
    assert not (world / "run").exists()


def test_the_command_cooks_stage_by_stage(world, monkeypatch):
    monkeypatch.chdir(world)
    words = ["pretrain", "--recipe", "recipe.toml", "--data-root", "texts", "--out", "run"]
    first = CliRunner().invoke(app, [*words, "--stop-after-stage", "1"])
    assert first.exit_code == 0, (first.output, first.exception)
    assert "more stages are left" in first.output
    rest = CliRunner().invoke(app, ["resume", "run"])
    assert rest.exit_code == 0, (rest.output, rest.exception)
    assert "base ready in run" in rest.output


TWICE = """
[[stages]]
name = "again"
kind = "finetune"
table = "target.tsv"
training = { max_epochs = 1, max_length = 32 }
"""


def test_a_head_is_reused_by_the_next_stage_and_answers_when_it_is_packaged(world, monkeypatch):
    words = TEXT.split("[[stages]]")
    same = words[2].replace("negative =", "bad =").replace("positive =", "good =")
    text = "[[stages]]".join([words[0].replace('exclude_eval_texts_of = ["target.tsv"]', ""), words[1], same])
    (world / "recipe.toml").write_text(text)
    run_small_recipe(world, "run")
    monkeypatch.chdir(world)
    words = ["package", "run", "--name", "reviews-model", "--out", "bases"]
    assert CliRunner().invoke(app, words).exit_code == 0
    target = ["texts/target.tsv", "--json"]
    for words in (
        ["bases/reviews-model", *target],
        ["run", *target, "--text-column", "text", "--label-column", "label"],
    ):
        result = CliRunner().invoke(app, ["evaluate", *words])
        assert result.exit_code == 0, (result.output, result.exception)
        assert json.loads(result.stdout)["count"] == 80
    result = CliRunner().invoke(app, ["predict", "bases/reviews-model", "texts/target.tsv", "--json"])
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(rows) == 80
    assert {row["label"] for row in rows} <= {"bad", "good"}
    (world / "recipe.toml").write_text(text + TWICE)
    run_small_recipe(world, "twice")
    info = json.loads((world / "twice" / "stages" / "03-again" / "run.json").read_text())
    assert not info["transfer"]["initialized"]
    assert any(name.startswith("heads.class.") for name in info["transfer"]["reused"])
