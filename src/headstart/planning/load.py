"""One training step as a plan sees it: sizes and kinds, no data."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headstart.config import ModelConfig, RunConfig
from headstart.planning.parameters import Account, account

if TYPE_CHECKING:
    from headstart.models.model import HeadSpec


@dataclass(frozen=True)
class Stack:
    """Layers of one shape, and what goes through them of each text."""

    layers: int
    length: int  # tokens that go through
    is_causal: bool
    source: int = 0  # tokens of another text, which each of them reads by cross-attention


@dataclass(frozen=True)
class Load:
    """What one batch of a step is made of; a step computes `accumulate` such batches."""

    body: ModelConfig
    vocabulary: int
    heads: "dict[str, HeadSpec]"
    account: Account
    batch: int  # texts, or pairs of texts (B)
    length: int  # tokens of each (T), in a pair those of the target
    asked: float  # share of positions that a language-model head answers; 0 without one
    precision: str  # "float32" or "bfloat16"
    optimizer: str
    device: str  # "cpu", "cuda" or "mps"
    accumulate: int = 1
    keeps_best: bool = False  # a copy of the best weights stands beside the model
    has_padding: bool = False
    source_length: int = 0  # tokens of the source in each pair (S); 0 = there are no pairs
    passes: int = 1  # readings of a batch in one step, all of them in memory at once
    averages: bool = False  # an average of the weights stands beside the model
    finished: float = 1.0  # share of positions that go through all of the last block
    parts: int = 1  # processes over which a sharded model is cut
    is_compiled: bool = False  # on a GPU: torch.compile has written the body's code and that of the scores

    @property
    def tokens(self) -> int:
        """Positions in one batch (B·T, with a source B·(S + T))."""
        return self.batch * self.span

    @property
    def answers(self) -> int:
        """Positions at which the vocabulary is scored in one batch."""
        return round(self.asked * self.batch * self.length)

    @property
    def stacks(self) -> list[Stack]:
        """The layers of the body: one stack, or an encoder and a decoder."""
        if not self.source_length:
            return [Stack(self.body.num_layers, self.length, self.body.architecture == "causal")]
        decoder = Stack(
            self.body.num_decoder_layers or self.body.num_layers,
            self.length,
            is_causal=True,
            source=self.source_length,
        )
        return [Stack(self.body.num_layers, self.source_length, is_causal=False), decoder]

    @property
    def low(self) -> int:
        """Bytes of a number in a matrix product."""
        return 2 if self.precision == "bfloat16" else 4

    @property
    def span(self) -> int:
        """Tokens of one text, or of both texts of a pair."""
        return self.length + self.source_length

    def compiled(self, is_known: bool) -> "Load":
        """The same load in compiled steps, which finish every position; what else they change `is_known` or not."""
        return self.with_(finished=1.0, is_compiled=is_known)

    def with_(self, **changes: object) -> "Load":
        """The same load with some sizes changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def with_length(self, length: int) -> "Load":
        """The same load with texts of another length, in a pair both of them."""
        return self.with_(length=length, source_length=length if self.source_length else 0)


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
    from headstart.objectives import make_objective

    objective = make_objective(config.objective)
    body = objective.resolve_backbone(config.model)
    size = vocabulary or config.tokenizer.vocab_size
    if (
        objective.reads == "translations"
        and not config.tokenizer.shared_vocab
        and body.source_vocab_size is None
    ):
        body = body.model_copy(update={"source_vocab_size": size})  # until it is learnt
    heads = objective.heads(body, size, classes)
    training = config.training
    tokens = length or training.max_length
    is_pair = objective.reads == "translations"
    return Load(
        body=body,
        vocabulary=size,
        heads=heads,
        account=account(body, size, heads),
        batch=batch or default_batch(config, (2 if is_pair else 1) * tokens),
        length=tokens,
        asked=objective.loss_fraction,
        precision=precision,
        optimizer=config.optimizer.name,
        device=device,
        accumulate=training.gradient_accumulation_steps,
        keeps_best=training.checkpoint_selection == "best",
        has_padding=objective.reads != "blocks",
        source_length=tokens if is_pair else 0,
        passes=objective.num_forward,
        averages=training.weight_averaging != "none",
        finished=objective.last_layer_fraction(body, tokens)
        if body.architecture in ("causal", "bidirectional")
        else 1.0,
    )


def default_batch(config: RunConfig, length: int) -> int:
    """Texts in a batch when every one is `length` tokens long; of a pair, both sides together."""
    fits = max(1, config.training.tokens_per_batch // length)
    return fits if config.training.batch_size is None else min(fits, config.training.batch_size)
