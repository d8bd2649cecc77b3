"""Commands made from functions: their arguments and flags, and a flag for each setting that the schema describes."""

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand
from typer.models import ArgumentInfo, OptionInfo

from headstart.atomic_io import finite
from headstart.config import RunConfig, load_toml, merge, parse_assignments
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from headstart.training.callbacks import ProgressBar

PANELS = {
    "Common": "",
    "Data": "train-size max-length text-column label-column document-separator strict folds classes vocab batch",
    "Budget": "epochs steps tokens minutes batch-size lr trials seeds",
    "Advanced": "optimizer precision freeze-backbone keep-winner save-steps save-minutes ignore-memory-check "
    "deterministic nproc nodes rdzv-endpoint max-restarts config set distill-from unlabeled recipe data-root "
    "stop-after-stage budget-scale search search-only pruner objectives corpus target-accuracy temperature top-k "
    "top-p min-p repetition-penalty greedy length-penalty engine max-shard-size log-texts gpus network price calibrate",
}
METAVARS = {bool: "", int: "N", float: "X", str: "NAME", Path: "PATH"}
# Flags whose name differs from the name of their setting.
NAMES = {
    "objective.name": "objective", "tokenizer.type": "tokenizer", "optimizer.name": "optimizer",
    "optimizer.learning_rate": "lr", "data.on_bad_row": "strict", "training.max_epochs": "epochs",
    "training.max_steps": "steps", "training.max_tokens": "tokens", "training.max_minutes": "minutes",
}  # fmt: skip
# Flags whose default depends on the preset or the data.
VARYING = {
    "objective", "tokenizer", "optimizer", "lr", "epochs", "steps", "tokens", "minutes", "max-length", "batch-size",
}  # fmt: skip
# Flags without a value, for settings that have one: that value, and the help.
SWITCHES = {"data.on_bad_row": ("error", "Stop at the first row that cannot be used, instead of skipping it.")}
TORCHRUN = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}  # variables that torchrun sets


def argument(metavar: str, help: str, default: Any = ...) -> Any:
    """A positional argument of a command."""
    return typer.Argument(default, metavar=metavar, help=help)


def flag(default: Any, help: str, *names: str, **more: Any) -> Any:
    """A flag; by default its name is that of its parameter."""
    return typer.Option(default, *names, help=help, **more)


def out_flag(help: str, default: Any = ..., metavar: str = "FOLDER", **more: Any) -> Any:
    """`--out`: where a command writes."""
    return flag(default, help, "--out", "-o", metavar=metavar, **more)


# Flags that several commands share: name -> (type, flag).
OUTPUT_FLAGS = {
    "as_json": (bool, flag(False, "Print the result as JSON, and nothing else.", "--json")),
    "quiet": (bool, flag(False, "Show no progress, only the result.", "--quiet", "-q")),
}
PROCESS_FLAGS = {
    "nproc": (int | None, flag(None, "Train in this many processes here, one a GPU or some cores each.")),
    "nodes": (int, flag(1, "With --nproc: machines that train together.", min=1)),
    "rdzv_endpoint": (str | None, flag(None, "With --nodes: where the machines meet.", metavar="HOST:PORT")),
    "max_restarts": (int, flag(0, "With --nproc: restarts after a process dies.", min=0)),
}
CONFIG = flag(None, "A TOML file of settings.", metavar="FILE")
SET = flag(None, "Any setting: --set model.hidden_size=256; may be repeated.", "--set", metavar="SECTION.KEY=VALUE")


def is_launched() -> bool:
    """Whether torchrun started this process."""
    return os.environ.keys() >= TORCHRUN


def is_first() -> bool:
    """Whether this process prints: the only one, or the first of several."""
    return not is_launched() or int(os.environ["RANK"]) == 0


@dataclass(frozen=True)
class Call:
    """One use of a command: its settings, and how its progress and result are shown."""

    context: typer.Context
    settings: dict[str, Any]
    as_json: bool
    quiet: bool

    def progress(self) -> "ProgressBar":
        """The progress bar that shows the events of a workflow."""
        from headstart.training.callbacks import ProgressBar

        return ProgressBar(self.quiet or self.as_json or not is_first())

    def show(self, result: Any, in_words: Callable[[Any], None], *, compact: bool = False) -> None:
        """Print a result as JSON or by `in_words`; only the first of several processes prints."""
        if not is_first():
            return
        if not self.as_json:
            in_words(result)
            return
        content = [_as_dict(each) for each in result] if isinstance(result, list) else _as_dict(result)
        text = json.dumps(finite(content), ensure_ascii=False, indent=None if compact else 2, default=str)
        sys.stdout.write(text + "\n")

    def launch(self) -> bool:
        """Run this command in several processes if the flags say so and it does not yet; whether it did."""
        nproc, nodes, endpoint, restarts = (self.context.params[name] for name in PROCESS_FLAGS)
        if nproc is None:
            if nodes > 1 or endpoint or restarts:
                raise ConfigError("--nodes, --rdzv-endpoint and --max-restarts go with --nproc", hint="add --nproc N")
            return False
        from headstart.training.launch import check_process_count, launch, rank_info

        if is_launched():
            if nproc != rank_info().local_count:
                problem = f"torchrun started {rank_info().local_count} processes here, and --nproc is {nproc}"
                raise ConfigError(problem, hint="leave out --nproc, or torchrun")
            return False
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # the error is one sentence, not a stack trace
        training = self.settings.get("training", {})
        check_process_count(nproc, training.get("device", "auto"))
        timeout = training.get("ddp_timeout_minutes")
        known = {"timeout": timeout} if isinstance(timeout, int | float) and timeout > 0 else {}
        arguments = self.context.find_root().meta["arguments"]
        if code := launch(arguments, nproc, nodes, endpoint, restarts, **known):
            raise typer.Exit(code)
        return True


def _as_dict(result: Any) -> Any:
    return asdict(result) if is_dataclass(result) and not isinstance(result, type) else result


def print_tables(tables: Iterable[Any], lines: Iterable[str]) -> None:
    """Print tables of rich, then lines of text."""
    from rich.console import Console

    console = Console(highlight=False)
    for table in tables:
        console.print(table)
    for line in lines:
        console.print(line, soft_wrap=True)


class HelpedCommand(TyperCommand):
    """A command whose usage line has upper-case words, and whose flags without a value show no type."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The arguments, then the options."""
        words = [str(param.metavar) for param in self.params if param.param_type_name == "argument"]
        return [*words, "[OPTIONS]"]

    def get_params(self, ctx: Any) -> list[Any]:
        """`--help` is among the common options."""
        found = without_flag_types(super().get_params(ctx))
        found[-1].rich_help_panel = "Common"
        return found


def without_flag_types(params: list[Any]) -> list[Any]:
    """The parameters; the help shows no type for flags without a value."""
    for each in params:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return params


@dataclass(frozen=True)
class Command:
    """A function as a command: it gets a `Call`, its own arguments and flags, and a flag for each of `settings`."""

    function: Callable[..., None]
    examples: tuple[str, ...]
    settings: tuple[str, ...]
    config: bool
    processes: bool

    def add_to(self, app: typer.Typer, panel: str | None = None) -> None:
        """Register this command."""
        own = dict(list(inspect.signature(self.function).parameters.items())[1:])
        flags = [_parameter(name, each.annotation, each.default) for name, each in own.items()]
        flags += [_setting_parameter(name) for name in self.settings if name != "--set"]
        shared = OUTPUT_FLAGS | (PROCESS_FLAGS if self.processes else {})
        flags += [_parameter(name, kind, default) for name, (kind, default) in shared.items()]
        flags += [_parameter("config", Path | None, CONFIG)] if self.config else []
        flags += [_parameter("assignments", list[str] | None, SET)] if self.settings else []

        def run(context: typer.Context, **given: Any) -> None:
            if not self.processes and is_launched():
                from headstart.training.launch import require_single_process

                require_single_process(context.command_path)
            call = Call(context, _settings(context), given["as_json"], given["quiet"])
            self.function(call, **{name: given[name] for name in own})

        first = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        run.__signature__ = inspect.Signature([first, *sorted(flags, key=_position)])  # type: ignore[attr-defined]
        epilog = "Examples:\n" + "\n".join(f"  headstart {example}" for example in self.examples)
        paragraphs = inspect.cleandoc(self.function.__doc__ or "").split("\n\n")
        text = "\n\n".join(" ".join(each.split()) for each in paragraphs)
        name = self.function.__name__.strip("_")
        app.command(name, cls=HelpedCommand, help=text, epilog=epilog, rich_help_panel=panel)(run)


def command(
    *examples: str, settings: str = "", config: bool = False, processes: bool = False
) -> Callable[[Callable[..., None]], Command]:
    """Make a function a command; `settings` names those with a flag of their own, or `--set` for none of them."""
    return lambda function: Command(function, examples, tuple(settings.split()), config, processes)


def flag_of(setting: str) -> str:
    """The name of a setting's flag."""
    return "--" + NAMES.get(setting, setting.split(".")[1]).replace("_", "-")


def _setting_parameter(setting: str) -> inspect.Parameter:
    """A flag with the type, the help and the default that a setting has in the schema."""
    section, key = setting.split(".")
    schema: Any = RunConfig.model_fields[section].annotation
    field, name, parameter = schema.model_fields[key], flag_of(setting), f"{section}__{key}"
    help = f"{field.description[0].upper()}{field.description[1:]}."
    kind, more = _plain_type(field.annotation), {}
    if setting in SWITCHES or kind is bool:
        return _parameter(parameter, bool, flag(False, SWITCHES.get(setting, ("", help))[1], name))
    if get_origin(field.annotation) is Literal:
        kind, more = str, {"metavar": "|".join(get_args(field.annotation))}
    if name.removeprefix("--") in VARYING:
        return _parameter(parameter, kind | None, flag(None, help, name, show_default="preset or data", **more))
    return _parameter(parameter, kind | None, flag(field.default, help, name, **more))


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """A parameter; a flag gets its name, its panel and the upper-case word for its value."""
    default = copy(default)
    if isinstance(default, OptionInfo):
        names = default.param_decls or ("--" + name.replace("_", "-"),)
        panels = (panel for panel, known in PANELS.items() if names[0].removeprefix("--") in known.split())
        default.param_decls, default.rich_help_panel = names, next(panels, "Common")
        if default.metavar is None:
            default.metavar = METAVARS[_plain_type(_plain_type(annotation))]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _plain_type(annotation: Any) -> Any:
    """`int` of `int | None`."""
    return next(kind for kind in get_args(annotation) or (annotation,) if kind is not NoneType)


def _position(parameter: inspect.Parameter) -> int:
    """Arguments come first, then the panels."""
    is_argument = isinstance(parameter.default, ArgumentInfo)
    return -1 if is_argument else list(PANELS).index(parameter.default.rich_help_panel)


def _settings(context: typer.Context) -> dict[str, Any]:
    """Nested settings: those of a TOML file, then the flags on the command line, then --set."""
    file = context.params.get("config")
    found = load_toml(file) if file is not None else {}
    for section, value in found.items():
        if not isinstance(value, dict) and section != "preset":
            problem = f"{section} in {file} is {value!r}, and should be a section of settings"
            raise ConfigError(problem, hint=f"write [{section}] with its settings below it")
    typed: dict[str, Any] = {}
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if "__" in name and source is not None and source.name == "COMMANDLINE":
            section, key = name.split("__", 1)
            typed.setdefault(section, {})[key] = SWITCHES.get(f"{section}.{key}", (value,))[0]
    return merge(merge(found, typed), parse_assignments(context.params.get("assignments") or []))
