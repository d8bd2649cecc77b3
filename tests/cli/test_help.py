"""Every command explains itself."""

import pytest
import typer
from typer.testing import CliRunner

from headstart.cli.app import app

COMMANDS = [command.name for command in app.registered_commands]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_complete(name):
    group = typer.main.get_command(app)
    command = group.commands[name]
    assert command.help
    for parameter in command.params:
        if parameter.param_type_name == "option":
            assert getattr(parameter, "help", None), f"{name} {parameter.opts} has no help"
    names = {option for parameter in command.params for option in parameter.opts}
    assert {"--json", "--quiet"} <= names or name in ("plan", "complexity")


@pytest.mark.parametrize("name", ["pretrain", "finetune", "compare", "demo"])
def test_training_commands_take_a_seed(name):
    command = typer.main.get_command(app).commands[name]
    assert "--seed" in {option for parameter in command.params for option in parameter.opts}


def test_the_version_is_told():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip()[0].isdigit()
