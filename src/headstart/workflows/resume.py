"""Resuming what stopped, with the same result as without the stop."""

from pathlib import Path

from headstart.results import Comparison
from headstart.training.callbacks import OnEvent, ignore_event
from headstart.training.runtime import init_processes, start_runtime
from headstart.workflows.compare import is_comparison, resume_compare
from headstart.workflows.finetune import Finetuned, FinetuneJob
from headstart.workflows.finetune_seq2seq import FinishedTranslator, TranslationJob
from headstart.workflows.pretrain import Pretrained, PretrainJob
from headstart.workflows.recipe import is_recipe, resume_recipe
from headstart.workflows.run_dir import RunDir
from headstart.workflows.tune import Tuned, is_search, resume_tune


def resume(
    run: str | Path, on_event: OnEvent = ignore_event
) -> Pretrained | Finetuned | FinishedTranslator | Comparison | Tuned | None:
    """The result of a run, comparison, search or recipe that is resumed; None when it was finished before.

    The number of processes may differ from before.
    """
    path = Path(run)
    if is_comparison(path):
        return resume_compare(path, on_event)
    if is_search(path):
        return resume_tune(path, on_event)
    return resume_recipe(path, on_event) if is_recipe(path) else resume_run(path, on_event)


def resume_run(run: str | Path, on_event: OnEvent = ignore_event) -> Pretrained | Finetuned | FinishedTranslator | None:
    """The result of a single run that is resumed; None when it was finished before."""
    with init_processes() as processes:
        run_dir = RunDir.open(Path(run), processes)
        with run_dir:
            info = run_dir.info()
            if info.status == "finished":
                return None
            with processes.raise_on_all():
                runtime = start_runtime(info.config.training, processes)
            if info.config.job == "pretrain":
                return PretrainJob.resume(run_dir, info, runtime, on_event)
            if info.pair:
                return TranslationJob.resume(run_dir, info, runtime, on_event)
            return FinetuneJob.resume(run_dir, info, runtime, on_event)
