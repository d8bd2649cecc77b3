"""Peak memory of training, part by part, at the run's batch size, length and precision.

Activations are what autograd saves for the backward pass, counted by reading the code of the layers and of the chunked
cross-entropy; tests compare the count with torch's own. The peak is the largest of five moments of a step: the loss,
its backward pass, the top layer's backward pass, the gradient of the token embedding, the optimizer's update.
"""

from collections.abc import Callable
from dataclasses import dataclass

from headstart.constants import GATED_ACTIVATIONS, MAX_UNCHUNKED_LOGITS, VOCAB_TILE
from headstart.planning.workload import FLOAT32, Stack, Workload

MIB = 2**20


@dataclass(frozen=True)
class Framework:
    """Memory of a process besides its tensors: measured constants."""

    base: int  # interpreter, torch and its libraries, or a GPU's context and workspaces
    fragmentation: float  # waste of the allocator, as a fraction of what is allocated and freed in a step


FRAMEWORK = {
    "cpu": Framework(base=330 * MIB, fragmentation=0.35),
    "cuda": Framework(base=64 * MIB, fragmentation=0.05),
    "mps": Framework(base=400 * MIB, fragmentation=0.15),
}
CUDA_CONTEXT = 520 * MIB  # of a process, outside torch's allocator


@dataclass(frozen=True)
class Memory:
    """The peak of a training step, and its parts in bytes."""

    parts: dict[str, int]
    moment: str  # of the step, when the peak is reached

    @property
    def peak(self) -> int:
        """Bytes at the peak, all parts together."""
        return sum(self.parts.values())

    @property
    def tensors(self) -> int:
        """Bytes of tensors and workspaces, as torch's allocator counts them: without fragmentation and context."""
        return self.peak - self.parts.get("fragmentation", 0) - self.parts.get("GPU context", 0)


def predict_memory(workload: Workload) -> Memory:
    """The peak memory of training with this workload."""
    permanent = _permanent_bytes(workload)
    moments = {name: {**permanent, **parts} for name, parts in _bytes_by_moment(workload).items()}
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    parts, framework = moments[moment], FRAMEWORK[workload.device]
    embedding = FLOAT32 * workload.vocab_size * workload.model.hidden_size
    forward = max(0, loss_bytes(workload)[0] - embedding)
    # What is allocated and freed within a step leaves holes: all but gradients and embeddings, which are large.
    temporary = activations(workload) + layer_working_bytes(workload) + forward + update_working_bytes(workload)
    parts |= {"fragmentation": framework.fragmentation * temporary, "framework": framework.base}
    if workload.device == "cuda":
        parts["GPU context"] = CUDA_CONTEXT
    return Memory({name: round(size) for name, size in parts.items() if size >= 1}, moment)


def _permanent_bytes(workload: Workload) -> dict[str, float]:
    """What stays in memory from step to step."""
    parameters, shards = workload.parameters, workload.num_shards
    weights = FLOAT32 * parameters.total / shards
    # Adam has two numbers for each weight, Muon one for each weight in a matrix of a layer.
    with_one = parameters.matrices() if workload.optimizer == "muon" else 0
    window_mask = workload.tokens * workload.length if workload.model.sliding_window is not None else 0
    return {
        "weights": weights,
        "optimizer": FLOAT32 * (2 * parameters.total - with_one) / shards,
        "best weights": weights if workload.keeps_best else 0,
        "averaged weights": weights if workload.averages_weights else 0,
        "batch": 25 * workload.tokens + window_mask,  # tokens, attention mask, labels
    }


def _bytes_by_moment(workload: Workload) -> dict[str, dict[str, float]]:
    """What is in memory besides the permanent parts, at each moment that can be the peak."""
    model, parameters = workload.model, workload.parameters
    gathered, unsharded_gradients = _gathered_bytes(workload)
    gradients = FLOAT32 * parameters.total / workload.num_shards
    earlier = gradients if workload.accumulation_steps > 1 else 0  # of earlier batches of the step
    embedding = FLOAT32 * workload.vocab_size * model.hidden_size
    head = FLOAT32 * sum(block.total for block in parameters.heads)
    head = head or (embedding if workload.label_fraction else 0)
    is_shared = model.tie_embeddings and workload.label_fraction > 0  # two gradients of one embedding are added
    forward, saved, backward = loss_bytes(workload)
    backbone = {
        "activations": activations(workload),
        "low-precision weights": _low_precision_copies(workload),
        "gathered weights": gathered,
    }
    return {
        "forward pass of the loss": {**backbone, "gradients": earlier, "logits": forward},
        "backward pass of the loss": {**backbone, "gradients": earlier, "logits": saved + backward},
        "backward pass of the top layer": {
            **backbone,
            "gradients": max(earlier, head) + unsharded_gradients,
            "working": layer_working_bytes(workload),
        },
        "gradient of the token embedding": {
            "gradients": gradients + unsharded_gradients,
            "working": embedding * (is_shared + bool(earlier)),
            "gathered weights": gathered,
        },
        "optimizer update": {"gradients": gradients, "working": update_working_bytes(workload)},
    }


def _gathered_bytes(workload: Workload) -> tuple[float, float]:
    """Bytes of a sharded model's weights that are gathered at once, and of gradients before they are reduced.

    Those outside of layers stay gathered during a batch; of the layers, the current one and the next.
    """
    if workload.num_shards == 1:
        return 0, 0
    matrices, low = workload.parameters.matrices(), workload.matmul_bytes
    layer = matrices / max(1, workload.model.num_layers)
    rest = FLOAT32 * (workload.parameters.total - matrices)
    return rest + 2 * low * layer, rest + (low + FLOAT32) * layer


def _low_precision_copies(workload: Workload) -> float:
    """Bytes of the bfloat16 copies of matrices that a forward pass under autocast makes."""
    if workload.matmul_bytes == FLOAT32:
        return 0
    embedding = workload.vocab_size * workload.model.hidden_size if workload.label_fraction else 0
    matrices = workload.parameters.matrices() if workload.num_shards == 1 else 0  # shards are gathered in bfloat16
    return workload.matmul_bytes * (matrices + embedding)


def activations(workload: Workload) -> float:
    """Bytes that autograd saves of the backbone in one batch."""
    model, low = workload.model, workload.matmul_bytes
    top = low * model.hidden_size + (_norm_input(workload) if model.norm_first else 0)
    embedding = _dropout_mask(workload, model.hidden_size)
    above_attention = (
        _norm_input(workload)
        + 2 * low * model.hidden_size
        + low * model.intermediate_size * _feed_forward_copies(workload)
        + _dropout_mask(workload, 2 * model.hidden_size + model.intermediate_size)
    )
    # A generator's layers, half as many as the backbone's and narrower, count as a fraction of a layer each.
    extra_layers = sum(spec.settings.get("share", 0.5) * max(1, model.num_layers // 2) for spec in workload.generators)
    total, fraction = 0.0, workload.last_layer_fraction
    for stack in workload.stacks:
        total += (stack.layers + extra_layers) * layer_activations(workload, stack)
        total += stack.length * (fraction * top + embedding - (1 - fraction) * above_attention)
    return workload.num_forward * workload.batch_size * total


def layer_activations(workload: Workload, stack: Stack) -> float:
    """Bytes that autograd saves of one layer, for each text."""
    return LAYER_ACTIVATIONS[workload.model.architecture](workload, stack)


def _lstm_layer(workload: Workload, stack: Stack) -> float:
    """An LSTM both ways: its input, output and gates; torch's CPU kernel has a large workspace."""
    gates = 22 if workload.device == "cpu" else 8
    numbers = 2 * workload.matmul_bytes + gates * FLOAT32
    return stack.length * (_norm_input(workload) + numbers * workload.model.hidden_size)


def _convolution_layer(workload: Workload, stack: Stack) -> float:
    """The input of a convolution, and both halves of its gate."""
    return stack.length * (_norm_input(workload) + 3 * workload.matmul_bytes * workload.model.hidden_size)


def _attention_layer(workload: Workload, stack: Stack) -> float:
    """Attention and feed-forward, and cross-attention between them."""
    model, low = workload.model, workload.matmul_bytes
    width, inner, heads = model.hidden_size, model.intermediate_size, model.num_heads
    linear = 3 * low * width  # the inputs of the QKV, output and up projections
    attention: float = 3 * low * width  # queries, keys and values
    if workload.stores_attention_weights:  # weights, their dropout, the product
        attention += 3 * low * heads * stack.length
    else:
        rotated = 2 * low * width if model.position_embedding == "rotary" or model.qk_norm else 0
        attention += rotated + FLOAT32 * heads
        if workload.device == "cuda" and (width // heads) % 8:  # its kernels pad odd sizes and copy the output
            attention += low * width
    attention += _qk_norm_input(workload)
    feed_forward = low * inner * _feed_forward_copies(workload)
    masks = _dropout_mask(workload, 2 * width + inner)
    each = 2 * _norm_input(workload) + linear + attention + feed_forward + masks
    return stack.length * each + _cross_attention(workload, stack)


def _cross_attention(workload: Workload, stack: Stack) -> float:
    """Queries for each token of a text, keys and values for each token of its source."""
    if not stack.source_length:
        return 0
    model, low = workload.model, workload.matmul_bytes
    width, heads = model.hidden_size, model.num_heads
    # The query, and the inputs of the query and output projections.
    queries = 3 * low * width + _norm_input(workload) + _dropout_mask(workload, width)
    queries += 3 * low * heads * stack.source_length if workload.stores_attention_weights else FLOAT32 * heads
    keys_values: float = 2 * low * width
    if model.qk_norm:
        normed = _qk_norm_input(workload) / 2 + low * width
        queries, keys_values = queries + normed, keys_values + normed
    return stack.length * queries + stack.source_length * keys_values


def _qk_norm_input(workload: Workload) -> float:
    """Bytes for each token that the norms of queries and keys save, with a float32 copy under autocast."""
    if not workload.model.qk_norm:
        return 0
    return 2 * FLOAT32 * workload.model.hidden_size * (2 if workload.matmul_bytes == 2 else 1)


def _feed_forward_copies(workload: Workload) -> int:
    """How often the inner activations are saved: before, between and after the activation function.

    Compiled code recomputes a gate in the backward pass instead of saving its output.
    """
    if workload.model.activation in GATED_ACTIVATIONS:
        return 3 if workload.is_compiled else 4
    if workload.model.activation == "relu":
        return 2 if workload.model.dropout else 1
    return 2


def _norm_input(workload: Workload) -> float:
    """Bytes for each token that a norm saves: its input; RMSNorm on a CPU is made of parts and saves the quotient too."""
    copies = 2 if workload.model.norm == "rms" and workload.device != "cuda" else 1
    return FLOAT32 * (copies * workload.model.hidden_size + 2)


def _dropout_mask(workload: Workload, numbers: int) -> float:
    """Bytes of the dropout mask over so many numbers: one of the same precision on a CPU, of truth values on a GPU."""
    if not workload.model.dropout:
        return 0
    return numbers * (workload.matmul_bytes if workload.device == "cpu" else 1)


def loss_bytes(workload: Workload) -> tuple[float, float, float]:
    """Bytes of the cross-entropy: at most in the forward pass, saved, and at most added in the backward pass."""
    if not workload.label_fraction:
        return 0, 0, 0
    predictions, vocab_size, width = workload.num_predictions, workload.vocab_size, workload.model.hidden_size
    low, weights = workload.matmul_bytes, vocab_size * width
    hidden = low * predictions * width
    low_weights = low * weights if low == 2 else 0
    num_logits = predictions * vocab_size
    logits = FLOAT32 * num_logits
    if workload.generators:  # all logits at once, and a sample from them
        return 5 * logits + hidden, 2 * logits + hidden, 2 * logits + FLOAT32 * weights
    limit = MAX_UNCHUNKED_LOGITS.get(workload.device, workload.logits_per_chunk)
    if not workload.is_compiled and num_logits <= limit:
        # Logits and their log-softmax; in the backward pass two gradients more.
        return 2 * logits + hidden, logits + hidden, 2 * logits + FLOAT32 * weights
    rows = min(predictions, workload.predictions_per_chunk)
    if workload.device == "cpu":  # a chunk, a tile in low precision and its part of two gradients
        gradients = FLOAT32 * (weights + predictions * width)
        tile = low * rows * min(vocab_size, VOCAB_TILE) + FLOAT32 * rows * width if low == 2 else 0
        return FLOAT32 * rows * vocab_size + tile + gradients + hidden, gradients + hidden, low_weights
    if workload.is_compiled:  # chunks of one size: logits, gradients and the previous chunk's gradients
        chunks = -(-num_logits // workload.logits_per_chunk)
        alive: float = low * (3 if chunks > 1 else 2) * -(-predictions // chunks) * vocab_size
    else:
        first, second = rows * vocab_size, min(rows, predictions - rows) * vocab_size
        # The old chunk's gradients live until the new one's replace them; logsumexp makes a copy.
        alive = max(8 * first, (FLOAT32 + 4) * second + low * first + (low * second if low == 2 else 0))
    saved = FLOAT32 * weights + hidden
    return alive + saved + low_weights, saved, FLOAT32 * weights + low_weights + hidden


def layer_working_bytes(workload: Workload) -> float:
    """Bytes of gradients in the backward pass of one layer.

    A compiled gate has those of its product, gate and value; a plain one also the tensor that they are cut from.
    """
    model, low, most = workload.model, workload.matmul_bytes, 0.0
    gated = 3 if workload.is_compiled else 5
    inner = low * model.intermediate_size * (gated if model.activation in GATED_ACTIVATIONS else 2)
    for stack in workload.stacks:
        attention = 4 * low * model.hidden_size
        if workload.stores_attention_weights:
            attention += 3 * low * model.num_heads * max(stack.length, stack.source_length)
        gradients = stack.length * (2 * FLOAT32 * model.hidden_size + max(inner, attention))
        # All layers of a decoder add to the gradient of the encoder's output.
        most = max(most, gradients + 2 * FLOAT32 * stack.source_length * model.hidden_size)
    return workload.batch_size * most


def update_working_bytes(workload: Workload) -> float:
    """Bytes that Muon's update needs: for all updates, and to orthogonalize a group of matrices at once.

    Of a sharded model it orthogonalizes one matrix at a time.
    """
    if workload.optimizer != "muon":
        return 0
    model, matrices = workload.model, workload.parameters.matrices()
    up = model.intermediate_size * model.hidden_size * workload.up_projections
    if workload.num_shards > 1:
        return FLOAT32 * (matrices / workload.num_shards + 9 * max(3 * model.hidden_size**2, up))
    layers = sum(stack.layers for stack in workload.stacks)
    square_matrices = 4 * sum(stack.layers * (2 if stack.source_length else 1) for stack in workload.stacks)
    return FLOAT32 * (matrices + 8 * max(square_matrices * model.hidden_size**2, layers * up))


LAYER_ACTIVATIONS: dict[str, Callable[[Workload, Stack], float]] = {
    "causal": _attention_layer,
    "bidirectional": _attention_layer,
    "encoder-decoder": _attention_layer,
    "bi-lstm": _lstm_layer,
    "cnn": _convolution_layer,
}
