"""Seconds of a training step on a device: arithmetic against bandwidth, kernel launches, random numbers, the update.

Each class of work takes the longer of its arithmetic and its memory traffic; on a CPU all are added. A GPU computes
while the host launches kernels, but not always: where operations are small it waits for the next one, where they are
large the host is far ahead, and a step has both. So a step takes about the root of the sum of both squares: the longer
where one is much longer, 1.4 times either where they are alike. EFFICIENCIES are measured constants.
"""

import math
from dataclasses import dataclass, replace

from headstart.constants import VOCAB_TILE
from headstart.planning.communication import ONE_DEVICE, Cluster, predict_communication
from headstart.planning.devices import Device
from headstart.planning.flops import count_flops
from headstart.planning.memory import activations
from headstart.planning.workload import FLOAT32, Workload


@dataclass(frozen=True)
class Efficiency:
    """The fraction of its stated rates that a kind of device reaches."""

    matmul: float  # of the matrix rate, by products of large matrices
    half_width: float  # inner size at which a product reaches half of that
    half_rows: float  # rows of logits at which it does so
    attention: float  # of the matrix rate, by fused attention
    bandwidth: float  # of the bandwidth, by element-wise work
    passes: float  # reads and writes of each saved byte of activations in a step
    logit_bytes: float  # traffic for one logit
    update_bytes: float  # traffic for one weight: clipping and the optimizer
    random: float  # seconds for one random number of dropout
    launch: float  # seconds of the host for one operation


# An H200 multiplies large matrices at 0.69 of its stated rate. Apple's GPUs were not measured: a launch is assumed to
# cost their host as much as an H200's.
EFFICIENCIES = {
    "cpu": Efficiency(0.67, 20, 28, 0.3, 0.9, 5.0, 14, 60, 1.5e-9, 32e-6),
    "cuda": Efficiency(0.69, 75, 256, 0.35, 0.8, 8.0, 132, 60, 0.0, 19.5e-6),
    "mps": Efficiency(0.6, 200, 128, 0.3, 0.7, 6.0, 70, 60, 0.0, 19.5e-6),
}
# Compiled steps have the same matrix products and few passes over what lies between them. A profile shows so many
# operations of a layer, forward and backward. A logit is written and read twice, and so is its gradient.
COMPILED = replace(EFFICIENCIES["cuda"], passes=3.0)
COMPILED_TEXTS = replace(COMPILED, launch=38e-6)  # of any size: the host computes every shape again
COMPILED_LAYER_OPERATIONS = 27
COMPILED_LOGIT_PASSES = 6
# Where texts are padded, a GPU's attention reads a mask, in tiles of so many tokens, at this fraction of the matrix rate.
MASKED_TILE, MASKED_ATTENTION = 64, 0.05
NEWTON_SCHULZ_STEPS = 5  # in Muon


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step, by kind of work; on a GPU the launches overlap with the rest, in part."""

    parts: dict[str, float]
    seconds: float
    batch_seconds: float  # computation of one of the step's batches

    def scaled(self, factor: float) -> "StepTime":
        """The same step on a machine that is slower by `factor`."""
        parts = {name: part * factor for name, part in self.parts.items()}
        return StepTime(parts, self.seconds * factor, self.batch_seconds * factor)


def predict_step_time(workload: Workload, device: Device, cluster: Cluster = ONE_DEVICE) -> StepTime:
    """Seconds of one step of this workload on this device; in a cluster it is one process's share of a step."""
    efficiency = EFFICIENCIES[device.kind]
    if workload.is_compiled:
        efficiency = COMPILED_TEXTS if workload.has_padding else COMPILED
    rate = device.matmul_flops(workload.precision)
    bandwidth = 1e9 * device.bandwidth_gbs * efficiency.bandwidth
    batch = {
        "matrices": _matrix_seconds(workload, efficiency, rate, bandwidth),
        "attention": _attention_seconds(workload, efficiency, rate),
        "logits": _logit_seconds(workload, efficiency, rate, bandwidth),
        "element-wise": efficiency.passes * activations(workload) / bandwidth,
        "random numbers": efficiency.random * dropout_numbers(workload),
    }
    parts = {name: part * workload.accumulation_steps for name, part in batch.items()}
    update = workload.parameters.total * efficiency.update_bytes / bandwidth
    if workload.optimizer == "muon":
        update += muon_flops(workload) / (rate * _matmul_share(workload.model.hidden_size, efficiency))
    parts["update"] = update / workload.num_shards
    batch_seconds = sum(batch.values())
    if cluster.count > 1:
        parts["communication"] = predict_communication(workload, device, cluster, batch_seconds).exposed
    computing = sum(parts.values())
    parts["launches"] = launching = efficiency.launch * operations(workload)
    seconds = computing + launching if device.kind == "cpu" else math.hypot(computing, launching)
    return StepTime(parts, seconds, batch_seconds)


def _matmul_share(inner: float, efficiency: Efficiency) -> float:
    """The fraction of the matrix rate that products over `inner` numbers reach."""
    return efficiency.matmul * inner / (inner + efficiency.half_width)


def _matrix_seconds(workload: Workload, efficiency: Efficiency, rate: float, bandwidth: float) -> float:
    """Forward and backward through the layers' matrices; each pass reads the weights."""
    work = 3 * count_flops(workload).body * workload.tokens
    traffic = 3 * workload.matmul_bytes * workload.parameters.matrices()
    return max(work / (rate * _matmul_share(workload.model.hidden_size, efficiency)), traffic / bandwidth)


def _attention_seconds(workload: Workload, efficiency: Efficiency, rate: float) -> float:
    """Two products forward; fused attention computes them again in the backward pass, plain attention saves them."""
    model = workload.model
    work, head_size = count_flops(workload).attention * workload.tokens, model.hidden_size // model.num_heads
    if workload.stores_attention_weights:
        return 3 * work / (rate * _matmul_share(head_size, efficiency))  # its weights count as activations
    rate *= min(1.0, head_size / 64)
    if not (work and workload.has_padding and workload.device == "cuda"):
        return 3.5 * work / (rate * efficiency.attention)
    unmasked, masked = _attention_pairs(workload)
    each = 3.5 * 4 * model.hidden_size * workload.batch_size * workload.num_forward
    return each * (unmasked / efficiency.attention + masked / MASKED_ATTENTION) / rate


def _attention_pairs(workload: Workload) -> tuple[float, float]:
    """Pairs of tokens in a text's attention: without a mask, as in a causal stack, and with one, in tiles."""
    unmasked = masked = 0.0
    for stack in workload.stacks:
        length, source = (MASKED_TILE * math.ceil(side / MASKED_TILE) for side in (stack.length, stack.source_length))
        if stack.is_causal:
            unmasked += stack.layers * stack.length * (stack.length + 1) / 2
        else:
            masked += stack.layers * length * length
        masked += stack.layers * length * source
    return unmasked, masked


def _logit_seconds(workload: Workload, efficiency: Efficiency, rate: float, bandwidth: float) -> float:
    """Logits forward and backward; every chunk reads the embedding twice and adds to its gradient."""
    if not workload.label_fraction:
        return 0.0
    vocab_size, width, predictions = workload.vocab_size, workload.model.hidden_size, workload.num_predictions
    logits, rows = predictions * vocab_size, workload.predictions_per_chunk
    in_chunk = min(rows, predictions)
    rate *= _matmul_share(width, efficiency) * in_chunk / (in_chunk + efficiency.half_rows)
    embedding = -(-predictions // rows) * 4 * FLOAT32 * vocab_size * width / bandwidth
    is_fused = workload.is_compiled and not workload.generators
    traffic = COMPILED_LOGIT_PASSES * workload.matmul_bytes if is_fused else efficiency.logit_bytes
    return max(6 * logits * width / rate, embedding) + logits * traffic / bandwidth


def dropout_numbers(workload: Workload) -> float:
    """Random numbers that dropout draws in one batch."""
    model, drawn = workload.model, 0
    for stack in workload.stacks:
        if model.dropout:
            residuals = 3 if stack.source_length else 2
            layer = residuals * model.hidden_size + model.intermediate_size
            drawn += stack.length * (stack.layers * layer + model.hidden_size)
        if workload.stores_attention_weights:
            keys = stack.length + stack.source_length
            drawn += stack.length * stack.layers * model.num_heads * keys
    return drawn * workload.num_forward * workload.batch_size


def muon_flops(workload: Workload) -> float:
    """Operations of Newton-Schulz iterations over every matrix of the layers."""
    width, inner = workload.model.hidden_size, workload.model.intermediate_size
    layers = sum(stack.layers for stack in workload.stacks)
    cross_layers = sum(stack.layers for stack in workload.stacks if stack.source_length)
    shapes = [
        (width, width, 4 * (layers + cross_layers)),
        (width, workload.up_projections * inner, layers),
        (width, inner, layers),
    ]
    work = 0.0
    for rows, columns, count in shapes:
        short, long = min(rows, columns), max(rows, columns)
        work += count * NEWTON_SCHULZ_STEPS * (4 * short**2 * long + 2 * short**3)
    return work


def operations(workload: Workload) -> float:
    """Operations that the host starts in a step, roughly, from a reading of the code."""
    model = workload.model
    layer = 55 + 30 * (workload.matmul_bytes == 2) + 26 * (model.position_embedding == "rotary")
    layer += 10 * (model.dropout > 0)
    if workload.is_compiled:
        layer = COMPILED_LAYER_OPERATIONS
    chunks = 1
    if workload.label_fraction:
        tiles = -(-workload.vocab_size // VOCAB_TILE) if workload.device == "cpu" else 1
        chunks = -(-workload.num_predictions // workload.predictions_per_chunk) * tiles
    layers = sum(stack.layers * (1.5 if stack.source_length else 1) for stack in workload.stacks)
    batch = workload.num_forward * (layers * layer + 60 * len(workload.stacks)) + 25 * chunks
    muon = (32 * layers + 140) if workload.optimizer == "muon" else 0
    return workload.accumulation_steps * batch + muon + 60
