"""headstart tokenize."""

import json
from typing import Annotated, Any

import typer

from headstart.cli import options as o


def tokenize(
    corpora: Annotated[
        list[str], typer.Argument(metavar="CORPUS...", help="Text files, tables, folders or built-in names.")
    ],
    shard: Annotated[
        str,
        typer.Option("--shard", metavar="I/N", help="Only share I of N, counted from 0: 0/4, 1/4, 2/4, 3/4."),
    ] = "0/1",
    preset: Annotated[str, typer.Option("--preset", help="Named settings: lab, tiny, small.")] = "tiny",
    tokenizer: o.TokenizerName = None,
    text_column: o.TextColumn = None,
    documents: o.DocumentsRule = None,
    strict: o.Strict = False,
    assignments: o.Assignments = None,
    config: o.ConfigFile = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Tokenise a corpus ahead of training, whole or in shares that any scheduler may run side by side.

    `headstart pretrain` with the same corpus, preset, tokenizer and data settings takes up what is there.
    """
    settings = o.gather(
        config,
        assignments,
        tokenizer__kind=tokenizer,
        data__text_column=text_column,
        data__documents=documents,
        data__strict=strict,
    )
    share = _share(shard)
    from headstart.cli.listener import Listener
    from headstart.workflows.tokenize_corpus import prepare_corpora

    with Listener(quiet or as_json) as listener:
        found = prepare_corpora(corpora, share=share, preset=preset, settings=settings, on_event=listener)
    if as_json:
        print(json.dumps([vars(each) for each in found], ensure_ascii=False, indent=2))
        return
    for each in found:
        print(_line(each))
    print(f"tokenizer: {found[0].tokenizer}")


def _line(each: Any) -> str:
    done = f"{each.name}: {each.own_pieces} of {each.pieces} pieces are done here"
    if each.tokens is None:
        return f"{done}; others are still missing"
    return f"{done}; all are ready: {each.tokens:,} tokens of {each.documents:,} documents"


def _share(text: str) -> tuple[int, int]:
    from headstart.errors import ConfigError

    number, slash, count = text.partition("/")
    if not (slash and number.isdigit() and count.isdigit()):
        raise ConfigError(f"--shard {text!r} is not I/N", hint="for example --shard 0/4")
    return int(number), int(count)
