"""headstart plan."""

import json
from typing import Annotated

import typer

from headstart.cli import options as o


def plan(
    preset: Annotated[
        str, typer.Option("--preset", help="Named settings: tiny, small, lab, bert, translate-tiny, …")
    ] = "tiny",
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective", help="causal-lm, masked-lm, classify, translate, …; the preset's unless given."
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option("--classes", min=2, help="Classes to tell apart; implies --objective classify."),
    ] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option("--vocab", min=2, help="Tokens in the vocabulary; the preset's unless given."),
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Texts in a batch.")] = None,
    length: Annotated[int | None, typer.Option("--length", min=2, help="Tokens of each text.")] = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", help="A device by name, e.g. 'RTX 3060'; without it, this machine and all."),
    ] = None,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="Such devices in each machine.")] = 1,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Machines that train together.")] = 1,
    network: Annotated[
        float, typer.Option("--network", min=0.001, help="Gigabits a second out of each machine.")
    ] = 100.0,
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=1, help="Tokens in the text to be read.")
    ] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", help="How often that text is read.")] = None,
    price: Annotated[
        float | None, typer.Option("--price", min=0, help="Price of one device for an hour.")
    ] = None,
    precision: Annotated[str | None, typer.Option("--precision", help="auto, float32 or bfloat16.")] = None,
    optimizer: Annotated[str | None, typer.Option("--optimizer", help="adamw, adam or muon.")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Time a few real steps on this machine instead of estimating.")
    ] = False,
    assignments: o.Assignments = None,
    config: o.ConfigFile = None,
    as_json: o.Json = False,
) -> None:
    """Say what a run will need: parameters, memory, time, and whether it fits on a GPU.

    Needs no data and trains nothing.
    """
    settings = o.gather(
        config,
        assignments,
        objective__name=objective or ("classify" if classes else None),
        training__precision=precision,
        optimizer__kind=optimizer,
    )
    from headstart.workflows.plan import plan as run

    found = run(
        preset,
        gpu=gpu,
        settings=settings,
        measure=measure,
        gpus=gpus,
        nodes=nodes,
        network=network,
        classes=classes or 2,
        vocabulary=vocabulary,
        batch=batch,
        length=length,
        tokens=tokens,
        epochs=epochs,
        price=price,
    ).to_dict()
    if as_json:
        from headstart.atomic_io import finite

        print(json.dumps(finite(found), ensure_ascii=False, indent=2))
        return
    from rich.console import Console

    from headstart.reports.tables import plan_lines, plan_tables

    console = Console(highlight=False)
    for table in plan_tables(found):
        console.print(table)
    for line in plan_lines(found):
        console.print(line, soft_wrap=True)
