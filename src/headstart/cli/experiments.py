"""Commands that train several models: demo, compare, tune."""

from pathlib import Path
from typing import Any

import headstart as hs
from headstart.cli.options import Call, command, flag, out_flag, print_tables
from headstart.cli.training import BASE, BATCHES, COLUMNS, LABELLED, PRESET
from headstart.errors import ConfigError

NO_PAIR = flag(None, "Refused: translators have finetune and evaluate.", "--pair", hidden=True)


@command("demo", "demo --minutes 1 --seeds 2 -o runs/quick")
def demo(
    call: Call,
    out: Path = out_flag("The new folder to write to.", Path("runs/demo")),
    base: str = flag("en-tiny", "The shipped base, or a run, to compare with the demo's own base."),
    seed: int = flag(0, "The first seed."),
    train_size: int = flag(1600, "Labelled reviews to train on."),
    minutes: float = flag(3.5, "Minutes of pretraining."),
    epochs: float = flag(3.0, "Epochs of fine-tuning; the shipped base takes one at most."),
    seeds: int = flag(3, "Models to train of each arm."),
) -> None:
    """Do the whole job on built-in film reviews: audit, pretrain, compare with a shipped base, report."""
    with call.progress() as progress:
        result = hs.run_demo(
            out, minutes=minutes, seeds=seeds, labels=train_size, epochs=epochs, base=base, first_seed=seed,
            on_event=progress,
        )  # fmt: skip
    call.show(result, lambda found: show_comparison(found, out))


@command(
    "tune en-tiny reviews.tsv -o runs/tuned --trials 20",
    "tune en-tiny reviews.tsv -o runs/tuned --search optimizer.learning_rate=1e-5:1e-3:log",
    settings=f"tokenizer.type training.seed training.device training.max_length data.train_size {COLUMNS} "
    "training.max_epochs",
    config=True,
)
def tune(
    call: Call,
    base: str = BASE,
    data: str = LABELLED,
    out: Path = out_flag("The new folder of the search."),
    preset: str | None = PRESET,
    metric: str = flag("accuracy", "What to tune by.", metavar="accuracy|macro_f1|loss"),
    folds: int | None = flag(None, "Score each trial over folds of train and valid, not on valid."),
    trials: int | None = flag(None, "Trials in all.", show_default="20, or as many as --minutes allows"),
    minutes: float | None = flag(None, "Start no new trial after this many minutes of them."),
    search: list[str] | None = flag(None, "A setting to search; may be repeated.", metavar="SECTION.KEY=RANGE"),
    search_only: bool = flag(False, "Search what --search names and nothing else."),
    pruner: str = flag("median", "How trials stop early.", metavar="median|hyperband|none"),
    pair: str | None = NO_PAIR,
) -> None:
    """Search the best settings to fine-tune BASE on DATA, and write them to OUT/best.toml.

    A RANGE is low:high, low:high:log, low:high:int, or a,b,c. A setting that you give is not searched. Run the same command again to continue after a stop.
    """
    _refuse_pair(pair, "tune")
    with call.progress() as progress:
        result = hs.tune(
            base, data, out, trials=trials, minutes=minutes, folds=folds, search=search or [],
            search_only=search_only, metric=metric, pruner=pruner, preset=preset, settings=call.settings,
            on_event=progress,
        )  # fmt: skip
    call.show(result, show_search)


@command(
    "compare reviews.tsv --base en-tiny --seeds 3",
    "compare reviews.tsv --base en-tiny --train-size 100,400,1600 -o runs/curve",
    settings=f"tokenizer.type training.device training.max_length {COLUMNS} training.max_epochs {BATCHES}",
    config=True,
)
def compare(
    call: Call,
    data: str = LABELLED,
    base: list[str] | None = flag(None, "A base to compare; may be repeated.", metavar="BASE"),
    out: Path = out_flag("The new folder for the report.", Path("runs/compare")),
    preset: str | None = PRESET,
    arms: str = flag("classical,scratch,frozen,fine-tuned", "Arms to train; also ensemble.", metavar="ARM,..."),
    seed: int = flag(0, "The first seed; the others follow it."),
    train_size: str | None = flag(None, "Label budgets: 100,400,1600 gives a curve.", metavar="N,..."),
    folds: int | None = flag(None, "Join train and valid, and hold out each of this many folds once."),
    seeds: int = flag(3, "Models to train of each arm."),
    objectives: str | None = flag(None, "Pretrain and compare a base with each.", metavar="NAME,..."),
    corpus: list[str] | None = flag(None, "With --objectives: what to pretrain on; may be repeated."),
    tokens: int | None = flag(None, "With --objectives: tokens that the first of them reads."),
    target_accuracy: float | None = flag(None, "Report when each arm reaches it.", show_default="that of scratch"),
    pair: str | None = NO_PAIR,
) -> None:
    """Measure what pretraining gains: every arm at equal budget, over several seeds, against a TF-IDF baseline."""
    _refuse_pair(pair, "compare")
    if objectives is None:
        if corpus or tokens:
            raise ConfigError("--corpus and --tokens go with --objectives", hint="add --objectives, or leave them out")
    elif base:
        raise ConfigError("--objectives makes its own bases", hint="leave out --base, or --objectives")
    elif not corpus:
        raise ConfigError("--objectives needs text to pretrain on", hint="add --corpus FILE, or --corpus imdb")
    with call.progress() as progress:
        comparing: dict[str, Any] = {
            "seeds": seeds, "first_seed": seed, "labels": _label_budgets(train_size), "folds": folds,
            "arms": _names(arms), "target_accuracy": target_accuracy, "on_event": progress,
        }  # fmt: skip
        if objectives is None:
            result = hs.compare(data, base or [], out, preset=preset, settings=call.settings, **comparing)
        else:
            from headstart.workflows.compare import DEFAULT_TOKENS, compare_objectives

            shared = ("model", "tokenizer")  # the other sections are for fine-tuning
            machine = ("device", "precision", "compile")  # set once, for bases and arms alike
            training = call.settings.get("training", {})
            pretraining = {name: call.settings[name] for name in shared if name in call.settings}
            pretraining["training"] = {name: training[name] for name in machine if name in training}
            tuning = {name: part for name, part in call.settings.items() if name not in shared}
            result = compare_objectives(
                data, corpus or [], _names(objectives), out, preset=preset or "tiny",
                tokens=tokens or DEFAULT_TOKENS, settings=tuning, pretraining=pretraining, **comparing,
            )  # fmt: skip
    call.show(result, lambda found: show_comparison(found, out))


def _refuse_pair(pair: str | None, name: str) -> None:
    """Answer `--pair` on a command that reads labelled data with the commands for translators."""
    if pair is not None:
        raise ConfigError(
            f"headstart {name} works on labelled data, not on parallel text",
            hint=f"headstart finetune BASE PAIRS --pair {pair} --out RUN trains a translator, with any --set; "
            "headstart evaluate RUN PAIRS --baseline OTHER compares two with paired tests",
        )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _label_budgets(text: str | None) -> list[int] | None:
    """`--train-size 100,400` as numbers."""
    if text is None:
        return None
    numbers = [int(part) if part.isdigit() else 0 for part in _names(text)]
    if min(numbers) < 2:
        raise ConfigError(f"--train-size {text!r} is no list of numbers from 2 on", hint="write 1600, or 100,400,1600")
    return numbers


def show_comparison(result: Any, out: Path) -> None:
    """A comparison as a table and its verdicts."""
    from headstart.reports.comparison import comparison_table, verdict_lines

    print_tables([comparison_table(result)], verdict_lines(result))
    page = out / "report.html" if (out / "report.html").exists() else out / "compare" / "report.html"
    print(f"report: {page}")


def show_search(result: Any) -> None:
    """A finished search of settings as a table and in words."""
    from headstart.reports.tables import trials_table
    from headstart.results import plain

    print_tables([trials_table(plain(result))], [])
    best, default = result.best.value or 0.0, result.default.value
    before = f", {default:.4f} with the default settings (trial 0)" if default is not None else ""
    print(
        f"best {result.metric} {best:.4f} over {result.texts:,} texts ({result.scored}){before}; it is the best of "
        f"{len(result.trials)} on the texts it was chosen by, so it is optimistic"
    )
    print(f"next: headstart finetune BASE DATA --config {result.path}/best.toml --out RUN")
