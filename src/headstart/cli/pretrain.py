"""headstart pretrain."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headstart.cli import options as o


def pretrain(
    context: typer.Context,
    corpora: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CORPUS[=WEIGHT]...",
            help="Text files, tables, folders or built-in names; a WEIGHT of 3 reads a text three times as often.",
        ),
    ] = None,
    *,
    out: o.OwnOut = None,
    objective: Annotated[str | None, typer.Option("--objective", help="causal-lm or masked-lm.")] = None,
    base: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN", help="Go on from a base: its tokenizer, weights and shape."),
    ] = None,
    teacher: o.Teacher = None,
    recipe: Annotated[
        Path | None,
        typer.Option("--recipe", metavar="FILE", help="Make a base stage by stage, as the file says."),
    ] = None,
    data: Annotated[
        Path, typer.Option("--data", metavar="ROOT", help="With --recipe: the folder that holds its texts.")
    ] = Path("."),
    stage: Annotated[
        int | None, typer.Option("--stage", metavar="N", help="With --recipe: stop after this stage.")
    ] = None,
    scale: Annotated[
        float, typer.Option("--scale", help="With --recipe: every stage's budget times this.")
    ] = 1,
    preset: o.Preset = None,
    tokenizer: o.TokenizerName = None,
    minutes: o.Minutes = None,
    steps: o.Steps = None,
    tokens: o.Tokens = None,
    epochs: o.Epochs = None,
    length: o.Length = None,
    seed: o.Seed = None,
    text_column: o.TextColumn = None,
    documents: o.DocumentsRule = None,
    strict: o.Strict = False,
    assignments: o.Assignments = None,
    config: o.ConfigFile = None,
    save_every: o.SaveEvery = None,
    force: o.Force = False,
    deterministic: o.Deterministic = False,
    nproc: o.Nproc = None,
    nodes: o.Nodes = 1,
    meet: o.Meet = None,
    max_restarts: o.MaxRestarts = 0,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Train a base on raw text as a language model.

    A killed run loses nothing: `headstart resume RUN` goes on with it.
    """
    settings = o.gather(
        config,
        assignments,
        objective__name=objective,
        tokenizer__kind=tokenizer,
        training__minutes=minutes,
        training__steps=steps,
        training__tokens=tokens,
        training__epochs=epochs,
        training__length=length,
        training__seed=seed,
        data__text_column=text_column,
        data__documents=documents,
        data__strict=strict,
        training__force=force,
        training__deterministic=deterministic,
        **o.saving(save_every),
    )
    _check(
        corpora,
        recipe,
        {"--from": base, "--teacher": teacher, "--preset": preset, "--nproc": nproc},
        {"--stage": stage},
    )
    was_told = out is not None
    if out is None and recipe is not None:
        out = Path("runs") / recipe.stem  # the same each time: given again, the command goes on
    out = o.own_place(out, nproc, *(corpus.split("=")[0] for corpus in (corpora or [])[:3]))
    if o.launched(context, nproc, nodes, meet, max_restarts, settings):
        return
    from headstart.cli import finetune
    from headstart.cli.listener import Listener, print_json
    from headstart.training.callbacks import Note
    from headstart.workflows.finetune import Finetuned
    from headstart.workflows.pretrain import pretrain as run
    from headstart.workflows.recipe import run_recipe

    result: object
    with Listener(quiet or as_json or not o.speaks()) as listener:
        if not was_told:
            listener(Note(f"the run goes to {out}"))
        if recipe is not None:
            more: dict[str, Any] = {"last_stage": stage, "scale": scale, "settings": settings}
            result = run_recipe(recipe, data, out, **more, on_event=listener)
        else:
            result = run(
                corpora or [],
                out,
                base=base,
                teacher=teacher,
                preset=preset,
                settings=settings,
                on_event=listener,
            )
    if not o.speaks():
        return
    if result is None:
        print('{"finished": false}' if as_json else f"more stages are left: headstart resume {out}")
    elif as_json:
        print_json(result)
    else:
        (finetune.show if isinstance(result, Finetuned) else show)(result)


def _check(
    corpora: list[str] | None, recipe: Path | None, without: dict[str, Any], only: dict[str, Any]
) -> None:
    """Refuse corpora and flags that a recipe decides, and flags that only a recipe has."""
    from headstart.errors import ConfigError

    if recipe is None:
        extra = next((name for name, value in only.items() if value is not None), None)
        if extra:
            raise ConfigError(f"{extra} goes with --recipe", hint="name a recipe, or leave it out")
        if not corpora:
            raise ConfigError(
                "there is nothing to read", hint="name a CORPUS, or a recipe with --recipe FILE"
            )
        return
    if corpora:
        raise ConfigError(
            f"a recipe names its own texts, and {corpora[0]} is given too", hint="leave one of them out"
        )
    extra = next((name for name, value in without.items() if value is not None), None)
    if extra:
        raise ConfigError(f"{extra} does not go with --recipe", hint="leave it out")


def show(result: object) -> None:
    """A finished base in words."""
    from headstart.reports.formatting import format_duration
    from headstart.workflows.pretrain import Pretrained

    assert isinstance(result, Pretrained)
    print(
        f"base ready in {result.path}: {result.parameters:,} parameters, {result.tokens:,} tokens read",
        end=" ",
    )
    print(f"in {format_duration(result.seconds)}")
    if result.score is not None:
        bits = "" if result.score.bits_per_byte is None else f", {result.score.bits_per_byte:.3f} bits a byte"
        print(
            f"on held-out text: perplexity {result.score.perplexity:.2f}, accuracy {result.score.accuracy:.4f}{bits}"
            f" ({result.score.count:,} tokens of {result.score.documents:,} documents)"
        )
    print(f"next: headstart finetune {result.path} DATA --out RUN")
