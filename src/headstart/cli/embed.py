"""headstart embed and headstart search."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli import options as o

Run = Annotated[str, typer.Argument(help="A base or a fine-tuned run: its folder, or a shipped base's name.")]
Texts = Annotated[
    str, typer.Argument(metavar="FILE|-", help="A .txt (a text a line) or a table; - = standard input.")
]
Pool = Annotated[
    str,
    typer.Option(
        "--pool",
        metavar="cls|mean|last|token",
        help="The first token's vector, the mean, the last's, or all.",
    ),
]


def embed(
    run: Run,
    file: Texts,
    out: Annotated[Path, typer.Option("--out", help="The .npy file to write.")],
    pool: Pool = "mean",
    length: o.Length = None,
    text_column: o.TextColumn = None,
    assignments: o.Assignments = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Write a vector for every text of FILE, in order.

    With --pool token every token has its vector; where each text starts and its tokens stand beside, in
    OUT.offsets.npy and OUT.pieces.jsonl.
    """
    settings = o.gather(None, assignments, data__text_column=text_column, training__length=length)
    from headstart.cli.listener import Listener, print_json
    from headstart.inference.embed import embed as run_embed
    from headstart.training.callbacks import Stage

    with Listener(quiet or as_json) as listener:
        found = run_embed(
            run, file, out, pool=pool, settings=settings,
            on_done=lambda texts: listener(Stage("reading texts", texts, 0)),
        )  # fmt: skip
    if as_json:
        print_json(found)
        return
    print(f"{found.vectors:,} vectors of {found.width} numbers for {found.texts:,} texts in {found.path}")
    for path in found.extra_files:
        print(f"beside: {path}")
    if found.cut:
        print(f"{found.cut:,} texts were longer than {found.length} tokens and were cut: --length reads more")


def search(
    run: Run,
    file: Texts,
    query: Annotated[str, typer.Argument(help="The text to find neighbours of, in quotes.")],
    top: Annotated[int, typer.Option("--top", min=1, help="How many to print.")] = 5,
    pool: Pool = "mean",
    length: o.Length = None,
    text_column: o.TextColumn = None,
    assignments: o.Assignments = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Print the texts of FILE nearest to QUERY by cosine, each with its number in the file."""
    settings = o.gather(None, assignments, data__text_column=text_column, training__length=length)
    import json

    from headstart.inference.embed import nearest_texts

    found = nearest_texts(run, file, query, top=top, pool=pool, settings=settings)
    if as_json:
        rows = [{"cosine": each.cosine, "line": each.line, "text": each.text} for each in found]
        sys.stdout.write(json.dumps(rows, ensure_ascii=False, indent=2) + "\n")
        return
    for each in found:
        sys.stdout.write(f"{each.cosine:.4f}\t{each.line}\t{' '.join(each.text.split())}\n")
