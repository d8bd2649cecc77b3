"""What the loop tells those who listen."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StepDone:
    """A few steps were taken; loss and accuracy are means over them."""

    step: int
    epoch: float
    progress: float
    loss: float
    accuracy: float
    learning_rate: float
    tokens: int
    tokens_per_second: float
    padding: float
    seconds: float
    seconds_left: float
    losses: dict[str, float]


@dataclass(frozen=True)
class Evaluated:
    """The model was marked on the validation part."""

    step: int
    epoch: float
    values: dict[str, float]
    is_best: bool


@dataclass(frozen=True)
class Saved:
    """Everything up to `step` is safe on disk."""

    step: int


@dataclass(frozen=True)
class Stage:
    """Something other than training is under way; `done` of `total` where that is known."""

    name: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True)
class Note:
    """Something the user should know, in words."""

    text: str


Event = StepDone | Evaluated | Saved | Stage | Note
