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
from headstart.cli.options import is_first, is_launched, without_flag_types
from headstart.errors import ConfigError, HeadstartError, LostError, Stopped

COMMANDS = {
    "Start here": (training.demo, models.models),
    "Data": (data.audit, data.suggest, data.tokenize, data.download),
    "Train": (training.pretrain, training.finetune, training.tune, training.resume),
    "Evaluate": (training.compare, training.evaluate),
    "Use": (
        inference.predict, inference.generate, inference.translate, inference.embed, inference.search, models.serve,
        models.package, models.export, models.import_,
    ),
    "Look inside": (plots.plan, plots.complexity),
}  # fmt: skip
PLOTS = (plots.attention, plots.masks, plots.positions, plots.heads)


class Group(TyperGroup):
    """The commands; a wrong word on the command line is an error like any other."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Flags without a value show no type."""
        without_flag_types(self.get_params(ctx))
        super().format_help(ctx, formatter)

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        """Keep the arguments, with which `--nproc` starts the processes of a run."""
        arguments = list(args)  # the parser empties `args`
        context = super().make_context(info_name, args, *more, **extra)
        context.meta["arguments"] = arguments
        return context

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
def start(version: bool = typer.Option(False, "--version", help="Print the version.", metavar="")) -> None:
    """Print the version if that is what the flags say."""
    if version:
        from importlib.metadata import version as find

        print(find("headstart"))
        raise typer.Exit


def main() -> None:
    """Run a command; a problem that the user can fix is one sentence, a hint and exit code 2."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        try:
            app()
        except Exception as error:
            _report(error)
        except KeyboardInterrupt:
            if is_first():
                print("stopped", file=sys.stderr)
            sys.exit(130)
    except BaseException as leaving:
        if not is_launched() or int(os.environ["WORLD_SIZE"]) == 1:
            raise
        code = leaving.code if isinstance(leaving, SystemExit) else 1
        if not isinstance(leaving, SystemExit):
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # One of several processes exits at once: at a normal exit the threads of torch may wait for each other.
        os._exit(code if isinstance(code, int) else int(code is not None))


def _report(error: Exception) -> None:
    """Print a problem that the user can fix and exit with its code; raise any other."""
    if isinstance(error, Stopped):
        if is_first():
            print(f"stopped; nothing is lost: `{error.again}` continues from here", file=sys.stderr)
        sys.exit(128 + error.signal)
    if isinstance(error, BrokenPipeError):  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    if isinstance(error, MemoryError):
        error = ConfigError(
            "this machine has not enough memory for that", hint="try a smaller --preset, batch or length"
        )
    if not isinstance(error, HeadstartError):
        raise error
    # One process prints for all, or one of each machine when some processes are lost.
    is_local_first = os.environ.get("LOCAL_RANK") == "0"
    if is_first() or (is_local_first if isinstance(error, LostError) else not error.is_shared):
        print(f"error: {error.problem}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
    sys.exit(2)


def _interrupt(number: int, frame: object) -> None:
    """Outside of training, which saves first, SIGTERM ends like Ctrl-C: unfinished output is removed."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
