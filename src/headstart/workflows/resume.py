"""Going on with a run that stopped, as if it never had."""

from collections.abc import Callable
from pathlib import Path

from headstart.results import Comparison
from headstart.training.events import Event
from headstart.workflows.compare import is_comparison, resume_compare
from headstart.workflows.finetune import Finetuned, resume_finetune
from headstart.workflows.pretrain import Pretrained, resume_pretrain
from headstart.workflows.run import RunFolder
from headstart.workflows.translate import FinishedTranslator, resume_translator
from headstart.workflows.tune import Tuned, is_search, resume_tune


def resume(
    run: str | Path, on_event: Callable[[Event], None] = lambda event: None
) -> Pretrained | Finetuned | FinishedTranslator | Comparison | Tuned | None:
    """The outcome of the run, once it is finished; None when it was finished before."""
    if is_comparison(Path(run)):
        return resume_compare(Path(run), on_event)
    if is_search(Path(run)):
        return resume_tune(Path(run), on_event)
    folder = RunFolder.open(Path(run))
    with folder:
        info = folder.info()
        if info.status == "finished":
            return None
        if info.config.job == "pretrain":
            return resume_pretrain(folder, info, on_event)
        if info.pair:
            return resume_translator(folder, info, on_event)
        return resume_finetune(folder, info, on_event)
