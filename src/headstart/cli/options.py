"""Options that several commands share, and how they become nested settings."""

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

Out = Annotated[Path, typer.Option("--out", help="The new folder to write the run to.")]
OwnOut = Annotated[
    Path | None,
    typer.Option(
        "--out", help="The new folder to write the run to; unless told, one in runs/ called after its parts."
    ),
]
Preset = Annotated[
    str | None, typer.Option("--preset", help="Named settings: tiny, small, lab, bert, translate-tiny, …")
]
Seed = Annotated[int | None, typer.Option("--seed", help="The one number that all chance depends on.")]
Tokens = Annotated[int | None, typer.Option("--tokens", help="Budget: stop after this many tokens.")]
Steps = Annotated[int | None, typer.Option("--steps", help="Budget: stop after this many steps.")]
Minutes = Annotated[float | None, typer.Option("--minutes", help="Budget: stop after this many minutes.")]
Epochs = Annotated[float | None, typer.Option("--epochs", help="Budget: read the data this many times.")]
Length = Annotated[int | None, typer.Option("--length", help="Tokens a text or a block holds at most.")]
TokenizerName = Annotated[
    str | None,
    typer.Option("--tokenizer", help="bpe, unigram, wordpiece, characters, or the path of a trained one."),
]
Teacher = Annotated[
    str | None,
    typer.Option(
        "--teacher", metavar="RUN", help="A run whose answers count beside the true ones; RUN1,RUN2."
    ),
]
Labels = Annotated[
    int | None,
    typer.Option("--labels", help="Train on a seeded, balanced subset of this many labelled texts."),
]
TextColumn = Annotated[str | None, typer.Option("--text-column", help="The column that holds the text.")]
LabelColumn = Annotated[str | None, typer.Option("--label-column", help="The column that holds the label.")]
DocumentsRule = Annotated[
    str | None,
    typer.Option("--documents", help="What parts documents in a .txt file: auto, line, paragraph."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Rows that would be skipped are errors.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.KEY=VALUE", help="Any setting, e.g. --set body.width=256; may be repeated."
    ),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="A TOML file of settings.")]
SaveEvery = Annotated[
    str | None,
    typer.Option("--save-every", metavar="N|Nm", help="Checkpoint every N steps, or every N minutes (5m)."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Train even when the plan says that memory will not do.")
]
LengthPenalty = Annotated[
    float,
    typer.Option("--length-penalty", help="Of a search: above 0 longer texts gain, below 0 shorter ones."),
]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="The same bits each time, also on a GPU; slower there.")
]
Nproc = Annotated[
    int | None,
    typer.Option(
        "--nproc", help="Train in this many processes here: one a GPU, or a part of the cores each."
    ),
]
Nodes = Annotated[int, typer.Option("--nodes", min=1, help="With --nproc: machines that train together.")]
Meet = Annotated[
    str | None,
    typer.Option(
        "--meet", metavar="HOST:PORT", help="With --nodes: where they meet, a free port of one of them."
    ),
]
MaxRestarts = Annotated[
    int, typer.Option("--max-restarts", min=0, help="With --nproc: how often to start again when one dies.")
]
NoPair = Annotated[
    str | None,
    typer.Option("--pair", hidden=True, help="Refused: for translators see finetune and evaluate."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, only the result.")]


def gather(config_file: Path | None, assignments: list[str] | None, **flags: Any) -> dict[str, Any]:
    """Nested settings from a TOML file, then flags (named section__key, None = not given), then --set."""
    from headstart.config import load_toml, merge, parse_assignments
    from headstart.errors import ConfigError

    given: dict[str, Any] = {}
    for name, value in flags.items():
        if value is not None and value is not False:
            section, key = name.split("__", 1)
            given.setdefault(section, {})[key] = value
    settings = load_toml(config_file) if config_file is not None else {}
    for section, value in settings.items():
        if not isinstance(value, dict) and section != "preset":
            raise ConfigError(
                f"{section} in {config_file} is {value!r}, and should be a section of settings",
                hint=f"write [{section}] with its settings below it",
            )
    return merge(merge(settings, given), parse_assignments(assignments or []))


def own_place(out: Path | None, nproc: int | None, *parts: str) -> Path:
    """`--out`, or a folder in runs/ that is not there yet, called after what the run is made of.

    Many processes, and a job that may begin again, would not find the same one, so they need to be told.
    """
    from headstart.errors import ConfigError
    from headstart.training.launch import rank_info

    if out is not None:
        return out
    if nproc is not None or rank_info().is_launched:
        error = ConfigError("many processes must be told where the run goes", hint="add --out RUN")
        error.is_shared = True  # every process finds the same
        raise error
    name = "-".join(_called(part) for part in parts)
    found, number = Path("runs") / name, 2
    while found.exists() or found.is_symlink():
        found, number = Path("runs") / f"{name}-{number}", number + 1
    return found


def _called(part: str) -> str:
    """What a base, a table or a corpus is called, as a part of a folder's name."""
    name = Path(part).resolve().name if part in (".", "..") else Path(part).name
    plain = re.sub(r"(\.(tsv|csv|jsonl|json|txt|xz|gz))+$", "", name, flags=re.IGNORECASE)
    return re.sub(r"[^\w.-]+", "_", plain).strip("._-") or "run"


def refuse_pair(pair: str | None, command: str) -> None:
    """`--pair` on a command that reads labelled data is answered with the commands for translators."""
    from headstart.errors import ConfigError

    if pair is not None:
        raise ConfigError(
            f"headstart {command} works on labelled data, not on parallel text",
            hint=f"headstart finetune BASE PAIRS --pair {pair} --out RUN trains a translator, with any --set; "
            "headstart evaluate RUN PAIRS --against OTHER sets two side by side with paired tests",
        )


def launched(
    context: typer.Context,
    nproc: int | None,
    nodes: int,
    meet: str | None,
    max_restarts: int,
    settings: dict[str, Any] | None = None,
) -> bool:
    """Run this very command in many processes if that is asked and not yet so; whether it was done."""
    from headstart.errors import ConfigError
    from headstart.training.launch import check_process_count, launch, rank_info

    place = rank_info()
    if nproc is None:
        if nodes > 1 or meet or max_restarts:
            raise ConfigError("--nodes, --meet and --max-restarts go with --nproc", hint="add --nproc N")
        return False
    if place.is_launched:
        if nproc != place.local_count:
            raise ConfigError(
                f"torchrun started {place.local_count} processes here, and --nproc says {nproc}",
                hint="leave out --nproc, or torchrun",
            )
        return False
    # What torch would log, with its stack, we tell in words.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    training = (settings or {}).get("training", {})
    check_process_count(nproc, training.get("device", "auto"))
    words, timeout = context.find_root().meta["words"], training.get("timeout")
    known = {"timeout": timeout} if isinstance(timeout, int | float) and timeout > 0 else {}
    code = launch(words, nproc, nodes, meet, max_restarts, **known)
    if code:
        raise typer.Exit(code)
    return True


def speaks() -> bool:
    """Whether this process shows progress and results: the main one of many does."""
    from headstart.training.launch import rank_info

    return rank_info().rank == 0


def saving(text: str | None) -> dict[str, Any]:
    """`--save-every` as flags for `gather`."""
    from headstart.errors import ConfigError

    if text is None:
        return {}
    try:
        if text.endswith("m"):
            return {"training__save_minutes": float(text[:-1])}
        return {"training__save_every": int(text)}
    except ValueError:
        raise ConfigError(
            f"--save-every {text!r} is no number of steps or minutes", hint="write 500 or 5m"
        ) from None
