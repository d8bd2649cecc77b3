"""headstart finetune."""

from typing import Annotated, Any

import typer

from headstart.cli import options as o


def finetune(
    context: typer.Context,
    base: Annotated[str, typer.Argument(help="A run folder, a shipped base's name, or scratch.")],
    data: Annotated[
        str, typer.Argument(help="A table, a folder of train/valid/test tables, or a built-in name.")
    ],
    out: o.OwnOut = None,
    pair: Annotated[
        str | None,
        typer.Option(
            "--pair",
            metavar="SOURCE-TARGET",
            help="Learn to translate from one language to the other: en-de, …",
        ),
    ] = None,
    teacher: o.Teacher = None,
    unlabelled: Annotated[
        list[str] | None,
        typer.Option(
            "--unlabelled", metavar="CORPUS", help="With --teacher: texts that it labels; may be repeated."
        ),
    ] = None,
    preset: o.Preset = None,
    tokenizer: o.TokenizerName = None,
    labels: o.Labels = None,
    seed: o.Seed = None,
    epochs: o.Epochs = None,
    steps: o.Steps = None,
    minutes: o.Minutes = None,
    length: o.Length = None,
    keep_winner: Annotated[
        bool,
        typer.Option(
            "--keep-winner", help="Answer with the TF-IDF baseline where it has the better validation score."
        ),
    ] = False,
    freeze: Annotated[bool, typer.Option("--freeze", help="Train the head alone.")] = False,
    text_column: o.TextColumn = None,
    label_column: o.LabelColumn = None,
    strict: o.Strict = False,
    assignments: o.Assignments = None,
    config: o.ConfigFile = None,
    save_every: o.SaveEvery = None,
    force: o.Force = False,
    deterministic: o.Deterministic = False,
    nproc: o.Nproc = None,
    nodes: o.Nodes = 1,
    meet: o.Meet = None,
    max_restarts: o.MaxRestarts = 0,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Put a new head on BASE and train it on DATA; a BASE that names the very classes of DATA keeps its own head.

    With `scratch` as BASE the same model starts from fresh weights: the twin to compare with. With --pair DATA holds
    texts and their translations (train.en, train.de, …), and an encoder-decoder learns to translate.
    """
    settings = o.gather(
        config,
        assignments,
        data__labels=labels,
        data__text_column=text_column,
        data__label_column=label_column,
        data__strict=strict,
        training__seed=seed,
        training__epochs=epochs,
        training__steps=steps,
        training__minutes=minutes,
        training__length=length,
        training__freeze=freeze,
        training__keep_winner=keep_winner,
        tokenizer__kind=tokenizer,
        training__force=force,
        training__deterministic=deterministic,
        **o.saving(save_every),
    )
    was_told = out is not None
    out = o.own_place(out, nproc, base, data, *([] if pair is None else [pair]))
    if o.launched(context, nproc, nodes, meet, max_restarts, settings):
        return
    from headstart.cli.listener import Listener, print_json
    from headstart.training.callbacks import Note
    from headstart.workflows.finetune import finetune as run

    with Listener(quiet or as_json or not o.speaks()) as listener:
        if not was_told:
            listener(Note(f"the run goes to {out}"))
        more: dict[str, Any] = {
            "teacher": teacher,
            "unlabelled": unlabelled,
            "preset": preset,
            "settings": settings,
        }
        result = run(base, data, out, pair=pair, **more, on_event=listener)
    if not o.speaks():
        return
    if as_json:
        print_json(result)
    else:
        show(result)


def show(result: object) -> None:
    """A finished classifier or translator in words."""
    from headstart.cli.evaluate import show_score
    from headstart.reports.formatting import format_duration
    from headstart.workflows.finetune import Finetuned
    from headstart.workflows.finetune_seq2seq import FinishedTranslator

    assert isinstance(result, Finetuned | FinishedTranslator)
    is_translator = isinstance(result, FinishedTranslator)
    kind = "translator" if is_translator else "classifier"
    for warning in result.warnings if isinstance(result, Finetuned) else []:
        print(f"warning: {warning}")
    print(
        f"{kind} ready in {result.path}: {result.parameters:,} parameters, trained in {format_duration(result.seconds)},"
    )
    print(f"weights of epoch {result.best_epoch:g}")
    if isinstance(result, Finetuned) and result.classifier == "tfidf":
        print(
            "the run answers with TF-IDF + linear SVM (--keep-winner); the network's weights are kept beside it"
        )
    show_score(result.score)
    if isinstance(result, Finetuned) and result.baseline is not None:
        print(
            f"TF-IDF + linear SVM on the same texts: accuracy {result.baseline.accuracy:.4f} "
            f"({result.baseline.correct} of {result.baseline.count}), macro-F1 {result.baseline.macro_f1:.4f},"
        )
        print(result.comparison)
    use = "translate {} FILE" if is_translator else "predict {} FILE"
    print(f"next: headstart {use.format(result.path)}, or headstart evaluate {result.path} DATA")
