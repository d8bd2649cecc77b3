"""headstart data."""

from typing import Annotated

import typer

from headstart.cli import options as o


def data(
    data: Annotated[
        str, typer.Argument(help="A table, a folder of train/valid/test tables, or a built-in name.")
    ],
    tokenizer: o.TokenizerName = None,
    length: Annotated[int, typer.Option("--length", help="Tokens after which a text would be cut.")] = 256,
    labels: o.Labels = None,
    seed: Annotated[int, typer.Option("--seed", help="Which subset --labels takes.")] = 0,
    text_column: o.TextColumn = None,
    label_column: o.LabelColumn = None,
    strict: o.Strict = False,
    assignments: o.Assignments = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Audit labelled data before anything is trained: counts, balance, lengths, duplicates and leaks."""
    settings = o.gather(
        None,
        assignments,
        data__text_column=text_column,
        data__label_column=label_column,
        data__strict=strict,
        data__labels=labels,
    )
    from headstart.workflows.inspect import inspect_data

    found = inspect_data(data, tokenizer=tokenizer, length=length, seed=seed, settings=settings)
    if as_json:
        from headstart.cli.listener import print_json

        print_json(found)
        return
    from rich.console import Console

    from headstart.views.terminal import audit_lines, audit_tables

    console = Console()
    for part in audit_tables(found.to_dict()):
        console.print(part)
    for line in audit_lines(found.to_dict()):
        console.print(line, highlight=False)
