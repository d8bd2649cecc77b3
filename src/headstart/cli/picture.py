"""headstart plot: attention, masks, positions, heads."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headstart.cli import options as o

plot_app = typer.Typer(
    name="plot",
    help="Draw what a model does: where it looks, who may read whom, how order is told.",
    no_args_is_help=True,
)

Run = Annotated[str, typer.Argument(help="A finished run's folder, or a shipped base's name.")]
PictureOut = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FOLDER|FILE.png|.svg|.html", help="Where to draw; a folder gets all three."
    ),
]


@plot_app.command()
def attention(
    run: Run,
    text: Annotated[str, typer.Argument(help="The text to read, in quotes.")],
    out: PictureOut = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", metavar="TEXT", help="Of a translator: the translation of TEXT; its own unless given."
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            "--part",
            metavar="cross|encoder|decoder",
            help="Of a translator: target to source (unless told), source to itself, target to itself.",
        ),
    ] = None,
    layer: Annotated[
        int | None, typer.Option("--layer", help="Draw this layer alone, counted from 1.")
    ] = None,
    attention_head: Annotated[
        int | None, typer.Option("--attention-head", help="Draw this attention head alone, counted from 1.")
    ] = None,
    as_json: o.Json = False,
) -> None:
    """Draw where each token of TEXT looks, in every layer and attention head.

    For a translator: where the translation of TEXT looks in it.
    """
    _check(out, as_json)
    from headstart.workflows.picture import picture_attention

    maps, files = picture_attention(
        run, text, out, target=target, part=part, layer=layer, attention_head=attention_head
    )
    if as_json:
        print_arrays(maps.to_dict(layer, attention_head))
        return
    looked = "" if maps.is_self else f" that look at {len(maps.keys)}"
    print(
        f"{len(maps.queries)} tokens{looked}, {maps.layers} layers of {maps.attention_heads} attention heads"
    )
    _show(files)


@plot_app.command()
def masks(
    length: Annotated[int, typer.Option("--length", help="Tokens of the texts that are drawn.")] = 8,
    out: PictureOut = None,
    as_json: o.Json = False,
) -> None:
    """Draw who may read whom: causal, padding, both, packed documents, prefix, cross."""
    _check(out, as_json)
    from headstart.workflows.picture import picture_masks

    found, files = picture_masks(out, length=length)
    if as_json:
        print_arrays([mask.to_dict() for mask in found])
        return
    for mask in found:
        print(f"{mask.name:18} {'as the model applies it' if mask.source == 'model' else 'a definition'}")
    _show(files)


@plot_app.command()
def positions(
    run: Annotated[
        str | None, typer.Argument(help="A run whose positions to draw; sinusoids alone without one.")
    ] = None,
    width: Annotated[int | None, typer.Option("--width", help="Numbers in a position's vector.")] = None,
    length: Annotated[int | None, typer.Option("--length", help="How many positions.")] = None,
    out: PictureOut = None,
    as_json: o.Json = False,
) -> None:
    """Draw position vectors as a heat map, and how alike positions are by their distance."""
    _check(out, as_json)
    from headstart.workflows.picture import picture_positions

    found, files = picture_positions(run, out, width=width, length=length)
    if as_json:
        print_arrays([each.to_dict() for each in found])
        return
    for each in found:
        near = ", ".join(
            f"{place}: {each.cosine[place]:.3f}" for place in (1, 2, 4, 8) if place < len(each.cosine)
        )
        print(f"{each.kind}: {each.vectors.shape[0]} positions, cosine by distance {near}")
    _show(files)


@plot_app.command()
def heads(
    run: Run,
    file: Annotated[
        str,
        typer.Argument(
            help="Texts for a base (.txt, a text a line, or a table), labelled data for a classifier, or a built-in name."
        ),
    ],
    out: PictureOut = None,
    texts: Annotated[int, typer.Option("--texts", min=2, help="Texts to look at, at most.")] = 200,
    text_column: o.TextColumn = None,
    label_column: o.LabelColumn = None,
    assignments: o.Assignments = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Measure what each attention head does: entropy, mean distance, and the loss without it."""
    _check(out, as_json)
    settings = o.gather(None, assignments, data__text_column=text_column, data__label_column=label_column)
    from headstart.cli.listener import Listener
    from headstart.workflows.picture import picture_attention_heads

    with Listener(quiet or as_json) as listener:
        study, files = picture_attention_heads(
            run, file, out, texts=texts, settings=settings, on_event=listener
        )
    if as_json:
        print_arrays(study.to_dict())
        return
    print(
        f"loss with all attention heads {study.loss:.4f}, over {study.answers:,} answers of {study.texts} texts"
    )
    print("layer  attention head  entropy  distance  loss rises by  95 % interval")
    for row in study.rows():
        print(
            f"{row['layer']:5}  {row['attention_head']:14}  {row['entropy']:7.2f}  {row['distance']:8.1f}  "
            f"{row['ablation']:+13.4f}  {study.range_words(row['layer'] - 1, row['attention_head'] - 1)}"
        )
    _show(files)


def _check(out: Path | None, as_json: bool) -> None:
    if out is None and not as_json:
        from headstart.errors import ConfigError

        raise ConfigError(
            "nothing says where to draw", hint="add --out FOLDER or --out FILE.png, or --json for numbers"
        )


def print_arrays(content: Any) -> None:
    """Arrays as one line of JSON on standard output; what is not a number is null."""
    import json
    import sys

    from headstart.atomic_io import finite

    sys.stdout.write(json.dumps(finite(content), ensure_ascii=False) + "\n")


def _show(files: list[Path]) -> None:
    for path in files:
        print(f"drawn in {path}")
