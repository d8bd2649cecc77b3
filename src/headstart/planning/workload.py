"""One training step as a plan describes it: the device, the sizes of a batch, the parameters, the operations.

FLOPs are those of matrix products: two for each weight and token, and 4·D for each key that a token attends to. A token
of an encoder-decoder is the mean one of both sides. A backward pass costs two forward passes.
"""

import math
from dataclasses import dataclass

import torch

from headstart.config import ModelConfig, RunConfig
from headstart.constants import GATED_ACTIVATIONS, logits_per_chunk
from headstart.models.model import HeadSpec, build_model
from headstart.objectives import make_objective

FLOAT32 = 4  # bytes
HEADS_OVER_TOKENS = (
    "replaced",
    "generator",
    "token",
)  # heads with an output for each token; other heads have one for each text


@dataclass(frozen=True)
class Device:
    """A GPU or a CPU on which a run could train."""

    name: str
    memory_gib: float
    float32_tflops: float
    half_tflops: float  # dense float16 or bfloat16
    bandwidth_gbs: float
    bfloat16: bool
    kind: str = "cuda"  # the name that torch has for it: cuda, mps, cpu
    link_gbs: float | None = None  # each way between two such devices of one machine; None = as the PCIe of its time
    compiles: bool = True  # whether triton supports it, if it is a GPU

    @property
    def usable_bytes(self) -> float:
        """Bytes that a run may use; a desktop, the system or the host needs the rest."""
        return {"cuda": 0.96, "mps": 0.7, "cpu": 0.85}[self.kind] * self.memory_gib * 2**30

    def precision(self, setting: str) -> str:
        """The number format that the setting `training.precision` selects."""
        if setting not in ("auto", "bf16"):
            return setting
        return "bfloat16" if self.bfloat16 and (setting == "bf16" or self.kind == "cuda") else "float32"

    def matmul_flops(self, precision: str) -> float:
        """Operations per second of large matrix products; float32 uses TF32 units where there are any."""
        if precision == "bfloat16":
            return 1e12 * (self.half_tflops if self.bfloat16 else self.float32_tflops / 2)
        has_tf32 = self.bfloat16 and self.kind == "cuda"
        return 1e12 * (max(self.float32_tflops, self.half_tflops / 2) if has_tf32 else self.float32_tflops)


@dataclass(frozen=True)
class ParameterCounts:
    """How many parameters a model has, and how many of them are in matrices that tokens are multiplied by."""

    total: int
    heads: int  # all parameters of the heads
    matrices: int  # of the backbone
    source_matrices: int  # those of them that multiply tokens of a source
    head_matrices: list[tuple[str, int]]  # kind of head ("lm" = a transform before the logits) and parameters


@dataclass(frozen=True)
class Stack:
    """Layers of one shape and the lengths of their inputs."""

    layers: int
    length: int  # tokens
    is_causal: bool
    source_length: int = 0  # tokens of the source that a decoder attends to


@dataclass(frozen=True)
class Workload:
    """The contents of one batch; a step computes `accumulation_steps` such batches."""

    model: ModelConfig
    vocab_size: int
    heads: dict[str, HeadSpec]
    parameters: ParameterCounts
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
    def logits_per_chunk(self) -> int:
        """Logits that exist at once in the chunked cross-entropy."""
        return logits_per_chunk(self.device)

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
    def generators(self) -> list[HeadSpec]:
        """ELECTRA's generators, whose tokens are sampled from unchunked logits, in compiled steps too."""
        return [spec for spec in self.heads.values() if spec.kind == "generator"]


def make_workload(
    config: RunConfig,
    device: str,
    precision: str,
    vocabulary: int | None = None,
    classes: int = 2,
    batch: int | None = None,
    length: int | None = None,
    parameters: ParameterCounts | None = None,
) -> Workload:
    """The workload of a run with these settings; `parameters` are counted where they are not known."""
    objective, training = make_objective(config.objective), config.training
    model = objective.resolve_backbone(config.model)
    vocab_size, length = vocabulary or config.tokenizer.vocab_size, length or training.max_length
    is_pair = objective.reads == "translations"
    if is_pair and not config.tokenizer.shared_vocab and model.source_vocab_size is None:
        model = model.model_copy(update={"source_vocab_size": vocab_size})  # until its tokenizer is trained
    if batch is None:
        batch = max(1, training.tokens_per_batch // (2 * length if is_pair else length))
        batch = min(batch, training.batch_size or batch)
    heads = objective.heads(model, vocab_size, classes)
    cost = objective.cost(model, length)
    return Workload(
        model=model,
        vocab_size=vocab_size,
        heads=heads,
        parameters=parameters or count_parameters(model, vocab_size, heads),
        batch_size=batch,
        length=length,
        label_fraction=cost.label_fraction,
        precision=precision,
        optimizer=config.optimizer.name,
        device=device,
        accumulation_steps=training.gradient_accumulation_steps,
        keeps_best=training.checkpoint_selection == "best",
        has_padding=objective.reads != "blocks",
        source_length=length if is_pair else 0,
        num_forward=cost.passes,
        averages_weights=training.weight_averaging != "none",
        last_layer_fraction=cost.last_layer_fraction if model.architecture in ("causal", "bidirectional") else 1.0,
    )


def count_parameters(config: ModelConfig, vocab_size: int, heads: dict[str, HeadSpec]) -> ParameterCounts:
    """The parameters of a model with these heads, counted in one that is built without memory, on torch's meta device."""
    with torch.device("meta"):
        model = build_model(config, vocab_size, heads)
    total = in_heads = matrices = source = 0
    head_matrices = []
    for name, weight in model.named_parameters():
        size, (part, rest) = weight.numel(), name.split(".", 1)
        total += size
        if part == "heads":
            in_heads += size
            head, rest = rest.split(".", 1)
            if weight.ndim > 1 and (heads[head].kind, rest) != ("lm", "weight"):
                head_matrices.append((heads[head].kind, size))
        elif weight.ndim > 1 and "embedding" not in rest and "pooler" not in rest:
            matrices += size
            source += size if rest.startswith("encoder.") or "cross_attention.kv" in rest else 0
    return ParameterCounts(total, in_heads, matrices, source, head_matrices)


@dataclass(frozen=True)
class Flops:
    """Forward operations for each token of a batch (R-Drop has two forward passes)."""

    body: float  # matrices of the layers
    attention: float
    heads: float  # logits over the vocabulary where there is a loss, classes once for each text

    @property
    def forward(self) -> float:
        """All of them."""
        return self.body + self.attention + self.heads

    @property
    def training(self) -> float:
        """Forward and backward."""
        return 3 * self.forward


def count_flops(workload: Workload) -> Flops:
    """The operations of a forward pass for each token of this workload."""
    model, parameters, length = workload.model, workload.parameters, workload.tokens_per_example
    attention = 0.0
    if model.architecture not in ("bi-lstm", "cnn"):
        pairs = 0.0  # of a query and a key
        for stack in workload.stacks:
            skips_half = stack.is_causal and not workload.stores_attention_weights
            keys = ((stack.length + 1) / 2 if skips_half else stack.length) + stack.source_length
            pairs += stack.layers * stack.length * keys
        attention = 4 * model.hidden_size * pairs / length
    matrices, source = float(parameters.matrices), parameters.source_matrices
    if workload.source_length:
        matrices = (source * workload.source_length + (parameters.matrices - source) * workload.length) / length
    matrices -= (1 - workload.last_layer_fraction) * weights_above_attention(workload)
    heads = 2 * workload.vocab_size * model.hidden_size * workload.label_fraction * workload.length / length
    others = 0.0
    for kind, size in parameters.head_matrices:
        per_text = 1.0 if kind in HEADS_OVER_TOKENS else 1 / workload.length
        others += 2 * size * (workload.label_fraction if kind == "lm" else per_text)
    return Flops(*(workload.num_forward * part for part in (2.0 * matrices, attention, heads + others)))


def weights_above_attention(workload: Workload) -> int:
    """Weights of a layer above its attention: the output projection and the feed-forward part."""
    model = workload.model
    return model.hidden_size**2 + (workload.up_projections + 1) * model.hidden_size * model.intermediate_size


# --- What compiled steps, attention masks on a GPU and Muon change --------------------------------------------------------

# A profile of compiled steps shows so many operations of a layer, forward and backward. A logit is written and read
# twice, and so is its gradient.
COMPILED_LAYER_OPERATIONS = 27
COMPILED_LOGIT_PASSES = 6
# Where texts are padded, a GPU's attention reads a mask, in tiles of so many tokens, at this fraction of the matrix rate.
MASKED_TILE, MASKED_ATTENTION = 64, 0.05
NEWTON_SCHULZ_STEPS = 5  # in Muon


def masked_attention_work(workload: Workload, unmasked_share: float) -> float:
    """Operations of attention over padded texts, each divided by the fraction of the matrix rate that it reaches."""
    unmasked = masked = 0.0  # pairs of a query and a key: without a mask in a causal stack, else with one, in tiles
    for stack in workload.stacks:
        length, source = (MASKED_TILE * math.ceil(side / MASKED_TILE) for side in (stack.length, stack.source_length))
        if stack.is_causal:
            unmasked += stack.layers * stack.length * (stack.length + 1) / 2
        else:
            masked += stack.layers * length * length
        masked += stack.layers * length * source
    each = 3.5 * 4 * workload.model.hidden_size * workload.batch_size * workload.num_forward
    return each * (unmasked / unmasked_share + masked / MASKED_ATTENTION)


def chunked_logit_bytes(workload: Workload, rows: int) -> float:
    """Bytes of the logits that are in memory at once, and of their gradients, in chunks of so many rows."""
    low, predictions, vocab_size = workload.matmul_bytes, workload.num_predictions, workload.vocab_size
    if workload.is_compiled:  # chunks of one size: logits, gradients and the previous chunk's gradients
        chunks = -(-predictions * vocab_size // workload.logits_per_chunk)
        return low * (3 if chunks > 1 else 2) * -(-predictions // chunks) * vocab_size
    first, second = rows * vocab_size, min(rows, predictions - rows) * vocab_size
    # The old chunk's gradients live until the new one's replace them; logsumexp makes a copy.
    return max(8 * first, (FLOAT32 + 4) * second + low * first + (low * second if low == 2 else 0))


def muon_flops(workload: Workload) -> float:
    """Operations of Newton-Schulz iterations over every matrix of the layers."""
    width, inner = workload.model.hidden_size, workload.model.intermediate_size
    layers = sum(stack.layers for stack in workload.stacks)
    attentions = layers + sum(stack.layers for stack in workload.stacks if stack.source_length)
    shapes = [(width, 4 * attentions), (workload.up_projections * inner, layers), (inner, layers)]
    work = 0.0
    for other, count in shapes:
        short, long = min(width, other), max(width, other)
        work += count * NEWTON_SCHULZ_STEPS * (4 * short**2 * long + 2 * short**3)
    return work


def muon_bytes(workload: Workload) -> float:
    """Bytes for all updates, and to orthogonalize a group of matrices at once; of a sharded model one matrix."""
    square, matrices = workload.model.hidden_size**2, workload.parameters.matrices
    up = workload.model.intermediate_size * workload.model.hidden_size * workload.up_projections
    if workload.num_shards > 1:
        return FLOAT32 * (matrices / workload.num_shards + 9 * max(3 * square, up))
    layers = sum(stack.layers for stack in workload.stacks)
    with_cross = sum(stack.layers * (2 if stack.source_length else 1) for stack in workload.stacks)
    return FLOAT32 * (matrices + 8 * max(4 * with_cross * square, layers * up))
