"""Commands that use a trained model: predict, generate, translate, embed, search."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import headstart as hs
from headstart.cli.options import Call, argument, command, flag, out_flag

NAMED = 5  # lines that a report names
TEXTS = argument("FILE|-", "A .txt (one text a line) or a table; - = standard input.")
ENCODER = argument("RUN", "A base or a fine-tuned run: its folder, or the name of a shipped base.")
POOLING = flag("mean", "How token vectors become one; token keeps all.", metavar="cls|mean|last|token")
LENGTH_PENALTY = flag(0.6, "Beam search: above 0 favours longer texts, below 0 shorter ones.")


@command("predict runs/mine new.txt", "predict en-tiny - --json", settings="data.text_column")
def predict(
    call: Call,
    run: str = argument("RUN", "A fine-tuned run; RUN1,RUN2 averages; with --engine onnx, an export."),
    file: str = TEXTS,
    engine: str = flag("torch", "Use onnx for an export --to onnx.", metavar="torch|onnx"),
) -> None:
    """Print label, probability and text for every text, one a line, in order."""
    from headstart.atomic_io import finite

    for label, probability, text in hs.predict(run, file, engine=engine, settings=call.settings):
        if call.as_json:
            found = {"label": label, "probability": finite(probability), "text": text}
            line = json.dumps(found, ensure_ascii=False)
        else:
            shown = "" if probability != probability else f"{probability:.4f}"  # a number has none
            line = f"{' '.join(label.split())}\t{shown}\t{' '.join(text.split())}"
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


@command('generate runs/writer "the film" --tokens 40', "generate runs/writer - --num-beams 5 --json", settings="--set")
def generate(
    call: Call,
    run: str = argument("RUN", "A causal language model: its folder, or the name of a shipped base."),
    prompt: str = argument("PROMPT|-", "The text to continue; - = standard input, one prompt a line."),
    tokens: int = flag(100, "Tokens to generate at most.", min=1),
    num_return_sequences: int = flag(1, "Texts to generate for each prompt.", min=1),
    seed: int = flag(0, "Random seed."),
    temperature: float | None = flag(None, "Below 1 favours likely tokens.", show_default="0.8"),
    top_k: int | None = flag(None, "Sample from the k likeliest tokens."),
    top_p: float | None = flag(None, "Sample from the top tokens of mass p.", show_default="0.95"),
    min_p: float | None = flag(None, "Sample from tokens at least this likely, relative to the top."),
    repetition_penalty: float = flag(1.0, "Above 1 makes tokens of the text so far less likely."),
    greedy: bool = flag(False, "Take the likeliest token, always."),
    num_beams: int | None = flag(None, "Beam search of this width for the likeliest texts."),
    length_penalty: float = LENGTH_PENALTY,
) -> None:
    """Continue PROMPT, token by token as the model writes.

    With - every line of standard input is a prompt, and each of its texts is one line. --json prints an object a text.
    """
    from headstart.data.text_io import decode_lines
    from headstart.inference.generate import Request, generate_lines, open_writer

    sampling = (temperature, top_k, top_p, min_p, repetition_penalty, seed, greedy)
    request = Request(tokens, num_return_sequences, *sampling, num_beams, length_penalty)
    writer = open_writer(run, call.settings)
    if prompt == "-" or num_return_sequences > 1 or call.as_json or num_beams is not None:
        piped = (line for _, line in decode_lines(sys.stdin.buffer, "standard input"))
        cut = _print_texts(generate_lines(writer, piped if prompt == "-" else [prompt], request), call.as_json)
    else:
        sys.stdout.write(prompt)
        (found,) = hs.generate(
            writer, prompt, on_text=lambda _, text: print(text, end="", flush=True), **request.__dict__
        )
        sys.stdout.write("\n")
        cut = [found.tokens] * found.is_cut
    sys.stdout.flush()
    if cut and not call.quiet and not call.as_json:
        texts = "the text was" if len(cut) == 1 else f"{len(cut):,} texts were"
        why = f"--tokens {tokens}" + (", or the model's positions" if min(cut) < tokens else "")
        print(f"{texts} cut at {why}", file=sys.stderr)


def _print_texts(found: Iterator[Any], as_json: bool) -> list[int]:
    """Print each text on one line, with its prompt; the lengths of those that are cut."""
    from headstart.data.text_io import one_line

    cut: list[int] = []
    for each in found:
        line = json.dumps(each.__dict__, ensure_ascii=False) if as_json else one_line(each.prompt + each.text)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        cut += [each.tokens] * each.is_cut
    return cut


@command(
    "translate en-fr-captions captions.txt -o french.txt",
    "translate runs/en-fr - --num-beams 1",
    settings="data.text_column",
)
def translate(
    call: Call,
    run: str = argument("RUN", "A translator: a run trained with --pair, or the name of a shipped one."),
    file: str = argument("FILE|-", "A text, one a line (also .gz, .xz), or a table; - = standard input."),
    out: Path | None = out_flag("Write to this file at the end.", None, "FILE"),
    num_beams: int = flag(5, "Beam width; 1 = greedy.", min=1),
    n_best: int = flag(1, "Print this many translations of each line, with its number.", min=1),
    print_scores: bool = flag(False, "Print the score before each translation."),
    max_length: int | None = flag(
        None, "Tokens of a translation at most.", min=1, show_default="those of its line + 50"
    ),
    length_penalty: float = LENGTH_PENALTY,
) -> None:
    """Translate every line of FILE, in order: one line out for one line in.

    A blank line stays blank. --json prints an object a line. Standard error reports what was cut.
    """
    from headstart.atomic_io import write_with
    from headstart.inference import translate as inference
    from headstart.training.callbacks import ProgressBar, Stage

    translator = inference.open_translator(run, call.settings)
    found = inference.translate(
        translator, inference.read_sources(file, translator.data), beam=num_beams, n_best=n_best,
        length_penalty=length_penalty, max_length=max_length, scored=print_scores or call.as_json,
        chunk_lines=1 if file == "-" and sys.stdin.isatty() else inference.CHUNK_LINES,
    )  # fmt: skip
    cut_sources: list[int] = []
    cut_texts: list[int] = []

    def write(path: Path | None) -> None:
        bar = ProgressBar(call.quiet or (path is None and sys.stdout.isatty()))
        with nullcontext(sys.stdout.buffer) if path is None else open(path, "wb") as handle, bar as progress:
            for each in found:
                for line in _translation_lines(each, call.as_json, print_scores, n_best):
                    handle.write(line.encode() + b"\n")
                handle.flush()
                cut_sources.extend([each.line] * each.is_source_cut)
                cut_texts.extend([each.line] * each.candidates[0].is_cut)
                progress(Stage("translating", each.line, 0))

    if out is None:
        write(None)
    else:
        write_with(out, write)
    if not call.quiet:
        longest = translator.longest_source
        _report_cut(cut_sources, "line was", "lines were", f"longer than {longest} tokens and read that far")
        _report_cut(cut_texts, "translation was", "translations were", "cut at the limit (--max-length)")


def _translation_lines(found: Any, as_json: bool, scores: bool, n_best: int) -> Iterator[str]:
    """What is printed for one line of the source."""
    from headstart.data.text_io import one_line

    if as_json:
        yield json.dumps(asdict(found), ensure_ascii=False)
        return
    for each in found.candidates:
        columns = [str(found.line)] * (n_best > 1) + [f"{each.score:.4f}"] * scores
        yield "\t".join([*columns, one_line(each.text)])


def _report_cut(lines: list[int], one: str, several: str, what: str) -> None:
    """Name the first lines that were cut on standard error."""
    if lines:
        names = ", ".join(map(str, lines[:NAMED])) + ", …" * (len(lines) > NAMED)
        print(f"{len(lines):,} {one if len(lines) == 1 else several} {what}: {names}", file=sys.stderr)


@command(
    "embed en-tiny new.txt -o vectors.npy",
    "embed runs/base reviews.tsv -o cls.npy --pooling cls",
    settings="training.max_length data.text_column",
)
def embed(
    call: Call,
    run: str = ENCODER,
    file: str = TEXTS,
    out: Path = out_flag("The .npy file to write.", metavar="FILE"),
    pooling: str = POOLING,
) -> None:
    """Write a vector for every text of FILE, in order.

    With --pooling token every token has a vector; OUT.offsets.npy holds where each text starts, OUT.pieces.jsonl its
    tokens.
    """
    from headstart.training.callbacks import Stage

    with call.progress() as progress:
        found = hs.embed(
            run, file, out, pool=pooling, settings=call.settings,
            on_done=lambda texts: progress(Stage("reading texts", texts, 0)),
        )  # fmt: skip
    call.show(found, _show_vectors)


def _show_vectors(found: Any) -> None:
    print(f"{found.vectors:,} vectors of {found.width} numbers for {found.texts:,} texts in {found.path}")
    for path in found.extra_files:
        print(f"beside: {path}")
    if found.cut:
        print(f"{found.cut:,} texts were longer than {found.length} tokens and were cut: --max-length reads more")


@command(
    'search en-tiny reviews.tsv "a funny film"',
    'search en-tiny reviews.tsv "a dull plot" --top 3 --json',
    settings="training.max_length data.text_column",
)
def search(
    call: Call,
    run: str = ENCODER,
    file: str = TEXTS,
    query: str = argument("QUERY", "The text to find neighbours of, in quotes."),
    top: int = flag(5, "How many to print.", min=1),
    pooling: str = POOLING,
) -> None:
    """Print the texts of FILE nearest to QUERY by cosine, each with its number in the file."""
    found = hs.nearest_texts(run, file, query, top=top, pool=pooling, settings=call.settings)
    lines = [f"{each.cosine:.4f}\t{each.line}\t{' '.join(each.text.split())}" for each in found]
    call.show(found, lambda _: print("\n".join(lines)))
