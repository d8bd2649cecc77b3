"""Floating-point operations of training, and what a number of tokens costs in hours and money.

Counted: matrix products, two operations for each weight and token, and attention's two products, 4·D for each
key that a token reads (T keys; (T + 1) / 2 on average in a causal body, whose fused attention skips the other
half; S keys more where a decoder reads a source). A token of an encoder-decoder is the mean one of both sides. The last block
finishes only the positions that a head reads. A backward pass is two forward passes, so training is three. Norms, activations and the optimiser's
update are time but no matrix products: duration.py counts their bytes.
"""

from dataclasses import dataclass

from headstart.planning.load import Load, Stack
from headstart.planning.memory import is_plain_attention
from headstart.planning.parameters import GATED

EVERY_TOKEN = ("replaced", "generator")  # heads that answer at each token; the others do once a text


@dataclass(frozen=True)
class Flops:
    """Operations on the way forward, for each token of a batch (which R-Drop reads twice, and a push three times)."""

    body: float  # matrices of the layers
    attention: float
    heads: float  # the vocabulary at asked positions only, classes once a text

    @property
    def forward(self) -> float:
        """All of them."""
        return self.body + self.attention + self.heads

    @property
    def backward(self) -> float:
        """Twice as many: slopes for what came in, and for the weights."""
        return 2 * self.forward

    @property
    def training(self) -> float:
        """Forward and backward."""
        return 3 * self.forward


def keys_read(load: Load, stack: Stack) -> float:
    """Keys whose products with a query are computed in a layer, on average."""
    is_halved = stack.is_causal and not is_plain_attention(load)
    return ((stack.length + 1) / 2 if is_halved else stack.length) + stack.source


def count_flops(load: Load) -> Flops:
    """The operations of a forward pass for each token of this load."""
    body, account, whole = load.body, load.account, load.span
    attends = any("attention" in block.name or block.name == "blocks" for block in account.body)
    looks = sum(stack.layers * stack.length * keys_read(load, stack) for stack in load.stacks)
    attention = 4 * body.hidden_size * looks / whole if attends else 0.0
    matrices = float(account.matrices)
    if load.source_length:
        sides = (("source", load.source_length), ("target", load.length))
        matrices = sum(account.matrices_of(side) * length for side, length in sides) / whole
    matrices -= (1 - load.finished) * finishing(load)
    scores = 2 * load.vocabulary * body.hidden_size * load.asked * load.length / whole
    others = 0.0
    for block in load.account.heads:
        kind = _kind_of(block.name, load)
        if block.name.endswith(", transform"):
            others += 2 * block.matrix * load.asked
        elif kind != "lm":
            others += 2 * block.matrix * (1.0 if kind in EVERY_TOKEN else 1 / load.length)
    parts = (2.0 * matrices, attention, scores + others)
    return Flops(*(load.passes * part for part in parts))


def finishing(load: Load) -> int:
    """Weights of a block above its attention: what it mixes outward, and the feed-forward part."""
    body = load.body
    gates = 2 if body.activation in GATED else 1
    return body.hidden_size**2 + (gates + 1) * body.hidden_size * body.intermediate_size


def _kind_of(block: str, load: Load) -> str:
    name = block.removeprefix("head ").split(",")[0]
    return load.heads[name].kind if name in load.heads else ""


def steps_for(load: Load, tokens: float) -> float:
    """Steps that read `tokens` tokens."""
    return tokens / (load.tokens * load.accumulate)


def money(seconds: float, price: float | None) -> float | None:
    """What so many seconds cost at a price for an hour."""
    return None if price is None else seconds / 3600 * price
