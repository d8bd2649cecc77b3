"""Floating-point operations of training, and what a number of tokens costs in hours and money.

Counted: matrix products, two operations for each weight and token, and attention's two products, 4·D for each
key that a token reads (T keys; (T + 1) / 2 on average in a causal body, whose fused attention skips the other
half). A backward pass is two forward passes, so training is three. Norms, activations and the optimiser's
update are time but no matrix products: duration.py counts their bytes.
"""

from dataclasses import dataclass

from headstart.planning.load import Load
from headstart.planning.memory import is_plain_attention

EVERY_TOKEN = ("replaced", "generator")  # heads that answer at each token; the others do once a text


@dataclass(frozen=True)
class Flops:
    """Operations of one forward pass, for each token."""

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


def keys_read(load: Load) -> float:
    """Keys whose products with a query are computed, on average."""
    is_halved = load.body.kind == "causal" and not is_plain_attention(load)
    return (load.length + 1) / 2 if is_halved else load.length


def count_flops(load: Load) -> Flops:
    """The operations of a forward pass for each token of this load."""
    body = load.body
    attends = any("attention" in block.name or block.name == "blocks" for block in load.account.body)
    attention = 4 * body.width * keys_read(load) * body.layers if attends else 0.0
    scores = 2 * load.vocabulary * body.width * load.asked
    others = 0.0
    for block in load.account.heads:
        kind = _kind_of(block.name, load)
        if block.name.endswith(", transform"):
            others += 2 * block.matrix * load.asked
        elif kind != "lm":
            others += 2 * block.matrix * (1.0 if kind in EVERY_TOKEN else 1 / load.length)
    return Flops(2.0 * load.account.matrices, attention, scores + others)


def _kind_of(block: str, load: Load) -> str:
    name = block.removeprefix("head ").split(",")[0]
    return load.heads[name].kind if name in load.heads else ""


def steps_for(load: Load, tokens: float) -> float:
    """Steps that read `tokens` tokens."""
    return tokens / (load.tokens * load.accumulate)


def money(seconds: float, price: float | None) -> float | None:
    """What so many seconds cost at a price for an hour."""
    return None if price is None else seconds / 3600 * price
