"""headstart import."""

from pathlib import Path
from typing import Annotated

import typer

from headstart.cli import options as o


def import_(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A local folder of transformers' save_pretrained.")
    ],
    out: o.Out,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Take in a BERT, RoBERTa, CamemBERT, ModernBERT, EuroBERT, GPT-2 or Llama as a base."""
    from headstart.cli.listener import print_json
    from headstart.workflows.convert import import_model

    result = import_model(folder, out)
    if as_json:
        print_json(result)
        return
    print(
        f"base ready in {result.path}: a {result.kind} {result.family} of {result.parameters:,} parameters, "
        f"{result.vocab_size:,} tokens, texts of up to {result.max_length:,}"
    )
    if not result.has_lm_head:
        print("it came without a language-model head: fine-tune or embed with it")
    if result.dropped:
        print(f"not imported, {sum(result.dropped.values()):,} weights: {', '.join(sorted(result.dropped))}")
    print(f"next: headstart finetune {result.path} DATA --out RUN")
