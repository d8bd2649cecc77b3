"""Commands on data: audit, tokenize, download."""

from pathlib import Path
from typing import Any

import headstart as hs
from headstart.cli.options import Call, argument, command, flag, out_flag, print_tables
from headstart.errors import ConfigError

HEADER = ["row", "label", "predicted", "loss", "text"]  # of labels that look wrong


@command(
    "audit reviews.tsv",
    "audit aligned --pair en-fr --json",
    settings="tokenizer.type data.train_size data.text_column data.label_column data.on_bad_row",
)
def audit(
    call: Call,
    data: str = argument("DATA", "A table, a folder of train/valid/test tables, or a built-in name."),
    pair: str | None = flag(
        None, "DATA is parallel text, from one language to another: en-de.", metavar="SOURCE-TARGET"
    ),
    max_length: int = flag(256, "Tokens after which a text would be cut."),
    seed: int = flag(0, "Which subset --train-size takes."),
    label_errors: bool = flag(False, "List the rows whose label looks wrong, the likeliest errors first."),
    base: str | None = flag(None, "With --label-errors: also predict from the vectors of this base.", metavar="BASE"),
    folds: int = flag(5, "With --label-errors: folds of the models that predict.", min=2),
    top: int = flag(20, "With --label-errors: rows to show; --json has all.", min=1),
) -> None:
    """Check labelled data, or parallel text with --pair, before training: counts, lengths, duplicates and leaks.

    With --label-errors, every row is predicted by models that were trained without it, and rows whose label they find
    unlikely are listed.
    """
    if label_errors:
        if pair is not None:
            raise ConfigError("--label-errors goes with labelled data, not with --pair", hint="leave one of them out")
        from headstart.workflows.label_errors import find_label_errors

        with call.progress() as progress:
            errors = find_label_errors(
                data, base=base, folds=folds, seed=seed, settings=call.settings, on_event=progress
            )
        call.show(errors, lambda found: _show_label_errors(found, top))
        return
    refused = {"train_size": "--train-size", "text_column": "--text-column", "label_column": "--label-column"}
    for name in call.settings.get("data", {}) if pair else ():
        if name in refused:
            problem = f"{refused[name]} goes with labelled data, not with --pair"
            raise ConfigError(problem, hint="the columns of a parallel table are called by their languages")
    found = hs.inspect_data(data, pair=pair, length=max_length, seed=seed, settings=call.settings)
    call.show(found, lambda found: _show_audit(found.to_dict()))


def _show_audit(found: dict[str, Any]) -> None:
    from headstart.reports.tables import audit_lines, audit_tables, terminal_table

    print_tables(map(terminal_table, audit_tables(found)), audit_lines(found))


def _show_label_errors(found: list[Any], top: int) -> None:
    from headstart.reports.tables import TextTable, terminal_table

    rows = [
        [row.origin, row.label, row.predicted, f"{row.loss:.2f}", " ".join(row.text.split())[:80]]
        for row in found[:top]
    ]
    print(f"{len(found):,} rows have another label than the one that is predicted for them")
    if rows:
        print_tables([terminal_table(TextTable("Labels to check", HEADER, rows, 5))], [])


@command(
    "suggest runs/mine unlabelled.txt --count 50 -o to-label.tsv",
    "suggest en-tiny unlabelled.txt --json",
    settings="data.text_column",
)
def suggest(
    call: Call,
    run: str = argument("RUN", "A classifier: its folder, or the name of a shipped base."),
    file: str = argument("FILE|-", "Unlabelled texts: a .txt (one a line) or a table; - = standard input."),
    count: int = flag(50, "Texts to choose.", min=1),
    out: Path | None = out_flag("Write a table with an empty label column.", None, "FILE"),
    seed: int = flag(0, "Random seed of the clustering."),
) -> None:
    """Choose the texts to label next: those that the classifier is least sure of, and that differ from each other."""
    from headstart.atomic_io import write_text
    from headstart.workflows.active_learning import suggest

    found = suggest(run, file, count=count, seed=seed, settings=call.settings)
    if out is not None:
        rows = [
            [" ".join(each.text.split()), "", each.predicted, f"{each.probability:.4f}", str(each.line)]
            for each in found
        ]
        header = ["text", "label", "predicted", "probability", "line"]
        write_text(out, "".join("\t".join(row) + "\n" for row in [header, *rows]))
        call.show(found, lambda _: print(f"{len(found):,} texts to label are in {out}"))
        return
    call.show(found, _show_suggestions)


def _show_suggestions(found: list[Any]) -> None:
    for each in found:
        print(f"{each.line}\t{each.predicted}\t{each.probability:.4f}\t{' '.join(each.text.split())}")


@command(
    "tokenize corpus.txt --preset small",
    "tokenize corpus.txt --preset small --shard 0/4",
    settings="tokenizer.type data.text_column data.document_separator data.on_bad_row",
    config=True,
)
def tokenize(
    call: Call,
    corpora: list[str] = argument("CORPUS...", "Text files, tables, folders or built-in names."),
    preset: str = flag("tiny", "Named settings: lab, tiny, small."),
    shard: str = flag("0/1", "Only shard I of N, counted from 0: 0/4, 1/4, 2/4, 3/4.", metavar="I/N"),
) -> None:
    """Tokenize a corpus ahead of training, whole or in shards that any scheduler may run side by side.

    `headstart pretrain` with the same corpus, preset, tokenizer and data settings uses the result.
    """
    number, slash, count = shard.partition("/")
    if not (slash and number.isdigit() and count.isdigit()):
        raise ConfigError(f"--shard {shard!r} is not I/N", hint="for example --shard 0/4")
    from headstart.workflows.pretrain import prepare_corpora

    with call.progress() as progress:
        found = prepare_corpora(
            corpora, share=(int(number), int(count)), preset=preset, settings=call.settings, on_event=progress
        )
    call.show(found, _show_tokens)


def _show_tokens(found: list[Any]) -> None:
    for each in found:
        done = f"{each.name}: {each.own_pieces} of {each.pieces} pieces are done here"
        if each.tokens is None:
            print(f"{done}; others are still missing")
        else:
            print(f"{done}; all are ready: {each.tokens:,} tokens of {each.documents:,} documents")
    print(f"tokenizer: {found[0].tokenizer}")


@command(
    "download libreoffice-help --pair en-fr -o libreoffice-en-fr",
    "download libreoffice-help --pair en-de -o pairs --deb-dir debs",
)
def download(
    call: Call,
    name: str = argument("NAME", "A set of parallel text: libreoffice-help."),
    pair: str = flag(..., "From one language to another: en-fr, en-de, …", metavar="SOURCE-TARGET"),
    out: Path = out_flag("The new folder to write train, valid and test to."),
    deb_dir: Path | None = flag(None, "A folder of downloaded .deb files, to stay off the network."),
) -> None:
    """Build parallel text for translation from freely licensed packages of Debian, with apt and without root."""
    from headstart.training.callbacks import Stage

    with call.progress() as progress:
        found = hs.fetch(name, pair, out, packages=deb_dir, on_stage=lambda words: progress(Stage(words)))
    call.show(found, _show_download)


def _show_download(found: Any) -> None:
    counts = ", ".join(f"{count:,} {split}" for split, count in found.counts.items())
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in found.dropped.items())
    print(f"{found.path}: {counts}")
    print(f"dropped: {dropped or 'nothing'}")
    print(f"licence: {found.licence}")
    print(f"look at it: headstart audit {found.path} --pair {'-'.join(found.pair)}")
