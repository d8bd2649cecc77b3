"""The learning rate over a run, as a share of its top, for a progress between 0 and 1."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from headstart.config import LrScheduleConfig
from headstart.errors import pick


@dataclass(frozen=True)
class Progress:
    """Where a run stands when it takes a step."""

    progress: float  # share of the budget spent
    warmup: float  # share of the budget that is for rising
    risen: float  # the way so far as a multiple of the way up: 1 = at the top

    @property
    def fallen(self) -> float:
        """The share spent of what is left after the warm-up."""
        return min(1.0, max(0.0, (self.progress - self.warmup) / max(1 - self.warmup, 1e-12)))


def constant(moment: Progress, config: LrScheduleConfig) -> float:
    """Stay at the top."""
    return 1.0


def linear(moment: Progress, config: LrScheduleConfig) -> float:
    """Fall in a straight line."""
    return 1 - (1 - config.min_lr_ratio) * moment.fallen


def cosine(moment: Progress, config: LrScheduleConfig) -> float:
    """Fall along half a cosine."""
    wave = 0.5 * (1 + math.cos(math.pi * moment.fallen))
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * wave


def warmup_stable_decay(moment: Progress, config: LrScheduleConfig) -> float:
    """Stay at the top, then fall in a straight line over the last `decay` of the budget."""
    left = (1 - moment.progress) / max(config.decay_ratio, 1e-12)
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * min(1.0, left)


def inverse_square_root(moment: Progress, config: LrScheduleConfig) -> float:
    """Fall with the square root of the steps taken (Vaswani et al., 2017); the budget's end is not looked at."""
    return 1 / math.sqrt(max(1.0, moment.risen))


SCHEDULES: dict[str, Callable[[Progress, LrScheduleConfig], float]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "slanted-triangular": linear,  # Howard and Ruder (2018): a short straight rise, a long straight fall
    "warmup-stable-decay": warmup_stable_decay,
    "inverse-square-root": inverse_square_root,
}


def moment_at(progress: float, config: LrScheduleConfig, step: int) -> Progress:
    """Where a run stands at `progress`, before which `step` steps were taken."""
    progress = min(max(progress, 0.0), 1.0)
    if config.warmup_steps is None:
        return Progress(
            progress, config.warmup_ratio, progress / config.warmup_ratio if config.warmup_ratio else math.inf
        )
    share = progress * config.warmup_steps / max(1, step)  # steps as a share, at the pace so far
    return Progress(progress, min(1.0, share), (step + 1) / config.warmup_steps)


def lr_factor(progress: float, config: LrScheduleConfig, step: int = 0) -> float:
    """The learning rate's share of its top at `progress`, after `step` steps; the first step is never at zero."""
    moment = moment_at(progress, config, step)
    if moment.risen < 1:
        return max(moment.risen, 1e-3)
    return max(0.0, pick(SCHEDULES, config.name, "schedule")(moment, config))
