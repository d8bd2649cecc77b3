"""Floating-point operations of training.

Counted: matrix products, two operations for each weight and token, and attention's two products, 4·D for each key that
a token attends to (T keys; (T + 1) / 2 on average in a causal backbone, whose fused attention skips the other half; S
keys more where a decoder attends to a source). A token of an encoder-decoder is the mean one of both sides. The last
layer computes only the positions that a head reads. A backward pass costs two forward passes, so training costs three.
Norms, activations and the optimizer's update take time but are no matrix products: step_time.py counts their bytes.
"""

from dataclasses import dataclass

from headstart.planning.workload import Stack, Workload

HEADS_OVER_TOKENS = ("replaced", "generator")  # heads that answer at each token; the others do once for each text


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
    def backward(self) -> float:
        """Twice as many: gradients of the inputs, and of the weights."""
        return 2 * self.forward

    @property
    def training(self) -> float:
        """Forward and backward."""
        return 3 * self.forward


def keys_per_query(workload: Workload, stack: Stack) -> float:
    """Keys whose products with a query are computed in a layer, on average."""
    skips_half = stack.is_causal and not workload.stores_attention_weights
    return ((stack.length + 1) / 2 if skips_half else stack.length) + stack.source_length


def count_flops(workload: Workload) -> Flops:
    """The operations of a forward pass for each token of this workload."""
    model, parameters, length = workload.model, workload.parameters, workload.tokens_per_example
    attention = 0.0
    if any("attention" in block.name for block in parameters.backbone):
        pairs = sum(stack.layers * stack.length * keys_per_query(workload, stack) for stack in workload.stacks)
        attention = 4 * model.hidden_size * pairs / length
    matrices = float(parameters.matrices())
    if workload.source_length:
        sides = (("source", workload.source_length), ("target", workload.length))
        matrices = sum(parameters.matrices(side) * tokens for side, tokens in sides) / length
    matrices -= (1 - workload.last_layer_fraction) * weights_above_attention(workload)
    logits = 2 * workload.vocab_size * model.hidden_size * workload.label_fraction * workload.length / length
    others = 0.0
    for block in parameters.heads:
        kind = workload.heads[block.name.removeprefix("head ").split(",")[0]].kind
        if block.name.endswith(", transform"):
            others += 2 * block.matrix * workload.label_fraction
        elif kind != "lm":
            others += 2 * block.matrix * (1.0 if kind in HEADS_OVER_TOKENS else 1 / workload.length)
    parts = (2.0 * matrices, attention, logits + others)
    return Flops(*(workload.num_forward * part for part in parts))


def weights_above_attention(workload: Workload) -> int:
    """Weights of a layer above its attention: the output projection and the feed-forward part."""
    model = workload.model
    return model.hidden_size**2 + (workload.up_projections + 1) * model.hidden_size * model.intermediate_size
