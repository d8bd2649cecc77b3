"""Going on with a run that stopped, as if it never had."""

from collections.abc import Callable
from pathlib import Path

from headstart.inference.loaded_model import RunInfo
from headstart.results import Comparison
from headstart.training.callbacks import Event
from headstart.training.distributed import init_processes
from headstart.training.runtime import Runtime, start_runtime
from headstart.workflows.compare import is_comparison, resume_compare
from headstart.workflows.finetune import Finetuned, resume_finetune
from headstart.workflows.pretrain import Pretrained, resume_pretrain
from headstart.workflows.recipe import is_recipe, resume_recipe
from headstart.workflows.run_dir import RunDir, main_only
from headstart.workflows.translate import FinishedTranslator, resume_translator
from headstart.workflows.tune import Tuned, is_search, resume_tune


def resume(
    run: str | Path, on_event: Callable[[Event], None] = lambda event: None
) -> Pretrained | Finetuned | FinishedTranslator | Comparison | Tuned | None:
    """The outcome of the run, once it is finished; None when it was finished before.

    It may go on with another number of processes than it was begun with.
    """
    if is_comparison(Path(run)):
        return resume_compare(Path(run), on_event)
    if is_search(Path(run)):
        return resume_tune(Path(run), on_event)
    if is_recipe(Path(run)):
        return resume_recipe(Path(run), on_event)
    return resume_run(run, on_event)


def resume_run(
    run: str | Path, on_event: Callable[[Event], None] = lambda event: None
) -> Pretrained | Finetuned | FinishedTranslator | None:
    """The outcome of a single training, once it is finished; None when it was finished before."""
    with init_processes() as processes:
        folder = RunDir.open(Path(run), processes)
        with folder:
            info = folder.info()
            if info.status == "finished":
                return None
            with processes.raise_on_all():
                runtime = start_runtime(info.config.training, processes)
            return _go_on(folder, info, runtime, main_only(processes, on_event))


def _go_on(
    folder: RunDir, info: RunInfo, runtime: Runtime, on_event: Callable[[Event], None]
) -> Pretrained | Finetuned | FinishedTranslator:
    if info.config.job == "pretrain":
        return resume_pretrain(folder, info, runtime, on_event)
    if info.pair:
        return resume_translator(folder, info, runtime, on_event)
    return resume_finetune(folder, info, runtime, on_event)
