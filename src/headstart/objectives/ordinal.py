"""Ordinal regression: classes with an order, such as stars."""

from dataclasses import dataclass
from typing import ClassVar

from headstart.objectives.classification import Classification


@dataclass(frozen=True)
class Ordinal(Classification):
    """Predict one of the classes in order by a cumulative-link head, whose outputs are logarithms of probabilities."""

    name: ClassVar[str] = "ordinal"
    head: ClassVar[str] = "ordinal"
