"""headstart generate."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from headstart.cli import options as o


def generate(
    run: Annotated[
        str, typer.Argument(help="A causal language model: its folder, or a shipped base's name.")
    ],
    prompt: Annotated[
        str,
        typer.Argument(metavar="PROMPT|-", help="The text to go on with; - = standard input, one a line."),
    ],
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens to write at most.")] = 100,
    count: Annotated[int, typer.Option("--count", min=1, help="Texts to write for each prompt.")] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature", help="Below 1 likelier tokens gain, above 1 the others; 0.8 unless told."
        ),
    ] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Draw from the k likeliest tokens.")] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p", help="Draw from the fewest tokens whose probability reaches p; 0.95 unless told."
        ),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option("--min-p", help="Draw from tokens at least this share as likely as the likeliest."),
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option("--repetition-penalty", help="Above 1, tokens of the text so far come less.")
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="The one number that all chance depends on.")] = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest token, always.")] = False,
    beam: Annotated[
        int | None, typer.Option("--beam", help="Search for the most probable texts, this many at a time.")
    ] = None,
    length_penalty: o.LengthPenalty = 0.6,
    assignments: o.Assignments = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Go on with PROMPT, token by token as the model writes.

    With - every line of standard input is a prompt, and each of its texts is one line. --json prints an object a text.
    """
    settings = o.gather(None, assignments)
    from headstart.inference.generate import Request, generate_lines, open_writer
    from headstart.inference.generate import generate as write

    request = Request(
        tokens,
        count,
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        seed,
        greedy,
        beam,
        length_penalty,
    )
    writer = open_writer(run, settings)
    cut: list[int] = []
    if prompt == "-":
        from headstart.data.text_io import decode_lines

        lines = (line for _, line in decode_lines(sys.stdin.buffer, "standard input"))
        _print(generate_lines(writer, lines, request), as_json, cut)
    elif count > 1 or as_json or beam is not None:
        _print(generate_lines(writer, [prompt], request), as_json, cut)
    else:
        sys.stdout.write(prompt)
        (found,) = write(writer, prompt, on_text=_show, **request.__dict__)
        sys.stdout.write("\n")
        cut += [found.tokens] * found.is_cut
    sys.stdout.flush()
    if cut and not quiet and not as_json:
        _tell(cut, tokens)


def _show(place: int, text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _print(found: Iterator[Any], as_json: bool, cut: list[int]) -> None:
    """Each text on one line, prompt and all; what is cut is noted."""
    import json

    from headstart.data.text_io import one_line

    for each in found:
        line = json.dumps(each.__dict__, ensure_ascii=False) if as_json else one_line(each.prompt + each.text)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        cut += [each.tokens] * each.is_cut


def _tell(cut: list[int], tokens: int) -> None:
    """Say on standard error what did not end by itself."""
    texts = "the text was" if len(cut) == 1 else f"{len(cut):,} texts were"
    short = sum(count < tokens for count in cut)
    why = f"--tokens {tokens}" if not short else f"--tokens {tokens}, or the model's positions"
    print(f"{texts} cut at {why}", file=sys.stderr)
