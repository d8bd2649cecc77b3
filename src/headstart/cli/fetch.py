"""headstart download."""

from pathlib import Path
from typing import Annotated

import typer

from headstart.cli import options as o


def download(
    name: Annotated[str, typer.Argument(help="A set of parallel text: libreoffice-help.")],
    pair: Annotated[
        str,
        typer.Option("--pair", metavar="SOURCE-TARGET", help="From one language to another: en-fr, en-de, …"),
    ],
    out: Annotated[Path, typer.Option("--out", help="The new folder to write train, valid and test to.")],
    packages: Annotated[
        Path | None,
        typer.Option(
            "--packages", help="A folder of downloaded .deb files; nothing is fetched over the network."
        ),
    ] = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Build parallel text for translation from freely licensed packages of Debian; apt is asked, root is not needed."""
    from headstart.contrib.libreoffice import fetch as build

    def on_stage(words: str) -> None:
        if not (quiet or as_json):
            typer.echo(f"· {words}", err=True)

    found = build(name, pair, out, packages=packages, on_stage=on_stage)
    if as_json:
        from headstart.cli.listener import print_json

        print_json(found)
        return
    counts = ", ".join(f"{count:,} {split}" for split, count in found.counts.items())
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in found.dropped.items())
    print(f"{found.path}: {counts}")
    print(f"dropped: {dropped or 'nothing'}")
    print(f"licence: {found.licence}")
    print(f"look at it: headstart audit {found.path} --pair {'-'.join(found.pair)}")
