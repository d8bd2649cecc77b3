"""headstart export."""

from pathlib import Path
from typing import Annotated

import typer

from headstart.cli import options as o


def export(
    run: Annotated[str, typer.Argument(help="A finished run's folder, or a shipped base's name.")],
    to: Annotated[str, typer.Option("--to", help="transformers, onnx or ctranslate2.")],
    out: Annotated[Path, typer.Option("--out", help="The new folder to write to.")],
    int8: Annotated[bool, typer.Option("--int8", help="Weights of 8 bits (onnx).")] = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Write RUN as a folder for another library, once it answers there as it does here.

    Tokens and answers are compared on texts of many languages; a folder that differs is not left behind.
    """
    from headstart.cli.listener import print_json
    from headstart.workflows.convert import export as write

    result = write(run, to, out, int8=int8)
    if as_json:
        print_json(result)
        return
    print(f"{result.kind} in {result.path}: {result.parameters:,} parameters")
    print(
        f"the same as the run: tokens of {result.texts} texts equal, {result.answers:,} answers within "
        f"{result.difference:.1e}"
    )
    found = result.details
    if int8:
        print(
            f"in 8 bits: {found['int8_agreed']} of {found['int8_choices']} choices on the sample texts are the run's, "
            f"answers at most {found['int8_difference']:.3g} apart, {found['bytes'] / 2**20:.1f} MiB"
        )
    for note in result.notes:
        print(f"note: {note}")
    if to == "transformers":
        print(f"load it: transformers.{found['auto_class']}.from_pretrained({str(result.path)!r})")
    if to == "ctranslate2":
        print(f"load it: {found['auto_class']}({str(result.path)!r})")
