"""headstart demo."""

from pathlib import Path
from typing import Annotated

import typer

from headstart.cli import options as o


def demo(
    out: Annotated[Path, typer.Option("--out", help="The new folder to write to.")] = Path("runs/demo"),
    minutes: Annotated[float, typer.Option("--minutes", help="Minutes of pretraining.")] = 3.5,
    seeds: Annotated[int, typer.Option("--seeds", help="Models to train of each arm.")] = 3,
    labels: Annotated[int, typer.Option("--labels", help="Labelled reviews to learn from.")] = 1600,
    epochs: Annotated[
        float, typer.Option("--epochs", help="Epochs of fine-tuning; the shipped base takes one at most.")
    ] = 3,
    base: Annotated[
        str, typer.Option("--base", help="The shipped base, or a run, to set beside the demo's own base.")
    ] = "en-tiny",
    seed: Annotated[int, typer.Option("--seed", help="The first seed.")] = 0,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Do the whole job on embedded film reviews: audit, pretrain, compare with a shipped base, report. Needs no network."""
    from headstart.cli.compare import show
    from headstart.cli.listener import Listener, print_json
    from headstart.workflows.demo import run_demo

    with Listener(quiet or as_json) as listener:
        result = run_demo(
            out,
            minutes=minutes,
            seeds=seeds,
            labels=labels,
            epochs=epochs,
            base=base,
            first_seed=seed,
            on_event=listener,
        )
    if as_json:
        print_json(result)
    else:
        show(result, out)
