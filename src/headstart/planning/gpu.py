"""What compiled steps, attention masks on a GPU and Muon change in the time and the memory of a step."""

import math

from headstart.planning.workload import FLOAT32, Workload

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
