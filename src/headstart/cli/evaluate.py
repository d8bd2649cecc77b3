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
        str,
        typer.Argument(
            help="Labelled data for a classifier, pairs for a translator, a corpus for a language model."
        ),
    ],
    beam: Annotated[
        int | None,
        typer.Option(
            "--beam", min=1, help="Hypotheses that a translator keeps at once; 5 unless told, 1 = greedy."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="RUN", help="Another translator to set beside it, in pairs."),
    ] = None,
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
    from headstart.workflows.evaluate import evaluate as run_evaluate

    result = run_evaluate(run, data, settings=settings, beam=beam, against=against)
    if as_json:
        print_json(result)
    else:
        show_score(result)


def show_score(result: Any) -> None:
    """A score in words, with its leak-free twin when there is leakage."""
    from headstart.results import Score, TranslationScore
    from headstart.workflows.evaluate import TranslationComparison

    if result.skipped:
        print(f"{result.skipped} rows could not be used and are not counted (--strict names the first)")
    if isinstance(result, Score):
        print(
            f"{result.split}: accuracy {result.accuracy:.4f} ({result.correct} of {result.count}), "
            f"macro-F1 {result.macro_f1:.4f}, loss {result.loss:.4f}, calibration error {result.calibration_error:.4f}"
        )
        if result.leaked and not result.leak_free_count:
            print(f"all {result.count} texts were seen in training: this is no fair mark")
        elif result.leaked:
            print(
                f"leak-free accuracy {result.leak_free_accuracy:.4f} over {result.leak_free_count} texts: "
                f"{result.leaked} of {result.count} were seen in training"
            )
        return
    if isinstance(result, TranslationScore):
        _show_translations(result)
        return
    if isinstance(result, TranslationComparison):
        _show_translations(result.score)
        _show_translations(result.against)
        for test in result.tests:
            low, high = test.difference.low, test.difference.high
            print(
                f"{test.measure}: {test.system} is {test.difference.mean:+.2f} from {test.against} "
                f"({low:+.2f} to {high:+.2f}, p = {test.p_value:.4f}): {test.verdict}"
            )
        return
    bits = "" if result.bits_per_byte is None else f", {result.bits_per_byte:.4f} bits a byte"
    print(
        f"perplexity {result.perplexity:.3f}, accuracy {result.accuracy:.4f}{bits}, over {result.count:,} tokens"
    )
    if result.leaked:
        print(f"{result.leaked} of {result.documents} documents were read in training: this is no fair mark")


def _show_translations(result: Any) -> None:
    others = {
        "chrF": result.chrf,
        "TER": result.ter,
        "lower-cased and tokenised BLEU": result.bleu_lowercased_tokenised,
    }
    told = "".join(f", {name} {value:.2f}" for name, value in others.items() if value is not None)
    reach = result.intervals["bleu"]
    print(
        f"{result.split}: BLEU {result.bleu:.2f} ({reach.low:.2f} to {reach.high:.2f}){told} over {result.count:,} texts, "
        f"{'greedy' if result.beam == 1 else f'beam of {result.beam}'}; perplexity {result.perplexity:.3f}"
    )
    if result.hypotheses_cut:
        print(f"{result.hypotheses_cut} translations were stopped at the length limit")
    if result.leaked:
        fair = "unknown" if result.leak_free_bleu is None else f"{result.leak_free_bleu:.2f}"
        print(
            f"leak-free BLEU {fair} over {result.leak_free_count} texts: "
            f"{result.leaked} of {result.count} sources were seen in training"
        )
