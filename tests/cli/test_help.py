"""Every command explains itself, and what it takes is what the settings schema says."""

import shlex
from typing import get_args

import pytest
import typer
from typer.testing import CliRunner

from headstart.cli.app import COMMANDS, PLOTS, app
from headstart.cli.options import PANELS, VARYING, flag_of
from headstart.config import RunConfig, load_preset, preset_names
from headstart.errors import ConfigError
from headstart.workflows.finetune_defaults import REFERENCE, HeadStart, finetune_defaults

GROUP = typer.main.get_command(app)
LEAVES = {name: each for name, each in GROUP.commands.items() if not hasattr(each, "commands")}
LEAVES |= {f"plot {name}": each for name, each in GROUP.commands["plot"].commands.items()}
EXAMPLES = [
    example for each in [*(one for row in COMMANDS.values() for one in row), *PLOTS] for example in each.examples
]


def options(name):
    return [each for each in LEAVES[name].params if each.param_type_name == "option"]


@pytest.mark.parametrize("name", LEAVES)
def test_help_is_complete(name):
    command = LEAVES[name]
    assert command.help
    for parameter in command.params:
        assert parameter.help, f"{name} {parameter.opts} has no help"
        assert parameter.help.endswith((".", "…"))
        assert parameter.metavar is not None
    for option in options(name):
        assert option.rich_help_panel in PANELS
    names = {flag for option in options(name) for flag in option.opts}
    assert {"--json", "--quiet", "-q"} <= names
    assert ("-o" in names) == ("--out" in names)


def test_every_command_has_two_examples():
    assert len(EXAMPLES) == 2 * len(LEAVES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_understood(example):
    name, *words = shlex.split(f"{example}")
    if name == "plot":
        name, words = f"plot {words[0]}", words[1:]
    context = LEAVES[name].make_context(name, words)
    assert not context.args


@pytest.mark.parametrize("panel", COMMANDS)
def test_commands_stand_in_panels(panel):
    said = CliRunner().invoke(app, ["--help"]).output
    assert f"─ {panel} ─" in said
    assert list(map(said.index, COMMANDS)) == sorted(map(said.index, COMMANDS))


def test_the_help_of_a_command_has_panels_defaults_and_examples():
    said = CliRunner().invoke(app, ["finetune", "--help"]).output
    starts = [said.index(f"─ {panel} ─") for panel in PANELS]
    assert starts == sorted(starts)
    for words in ("finetune BASE DATA [OPTIONS]", "[default: auto]", "Examples:", "headstart finetune en-tiny"):
        assert words in said
    assert "<bool>" not in said


@pytest.mark.parametrize("name", ["pretrain", "finetune"])
def test_training_commands_take_the_flags_that_people_type(name):
    names = {flag for option in options(name) for flag in option.opts}
    assert {"--seed", "--lr", "--batch-size", "--device", "--epochs", "--steps", "--minutes", "-o"} <= names


def test_flags_have_the_defaults_of_the_schema_where_nothing_else_decides():
    model = RunConfig(job="finetune").model
    others = [finetune_defaults(REFERENCE, model, head) for head in get_args(HeadStart)]
    for preset in map(load_preset, preset_names()):
        others += [preset, preset.get("pretrain", {}), preset.get("finetune", {})]
    commands = [one for row in COMMANDS.values() for one in row] + list(PLOTS)
    settings = {setting for each in commands for setting in each.settings if setting != "--set"}
    assert len(settings) > 20
    for setting in settings:
        section, key = setting.split(".")
        if any(key in content.get(section, {}) for content in others):
            assert flag_of(setting).removeprefix("--") in VARYING, f"{setting} depends on the preset or the data"


def test_a_flag_reaches_its_setting_and_a_default_does_not(monkeypatch):
    from headstart.workflows import finetune

    seen = {}
    monkeypatch.setattr(finetune, "finetune", lambda *words, **more: seen.update(more) or 1 / 0)
    words = ["finetune", "scratch", "a.tsv", "-o", "r", "-q", "--lr", "0.5", "--batch-size", "3", "--device", "cpu"]
    result = CliRunner().invoke(app, [*words, "--strict", "--set", "training.seed=4"])
    assert isinstance(result.exception, ZeroDivisionError)
    assert seen["settings"] == {
        "optimizer": {"learning_rate": 0.5},
        "training": {"batch_size": 3, "device": "cpu", "seed": 4},
        "data": {"on_bad_row": "error"},
    }


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["trian"], "Did you mean 'pretrain'", "--help"),
        (["finetune", "en-tiny"], "Missing argument 'DATA'", "finetune --help"),
        (["finetune", "en-tiny", "a.tsv", "--epohs", "2"], "--epochs", "finetune --help"),
        (["finetune", "en-tiny", "a.tsv", "--epochs", "two"], "--epochs", "finetune --help"),
        (["plot", "mask"], "Did you mean 'masks'", "plot --help"),
    ],
)
def test_a_wrong_word_is_a_sentence_and_a_hint(words, said, hint):
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, ConfigError)
    assert said in str(error)
    assert hint in error.hint


def test_the_version_is_printed():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip()[0].isdigit()
