"""One training step as a plan sees it: sizes and kinds, no data."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headstart.config import BodyConfig, RunConfig
from headstart.planning.parameters import Account, account

if TYPE_CHECKING:
    from headstart.models.model import HeadSpec


@dataclass(frozen=True)
class Load:
    """What one batch of a step is made of; a step computes `accumulate` such batches."""

    body: BodyConfig
    vocabulary: int
    heads: "dict[str, HeadSpec]"
    account: Account
    batch: int  # texts (B)
    length: int  # tokens of each (T)
    asked: float  # share of positions that a language-model head answers; 0 without one
    precision: str  # "float32" or "bfloat16"
    optimizer: str
    device: str  # "cpu", "cuda" or "mps"
    accumulate: int = 1
    keeps_best: bool = False  # a copy of the best weights stands beside the model
    has_padding: bool = False
    parts: int = 1  # processes over which a sharded model is cut

    @property
    def tokens(self) -> int:
        """Positions in one batch (B·T)."""
        return self.batch * self.length

    @property
    def answers(self) -> int:
        """Positions at which the vocabulary is scored in one batch."""
        return round(self.asked * self.tokens)

    @property
    def low(self) -> int:
        """Bytes of a number in a matrix product."""
        return 2 if self.precision == "bfloat16" else 4

    def with_(self, **changes: object) -> "Load":
        """The same load with some sizes changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


def make_load(
    config: RunConfig,
    device: str,
    precision: str,
    vocabulary: int | None = None,
    classes: int = 2,
    batch: int | None = None,
    length: int | None = None,
) -> Load:
    """The load of a run with these settings; what is not given is the run's own."""
    from headstart.objectives.table import make_objective

    objective = make_objective(config.objective)
    body = objective.settle(config.body)
    size = vocabulary or config.tokenizer.vocabulary
    heads = objective.heads(body, size, classes)
    training = config.training
    tokens = length or training.length
    return Load(
        body=body,
        vocabulary=size,
        heads=heads,
        account=account(body, size, heads),
        batch=batch or default_batch(config, tokens),
        length=tokens,
        asked=objective.asked_share,
        precision=precision,
        optimizer=config.optimizer.kind,
        device=device,
        accumulate=training.accumulate,
        keeps_best=training.keep == "best",
        has_padding=objective.reads == "texts",
    )


def default_batch(config: RunConfig, length: int) -> int:
    """Texts in a batch when every one is `length` tokens long."""
    fits = max(1, config.training.batch_tokens // length)
    return fits if config.training.batch_examples is None else min(fits, config.training.batch_examples)
