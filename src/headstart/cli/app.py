"""The command line: reads arguments, calls one workflow, shows the answer."""

import os
import signal
import sys

import typer

from headstart.cli import (
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
    pretrain,
    resume,
    serve,
    translate,
    tune,
)
from headstart.errors import HeadstartError, Stopped

COMMANDS = (
    demo.demo,
    data.data,
    fetch.fetch,
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
    embed.nearest,
    plan.plan,
    complexity.complexity,
    export.export,
    import_.import_,
    serve.serve,
)

app = typer.Typer(
    name="headstart",
    help="Pretrain one base, swap its head, fine-tune on a few labels, and prove what the pretraining bought.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in COMMANDS:
    app.command(command.__name__.strip("_"))(command)
app.add_typer(picture.picture_app)


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and leave."),
) -> None:
    if version:
        from importlib.metadata import version as find

        print(find("headstart"))
        raise typer.Exit


def main() -> None:
    """Run a command; a problem the user can mend is one sentence, a hint and exit code 2."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except HeadstartError as error:
        _say(error, error.hint)
        sys.exit(2)
    except Stopped as stopped:
        print(f"stopped; nothing is lost: `{stopped.again}` goes on from here", file=sys.stderr)
        sys.exit(128 + stopped.signal)
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except MemoryError:
        _say("this machine has not enough memory for that", "try a smaller --preset, batch or length")
        sys.exit(2)


def _interrupt(number: int, frame: object) -> None:
    """Outside of training, which saves first, a SIGTERM ends like Ctrl-C: what was begun is cleared away."""
    raise KeyboardInterrupt


def _say(problem: object, hint: str) -> None:
    print(f"error: {problem}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


if __name__ == "__main__":
    main()
