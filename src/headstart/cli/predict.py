"""headstart predict."""

import sys
from typing import Annotated

import typer

from headstart.cli import options as o


def predict(
    run: Annotated[
        str,
        typer.Argument(
            help="A fine-tuned run's folder; RUN1,RUN2 averages their probabilities; with --engine onnx, an export."
        ),
    ],
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="A .txt (a text a line) or a table; - = standard input.")
    ],
    engine: Annotated[
        str, typer.Option("--engine", help="torch, or onnx for a folder of `headstart export --to onnx`.")
    ] = "torch",
    text_column: o.TextColumn = None,
    assignments: o.Assignments = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Print label, probability and text for every text, one a line, in order."""
    settings = o.gather(None, assignments, data__text_column=text_column)
    import json

    from headstart.inference.classify import predict as answer

    for label, probability, text in answer(run, file, engine=engine, settings=settings):
        if as_json:
            line = json.dumps({"label": label, "probability": probability, "text": text}, ensure_ascii=False)
        else:
            line = f"{' '.join(label.split())}\t{probability:.4f}\t{' '.join(text.split())}"
        sys.stdout.write(line + "\n")
    sys.stdout.flush()
