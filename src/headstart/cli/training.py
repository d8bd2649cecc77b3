"""Commands that train and evaluate: pretrain, finetune, resume, evaluate, demo, tune, compare."""

import re
from pathlib import Path
from typing import Any

import headstart as hs
from headstart.cli.options import Call, argument, command, flag, is_launched, out_flag, print_tables
from headstart.errors import ConfigError

BASE = argument("BASE", "A run folder, the name of a shipped base, or scratch.")
LABELLED = argument("DATA", "A table, a folder of train/valid/test tables, or a built-in name.")
OUT = out_flag("The new folder of the run.", None, metavar="RUN", show_default="a new one in runs/")
PRESET = flag(None, "Settings by name: tiny, small, lab, bert, translate-tiny, …", show_default="tiny or the base's")
TEACHER = flag(None, "Distil from this run; RUN1,RUN2 for several.", metavar="RUN")
NO_PAIR = flag(None, "Refused: translators have finetune and evaluate.", "--pair", hidden=True)
COLUMNS = "data.text_column data.label_column data.task data.on_bad_row"
BATCHES = "training.batch_size optimizer.learning_rate"
MACHINE = (
    "training.seed training.device training.deterministic training.save_steps training.save_minutes "
    "training.ignore_memory_check"
)


@command(
    "pretrain corpus.txt -o runs/base --minutes 20",
    "pretrain corpus.txt --init-from en-tiny --epochs 1",
    settings="objective.name tokenizer.type training.max_length data.text_column data.document_separator "
    "data.on_bad_row training.max_epochs training.max_steps training.max_tokens training.max_minutes "
    f"{BATCHES} {MACHINE}",
    config=True,
    processes=True,
)
def pretrain(
    call: Call,
    corpora: list[str] | None = argument("CORPUS[=WEIGHT]...", "Texts, tables, folders or built-in names.", None),
    out: Path | None = OUT,
    preset: str | None = PRESET,
    init_from: str | None = flag(None, "A base to continue: its tokenizer, weights and shape.", metavar="RUN"),
    distill_from: str | None = TEACHER,
    recipe: Path | None = flag(None, "Make a base stage by stage, as this file says."),
    data_root: Path = flag(Path("."), "With --recipe: the folder that holds its texts."),
    stop_after_stage: int | None = flag(None, "With --recipe: stop after this stage."),
    budget_scale: float = flag(1.0, "With --recipe: multiply the budgets of all stages."),
) -> None:
    """Train a base on raw text as a language model.

    A text with WEIGHT 3 is sampled 3 times as often. A killed run loses nothing: `headstart resume RUN` continues it.
    """
    given = call.context.params
    if recipe is None:
        if not corpora:
            raise ConfigError("there is nothing to read", hint="name a CORPUS, or a recipe with --recipe FILE")
        if stop_after_stage is not None:
            raise ConfigError("--stop-after-stage goes with --recipe", hint="name a recipe, or leave it out")
    else:
        if corpora:
            raise ConfigError(f"a recipe names its own texts, and {corpora[0]} is given too", hint="leave one out")
        for name in ("init_from", "distill_from", "preset", "nproc"):
            if given[name] is not None:
                raise ConfigError(f"--{name.replace('_', '-')} does not go with --recipe", hint="leave it out")
        out = out or Path("runs") / recipe.stem  # the same each time: the same command continues the run
    folder = out or default_run_dir(given["nproc"], *(corpus.split("=")[0] for corpus in (corpora or [])[:3]))
    if call.launch():
        return
    result: object
    with call.progress() as progress:
        if given["out"] is None:
            progress.note(f"the run is written to {folder}")
        shared: dict[str, Any] = {"settings": call.settings, "on_event": progress}
        if recipe is not None:
            from headstart.workflows.recipe import run_recipe

            result = run_recipe(recipe, data_root, folder, last_stage=stop_after_stage, scale=budget_scale, **shared)
        else:
            from headstart.workflows.pretrain import pretrain

            result = pretrain(corpora or [], folder, base=init_from, teacher=distill_from, preset=preset, **shared)
    if result is None:
        call.show({"finished": False}, lambda _: print(f"more stages are left: headstart resume {folder}"))
    else:
        call.show(result, show_run)


@command(
    "finetune en-tiny reviews.tsv -o runs/mine",
    "finetune scratch aligned --pair en-fr --preset translate-tiny",
    settings=f"tokenizer.type training.max_length data.train_size {COLUMNS} training.max_epochs training.max_steps "
    f"training.max_minutes {BATCHES} training.freeze_backbone training.keep_winner {MACHINE}",
    config=True,
    processes=True,
)
def finetune(
    call: Call,
    base: str = BASE,
    data: str = LABELLED,
    out: Path | None = OUT,
    preset: str | None = PRESET,
    pair: str | None = flag(None, "Train a translator, as in en-de.", metavar="SOURCE-TARGET"),
    distill_from: str | None = TEACHER,
    unlabeled: list[str] | None = flag(
        None, "With --distill-from: texts that it labels; may be repeated.", metavar="CORPUS"
    ),
) -> None:
    """Put a new head on BASE and train it on DATA; a BASE with the classes of DATA keeps its own head.

    With `scratch` as BASE the same model starts from random weights: the control to compare with. With --pair DATA
    holds texts and their translations (train.en, train.de, …), and an encoder-decoder is trained to translate.
    """
    folder = out or default_run_dir(call.context.params["nproc"], base, data, *([] if pair is None else [pair]))
    if call.launch():
        return
    from headstart.workflows.finetune import finetune

    with call.progress() as progress:
        if out is None:
            progress.note(f"the run is written to {folder}")
        result = finetune(
            base, data, folder, pair=pair, teacher=distill_from, unlabelled=unlabeled, preset=preset,
            settings=call.settings, on_event=progress,
        )  # fmt: skip
    call.show(result, show_run)


@command("resume runs/base", "resume runs/base --nproc 2", processes=True)
def resume(call: Call, run: Path = argument("RUN", "The folder of a run that stopped.")) -> None:
    """Continue a run that stopped, as if it never had.

    With --nproc it continues in as many processes, whatever their number was before.
    """
    if call.launch():
        return
    from headstart.results import Comparison
    from headstart.workflows.resume import resume as resume_any
    from headstart.workflows.tune import Tuned

    with call.progress() as progress:
        result = resume_any(run, progress)
    if result is None:
        call.show({"finished": True}, lambda _: print(f"{run} is finished: there is nothing to resume"))
    elif isinstance(result, Comparison):
        call.show(result, lambda found: show_comparison(found, run))
    else:
        call.show(result, show_search if isinstance(result, Tuned) else show_run)


@command(
    "evaluate runs/mine reviews.tsv --json",
    "evaluate runs/en-fr aligned --num-beams 1",
    settings="data.text_column data.label_column data.on_bad_row",
)
def evaluate(
    call: Call,
    run: str = argument("RUN", "A run folder, or the name of a shipped base; RUN1,RUN2 is an ensemble."),
    data: str = argument("DATA", "Labelled data, pairs for a translator, or a corpus for a language model."),
    num_beams: int | None = flag(None, "Beam width of a translator; 1 = greedy.", min=1, show_default="5"),
    baseline: str | None = flag(None, "Another translator, for paired tests.", metavar="RUN"),
) -> None:
    """Score a run on DATA: the test split of a folder, else its valid split; all of a single file."""
    from headstart.workflows.evaluate import evaluate

    call.show(evaluate(run, data, settings=call.settings, beam=num_beams, against=baseline), show_score)


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
            from headstart.workflows.compare import compare as compare_models

            result = compare_models(data, base or [], out, preset=preset, settings=call.settings, **comparing)
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


def default_run_dir(nproc: int | None, *parts: str) -> Path:
    """A folder in runs/ that does not exist yet, named after what the run is made of.

    Several processes, and a job that may start again, would not agree on such a folder, so they need --out.
    """
    if nproc is not None or is_launched():
        raise ConfigError("a run in many processes needs a folder", hint="add --out RUN", is_shared=True)
    return new_folder(Path("runs"), *parts)


def new_folder(parent: Path, *parts: str) -> Path:
    """A folder that does not exist yet, named after bases, tables and corpora."""
    names = (Path(part).resolve().name if part in (".", "..") else Path(part).name for part in parts)
    plain = (re.sub(r"(\.(tsv|csv|jsonl|json|txt|xz|gz))+$", "", name, flags=re.IGNORECASE) for name in names)
    name = "-".join(re.sub(r"[^\w.-]+", "_", each).strip("._-") or "run" for each in plain)
    found, number = parent / name, 2
    while found.exists() or found.is_symlink():
        found, number = parent / f"{name}-{number}", number + 1
    return found


def show_run(result: Any) -> None:
    """Print a trained base, classifier or translator in words."""
    from headstart.reports.formatting import format_duration
    from headstart.results import TaskScore
    from headstart.workflows.finetune import Finetuned
    from headstart.workflows.pretrain import Pretrained

    path, score = result.path, result.score
    size, seconds = f"{result.parameters:,} parameters", format_duration(result.seconds)
    if isinstance(result, Pretrained):
        print(f"base ready in {path}: {size}, {result.tokens:,} tokens read in {seconds}")
        if score is not None:
            bits = "" if score.bits_per_byte is None else f", {score.bits_per_byte:.3f} bits a byte"
            print(f"on held-out text: perplexity {score.perplexity:.2f}, accuracy {score.accuracy:.4f}{bits}", end=" ")
            print(f"({score.count:,} tokens of {score.documents:,} documents)")
        print(f"next: headstart finetune {path} DATA --out RUN")
        return
    kind, use = ("classifier", "predict") if isinstance(result, Finetuned) else ("translator", "translate")
    for warning in result.warnings if isinstance(result, Finetuned) else []:
        print(f"warning: {warning}")
    print(f"{kind} ready in {path}: {size}, trained in {seconds},")
    print(f"weights of epoch {result.best_epoch:g}")
    if isinstance(result, Finetuned) and result.classifier == "tfidf":
        print("the run answers with TF-IDF + linear SVM (--keep-winner); the network's weights are saved beside it")
    show_score(score)
    if isinstance(result, Finetuned) and isinstance(result.baseline, TaskScore):
        print(f"a linear baseline on the same texts: {_task_metrics(result.baseline)},")
        print(result.comparison)
    elif isinstance(result, Finetuned) and result.baseline is not None:
        print(
            f"TF-IDF + linear SVM on the same texts: accuracy {result.baseline.accuracy:.4f} "
            f"({result.baseline.correct} of {result.baseline.count}), macro-F1 {result.baseline.macro_f1:.4f},"
        )
        print(result.comparison)
    print(f"next: headstart {use} {path} FILE, or headstart evaluate {path} DATA")


def show_score(result: Any) -> None:
    """Print a score in words, with the leak-free one when there is leakage."""
    from headstart.results import Score, TaskScore, TranslationScore
    from headstart.workflows.evaluate import TranslationComparison

    if result.skipped:
        print(f"{result.skipped} rows could not be used and are not counted (--strict names the first)")
    if isinstance(result, TaskScore):
        found = result.intervals[result.metric]
        print(f"{result.split}: {_task_metrics(result)} over {result.texts:,} texts")
        print(f"95 % interval of {result.metric.replace('_', ' ')}: {found.low:.4f} to {found.high:.4f}")
        if result.leaked:
            print(f"{result.leaked} of {result.texts} texts were seen in training: this score is not fair")
    elif isinstance(result, Score):
        print(
            f"{result.split}: accuracy {result.accuracy:.4f} ({result.correct} of {result.count}), "
            f"macro-F1 {result.macro_f1:.4f}, loss {result.loss:.4f}, calibration error {result.calibration_error:.4f}"
        )
        if result.leaked and not result.leak_free_count:
            print(f"all {result.count} texts were seen in training: this score is not fair")
        elif result.leaked:
            print(
                f"leak-free accuracy {result.leak_free_accuracy:.4f} over {result.leak_free_count} texts: "
                f"{result.leaked} of {result.count} were seen in training"
            )
    elif isinstance(result, TranslationScore):
        _show_translations(result)
    elif isinstance(result, TranslationComparison):
        _show_translations(result.score)
        _show_translations(result.against)
        for test in result.tests:
            gain = test.difference
            print(
                f"{test.measure}: {test.system} is {gain.mean:+.2f} from {test.against} "
                f"({gain.low:+.2f} to {gain.high:+.2f}, p = {test.p_value:.4f}): {test.verdict}"
            )
    else:
        bits = "" if result.bits_per_byte is None else f", {result.bits_per_byte:.4f} bits a byte"
        print(f"perplexity {result.perplexity:.3f}, accuracy {result.accuracy:.4f}{bits}, over {result.count:,} tokens")
        if result.leaked:
            print(f"{result.leaked} of {result.documents} documents were read in training: this score is not fair")


def _task_metrics(score: Any) -> str:
    """The metrics that a task has, the deciding one first."""
    known = [
        name for name in type(score).__dataclass_fields__ if name not in ("leak_free_accuracy", "calibration_error")
    ]
    values = {name: value for name in known if isinstance(value := getattr(score, name), float) and value == value}
    if "subset_accuracy" in values or "token_accuracy" in values:
        values.pop("accuracy")  # it is the same
    order = sorted(values, key=lambda name: name != score.metric)
    return ", ".join(f"{name.replace('_', ' ')} {values[name]:.4f}" for name in order)


def _show_translations(result: Any) -> None:
    lowercased = result.bleu_lowercased_tokenised
    others = {"chrF": result.chrf, "TER": result.ter, "lower-cased and tokenised BLEU": lowercased}
    more = "".join(f", {name} {value:.2f}" for name, value in others.items() if value is not None)
    interval = result.intervals["bleu"]
    print(
        f"{result.split}: BLEU {result.bleu:.2f} ({interval.low:.2f} to {interval.high:.2f}){more} over "
        f"{result.count:,} texts, {'greedy' if result.beam == 1 else f'beam of {result.beam}'}; "
        f"perplexity {result.perplexity:.3f}"
    )
    if result.hypotheses_cut:
        print(f"{result.hypotheses_cut} translations were stopped at the length limit")
    if result.leaked:
        fair = "unknown" if result.leak_free_bleu is None else f"{result.leak_free_bleu:.2f}"
        print(
            f"leak-free BLEU {fair} over {result.leak_free_count} texts: "
            f"{result.leaked} of {result.count} sources were seen in training"
        )


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
