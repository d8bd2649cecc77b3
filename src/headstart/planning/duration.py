"""Seconds of a training step on a device: arithmetic against bandwidth, launches, random numbers, the update.

Each class of work takes the longer of its arithmetic and its traffic; on a CPU all is added up. A GPU computes while
the host launches, but not all the time: where operations are small it waits for the next one, where they are large the
host is far ahead, and a step has stretches of both. So a step takes neither the longer of the two nor their sum, but
about the root of the sum of their squares: the longer where one is much longer, 1.4 times either where they are alike.
PACES are measured constants, not laws.
"""

import math
from dataclasses import dataclass, replace

from headstart.planning.cluster import ONE, Cluster, exchange
from headstart.planning.cost import count_flops
from headstart.planning.devices import Device
from headstart.planning.load import Load
from headstart.planning.memory import (
    FULL,
    OTHER_PIECE,
    PIECE,
    TILE,
    activations,
    has_generator,
    is_plain_attention,
)
from headstart.planning.parameters import GATED


@dataclass(frozen=True)
class Pace:
    """How near a kind of machine comes to the rates in its row."""

    matrix: float  # share of the matrix rate that wide products reach
    half_width: float  # inner width at which a product reaches half of that
    half_rows: float  # rows of scores at which it does so too
    attention: float  # share of the matrix rate that fused attention reaches
    bandwidth: float  # share of the bandwidth that element-wise work reaches
    passes: float  # how often each kept byte of activations is read or written in a step
    score_bytes: float  # traffic for one score of the vocabulary
    update_bytes: float  # traffic for one weight: clipping and the optimiser
    random: float  # seconds for one random number of dropout
    launch: float  # seconds of the host for one operation


# An H200 multiplies large matrices at 0.69 of its stated rate. Apple's GPUs were not measured: a launch is taken to cost
# their host as much as it costs an H200's.
PACES = {
    "cpu": Pace(0.67, 20, 28, 0.3, 0.9, 5.0, 14, 60, 1.5e-9, 32e-6),
    "cuda": Pace(0.69, 75, 256, 0.35, 0.8, 8.0, 132, 60, 0.0, 19.5e-6),
    "mps": Pace(0.6, 200, 128, 0.3, 0.7, 6.0, 70, 60, 0.0, 19.5e-6),
}
# Compiled steps have the same products; what lies between them is done in few passes. Of a layer, a profile shows so many
# operations, there and back. A score of the vocabulary is written and read twice, and so is its slope.
COMPILED = replace(PACES["cuda"], passes=3.0)
COMPILED_TEXTS = replace(COMPILED, launch=38e-6)  # of any size: the host works out every shape anew
COMPILED_LAYER = 27
COMPILED_SCORE = 6
# Where texts are padded a GPU's attention reads a mask, in tiles of so many tokens, at this share of the matrix rate.
MASKED_TILE, MASKED_SHARE = 64, 0.05
BATCH_WORK = ("matrices", "attention", "scores", "element-wise", "random numbers")  # what every batch takes
ROUNDS = 5  # of Newton and Schulz in Muon


@dataclass(frozen=True)
class Duration:
    """Seconds of one step, by kind of work; on a GPU the launches run beside the rest, in part."""

    parts: dict[str, float]
    seconds: float
    tokens: int  # read in the step

    @property
    def tokens_per_second(self) -> float:
        """How fast text is read."""
        return self.tokens / self.seconds

    def scaled(self, factor: float) -> "Duration":
        """The same step on a machine that is slower by `factor`."""
        return Duration(
            {name: part * factor for name, part in self.parts.items()}, self.seconds * factor, self.tokens
        )


def predict_duration(load: Load, device: Device, cluster: Cluster = ONE) -> Duration:
    """Seconds of one step of this load on this device, by the constants of its kind.

    In a cluster the load is one process's share, and the tokens are those of all.
    """
    pace = PACES[device.kind]
    if load.is_compiled:
        pace = COMPILED_TEXTS if load.has_padding else COMPILED
    rate = device.matrix_rate(load.precision)
    bandwidth = 1e9 * device.bandwidth * pace.bandwidth
    batches = {
        "matrices": _matrices(load, pace, rate, bandwidth),
        "attention": _attention(load, pace, rate, bandwidth),
        "scores": _scores(load, pace, rate, bandwidth),
        "element-wise": pace.passes * activations(load) / bandwidth,
        "random numbers": pace.random * random_numbers(load),
    }
    parts = {name: part * load.accumulate for name, part in batches.items()}
    parts["update"] = _update(load, pace, rate, bandwidth) / load.parts
    if cluster.count > 1:
        parts["exchange"] = exchange(load, device, cluster, sum(batches.values())).exposed
    computing, launching = sum(parts.values()), pace.launch * operations(load)
    parts["launches"] = launching
    seconds = computing + launching if device.kind == "cpu" else math.hypot(computing, launching)
    return Duration(parts, seconds, load.tokens * load.accumulate)


def _share(inner: float, pace: Pace) -> float:
    """The share of the matrix rate that products over `inner` numbers reach."""
    return pace.matrix * inner / (inner + pace.half_width)


def _matrices(load: Load, pace: Pace, rate: float, bandwidth: float) -> float:
    """Forward and backward through the layers' matrices; each pass reads the weights."""
    work = 3 * count_flops(load).body * load.tokens
    return max(
        work / (rate * _share(load.body.hidden_size, pace)), 3 * load.low * load.account.matrices / bandwidth
    )


def _attention(load: Load, pace: Pace, rate: float, bandwidth: float) -> float:
    """Two products forward; fused attention computes them again on the way back, plain attention stores them."""
    work, inner = count_flops(load).attention * load.tokens, load.body.hidden_size // load.body.num_heads
    if is_plain_attention(load):
        return 3 * work / (rate * _share(inner, pace))  # its weights are counted with the activations
    rate *= min(1.0, inner / 64)
    if not (work and load.has_padding and load.device == "cuda"):
        return 3.5 * work / (rate * pace.attention)
    plain, masked = _pairs(load)
    each = 3.5 * 4 * load.body.hidden_size * load.batch * load.passes
    return each * (plain / pace.attention + masked / MASKED_SHARE) / rate


def _pairs(load: Load) -> tuple[float, float]:
    """Pairs of tokens that a text's attention computes: without a mask, as a causal stack does, and with one, in tiles."""
    plain = masked = 0.0
    for stack in load.stacks:
        length, source = (
            MASKED_TILE * math.ceil(side / MASKED_TILE) for side in (stack.length, stack.source)
        )
        if stack.is_causal:
            plain += stack.layers * stack.length * (stack.length + 1) / 2
        else:
            masked += stack.layers * length * length
        masked += stack.layers * length * source
    return plain, masked


def _scores(load: Load, pace: Pace, rate: float, bandwidth: float) -> float:
    """Scores of the vocabulary, forward and backward; every piece reads the table twice and adds to its slope."""
    if not load.asked:
        return 0.0
    size, width = load.vocabulary, load.body.hidden_size
    scores = load.answers * size
    rows = max(1, PIECE.get(load.device, OTHER_PIECE) // size)
    pieces = -(-load.answers // rows)
    in_piece = min(rows, load.answers)
    products = 6 * scores * width / (rate * _share(width, pace) * in_piece / (in_piece + pace.half_rows))
    tables = pieces * 4 * FULL * size * width / bandwidth
    is_fused = load.is_compiled and not has_generator(load)
    traffic = COMPILED_SCORE * load.low if is_fused else pace.score_bytes
    return max(products, tables) + scores * traffic / bandwidth


def random_numbers(load: Load) -> float:
    """Numbers that dropout draws in one batch."""
    body, drawn = load.body, 0
    for stack in load.stacks:
        if body.dropout:
            adds = 3 if stack.source else 2
            drawn += stack.length * (
                stack.layers * (adds * body.hidden_size + body.intermediate_size) + body.hidden_size
            )
        if is_plain_attention(load):
            drawn += stack.length * stack.layers * body.num_heads * (stack.length + stack.source)
    return drawn * load.passes * load.batch


def muon_flops(load: Load) -> float:
    """Operations of making every matrix of the layers orthogonal."""
    body = load.body
    layers = sum(stack.layers for stack in load.stacks)
    crossing = sum(stack.layers for stack in load.stacks if stack.source)
    gates = 2 if body.activation in GATED else 1
    shapes = [
        (body.hidden_size, body.hidden_size, 4 * (layers + crossing)),
        (body.hidden_size, gates * body.intermediate_size, layers),
        (body.hidden_size, body.intermediate_size, layers),
    ]
    work = 0.0
    for rows, columns, count in shapes:
        short, long = min(rows, columns), max(rows, columns)
        work += count * ROUNDS * (4 * short**2 * long + 2 * short**3)
    return work


def _update(load: Load, pace: Pace, rate: float, bandwidth: float) -> float:
    seconds = load.account.total * pace.update_bytes / bandwidth
    if load.optimizer == "muon" and load.account.matrices:
        seconds += muon_flops(load) / (rate * _share(load.body.hidden_size, pace))
    return seconds


def operations(load: Load) -> float:
    """Operations that the host starts in a step, roughly, from a reading of the code."""
    body = load.body
    layer = 55 + 30 * (load.low == 2) + 26 * (body.position_embedding == "rotary") + 10 * (body.dropout > 0)
    if load.is_compiled:
        layer = COMPILED_LAYER
    pieces = 1
    if load.asked:
        rows = max(1, PIECE.get(load.device, OTHER_PIECE) // load.vocabulary)
        tiles = -(-load.vocabulary // TILE) if load.device == "cpu" else 1
        pieces = -(-load.answers // rows) * tiles
    layers = sum(stack.layers * (1.5 if stack.source else 1) for stack in load.stacks)  # crossing adds half
    batch = load.passes * (layers * layer + 60 * len(load.stacks)) + 25 * pieces
    muon = (32 * layers + 140) if load.optimizer == "muon" else 0
    return load.accumulate * batch + muon + 60
