"""One training step as a plan describes it: sizes and kinds, no data."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headstart.config import ModelConfig, RunConfig
from headstart.constants import DEFAULT_LOGITS_PER_CHUNK, GATED_ACTIVATIONS, LOGITS_PER_CHUNK
from headstart.planning.parameters import ParameterTable, parameter_table

if TYPE_CHECKING:
    from headstart.models.model import HeadSpec

FLOAT32 = 4  # bytes


@dataclass(frozen=True)
class Stack:
    """Layers of one shape, and what each text sends through them."""

    layers: int
    length: int  # tokens
    is_causal: bool
    source_length: int = 0  # tokens of another text, which each of them reads by cross-attention


@dataclass(frozen=True)
class Workload:
    """The contents of one batch; a step computes `accumulation_steps` such batches."""

    model: ModelConfig
    vocab_size: int
    heads: "dict[str, HeadSpec]"
    parameters: ParameterTable
    batch_size: int  # texts, or pairs of texts (B)
    length: int  # tokens of each (T), in a pair those of the target
    label_fraction: float  # of the positions, those with logits over the vocabulary; 0 without a language-model head
    precision: str  # "float32" or "bfloat16"
    optimizer: str
    device: str  # "cpu", "cuda" or "mps"
    accumulation_steps: int = 1
    keeps_best: bool = False  # memory holds a copy of the best weights
    has_padding: bool = False
    source_length: int = 0  # tokens of the source in each pair (S); 0 = there are no pairs
    num_forward: int = 1  # forward passes over a batch in one step, all of them in memory at once
    averages_weights: bool = False  # memory holds an average of the weights
    last_layer_fraction: float = 1.0  # of the positions, those that go through all of the last layer
    num_shards: int = 1  # processes that hold a part of a sharded model each
    is_compiled: bool = False  # on a GPU: torch.compile has compiled the backbone and the loss

    @property
    def tokens_per_example(self) -> int:
        """Tokens of one text, or of both texts of a pair."""
        return self.length + self.source_length

    @property
    def tokens(self) -> int:
        """Positions in one batch (B·T, with a source B·(S + T))."""
        return self.batch_size * self.tokens_per_example

    @property
    def tokens_per_step(self) -> int:
        """Positions in one step."""
        return self.tokens * self.accumulation_steps

    @property
    def num_predictions(self) -> int:
        """Positions with logits over the vocabulary in one batch."""
        return round(self.label_fraction * self.batch_size * self.length)

    @property
    def predictions_per_chunk(self) -> int:
        """Positions whose logits exist at once in the chunked cross-entropy."""
        return max(1, self.logits_per_chunk // self.vocab_size)

    @property
    def logits_per_chunk(self) -> int:
        """Logits that exist at once in the chunked cross-entropy."""
        return LOGITS_PER_CHUNK.get(self.device, DEFAULT_LOGITS_PER_CHUNK)

    @property
    def stacks(self) -> list[Stack]:
        """The layers of the backbone: one stack, or an encoder and a decoder."""
        model = self.model
        if not self.source_length:
            return [Stack(model.num_layers, self.length, model.architecture == "causal")]
        decoder_layers = model.num_decoder_layers or model.num_layers
        return [
            Stack(model.num_layers, self.source_length, is_causal=False),
            Stack(decoder_layers, self.length, is_causal=True, source_length=self.source_length),
        ]

    @property
    def matmul_bytes(self) -> int:
        """Bytes of a number in a matrix product."""
        return 2 if self.precision == "bfloat16" else FLOAT32

    @property
    def up_projections(self) -> int:
        """Up projections of a feed-forward part; a gate is one more."""
        return 2 if self.model.activation in GATED_ACTIVATIONS else 1

    @property
    def stores_attention_weights(self) -> bool:
        """Whether attention weights exist in memory: torch's fused CPU attention has no dropout."""
        return self.device != "cuda" and self.model.attention_dropout > 0

    @property
    def generators(self) -> "list[HeadSpec]":
        """ELECTRA's generators, whose tokens are sampled from unchunked logits, in compiled steps too."""
        return [spec for spec in self.heads.values() if spec.kind == "generator"]

    def with_length(self, length: int) -> "Workload":
        """The same workload with texts of another length, in a pair both of them."""
        return replace(self, length=length, source_length=length if self.source_length else 0)


def make_workload(
    config: RunConfig,
    device: str,
    precision: str,
    vocabulary: int | None = None,
    classes: int = 2,
    batch: int | None = None,
    length: int | None = None,
) -> Workload:
    """The workload of a run with these settings; what is not given is the run's own."""
    from headstart.objectives import make_objective

    objective, training = make_objective(config.objective), config.training
    model = objective.resolve_backbone(config.model)
    vocab_size, length = vocabulary or config.tokenizer.vocab_size, length or training.max_length
    is_pair = objective.reads == "translations"
    if is_pair and not config.tokenizer.shared_vocab and model.source_vocab_size is None:
        model = model.model_copy(update={"source_vocab_size": vocab_size})  # until it is learned
    if batch is None:
        batch = max(1, training.tokens_per_batch // (2 * length if is_pair else length))
        batch = min(batch, training.batch_size or batch)
    heads = objective.heads(model, vocab_size, classes)
    work = objective.cost(model, length)
    is_transformer = model.architecture in ("causal", "bidirectional")
    return Workload(
        model=model,
        vocab_size=vocab_size,
        heads=heads,
        parameters=parameter_table(model, vocab_size, heads),
        batch_size=batch,
        length=length,
        label_fraction=work.label_fraction,
        precision=precision,
        optimizer=config.optimizer.name,
        device=device,
        accumulation_steps=training.gradient_accumulation_steps,
        keeps_best=training.checkpoint_selection == "best",
        has_padding=objective.reads != "blocks",
        source_length=length if is_pair else 0,
        num_forward=work.passes,
        averages_weights=training.weight_averaging != "none",
        last_layer_fraction=work.last_layer_fraction if is_transformer else 1.0,
    )
