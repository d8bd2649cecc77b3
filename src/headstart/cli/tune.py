"""headstart tune."""

from typing import Annotated

import typer

from headstart.cli import options as o


def tune(
    base: Annotated[str, typer.Argument(help="A run folder, a shipped base's name, or scratch.")],
    data: Annotated[str, typer.Argument(help="A table, a folder of train/valid tables, or a built-in name.")],
    out: o.Out,
    trials: Annotated[
        int | None, typer.Option("--trials", help="Trials in all; 20 unless this or --minutes is given.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="Start no new trial after this many minutes of them.")
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            "--folds", help="Mark each trial over this many folds of train and valid, not on valid."
        ),
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="SECTION.KEY=LOW:HIGH",
            help="A setting to search: low:high with :log or :int behind it, or a,b,c; may be repeated.",
        ),
    ] = None,
    only: Annotated[
        bool, typer.Option("--only", help="Search what --search names and nothing else.")
    ] = False,
    metric: Annotated[
        str, typer.Option("--metric", help="What to tune by: accuracy, macro_f1 or loss.")
    ] = "accuracy",
    prune: Annotated[
        str, typer.Option("--prune", help="When to give a trial up early: median, hyperband or none.")
    ] = "median",
    preset: o.Preset = None,
    tokenizer: o.TokenizerName = None,
    labels: o.Labels = None,
    seed: o.Seed = None,
    epochs: o.Epochs = None,
    length: o.Length = None,
    text_column: o.TextColumn = None,
    label_column: o.LabelColumn = None,
    strict: o.Strict = False,
    assignments: o.Assignments = None,
    config: o.ConfigFile = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    pair: o.NoPair = None,
) -> None:
    """Search the settings with which BASE learns DATA best, and write them to OUT/best.toml.

    What is set by hand is not searched. Run the same command again to go on after a stop.
    """
    o.refuse_pair(pair, "tune")
    settings = o.gather(
        config,
        assignments,
        data__labels=labels,
        data__text_column=text_column,
        data__label_column=label_column,
        data__strict=strict,
        training__seed=seed,
        training__epochs=epochs,
        training__length=length,
        tokenizer__kind=tokenizer,
    )
    from headstart.cli.listener import Listener, print_json
    from headstart.workflows.tune import tune as run

    with Listener(quiet or as_json) as listener:
        result = run(
            base,
            data,
            out,
            trials=trials,
            minutes=minutes,
            folds=folds,
            search=search or [],
            only=only,
            metric=metric,
            prune=prune,
            preset=preset,
            settings=settings,
            on_event=listener,
        )
    if as_json:
        print_json(result)
    else:
        show(result)


def show(result: object) -> None:
    """A finished search as a table and in words."""
    from rich.console import Console

    from headstart.reports.tables import trials_table
    from headstart.results import plain
    from headstart.workflows.tune import Tuned

    assert isinstance(result, Tuned)
    console = Console(highlight=False)
    console.print(trials_table(plain(result)))
    best, stood = result.best.value or 0.0, result.standing.value
    before = f", {stood:.4f} with the settings as they stood (trial 0)" if stood is not None else ""
    console.print(
        f"best {result.metric} {best:.4f} over {result.texts:,} texts ({result.scored}){before}; it is the best of "
        f"{len(result.trials)} on the very texts it was chosen by, so it flatters",
        markup=False,
    )
    console.print(
        f"next: headstart finetune BASE DATA --config {result.path}/best.toml --out RUN",
        markup=False,
        soft_wrap=True,
    )
