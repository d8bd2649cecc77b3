import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.config import (
    BodyConfig,
    RunConfig,
    load_preset,
    merge,
    parse,
    parse_assignments,
    preset_names,
    resolve,
)
from headstart.errors import ConfigError
from headstart.objectives import make_objective


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("job", ["pretrain", "finetune"])
def test_every_preset_resolves_for_every_job_and_survives_saving(name, job):
    config = resolve(job, name)
    assert parse(RunConfig, config.model_dump()) == config
    assert load_preset(name)["title"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["body.widht=3"], "width"),
        (["boddy.width=3"], "body"),
        (["training.epoch=3"], "epochs"),
        (["optimizer.lr=3"], "learning_rate"),
    ],
)
def test_an_unknown_setting_is_answered_with_the_nearest_one(words, hint):
    with pytest.raises(ConfigError) as caught:
        resolve("pretrain", "tiny", parse_assignments(words))
    assert hint in caught.value.hint


@given(width=st.integers(1, 300), attention_heads=st.integers(1, 20))
def test_widths_that_do_not_split_are_refused_with_one_that_does(width, attention_heads):
    wanted = {"width": width, "attention_heads": attention_heads, "positions": "sinusoidal"}
    if width % attention_heads == 0:
        assert BodyConfig(**wanted).width == width
        return
    with pytest.raises(ConfigError) as caught:
        BodyConfig(**wanted)
    assert int(caught.value.hint.removeprefix("try ")) % attention_heads == 0


def test_a_budget_given_above_replaces_the_one_below():
    config = resolve("finetune", "lab", {"training": {"steps": 7}})
    assert (config.training.steps, config.training.epochs) == (7, None)
    with pytest.raises(ConfigError, match="given twice"):
        resolve("finetune", "lab", {"training": {"steps": 7, "minutes": 2}})


def test_a_warmup_given_above_replaces_the_one_below():
    below = {"schedule": {"kind": "inverse-square-root", "warmup_steps": 4000}}
    assert resolve("finetune", "tiny", below).schedule.warmup_steps == 4000
    assert resolve("finetune", "tiny", below, {"schedule": {"warmup": 0.2}}).schedule.warmup_steps is None
    assert resolve("finetune", "tiny", below, {"schedule": {"warmup_steps": 7}}).schedule.warmup_steps == 7


def test_values_are_read_as_toml_and_bare_words_as_text():
    words = [
        "training.length=64",
        "body.tied=false",
        "optimizer.learning_rate=1e-4",
        "tokenizer.kind=unigram",
    ]
    assert parse_assignments(words) == {
        "training": {"length": 64},
        "body": {"tied": False},
        "optimizer": {"learning_rate": 1e-4},
        "tokenizer": {"kind": "unigram"},
    }


def test_merging_leaves_its_arguments_as_they_were():
    lower, upper = {"body": {"width": 1}}, {"body": {"layers": 2}}
    assert merge(lower, upper) == {"body": {"width": 1, "layers": 2}}
    assert (lower, upper) == ({"body": {"width": 1}}, {"body": {"layers": 2}})


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"attention_heads": 4, "key_value_heads": 3}, "key_value_heads 3"),
        ({"norm_first": False, "first_norm": False}, "first_norm"),
    ],
)
def test_switches_of_the_body_that_do_not_go_together_are_refused(wanted, words):
    with pytest.raises(ConfigError, match=words) as caught:
        BodyConfig(**wanted)
    assert caught.value.hint


def test_heads_have_biases_as_the_body_does_unless_told():
    assert [BodyConfig(biases=has).has_head_biases for has in (True, False)] == [True, False]
    assert BodyConfig(biases=False, head_biases=True).has_head_biases
    assert not BodyConfig(biases=True, head_biases=False).has_head_biases


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_what_no_file_could_give_back_is_no_setting(value):
    for setting in ("optimizer.clip", "training.minutes", "body.rotary_base"):
        with pytest.raises(ConfigError, match=setting):
            resolve("pretrain", "tiny", parse_assignments([f"{setting}={value}"]))
    asked = resolve("finetune", "tiny", parse_assignments([f"objective.r_drop={value}"])).objective
    with pytest.raises(ConfigError, match="r_drop"):
        make_objective(asked)
