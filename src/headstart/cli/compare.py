"""headstart compare."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headstart.cli import options as o


def compare(
    data: Annotated[
        str, typer.Argument(help="A table, a folder of train/valid/test tables, or a built-in name.")
    ],
    bases: Annotated[
        list[str] | None, typer.Option("--base", help="A base to compare; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The new folder for the report.")] = Path("runs/compare"),
    seeds: Annotated[int, typer.Option("--seeds", help="Models to train of each arm.")] = 3,
    labels: Annotated[
        str | None,
        typer.Option("--labels", help="Label budgets, e.g. 100,400,1600: the label-efficiency curve."),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            "--folds", help="Put train and valid together and hold out each of this many folds in turn."
        ),
    ] = None,
    corpora: Annotated[
        list[str] | None,
        typer.Option("--corpus", help="With --objectives: text to pretrain on; may be repeated."),
    ] = None,
    objectives: Annotated[
        str | None,
        typer.Option(
            "--objectives", help="Pretrain a base with each, at equal operations, and compare them."
        ),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", help="With --objectives: tokens that the first of them reads.")
    ] = None,
    epochs: o.Epochs = None,
    arms: Annotated[
        str,
        typer.Option("--arms", help="Which arms to train; ensemble (of the fine-tuned seeds) may be added."),
    ] = "classical,scratch,frozen,fine-tuned",
    mark: Annotated[
        float | None,
        typer.Option(
            "--mark", help="Say when each arm passes this accuracy; where scratch ends unless told."
        ),
    ] = None,
    preset: o.Preset = None,
    tokenizer: o.TokenizerName = None,
    length: o.Length = None,
    text_column: o.TextColumn = None,
    label_column: o.LabelColumn = None,
    strict: o.Strict = False,
    seed: Annotated[int, typer.Option("--seed", help="The first seed; the others follow it.")] = 0,
    assignments: o.Assignments = None,
    config: o.ConfigFile = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    pair: o.NoPair = None,
) -> None:
    """Prove what pretraining bought: every arm at equal budget, over several seeds, against a classical baseline."""
    o.refuse_pair(pair, "compare")
    settings = o.gather(
        config,
        assignments,
        data__text_column=text_column,
        data__label_column=label_column,
        data__strict=strict,
        training__epochs=epochs,
        training__length=length,
        tokenizer__kind=tokenizer,
    )
    from headstart.cli.listener import Listener, print_json

    comparing: dict[str, Any] = {
        "seeds": seeds,
        "first_seed": seed,
        "labels": _numbers(labels),
        "folds": folds,
        "arms": [name.strip() for name in arms.split(",")],
        "mark": mark,
    }
    with Listener(quiet or as_json) as listener:
        if objectives is not None:
            if bases:
                from headstart.errors import ConfigError

                raise ConfigError(
                    "--objectives makes its own bases", hint="leave out --base, or --objectives"
                )
            names = [name.strip() for name in objectives.split(",")]
            result = _by_objective(data, corpora, names, out, preset, tokens, settings, comparing, listener)
        else:
            from headstart.errors import ConfigError
            from headstart.workflows.compare import compare as run

            if corpora or tokens:
                raise ConfigError(
                    "--corpus and --tokens go with --objectives", hint="add --objectives, or leave them out"
                )
            result = run(
                data, bases or [], out, preset=preset, settings=settings, on_event=listener, **comparing
            )
    if as_json:
        print_json(result)
    else:
        show(result, out)


def _by_objective(
    data: str,
    corpora: list[str] | None,
    objectives: list[str],
    out: Path,
    preset: str | None,
    tokens: int | None,
    settings: dict[str, Any],
    comparing: dict[str, Any],
    listener: Any,
) -> Any:
    from headstart.errors import ConfigError
    from headstart.workflows.objectives import DEFAULT_TOKENS, compare_objectives

    if not corpora:
        raise ConfigError(
            "--objectives needs text to pretrain on", hint="add --corpus FILE, or --corpus imdb"
        )
    shared = ("body", "tokenizer")  # the other sections speak of fine-tuning
    pretraining = {name: settings[name] for name in shared if name in settings}
    machine = ("device", "precision", "compile")  # how to compute is said once, for bases and arms alike
    given = settings.get("training", {})
    pretraining["training"] = {name: given[name] for name in machine if name in given}
    tuning = {name: part for name, part in settings.items() if name not in shared}
    return compare_objectives(
        data,
        corpora,
        objectives,
        out,
        preset=preset or "tiny",
        tokens=tokens or DEFAULT_TOKENS,
        settings=tuning,
        pretraining=pretraining,
        on_event=listener,
        **comparing,
    )


def _numbers(text: str | None) -> list[int] | None:
    from headstart.errors import ConfigError

    try:
        numbers = [int(part) for part in text.split(",")] if text else None
    except ValueError:
        raise ConfigError(
            f"--labels {text!r} is no list of numbers", hint="write 1600, or 100,400,1600"
        ) from None
    if numbers and min(numbers) < 2:
        raise ConfigError(f"--labels {text!r}: a budget needs at least two labels", hint="write 100,400,1600")
    return numbers


def show(result: Any, out: Path) -> None:
    """A comparison as a table and its verdicts."""
    from rich.console import Console

    from headstart.reports.tables import comparison_table, verdict_lines

    console = Console()
    console.print(comparison_table(result))
    for line in verdict_lines(result):
        console.print(line, highlight=False)
    page = out / "report.html" if (out / "report.html").exists() else out / "compare" / "report.html"
    console.print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)
