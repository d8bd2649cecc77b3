"""headstart serve."""

from pathlib import Path
from typing import Annotated

import typer

from headstart.cli import options as o
from headstart.errors import ConfigError


def serve(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN…",
            help="Runs to serve: folders, NAME=FOLDER, or shipped bases; a run may still be training, and a comparison is shown.",
        ),
    ],
    host: Annotated[
        str,
        typer.Option("--host", help="The address to listen at; any but this machine's own needs a token."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port to listen at; 0 = any that is free.")
    ] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            help="A file whose first line is the secret of all clients (16 characters or more).",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision",
            help="Precision of classify and embed: fast = bfloat16 where the processor supports it; "
            "auto, float32, bfloat16; default: the run's own training.precision.",
        ),
    ] = None,
    log_texts: Annotated[
        bool, typer.Option("--log-texts", help="Also log the texts that are sent; otherwise none is.")
    ] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="limits.KEY=VALUE",
            help="Any limit, e.g. --set limits.max_texts=64; may be repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log as JSON lines.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No line for each request.")] = False,
) -> None:
    """Serve runs over HTTP, with a playground at / and a description at /openapi.json."""
    settings = o.gather(None, assignments)
    try:
        from headstart.serving.server import serve as run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headstart"):
            raise
        raise ConfigError(
            f"serving needs the package {error.name}", hint="pip install 'headstart[serve]'"
        ) from None

    def show(url: str) -> None:
        print(f"serving {', '.join(runs)} at {url} (playground: {url}/)", flush=True)

    run(
        runs,
        host=host,
        port=port,
        token_file=token_file,
        settings=settings,
        precision=precision,
        log_texts=log_texts,
        as_json=as_json,
        quiet=quiet,
        on_ready=show,
    )
