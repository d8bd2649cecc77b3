"""The learning rate over a run, as a factor between 0 and 1 of the configured one."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from headstart.config import LrScheduleConfig
from headstart.errors import pick


@dataclass(frozen=True)
class Progress:
    """How far a run is when it takes a step."""

    progress: float  # fraction of the budget that is spent
    warmup: float  # fraction of the budget that is for the warm-up
    warmup_progress: float  # multiple of the warm-up: 1 = it ends here

    @property
    def decay_progress(self) -> float:
        """The fraction spent of what is left after the warm-up."""
        return min(1.0, max(0.0, (self.progress - self.warmup) / max(1 - self.warmup, 1e-12)))


def constant(now: Progress, config: LrScheduleConfig) -> float:
    """No decay."""
    return 1.0


def linear(now: Progress, config: LrScheduleConfig) -> float:
    """Linear decay."""
    return 1 - (1 - config.min_lr_ratio) * now.decay_progress


def cosine(now: Progress, config: LrScheduleConfig) -> float:
    """Decay along half a cosine."""
    factor = 0.5 * (1 + math.cos(math.pi * now.decay_progress))
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * factor


def warmup_stable_decay(now: Progress, config: LrScheduleConfig) -> float:
    """Constant, then linear decay over the last `decay_ratio` of the budget."""
    left = (1 - now.progress) / max(config.decay_ratio, 1e-12)
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * min(1.0, left)


def inverse_square_root(now: Progress, config: LrScheduleConfig) -> float:
    """Decay with the square root of the steps taken (Vaswani et al., 2017), whatever the budget."""
    return 1 / math.sqrt(max(1.0, now.warmup_progress))


SCHEDULES: dict[str, Callable[[Progress, LrScheduleConfig], float]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "slanted-triangular": linear,  # Howard and Ruder (2018): a short linear warm-up, a long linear decay
    "warmup-stable-decay": warmup_stable_decay,
    "inverse-square-root": inverse_square_root,
}


def lr_factor(progress: float, config: LrScheduleConfig, step: int = 0) -> float:
    """The factor of the learning rate at `progress`, after `step` steps; it is above 0 at the first step."""
    progress = min(max(progress, 0.0), 1.0)
    if config.warmup_steps is None:
        warmup = config.warmup_ratio
        now = Progress(progress, warmup, progress / warmup if warmup else math.inf)
    else:
        warmup = progress * config.warmup_steps / max(1, step)  # steps as a fraction, at the pace so far
        now = Progress(progress, min(1.0, warmup), (step + 1) / config.warmup_steps)
    if now.warmup_progress < 1:
        return max(now.warmup_progress, 1e-3)
    return max(0.0, pick(SCHEDULES, config.name, "schedule")(now, config))
