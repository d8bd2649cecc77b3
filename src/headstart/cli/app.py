"""The command line: reads arguments, calls one workflow, shows the answer."""

import os
import signal
import sys
import traceback
from typing import Any

import typer
from typer.core import TyperGroup

from headstart.cli import (
    bases,
    compare,
    complexity,
    data,
    demo,
    embed,
    evaluate,
    export,
    fetch,
    finetune,
    generate,
    import_,
    picture,
    plan,
    predict,
    prepare,
    pretrain,
    resume,
    serve,
    translate,
    tune,
)
from headstart.errors import HeadstartError, LostError, Stopped
from headstart.training.launch import rank_info, require_single_process

COMMANDS = (
    demo.demo,
    data.audit,
    fetch.download,
    prepare.tokenize,
    pretrain.pretrain,
    finetune.finetune,
    compare.compare,
    tune.tune,
    evaluate.evaluate,
    predict.predict,
    generate.generate,
    translate.translate,
    resume.resume,
    embed.embed,
    embed.search,
    plan.plan,
    complexity.complexity,
    export.export,
    import_.import_,
    bases.models,
    bases.package,
    serve.serve,
)

MANY = ("pretrain", "finetune", "resume")  # what runs in many processes


class _Group(TyperGroup):
    """The commands; the words they were called with are kept for those that start themselves anew."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        words = list(args)
        context = super().make_context(info_name, args, *more, **extra)
        context.meta["words"] = words
        return context


app = typer.Typer(
    name="headstart",
    cls=_Group,
    help="Pretrain one base, swap its head, fine-tune on a few labels, and prove what the pretraining bought.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in COMMANDS:
    app.command(command.__name__.strip("_"))(command)
app.add_typer(picture.plot_app)


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and leave."),
) -> None:
    if version:
        from importlib.metadata import version as find

        print(find("headstart"))
        raise typer.Exit
    if context.invoked_subcommand not in (None, *MANY):
        require_single_process(f"headstart {context.invoked_subcommand}")


def main() -> None:
    """Run a command; a problem the user can mend is one sentence, a hint and exit code 2."""
    try:
        _main()
    except BaseException as leaving:
        if rank_info().count == 1:
            raise
        code = leaving.code if isinstance(leaving, SystemExit) else 1
        if not isinstance(leaving, SystemExit):
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # One of many leaves at once: threads of torch may wait for each other while they are taken down.
        os._exit(code if isinstance(code, int) else int(code is not None))


def _main() -> None:
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except HeadstartError as error:
        if _is_ours_to_tell(error):
            _say(error, error.hint)
        sys.exit(2)
    except Stopped as stopped:
        if rank_info().rank == 0:
            print(f"stopped; nothing is lost: `{stopped.again}` goes on from here", file=sys.stderr)
        sys.exit(128 + stopped.signal)
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        if rank_info().rank == 0:
            print("stopped", file=sys.stderr)
        sys.exit(130)
    except MemoryError:
        _say("this machine has not enough memory for that", "try a smaller --preset, batch or length")
        sys.exit(2)


def _is_ours_to_tell(error: HeadstartError) -> bool:
    """Whether this process is the one of many that tells a problem: one for all, or one a machine when some are lost."""
    place = rank_info()
    return place.rank == 0 or (place.local_rank == 0 if isinstance(error, LostError) else not error.is_shared)


def _interrupt(number: int, frame: object) -> None:
    """Outside of training, which saves first, a SIGTERM ends like Ctrl-C: what was begun is cleared away."""
    raise KeyboardInterrupt


def _say(problem: object, hint: str) -> None:
    print(f"error: {problem}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


if __name__ == "__main__":
    main()
