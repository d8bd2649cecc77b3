"""Stages of a recipe that continue from an earlier one, or are distilled from one."""

import json
import shutil

import pytest

from headstart.errors import ConfigError
from headstart.workflows.package import package
from tests.helpers.recipes import TEXT, interrupt_in, make_recipe, outcome, run_small_recipe

pytestmark = pytest.mark.slow  # whole trainings, one after the other


@pytest.fixture
def world(tmp_path):
    return make_recipe(tmp_path)


DISTILLED = """
[[stages]]
name = "distilled"
kind = "finetune"
base = "general"
teacher = "stars"
unlabelled = ["general"]
table = "reviews.tsv"
data = { text_column = "review_text", label_column = "stars", label_map = { negative = ["0.5", "1", "2"], positive = ["4", "5"] } }
training = { max_epochs = 1, max_length = 32, save_steps = 3 }
"""


def test_a_stage_continues_from_an_earlier_one_and_is_distilled_from_another(world):
    recipe = world / "recipe.toml"
    recipe.write_text(TEXT + DISTILLED)
    run_small_recipe(world, "made")
    stages = world / "made" / "stages"
    inputs = json.loads((stages / "04-distilled" / "run.json").read_text())["inputs"]
    assert inputs["base"] == str(stages / "01-general")
    assert inputs["teacher"] == [str(stages / "02-stars")]
    assert json.loads((stages / "03-decay" / "run.json").read_text())["inputs"]["base"] == str(stages / "02-stars")


def test_a_distilled_stage_that_was_stopped_ends_as_if_it_never_had(world):
    (world / "recipe.toml").write_text(TEXT + DISTILLED)
    run_small_recipe(world, "whole")
    with pytest.raises(InterruptedError):
        run_small_recipe(world, "stopped", on_event=interrupt_in(4, 5))
    shutil.move(world / "stopped", world / "moved")
    run_small_recipe(world, "moved")
    assert outcome(world / "moved") == outcome(world / "whole")


READERS = """
[[stages]]
name = "another"
base = "scratch"
mix = { general = 1, reviews = 0.5 }
training = { max_steps = 8 }

[[stages]]
name = "pupil"
base = "general"
teacher = "general, another"
mix = { reviews = 2, general = 0.2 }
training = { max_steps = 6, distillation_alpha = 0.9 }
"""


def test_a_stage_begins_anew_and_teaches_another_beside_the_first(world):
    (world / "recipe.toml").write_text(TEXT + READERS)
    run_small_recipe(world, "whole")
    stages = world / "whole" / "stages"
    general, another, pupil = (
        json.loads((stages / name / "run.json").read_text())["inputs"]
        for name in ("01-general", "04-another", "05-pupil")
    )
    assert "base" not in another
    assert another["mix"] == general["mix"]
    assert pupil["base"] == str(stages / "01-general")
    assert pupil["teacher"] == [str(stages / "01-general"), str(stages / "04-another")]
    words = [(stages / name / "tokenizer.json").read_bytes() for name in ("01-general", "04-another")]
    assert words[0] == words[1]
    assert outcome(stages / "01-general") != outcome(stages / "04-another")
    with pytest.raises(InterruptedError):
        run_small_recipe(world, "stopped", on_event=interrupt_in(4, 5))
    run_small_recipe(world, "stopped")
    assert outcome(world / "stopped") == outcome(world / "whole")


def test_a_finished_pupil_needs_no_teacher_any_more(world):
    (world / "recipe.toml").write_text(TEXT + READERS + DISTILLED)
    run_small_recipe(world, "run", last_stage=5)
    for path in (world / "run" / "stages" / "04-another").glob("weights-*.safetensors"):
        path.unlink()
    run_small_recipe(world, "run")
    assert (world / "run" / "run.json").is_file()


def test_nothing_begins_anew_beside_a_base_with_another_tokenizer(world):
    (world / "recipe.toml").write_text(TEXT.replace("[model]", 'base = "fr-tiny"\n\n[model]') + READERS)
    with pytest.raises(ConfigError, match="another cannot start from scratch in a recipe with a base"):
        run_small_recipe(world, "run")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('base = "general"', 'base = "decai"', "earlier stage"),
        ('base = "general"', 'base = "distilled"', "earlier stage"),
        ('base = "general"', 'base = "scratch"', "cannot start from scratch"),
        ('name = "distilled"', 'name = "scratch"', "cannot be called"),
        ('teacher = "stars"', 'teacher = "starz"', "neither an earlier stage nor a shipped base"),
    ],
)
def test_a_stage_names_earlier_ones_alone(world, old, new, problem):
    (world / "recipe.toml").write_text(TEXT + DISTILLED.replace(old, new))
    with pytest.raises(ConfigError, match=problem):
        run_small_recipe(world, "made")
    assert not (world / "made").exists()


def test_a_card_has_a_row_for_a_stage_that_was_left_behind(world, tmp_path):
    run_small_recipe(world, "run")
    shutil.rmtree(world / "run" / "stages" / "01-general")
    package(str(world / "run"), "xx", tmp_path / "bases")
    card = (tmp_path / "bases" / "xx" / "card.md").read_text()
    assert "| 01-general | not saved |" in card
    assert "| 02-stars | finetune, classify |" in card
