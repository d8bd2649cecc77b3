"""Stages of a recipe that go on from an earlier one, or are taught by one."""

import json
import shutil

import pytest

from headstart.errors import ConfigError
from tests.recipe_worlds import TEXT, cook, interrupt_in, make_world, outcome

pytestmark = pytest.mark.slow  # whole trainings, one after the other


@pytest.fixture
def world(tmp_path):
    return make_world(tmp_path)


TAUGHT = """
[[stages]]
name = "taught"
kind = "finetune"
base = "general"
teacher = "stars"
unlabelled = ["general"]
table = "reviews.tsv"
data = { text_column = "opinion", label_column = "stars", classes = { negative = ["0.5", "1", "2"], positive = ["4", "5"] } }
training = { epochs = 1, length = 32, save_every = 3 }
"""


def test_a_stage_goes_on_from_an_earlier_one_and_is_taught_by_another(world):
    recipe = world / "recipe.toml"
    recipe.write_text(TEXT + TAUGHT)
    cook(world, "made")
    stages = world / "made" / "stages"
    inputs = json.loads((stages / "04-taught" / "run.json").read_text())["inputs"]
    assert inputs["base"] == str(stages / "01-general")
    assert inputs["teacher"] == [str(stages / "02-stars")]
    assert json.loads((stages / "03-decay" / "run.json").read_text())["inputs"]["base"] == str(
        stages / "02-stars"
    )


def test_a_taught_stage_that_was_stopped_ends_as_if_it_never_had(world):
    (world / "recipe.toml").write_text(TEXT + TAUGHT)
    cook(world, "whole")
    with pytest.raises(InterruptedError):
        cook(world, "stopped", on_event=interrupt_in(4, 5))
    shutil.move(world / "stopped", world / "moved")
    cook(world, "moved")
    assert outcome(world / "moved") == outcome(world / "whole")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('base = "general"', 'base = "decai"', "earlier stage"),
        ('base = "general"', 'base = "taught"', "earlier stage"),
        ('teacher = "stars"', 'teacher = "starz"', "no earlier stage, no shipped base"),
    ],
)
def test_a_stage_names_earlier_ones_alone(world, old, new, problem):
    (world / "recipe.toml").write_text(TEXT + TAUGHT.replace(old, new))
    with pytest.raises(ConfigError, match=problem):
        cook(world, "made")
    assert not (world / "made").exists()
