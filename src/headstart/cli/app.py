"""The command line: reads arguments, calls one workflow, shows the result."""

import os
import signal
import sys
import traceback
from typing import Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from headstart.cli import data, inference, models, plots, training
from headstart.cli.options import without_flag_types
from headstart.errors import ConfigError, HeadstartError, LostError, Stopped
from headstart.training.launch import rank_info, require_single_process

COMMANDS = {
    "Start here": (training.demo, models.models),
    "Data": (data.audit, data.tokenize, data.download),
    "Train": (training.pretrain, training.finetune, training.tune, training.resume),
    "Evaluate": (training.compare, inference.evaluate),
    "Use": (
        inference.predict, inference.generate, inference.translate, inference.embed, inference.search, models.serve,
        models.package, models.export, models.import_,
    ),
    "Look inside": (plots.plan, plots.complexity),
}  # fmt: skip
PLOTS = (plots.attention, plots.masks, plots.positions, plots.heads)
MULTIPROCESS = ("pretrain", "finetune", "resume")


class Group(TyperGroup):
    """The commands; a wrong word on the command line is an error like any other."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        """Remember the words of the command, with which processes of a run are started."""
        words = list(args)
        context = super().make_context(info_name, args, *more, **extra)
        context.meta["words"] = words
        return context

    def get_params(self, ctx: Any) -> list[Any]:
        """The options of all commands."""
        return without_flag_types(super().get_params(ctx))

    def main(self, *words: Any, **extra: Any) -> Any:
        """Run a command and exit with its code."""
        try:
            code = super().main(*words, **{**extra, "standalone_mode": False})
        except TyperException as error:
            if not error.format_message():  # the help was printed
                sys.exit(error.exit_code)
            context = getattr(error, "ctx", None)
            path = context.command_path if context else "headstart"
            raise ConfigError(error.format_message().rstrip("."), hint=f"see {path} --help") from None
        sys.exit(code or 0)


app = typer.Typer(
    name="headstart",
    cls=Group,
    help="Pretrain one base, swap its head, fine-tune on a few labels, and prove what the pretraining bought.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for panel, commands in COMMANDS.items():
    for command in commands:
        command.add_to(app, panel)
plot = typer.Typer(help="Plot attention, masks, positions, and what each attention head does.", no_args_is_help=True)
for command in PLOTS:
    command.add_to(plot)
app.add_typer(plot, name="plot", rich_help_panel="Look inside")


@app.callback(invoke_without_command=True)
def check_start(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version.", metavar="")
) -> None:
    """Print the version, and refuse one of many processes for a command that runs in one."""
    if version:
        from importlib.metadata import version as find

        print(find("headstart"))
        raise typer.Exit
    if context.invoked_subcommand not in (None, *MULTIPROCESS):
        require_single_process(f"headstart {context.invoked_subcommand}")


def main() -> None:
    """Run a command; a problem that the user can fix is one sentence, a hint and exit code 2."""
    try:
        _run_app()
    except BaseException as leaving:
        if rank_info().count == 1:
            raise
        code = leaving.code if isinstance(leaving, SystemExit) else 1
        if not isinstance(leaving, SystemExit):
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # One of many processes leaves at once: threads of torch may wait for each other while they are taken down.
        os._exit(code if isinstance(code, int) else int(code is not None))


def _run_app() -> None:
    """Run the command line and turn what went wrong into a message and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    is_first = rank_info().rank == 0
    try:
        app()
    except HeadstartError as error:
        if _is_reporter(error):
            _print_error(error, error.hint)
        sys.exit(2)
    except Stopped as stopped:
        if is_first:
            print(f"stopped; nothing is lost: `{stopped.again}` continues from here", file=sys.stderr)
        sys.exit(128 + stopped.signal)
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        if is_first:
            print("stopped", file=sys.stderr)
        sys.exit(130)
    except MemoryError:
        _print_error("this machine has not enough memory for that", "try a smaller --preset, batch or length")
        sys.exit(2)


def _is_reporter(error: HeadstartError) -> bool:
    """Whether this process prints a problem: one process for all, or one a machine when some are lost."""
    info = rank_info()
    return info.rank == 0 or (info.local_rank == 0 if isinstance(error, LostError) else not error.is_shared)


def _interrupt(number: int, frame: object) -> None:
    """Outside of training, which saves first, SIGTERM ends like Ctrl-C: unfinished output is removed."""
    raise KeyboardInterrupt


def _print_error(problem: object, hint: str) -> None:
    print(f"error: {problem}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


if __name__ == "__main__":
    main()
