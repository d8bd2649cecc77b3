"""Commands on finished models: models, package, import, export, serve."""

import sys
from pathlib import Path
from typing import Any

import headstart as hs
from headstart.cli.options import Call, argument, command, flag, out_flag
from headstart.errors import ConfigError, RunError, pick
from headstart.pretrained import FOLDERS, check_base, describe_base, shipped_bases

RUN = argument("RUN", "The folder of a finished run, or the name of a shipped base.")
OUT = out_flag("The new folder to write to.")
PRECISION = flag(
    None, "Precision of classify and embed; bf16 = bfloat16 where the processor supports it.",
    metavar="auto|bf16|float32|bfloat16", show_default="the run's own training.precision",
)  # fmt: skip


@command("models", "models en-tiny")
def models(call: Call, name: str | None = argument("[NAME]", "Show the card of this base.", None)) -> None:
    """List the pretrained models that come with headstart, or show the card of one."""
    found = shipped_bases()
    if name is not None:
        path = pick(found, name, "base")
        check_base(path)
        return call.show(_described(path), lambda _: print((path / "card.md").read_text("utf-8"), end=""))
    rows = []
    for path in found.values():
        try:
            rows.append(_described(path))
        except RunError as error:  # the others are listed all the same
            print(f"warning: {error.problem}", file=sys.stderr)
    call.show(rows, _show_models)


def _described(path: Path) -> dict[str, Any]:
    """What a base says of itself, and its size."""
    return {**describe_base(path), "bytes": sum(file.stat().st_size for file in path.iterdir() if file.is_file())}


def _show_models(rows: list[dict[str, Any]]) -> None:
    from headstart.reports.formatting import format_benchmark

    if not rows:
        print("no bases come with this version of headstart")
        return print(f"a base made with `headstart package` is found in the folder that {FOLDERS} names")
    for row in rows:
        print(
            f"{row['name']}: {row['language'] or 'language not stated'}, {row['parameters']:,} parameters,"
            f" {row['bytes'] / 2**20:.1f} MiB; {row['title']}"
        )
        for score in row["scores"]:
            print(f"  {format_benchmark(score)}")
    print("use one by its name: headstart finetune NAME DATA --out RUN; its card: headstart models NAME")
    translators = [row["name"] for row in rows if row["objective"] == "translate"]
    if translators:
        print(f"translators translate as they are: headstart translate {translators[0]} FILE")


@command(
    "package runs/base --name fr-small -o my-bases", "package runs/base --name fr-small -o my-bases --dtype bfloat16"
)
def package(
    call: Call,
    run: str = argument("RUN", "The folder of a finished run."),
    name: str = flag(..., "The name of the base, such as fr-small."),
    out: Path = out_flag("The folder of bases; FOLDER/NAME is written."),
    dtype: str = flag("int8", "How weights are stored.", metavar="int8|bfloat16|float32"),
    eval_data: str | None = flag(None, "What to measure the loss of storing on.", show_default="held-out texts"),
    card: Path | None = flag(None, "A TOML file for the card: licences, scores, limits."),
    max_shard_size: float = flag(12.0, "MiB that a file holds at most.", min=0.01),
) -> None:
    """Package RUN as a base to share: 8-bit weights, card and checksums, with the measured loss of storing."""
    result = hs.package(run, name, out, dtype=dtype, max_shard_size=max_shard_size, eval_data=eval_data, card=card)
    call.show(result, lambda found: _show_package(found, out))


def _show_package(result: Any, out: Path) -> None:
    weights, total = f"{result.weight_bytes / 2**20:.2f} MiB", f"{result.total_bytes / 2**20:.2f} MiB"
    print(f"{result.name} in {result.path}: {result.parameters:,} parameters, {weights} of weights, {total} in all")
    before, after = result.before, result.after
    scores = ", ".join(f"{key} {value:.5f} before, {after[key]:.5f} as stored" for key, value in before.items())
    print(f"weights differ by {result.weight_error:.2%} of their size; on {result.measured_on}: {scores or 'no score'}")
    use = "translate {} FILE" if "bleu" in before else "finetune {} DATA --out RUN"
    print(f"use it: HEADSTART_BASES={out} headstart {use.format(result.name)}")


@command("import camembert-base -o runs/camembert", "import ../bert-tiny -o runs/bert --json")
def import_(
    call: Call, folder: Path = argument("FOLDER", "A local folder of transformers' save_pretrained."), out: Path = OUT
) -> None:
    """Import a BERT, RoBERTa, CamemBERT, ModernBERT, EuroBERT, GPT-2 or Llama as a base."""
    call.show(hs.import_model(folder, out), _show_import)


def _show_import(result: Any) -> None:
    print(
        f"base ready in {result.path}: a {result.kind} {result.family} of {result.parameters:,} parameters, "
        f"{result.vocab_size:,} tokens, texts of up to {result.max_length:,}"
    )
    if not result.has_lm_head:
        print("it has no language-model head: fine-tune or embed with it")
    if result.dropped:
        print(f"not imported, {sum(result.dropped.values()):,} weights: {', '.join(sorted(result.dropped))}")
    print(f"next: headstart finetune {result.path} DATA --out RUN")


@command("export runs/mine --to transformers -o exported", "export runs/mine --to onnx --int8 -o exported")
def export(
    call: Call,
    run: str = RUN,
    to: str = flag(..., "The library to export for.", metavar="transformers|onnx|ctranslate2"),
    out: Path = OUT,
    int8: bool = flag(False, "Weights of 8 bits (onnx)."),
) -> None:
    """Write RUN as a folder for another library, once it answers there as it does here.

    Tokens and answers are compared on texts of many languages; a folder that differs is removed.
    """
    call.show(hs.export(run, to, out, int8=int8), lambda found: _show_export(found, to, int8))


def _show_export(result: Any, to: str, int8: bool) -> None:
    found = result.details
    print(f"{result.kind} in {result.path}: {result.parameters:,} parameters")
    answers = f"{result.answers:,} answers within {result.difference:.1e}"
    print(f"the same as the run: tokens of {result.texts} texts equal, {answers}")
    if int8:
        print(
            f"in 8 bits: {found['int8_agreed']} of {found['int8_choices']} choices on the sample texts are the run's, "
            f"answers at most {found['int8_difference']:.3g} apart, {found['bytes'] / 2**20:.1f} MiB"
        )
    for note in result.notes:
        print(f"note: {note}")
    if to != "onnx":
        loader = f"transformers.{found['auto_class']}.from_pretrained" if to == "transformers" else found["auto_class"]
        print(f"load it: {loader}({str(result.path)!r})")


@command("serve en-tiny", "serve mine=runs/mine en-fr-captions --port 8080", settings="--set")
def serve(
    call: Call,
    runs: list[str] = argument(
        "RUN...", "Folders, NAME=FOLDER, or shipped bases; runs still in training and comparisons are shown too."
    ),
    host: str = flag("127.0.0.1", "The address to listen at; any but this machine's own needs a token."),
    port: int = flag(8000, "The port to listen at; 0 = any that is free.", min=0, max=65535),
    token_file: Path | None = flag(
        None, "A file whose first line is the token of all clients: 16 characters or more.", metavar="FILE"
    ),
    precision: str | None = PRECISION,
    log_texts: bool = flag(False, "Also log the texts that are sent."),
) -> None:
    """Serve runs over HTTP, with a playground at / and a description at /openapi.json.

    --set limits.KEY=VALUE changes a limit, e.g. --set limits.max_texts=64. --json logs JSON lines, --quiet no requests.
    """
    try:
        from headstart.serving.server import serve as start
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headstart"):
            raise
        raise ConfigError(f"serving needs the package {error.name}", hint="pip install 'headstart[serve]'") from None
    start(
        runs, host=host, port=port, token_file=token_file, settings=call.settings, precision=precision,
        log_texts=log_texts, as_json=call.as_json, quiet=call.quiet,
        on_ready=lambda url: print(f"serving {', '.join(runs)} at {url} (playground: {url}/)", flush=True),
    )  # fmt: skip
