"""headstart audit."""

from typing import Annotated

import typer

from headstart.cli import options as o


def audit(
    data: Annotated[
        str, typer.Argument(help="A table, a folder of train/valid/test tables, or a built-in name.")
    ],
    pair: Annotated[
        str | None,
        typer.Option(
            "--pair",
            metavar="SOURCE-TARGET",
            help="DATA is parallel text, from one language to another: en-de.",
        ),
    ] = None,
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
    """Audit labelled data, or parallel text with --pair, before training: counts, lengths, duplicates and leaks."""
    settings = o.gather(
        None,
        assignments,
        data__text_column=text_column,
        data__label_column=label_column,
        data__strict=strict,
        data__labels=labels,
    )
    if pair is not None:
        _refuse_labels(labels, text_column, label_column)
    from headstart.data.audit import inspect_data

    found = inspect_data(data, pair=pair, tokenizer=tokenizer, length=length, seed=seed, settings=settings)
    if as_json:
        from headstart.cli.listener import print_json

        print_json(found)
        return
    from rich.console import Console

    from headstart.reports.tables import audit_lines, audit_tables, terminal_table

    console = Console()
    for table in audit_tables(found.to_dict()):
        console.print(terminal_table(table))
    for line in audit_lines(found.to_dict()):
        console.print(line, highlight=False)


def _refuse_labels(labels: int | None, text_column: str | None, label_column: str | None) -> None:
    from headstart.errors import ConfigError

    flags = {"--labels": labels, "--text-column": text_column, "--label-column": label_column}
    for flag, value in flags.items():
        if value is not None:
            raise ConfigError(
                f"{flag} goes with labelled data, not with --pair",
                hint="the columns of a parallel table are called by their languages",
            )
