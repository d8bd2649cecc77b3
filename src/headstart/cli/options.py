"""Commands from functions: flags made from the settings schema, and flags that several commands share."""

import inspect
import os
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand
from typer.models import ArgumentInfo, OptionInfo

from headstart.config import RunConfig, load_toml, merge, parse_assignments
from headstart.errors import ConfigError
from headstart.training.launch import check_process_count, launch, rank_info

if TYPE_CHECKING:
    from headstart.cli.progress import Listener

COMMON, DATA, BUDGET, ADVANCED = PANELS = ("Common", "Data", "Budget", "Advanced")
METAVARS = {bool: "", int: "N", float: "X", str: "NAME", Path: "PATH"}
VARIES = "preset or data"


def argument(metavar: str, help: str, default: Any = ...) -> Any:
    """A word of a command that is no flag."""
    return typer.Argument(default, metavar=metavar, help=help)


def _flag(panel: str, default: Any, help: str, *names: str, **more: Any) -> Any:
    return typer.Option(default, *names, help=help, rich_help_panel=panel, **more)


# Flags by panel, from a default, a help text and names; a flag without names is called after its parameter.
flag, data_flag, budget_flag, advanced_flag = (partial(_flag, panel) for panel in PANELS)


def out_flag(help: str, default: Any = ..., metavar: str = "FOLDER", show_default: bool | str = True) -> Any:
    """`--out`, where a command writes."""
    return flag(default, help, "--out", "-o", metavar=metavar, show_default=show_default)


# Settings with a flag of their own: panel, name (after the setting where there is none), whether the default varies.
SETTING_FLAGS = {
    "objective.name": (COMMON, "--objective", True),
    "tokenizer.type": (COMMON, "--tokenizer", True),
    "training.seed": (COMMON, "", False),
    "training.device": (COMMON, "", False),
    "data.train_size": (DATA, "--train-size", False),
    "training.max_length": (DATA, "--max-length", True),
    "data.text_column": (DATA, "", False),
    "data.label_column": (DATA, "", False),
    "data.document_separator": (DATA, "--document-separator", False),
    "data.on_bad_row": (DATA, "--strict", False),
    "training.max_epochs": (BUDGET, "--epochs", True),
    "training.max_steps": (BUDGET, "--steps", True),
    "training.max_tokens": (BUDGET, "--tokens", True),
    "training.max_minutes": (BUDGET, "--minutes", True),
    "training.batch_size": (BUDGET, "--batch-size", True),
    "optimizer.learning_rate": (BUDGET, "--lr", True),
    "optimizer.name": (ADVANCED, "--optimizer", True),
    "training.precision": (ADVANCED, "", False),
    "training.freeze_backbone": (ADVANCED, "--freeze-backbone", False),
    "training.keep_winner": (ADVANCED, "", False),
    "training.save_steps": (ADVANCED, "--save-steps", False),
    "training.save_minutes": (ADVANCED, "", False),
    "training.ignore_memory_check": (ADVANCED, "--ignore-memory-check", False),
    "training.deterministic": (ADVANCED, "", False),
}
# Flags that take no value, for settings that are no yes or no: the value that they choose, and their help.
SWITCHES = {
    "data.on_bad_row": ("error", "Stop at the first row that cannot be used, instead of skipping it.")
}
OUTPUT_FLAGS: dict[str, tuple[Any, Any]] = {
    "as_json": (bool, flag(False, "Print the result as JSON, and nothing else.", "--json")),
    "quiet": (bool, flag(False, "Show no progress, only the result.", "--quiet", "-q")),
}
CONFIG_FLAGS: dict[str, tuple[Any, Any]] = {
    "config": (Path | None, advanced_flag(None, "A TOML file of settings.", metavar="FILE"))
}
SET_FLAGS: dict[str, tuple[Any, Any]] = {
    "assignments": (
        list[str] | None,
        advanced_flag(
            None,
            "Any setting, e.g. --set model.hidden_size=256; may be repeated.",
            "--set",
            metavar="SECTION.KEY=VALUE",
        ),
    )
}
PROCESS_FLAGS: dict[str, tuple[Any, Any]] = {
    "nproc": (
        int | None,
        advanced_flag(None, "Train in this many processes here, one a GPU or some cores each."),
    ),
    "nodes": (int, advanced_flag(1, "With --nproc: machines that train together.", min=1)),
    "meet": (
        str | None,
        advanced_flag(
            None,
            "With --nodes: a free port of one machine, where all meet.",
            "--rdzv-endpoint",
            metavar="HOST:PORT",
        ),
    ),
    "max_restarts": (int, advanced_flag(0, "With --nproc: restarts after a process dies.", min=0)),
}


@dataclass(frozen=True)
class Call:
    """One use of a command: its settings, and how its progress and result are shown."""

    context: typer.Context
    settings: dict[str, Any]
    as_json: bool
    quiet: bool

    def progress(self) -> "Listener":
        """What shows the events of a workflow."""
        from headstart.cli.progress import Listener

        return Listener(self.quiet or self.as_json or rank_info().rank != 0)

    def show(self, result: Any, in_words: Callable[[Any], None], *, compact: bool = False) -> None:
        """Print a result, as JSON or by `in_words`; the first of many processes does."""
        if rank_info().rank == 0:
            if self.as_json:
                from headstart.cli.progress import print_json

                print_json(result, compact=compact)
            else:
                in_words(result)

    def launch(self) -> bool:
        """Run this command in many processes if it should and does not yet; whether it did."""
        nproc, nodes, meet, restarts = (self.context.params[name] for name in PROCESS_FLAGS)
        info = rank_info()
        if nproc is None:
            if nodes > 1 or meet or restarts:
                raise ConfigError(
                    "--nodes, --rdzv-endpoint and --max-restarts go with --nproc", hint="add --nproc N"
                )
            return False
        if info.is_launched:
            if nproc != info.local_count:
                raise ConfigError(
                    f"torchrun started {info.local_count} processes here, and --nproc is {nproc}",
                    hint="leave out --nproc, or torchrun",
                )
            return False
        # We print one sentence where torch would log a stack.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
        training = self.settings.get("training", {})
        check_process_count(nproc, training.get("device", "auto"))
        words, timeout = self.context.find_root().meta["words"], training.get("ddp_timeout_minutes")
        known = {"timeout": timeout} if isinstance(timeout, int | float) and timeout > 0 else {}
        code = launch(words, nproc, nodes, meet, restarts, **known)
        if code:
            raise typer.Exit(code)
        return True


def without_flag_types(params: list[Any]) -> list[Any]:
    """The parameters, without a type shown beside flags that take no value."""
    for each in params:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return params


class HelpedCommand(TyperCommand):
    """A command whose usage line has plain upper-case words."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The arguments, then the options."""
        words = [str(param.metavar) for param in self.params if param.param_type_name == "argument"]
        return [*words, "[OPTIONS]"]

    def get_params(self, ctx: Any) -> list[Any]:
        """`--help` is among the common options."""
        found = without_flag_types(super().get_params(ctx))
        found[-1].rich_help_panel = COMMON
        return found


@dataclass(frozen=True)
class Command:
    """A function as a command: it gets a `Call`, its own arguments and flags, and a flag for each of `settings`."""

    function: Callable[..., None]
    examples: tuple[str, ...]
    settings: tuple[str, ...]
    config: bool
    processes: bool

    @property
    def name(self) -> str:
        """What is typed."""
        return self.function.__name__.strip("_")

    def add_to(self, app: typer.Typer, panel: str | None = None) -> None:
        """Register this command."""
        own = dict(list(inspect.signature(self.function).parameters.items())[1:])
        shared = OUTPUT_FLAGS | (PROCESS_FLAGS if self.processes else {})
        shared |= (CONFIG_FLAGS if self.config else {}) | (SET_FLAGS if self.settings else {})
        flags = [_parameter(name, each.annotation, each.default) for name, each in own.items()]
        flags += [_setting_parameter(name) for name in self.settings if name != "--set"]
        flags += [_parameter(name, kind, default) for name, (kind, default) in shared.items()]

        def run(context: typer.Context, **given: Any) -> None:
            call = Call(context, _settings(context), given["as_json"], given["quiet"])
            self.function(call, **{name: given[name] for name in own})

        first = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        run.__signature__ = inspect.Signature([first, *sorted(flags, key=_position)])  # type: ignore[attr-defined]
        epilog = "Examples:\n" + "\n".join(f"  headstart {example}" for example in self.examples)
        paragraphs = inspect.cleandoc(self.function.__doc__ or "").split("\n\n")
        text = "\n\n".join(" ".join(each.split()) for each in paragraphs)
        app.command(self.name, cls=HelpedCommand, help=text, epilog=epilog, rich_help_panel=panel)(run)


def command(
    *examples: str, settings: str = "", config: bool = False, processes: bool = False
) -> Callable[[Callable[..., None]], Command]:
    """Make a function a command; `settings` names those with a flag of their own, or `--set` for none of them."""
    return lambda function: Command(function, examples, tuple(settings.split()), config, processes)


def _setting_parameter(setting: str) -> inspect.Parameter:
    """A flag with the type, the help and the default that a setting has in the schema."""
    section, key = setting.split(".")
    schema: Any = RunConfig.model_fields[section].annotation
    field, (panel, name, varies) = schema.model_fields[key], SETTING_FLAGS[setting]
    if setting in SWITCHES:
        return _parameter(f"{section}__{key}", bool, _flag(panel, False, SWITCHES[setting][1], name))
    is_choice = get_origin(field.annotation) is Literal
    kind = str if is_choice else _plain_type(field.annotation)
    found = _flag(
        panel,
        False if kind is bool else None if varies else field.default,
        f"{field.description[0].upper()}{field.description[1:]}.",
        *([name] if name else []),
        metavar="|".join(get_args(field.annotation)) if is_choice else None,
        show_default=VARIES if varies else True,
    )
    found.param_decls = found.param_decls or (_flag_name(key),)
    return _parameter(f"{section}__{key}", kind if kind is bool else kind | None, found)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """A parameter with a name for its flag and a word for its value."""
    default = copy(default)
    if isinstance(default, OptionInfo):
        default.param_decls = default.param_decls or (_flag_name(name),)
        if default.metavar is None:
            default.metavar = METAVARS[_plain_type(_plain_type(annotation))]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def _plain_type(annotation: Any) -> Any:
    """`int` of `int | None`."""
    return next(kind for kind in get_args(annotation) or (annotation,) if kind is not NoneType)


def _position(parameter: inspect.Parameter) -> int:
    """Arguments first, then the panels."""
    is_argument = isinstance(parameter.default, ArgumentInfo)
    return -1 if is_argument else PANELS.index(parameter.default.rich_help_panel)


def _settings(context: typer.Context) -> dict[str, Any]:
    """Nested settings from a TOML file, then flags that were typed, then --set."""
    file = context.params.get("config")
    found = load_toml(file) if file is not None else {}
    for section, value in found.items():
        if not isinstance(value, dict) and section != "preset":
            raise ConfigError(
                f"{section} in {file} is {value!r}, and should be a section of settings",
                hint=f"write [{section}] with its settings below it",
            )
    typed: dict[str, Any] = {}
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if "__" in name and source is not None and source.name == "COMMANDLINE":
            section, key = name.split("__", 1)
            typed.setdefault(section, {})[key] = SWITCHES.get(f"{section}.{key}", (value,))[0]
    return merge(merge(found, typed), parse_assignments(context.params.get("assignments") or []))
