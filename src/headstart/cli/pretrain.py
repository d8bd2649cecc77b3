"""headstart pretrain."""

from typing import Annotated

import typer

from headstart.cli import options as o


def pretrain(
    context: typer.Context,
    corpora: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS[=WEIGHT]...",
            help="Text files, tables, folders or built-in names; a WEIGHT of 3 reads a text three times as often.",
        ),
    ],
    out: o.Out,
    objective: Annotated[str | None, typer.Option("--objective", help="causal-lm or masked-lm.")] = None,
    base: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN", help="Go on from a base: its tokenizer, weights and shape."),
    ] = None,
    preset: o.Preset = None,
    tokenizer: o.TokenizerName = None,
    minutes: o.Minutes = None,
    steps: o.Steps = None,
    tokens: o.Tokens = None,
    epochs: o.Epochs = None,
    length: o.Length = None,
    seed: o.Seed = None,
    text_column: o.TextColumn = None,
    documents: Annotated[
        str | None,
        typer.Option("--documents", help="What parts documents in a .txt file: auto, line, paragraph."),
    ] = None,
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
    if o.launched(context, nproc, nodes, meet, max_restarts, settings):
        return
    from headstart.cli.listener import Listener, print_json
    from headstart.workflows.pretrain import pretrain as run

    with Listener(quiet or as_json or not o.speaks()) as listener:
        result = run(corpora, out, base=base, preset=preset, settings=settings, on_event=listener)
    if not o.speaks():
        return
    if as_json:
        print_json(result)
    else:
        show(result)


def show(result: object) -> None:
    """A finished base in words."""
    from headstart.cli.listener import clock
    from headstart.workflows.pretrain import Pretrained

    assert isinstance(result, Pretrained)
    print(
        f"base ready in {result.path}: {result.parameters:,} parameters, {result.tokens:,} tokens read",
        end=" ",
    )
    print(f"in {clock(result.seconds)}")
    if result.score is not None:
        bits = "" if result.score.bits_per_byte is None else f", {result.score.bits_per_byte:.3f} bits a byte"
        print(
            f"on held-out text: perplexity {result.score.perplexity:.2f}, accuracy {result.score.accuracy:.4f}{bits}"
            f" ({result.score.count:,} tokens of {result.score.documents:,} documents)"
        )
    print(f"next: headstart finetune {result.path} DATA --out RUN")
