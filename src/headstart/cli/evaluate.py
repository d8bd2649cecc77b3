"""headstart evaluate."""

from typing import Annotated, Any

import typer

from headstart.cli import options as o


def evaluate(
    run: Annotated[
        str,
        typer.Argument(
            help="A finished run's folder, or a shipped base's name; RUN1,RUN2 marks classifiers as one."
        ),
    ],
    data: Annotated[
        str, typer.Argument(help="Labelled data for a classifier, a corpus for a language model.")
    ],
    text_column: o.TextColumn = None,
    label_column: o.LabelColumn = None,
    strict: o.Strict = False,
    assignments: o.Assignments = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Mark a run on DATA: a folder's test split, else its valid split; a single file whole."""
    settings = o.gather(
        None, assignments, data__text_column=text_column, data__label_column=label_column, data__strict=strict
    )
    from headstart.cli.listener import print_json
    from headstart.workflows.score import evaluate as mark

    result = mark(run, data, settings=settings)
    if as_json:
        print_json(result)
    else:
        show_score(result)


def show_score(result: Any) -> None:
    """A score in words, with its leak-free twin when there is leakage."""
    from headstart.results import Score

    if result.skipped:
        print(f"{result.skipped} rows could not be used and are not counted (--strict names the first)")
    if isinstance(result, Score):
        print(
            f"{result.split}: accuracy {result.accuracy:.4f} ({result.correct} of {result.count}), "
            f"macro-F1 {result.macro_f1:.4f}, loss {result.loss:.4f}, calibration error {result.calibration_error:.4f}"
        )
        if result.leaked:
            print(
                f"leak-free accuracy {result.leak_free_accuracy:.4f} over {result.leak_free_count} texts: "
                f"{result.leaked} of {result.count} were seen in training"
            )
        return
    bits = "" if result.bits_per_byte is None else f", {result.bits_per_byte:.4f} bits a byte"
    print(
        f"perplexity {result.perplexity:.3f}, accuracy {result.accuracy:.4f}{bits}, over {result.count:,} tokens"
    )
    if result.leaked:
        print(f"{result.leaked} of {result.documents} documents were read in training: this is no fair mark")
