"""Peak memory of training, part by part, at the run's batch size, length and precision.

Activations are what autograd saves for the backward pass, counted by reading the code of the layers and of the chunked
cross-entropy; tests compare the count with torch's own. The peak is the largest of five moments of a step: the loss,
its backward pass, the top layer's backward pass, the gradient of the token embedding, the optimizer's update.
"""

from dataclasses import dataclass

from headstart.constants import GATED_ACTIVATIONS, MAX_UNCHUNKED_LOGITS
from headstart.planning.communication import sharding_bytes
from headstart.planning.workload import FLOAT32, Stack, Workload, chunked_logit_bytes, muon_bytes

MIB = 2**20

# Measured: interpreter, torch and its libraries, or a GPU's workspaces; and the waste of the allocator, as a fraction of
# what is allocated and freed in a step.
FRAMEWORK_BYTES = {"cpu": 330 * MIB, "cuda": 64 * MIB, "mps": 400 * MIB}
FRAGMENTATION = {"cpu": 0.35, "cuda": 0.05, "mps": 0.15}
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
    parameters, shards = workload.parameters, workload.num_shards
    weights = FLOAT32 * parameters.total / shards
    # Adam has two numbers for each weight, Muon one for each weight in a matrix of a layer.
    with_one = parameters.matrices if workload.optimizer == "muon" else 0
    window_mask = workload.tokens * workload.length if workload.model.sliding_window is not None else 0
    permanent = {
        "weights": weights,
        "optimizer": FLOAT32 * (2 * parameters.total - with_one) / shards,
        "best weights": weights if workload.keeps_best else 0,
        "averaged weights": weights if workload.averages_weights else 0,
        "batch": 25 * workload.tokens + window_mask,  # tokens, attention mask, labels
    }
    update = muon_bytes(workload) if workload.optimizer == "muon" else 0.0
    moments = {name: {**permanent, **parts} for name, parts in _bytes_by_moment(workload, update).items()}
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    parts = moments[moment]
    embedding = FLOAT32 * workload.vocab_size * workload.model.hidden_size
    forward = max(0, loss_bytes(workload)[0] - embedding)
    # What is allocated and freed within a step leaves holes: all but gradients and embeddings, which are large.
    temporary = activations(workload) + layer_working_bytes(workload) + forward + update
    parts |= {
        "fragmentation": FRAGMENTATION[workload.device] * temporary,
        "framework": FRAMEWORK_BYTES[workload.device],
        "GPU context": CUDA_CONTEXT if workload.device == "cuda" else 0,
    }
    return Memory({name: round(size) for name, size in parts.items() if size >= 1}, moment)


def _bytes_by_moment(workload: Workload, update: float) -> dict[str, dict[str, float]]:
    """What is in memory besides the permanent parts, at each moment that can be the peak; `update` is the optimizer's."""
    parameters, low, shards = workload.parameters, workload.matmul_bytes, workload.num_shards
    numbers = workload.vocab_size * workload.model.hidden_size  # in the embedding
    gathered, unsharded = sharding_bytes(workload) if shards > 1 else (0.0, 0.0)
    copies = 0  # in bfloat16, of the matrices under autocast; shards are gathered in bfloat16
    if low < FLOAT32:
        copies = low * ((parameters.matrices if shards == 1 else 0) + (numbers if workload.label_fraction else 0))
    gradients = FLOAT32 * parameters.total / shards
    earlier = gradients if workload.accumulation_steps > 1 else 0  # of earlier batches of the step
    head = FLOAT32 * (parameters.heads or (numbers if workload.label_fraction else 0))
    # Two gradients of one embedding are added.
    is_shared = workload.model.tie_embeddings and workload.label_fraction > 0
    forward, saved, backward = loss_bytes(workload)
    backbone = {"activations": activations(workload), "low-precision weights": copies, "gathered weights": gathered}
    return {
        "forward pass of the loss": {**backbone, "gradients": earlier, "logits": forward},
        "backward pass of the loss": {**backbone, "gradients": earlier, "logits": saved + backward},
        "backward pass of the top layer": {
            **backbone,
            "gradients": max(earlier, head) + unsharded,
            "working": layer_working_bytes(workload),
        },
        "gradient of the token embedding": {
            "gradients": gradients + unsharded,
            "working": FLOAT32 * numbers * (is_shared + bool(earlier)),
            "gathered weights": gathered,
        },
        "optimizer update": {"gradients": gradients, "working": update},
    }


def activations(workload: Workload) -> float:
    """Bytes that autograd saves of the backbone in one batch."""
    model, low = workload.model, workload.matmul_bytes
    top = low * model.hidden_size + (_norm_input(workload) if model.norm_first else 0)
    embedding = _dropout_mask(workload, model.hidden_size)
    above_attention = _norm_input(workload) + 2 * low * model.hidden_size + _feed_forward(workload)
    # A generator's layers, half as many as the backbone's and narrower, count as a fraction of a layer each.
    extra_layers = sum(spec.settings.get("share", 0.5) * max(1, model.num_layers // 2) for spec in workload.generators)
    total, fraction = 0.0, workload.last_layer_fraction
    for stack in workload.stacks:
        total += (stack.layers + extra_layers) * layer_activations(workload, stack)
        total += stack.length * (fraction * top + embedding - (1 - fraction) * above_attention)
    return workload.num_forward * workload.batch_size * total


def layer_activations(workload: Workload, stack: Stack) -> float:
    """Bytes that autograd saves of one layer, for each text."""
    model, low, norm = workload.model, workload.matmul_bytes, _norm_input(workload)
    width, heads = model.hidden_size, model.num_heads
    if model.architecture == "bi-lstm":  # input, output and gates both ways; torch's CPU kernel has a large workspace
        gates = 22 if workload.device == "cpu" else 8
        return stack.length * (norm + (2 * low + gates * FLOAT32) * width)
    if model.architecture == "cnn":  # the input of a convolution, and both halves of its gate
        return stack.length * (norm + 3 * low * width)
    qk_norm = 2 * FLOAT32 * width * (2 if low == 2 else 1) if model.qk_norm else 0  # with float32 copies under autocast
    each: float = 6 * low * width  # queries, keys and values; the inputs of the QKV, output and up projections
    if workload.stores_attention_weights:  # weights, their dropout, the product
        each += 3 * low * heads * stack.length
    else:
        rotated = 2 * low * width if model.position_embedding == "rotary" or model.qk_norm else 0
        each += rotated + FLOAT32 * heads
        if workload.device == "cuda" and (width // heads) % 8:  # its kernels pad odd sizes and copy the output
            each += low * width
    each += 2 * norm + qk_norm + _feed_forward(workload)
    if not stack.source_length:
        return stack.length * each
    # Cross-attention: the query, and the inputs of the query and output projections; keys and values of the source.
    each += 3 * low * width + norm + _dropout_mask(workload, width)
    each += 3 * low * heads * stack.source_length if workload.stores_attention_weights else FLOAT32 * heads
    normed = qk_norm / 2 + low * width if model.qk_norm else 0
    return stack.length * (each + normed) + stack.source_length * (2 * low * width + normed)


def _feed_forward(workload: Workload) -> float:
    """Bytes for each token that a feed-forward part saves, with the dropout masks of a layer.

    Inner activations are saved before, between and after the activation function. Compiled code recomputes a gate in
    the backward pass instead of saving its output.
    """
    model, copies = workload.model, 2
    if model.activation in GATED_ACTIVATIONS:
        copies = 3 if workload.is_compiled else 4
    elif model.activation == "relu" and not model.dropout:
        copies = 1
    masks = _dropout_mask(workload, 2 * model.hidden_size + model.intermediate_size)
    return workload.matmul_bytes * model.intermediate_size * copies + masks


def _norm_input(workload: Workload) -> float:
    """Bytes for each token that a norm saves: its input; RMSNorm outside CUDA saves the quotient too."""
    copies = 2 if workload.model.norm == "rms" and workload.device != "cuda" else 1
    return FLOAT32 * (copies * workload.model.hidden_size + 2)


def _dropout_mask(workload: Workload, numbers: int) -> float:
    """Bytes of the dropout mask over so many numbers: of the same precision on a CPU, boolean on a GPU."""
    return numbers * (workload.matmul_bytes if workload.device == "cpu" else 1) if workload.model.dropout else 0


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
    rows = min(predictions, max(1, workload.logits_per_chunk // vocab_size))
    if workload.device == "cpu":
        gradients = FLOAT32 * (weights + predictions * width)
        return low * rows * vocab_size + gradients + hidden, gradients + hidden, low_weights
    saved = FLOAT32 * weights + hidden
    return chunked_logit_bytes(workload, rows) + saved + low_weights, saved, FLOAT32 * weights + low_weights + hidden


def layer_working_bytes(workload: Workload) -> float:
    """Bytes of gradients in the backward pass of one layer.

    A compiled gate has those of its product, gate and value; a plain one also the tensor that they are split from.
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
