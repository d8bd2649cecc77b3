"""What every objective offers, and the words they share."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from headstart.batch import Batch, Row, pad
from headstart.config import ModelConfig
from headstart.errors import ConfigError, nearest
from headstart.models.model import HeadSpec, Model

Reads = Literal["blocks", "pairs", "texts", "translations"]


class Vocabulary(Protocol):
    """What an objective must know of the tokenizer."""

    @property
    def size(self) -> int:
        """Tokens in the vocabulary."""
        ...

    @property
    def padding(self) -> int:
        """The token that fills short rows up."""
        ...

    @property
    def mask(self) -> int | None:
        """The token that hides another; None when the vocabulary has none."""
        ...

    @property
    def word_starts(self) -> np.ndarray:
        """Which tokens begin a word (V,)."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that stand for no text."""
        ...


@dataclass(frozen=True)
class Loss:
    """The sum of one head's losses over a batch, how many answers it is over, and how many were right."""

    total: Tensor
    count: int
    correct: Tensor
    weight: float = 1.0  # of its mean in the sum that is learnt from


@dataclass(frozen=True)
class Objective:
    """What is asked of a model; the fields of a subclass are its settings."""

    name: ClassVar[str]
    bodies: ClassVar[tuple[str, ...]]  # kinds it can ask; the first is the default
    reads: ClassVar[
        Reads
    ]  # blocks of a corpus, pairs of sentences in it, labelled texts, texts with translations
    lookahead: ClassVar[int] = 0  # tokens needed beyond a block's end
    is_rowwise: ClassVar[bool] = False  # True = what is asked of a row depends on no other row, nor on chance

    def heads(self, body: ModelConfig, vocab_size: int, classes: int) -> dict[str, HeadSpec]:
        """The heads it needs on a body of this shape."""
        raise NotImplementedError

    def collate(self, rows: Sequence[Row], vocabulary: Vocabulary, rng: torch.Generator) -> Batch:
        """A batch that asks about these rows."""
        raise NotImplementedError

    def losses(self, model: Model, batch: Batch) -> dict[str, Loss]:
        """The marks of each head."""
        raise NotImplementedError

    @property
    def loss_fraction(self) -> float:
        """The share of positions at which the whole vocabulary is scored."""
        return 0.0

    def last_layer_fraction(self, body: ModelConfig, length: int) -> float:
        """The share of positions that the last block must finish, for texts of this length."""
        return 1.0

    @property
    def num_forward(self) -> int:
        """How often the body reads a batch in one training step."""
        return 1

    @property
    def teachers(self) -> tuple[Model, ...]:
        """Models that read every batch beside the one that learns."""
        return ()

    def resolve_backbone(self, body: ModelConfig) -> ModelConfig:
        """The body settings with `kind` decided, or an error when the kind cannot be asked this."""
        if body.architecture == "auto":
            return body.model_copy(update={"architecture": self.bodies[0]})
        if body.architecture not in self.bodies:
            raise ConfigError(
                f"{self.name} cannot train a {body.architecture} body",
                hint=f"set model.architecture={self.bodies[0]}, or choose another --objective",
            )
        return body


def segments_of(rows: Sequence[Row], real: Tensor) -> Tensor | None:
    """Which text of its pair each token is of (B, T); None when the rows are no pairs."""
    if any(row.segments is None for row in rows):
        return None
    return pad([row.segments for row in rows if row.segments is not None], 0)[0]


def counts(batch: Batch) -> dict[str, int]:
    """How many answers each head is marked on."""
    return batch.answers


def make(kind: type[Objective], settings: dict[str, Any]) -> Objective:
    """An objective with these settings, or an error that names the wrong one."""
    fields = [field.name for field in dataclasses.fields(kind)]
    for name in settings:
        if name not in fields:
            hint = nearest(name, fields) if fields else f"{kind.name} has no settings"
            raise ConfigError(f"{kind.name} has no setting called {name!r}", hint=hint)
        if isinstance(settings[name], float) and not math.isfinite(settings[name]):
            raise ConfigError(f"setting objective.{name} cannot be {settings[name]}", hint="write a number")
    try:
        return TypeAdapter(kind).validate_python(settings)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise ConfigError(
            f"setting objective.{place} cannot be {fault['input']!r}: {fault['msg'].lower()}",
            hint="docs/reference/settings.md lists every setting with its values",
        ) from None
