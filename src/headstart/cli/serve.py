"""headstart serve."""

from pathlib import Path
from typing import Annotated

import typer

from headstart.cli import options as o


def serve(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN…",
            help="Runs to serve: folders, NAME=FOLDER, or shipped bases; one may be training still, or be a comparison.",
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
            "--token-file", help="A file whose first line every client must know (16 characters or more)."
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision",
            help="In what classify and embed multiply: fast = bfloat16 where the processor does so itself; "
            "auto, float32, bfloat16; the run's own training.precision unless told.",
        ),
    ] = None,
    log_texts: Annotated[
        bool, typer.Option("--log-texts", help="Also log the texts that are sent; otherwise none is.")
    ] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="bounds.KEY=VALUE",
            help="Any bound, e.g. --set bounds.texts=64; may be repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log as JSON lines.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No line for each request.")] = False,
) -> None:
    """Serve runs over HTTP, with a playground at / and a description at /openapi.json."""
    settings = o.gather(None, assignments)
    from headstart.serving.start import Address
    from headstart.serving.start import serve as run

    def tell(address: Address) -> None:
        names = ", ".join(runs)
        print(f"serving {names} at {address.url} (playground: {address.url}/)", flush=True)

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
        on_ready=tell,
    )
