"""Which objective transfers better? Each pretrains a base at an equal number of operations, then all are compared."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headstart.atomic_io import write_json
from headstart.config import BUDGETS, resolve
from headstart.data.documents import open_documents
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, Stopped
from headstart.objectives import make_objective
from headstart.planning.flops import count_flops
from headstart.planning.workload import make_workload
from headstart.results import Comparison
from headstart.training.callbacks import Event, Note
from headstart.workflows.compare import compare, read_comparison, resume_compare
from headstart.workflows.pretrain import pretrain
from headstart.workflows.resume import resume
from headstart.workflows.run_dir import command_line
from headstart.workflows.tokenize_corpus import learn_tokenizer

DEFAULT_TOKENS = 5_000_000  # that the first objective reads, when no budget is given


def compare_objectives(
    data: str,
    corpora: Sequence[str],
    objectives: Sequence[str],
    out: str | Path,
    *,
    preset: str = "tiny",
    tokens: int = DEFAULT_TOKENS,
    settings: Mapping[str, Any] | None = None,
    pretraining: Mapping[str, Any] | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    **comparing: Any,
) -> Comparison:
    """Pretrain a base with each objective on the same corpus at equal operations, and compare how they transfer.

    The first objective reads `tokens` tokens; each other as many as cost the same. `settings` are those of
    fine-tuning, `pretraining` those of the bases. Called again after a stop, it goes on where it was.
    """
    folder = Path(out)
    if len(set(objectives)) < 2:
        raise ConfigError("a comparison needs two objectives", hint="--objectives causal-lm,masked-lm")
    extra = dict(pretraining or {})
    if any(name in extra.get("training", {}) for name in BUDGETS):
        raise ConfigError("each objective's budget follows from --tokens", hint="leave the other budgets out")
    budgets = equal_budgets(objectives, preset, extra, tokens)
    tokenizer = _shared_tokenizer(folder, corpora, preset, extra, on_event)
    bases = {name: folder / "bases" / name for name in budgets}
    try:
        for name, budget in budgets.items():
            first = next(iter(budgets))
            on_event(Note(f"{name}: {budget:,} tokens for the operations of {tokens:,} of {first}"))
            if (bases[name] / "run.json").exists():
                resume(bases[name], on_event)
                continue
            own = {
                "objective": {"name": name},
                "training": {"max_tokens": budget},
                "tokenizer": {"type": tokenizer},
            }
            pretrain(corpora, bases[name], preset=preset, settings=_over(extra, own), on_event=on_event)
        write_json(folder / "objectives.json", {"tokens": budgets})
        compared = folder / "compare"
        if (compared / "compare.json").exists():
            return resume_compare(compared, on_event) or read_comparison(compared)
        paths = [str(base) for base in bases.values()]
        return compare(data, paths, compared, settings=settings, on_event=on_event, **comparing)
    except Stopped as stopped:
        stopped.again = command_line()  # the bases that are left, and the comparison, are its to make
        raise


def equal_budgets(
    objectives: Sequence[str], preset: str, settings: Mapping[str, Any], tokens: int
) -> dict[str, int]:
    """Tokens that each objective may read for the operations of the first reading `tokens`."""
    costs = {}
    for name in objectives:
        config = resolve("pretrain", preset, _over(settings, {"objective": {"name": name}}))
        config = config.with_(
            {"model": make_objective(config.objective).resolve_backbone(config.model).model_dump()}
        )
        costs[name] = count_flops(make_workload(config, "cpu", "float32")).training
    first = costs[objectives[0]] * tokens
    return {name: round(first / cost) for name, cost in costs.items()}


def _over(settings: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    return {key: {**settings.get(key, {}), **own.get(key, {})} for key in {**settings, **own}}


def _shared_tokenizer(
    folder: Path,
    corpora: Sequence[str],
    preset: str,
    settings: Mapping[str, Any],
    on_event: Callable[[Event], None],
) -> str:
    """The path of one tokenizer for all bases, learnt once, so that only the objective differs."""
    path = folder / "tokenizer"
    if not (path / "tokenizer.json").exists():
        config = resolve("pretrain", preset, settings)
        tokenizer: Tokenizer = learn_tokenizer(
            config.tokenizer, [open_documents(corpus, config.data) for corpus in corpora], on_event
        )
        tokenizer.save(path)
    return str(path.resolve())
