"""Whether training steps are compiled: said once, for the training that does it and for the plan that counts on it."""

from headstart.config import TrainingConfig

PAYS_AFTER = 300.0  # seconds of plain training that compiling must promise to shorten
TAKES = 60.0  # seconds that compiling itself takes, about: half as long for blocks, a little longer for texts
PLAIN_RATE, PLAIN_STEP = 100e12, 0.02  # operations a second of a plain step, and the least seconds of one


def will_compile(
    training: TrainingConfig, *, is_able: bool, is_sharded: bool, weights: int, passes: int, tokens: float
) -> bool:
    """As the settings say, or where they leave it open, if a long run is ahead where it `is_able`: on a GPU with a compiler.

    The run reads `tokens` in all, `passes` times each, unless its budget is in minutes.
    """
    if training.compile != "auto":
        return training.compile
    changes = training.freeze or training.unfreeze_every is not None  # what learns, and so the compiled code
    if not is_able or is_sharded or training.deterministic or changes:
        return False
    return _plain_seconds(training, weights * passes, tokens) >= PAYS_AFTER


def _plain_seconds(training: TrainingConfig, weights: int, tokens: float) -> float:
    """About how long the whole run would take on a large GPU without compiling: a function of its settings alone."""
    if training.minutes is not None:
        return 60 * training.minutes
    steps = tokens / (training.batch_tokens * training.accumulate)
    return max(6.0 * weights * tokens / PLAIN_RATE, PLAIN_STEP * steps)
