"""The learning rate over a run, as a share of its top, for a progress between 0 and 1."""

import math
from collections.abc import Callable

from headstart.config import ScheduleConfig
from headstart.errors import pick


def _after_warmup(progress: float, warmup: float) -> float:
    return (progress - warmup) / max(1 - warmup, 1e-12)


def constant(progress: float, config: ScheduleConfig) -> float:
    """Stay at the top."""
    return 1.0


def linear(progress: float, config: ScheduleConfig) -> float:
    """Fall in a straight line."""
    return 1 - (1 - config.final) * _after_warmup(progress, config.warmup)


def cosine(progress: float, config: ScheduleConfig) -> float:
    """Fall along half a cosine."""
    wave = 0.5 * (1 + math.cos(math.pi * _after_warmup(progress, config.warmup)))
    return config.final + (1 - config.final) * wave


def warmup_stable_decay(progress: float, config: ScheduleConfig) -> float:
    """Stay at the top, then fall in a straight line over the last `decay` of the budget."""
    left = (1 - progress) / max(config.decay, 1e-12)
    return config.final + (1 - config.final) * min(1.0, left)


SCHEDULES: dict[str, Callable[[float, ScheduleConfig], float]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "slanted-triangular": linear,  # Howard and Ruder (2018): a short straight rise, a long straight fall
    "warmup-stable-decay": warmup_stable_decay,
}


def rate_at(progress: float, config: ScheduleConfig) -> float:
    """The learning rate's share of its top at `progress`; the first step is never at zero."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < config.warmup:
        return max(progress / config.warmup, 1e-3)
    return max(0.0, pick(SCHEDULES, config.kind, "schedule")(progress, config))
