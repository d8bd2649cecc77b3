"""headstart translate."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from headstart.cli import options as o

NAMED = 5  # lines that a report names


def translate(
    run: Annotated[str, typer.Argument(help="A translator: a run trained with --pair.")],
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-", help="A text, one a line (also .gz, .xz), or a table; - = standard input."
        ),
    ],
    beam: Annotated[
        int, typer.Option("--beam", min=1, help="Width of the search; 1 takes the likeliest token each time.")
    ] = 5,
    n_best: Annotated[
        int,
        typer.Option("--n-best", min=1, help="Print this many translations of each line, with its number."),
    ] = 1,
    scores: Annotated[
        bool, typer.Option("--scores", help="Print the score before each translation.")
    ] = False,
    max_length: Annotated[
        int | None,
        typer.Option(
            "--max-length", min=1, help="Tokens of a translation at most; else 50 more than its line has."
        ),
    ] = None,
    length_penalty: o.LengthPenalty = 0.6,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write to this file instead, once all is done.")
    ] = None,
    text_column: o.TextColumn = None,
    assignments: o.Assignments = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Translate every line of FILE, in order: one line out for one line in.

    A blank line stays blank. --json prints an object a line. What was cut is told on standard error.
    """
    settings = o.gather(None, assignments, data__text_column=text_column)
    from headstart.atomic_io import write_with
    from headstart.cli.listener import Listener
    from headstart.inference import translate as inference
    from headstart.training.callbacks import Stage

    translator = inference.open_translator(run, settings)
    lines = inference.read_sources(file, translator.data)
    chunk_lines = 1 if file == "-" and sys.stdin.isatty() else inference.CHUNK_LINES
    found = inference.translate(
        translator, lines, beam=beam, n_best=n_best, length_penalty=length_penalty, max_length=max_length,
        chunk_lines=chunk_lines, scored=scores or as_json,
    )  # fmt: skip
    cut = _Cut(translator.longest_source)

    def write(handle: BinaryIO) -> None:
        with Listener(quiet or (out is None and sys.stdout.isatty())) as listener:
            for each in found:
                handle.write(
                    b"".join(line.encode() + b"\n" for line in _lines(each, as_json, scores, n_best))
                )
                handle.flush()
                cut.note(each)
                listener(Stage("translating", each.line, 0))

    def write_file(path: Path) -> None:
        with open(path, "wb") as handle:
            write(handle)

    if out is None:
        write(sys.stdout.buffer)
    else:
        write_with(out, write_file)
    if not quiet:
        cut.tell()


def _lines(found: Any, as_json: bool, scores: bool, n_best: int) -> Iterator[str]:
    """What is printed for one line of the source."""
    import json
    from dataclasses import asdict

    from headstart.data.text_io import one_line

    if as_json:
        yield json.dumps(asdict(found), ensure_ascii=False)
        return
    for each in found.candidates:
        columns = [str(found.line)] * (n_best > 1) + [f"{each.score:.4f}"] * scores
        yield "\t".join([*columns, one_line(each.text)])


class _Cut:
    """What was not read or written to its end: how many lines, and the first of them."""

    def __init__(self, longest: int):
        self.longest = longest
        self.sources: list[int] = []
        self.texts: list[int] = []
        self.counts = [0, 0]

    def note(self, found: Any) -> None:
        """Take down whether a line or its translation was cut."""
        for kind, (is_cut, lines) in enumerate(
            ((found.is_source_cut, self.sources), (found.candidates[0].is_cut, self.texts))
        ):
            if is_cut:
                self.counts[kind] += 1
                lines += [found.line] * (len(lines) < NAMED)

    def tell(self) -> None:
        """Say it on standard error."""
        told = (
            (self.sources, "line was", "lines were", f"longer than {self.longest} tokens and read that far"),
            (self.texts, "translation was", "translations were", "cut at the limit (--max-length)"),
        )
        for count, (lines, one, several, what) in zip(self.counts, told, strict=True):
            if count:
                names = ", ".join(map(str, lines)) + (", …" if count > len(lines) else "")
                print(f"{count:,} {one if count == 1 else several} {what}: {names}", file=sys.stderr)
