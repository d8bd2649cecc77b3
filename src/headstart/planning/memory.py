"""Peak memory of training, part by part, at the real batch, length and precision.

Activations are what autograd keeps for the way back, counted by reading models/block.py, attention.py and
objectives/cross_entropy.py; a test holds the count against torch's own. The peak is the largest of five
moments of a step: scoring, its way back, the top layer's way back, the token table's gradient, the update.
"""

from collections.abc import Callable
from dataclasses import dataclass

from headstart.planning.load import Load, Stack
from headstart.planning.parameters import GATED

MIB = 2**20
# Scores alive at once in objectives/cross_entropy.py, by device, and up to how many it takes the plain way.
PIECE = {"cpu": 2**24, "cuda": 2**27}
WHOLE = {"cpu": 2**17, "cuda": 2**27}
OTHER_PIECE = 2**24
TILE = 2048  # tokens of the vocabulary scored together on a CPU
FULL = 4  # bytes of a float32


@dataclass(frozen=True)
class Framework:
    """What a process holds beside tensors; measured constants."""

    base: int  # interpreter, torch and its libraries, or a GPU's context and workspaces
    scatter: float  # what the allocator wastes, as a share of what comes and goes in a step


FRAMEWORK = {
    "cpu": Framework(base=330 * MIB, scatter=0.35),
    "cuda": Framework(base=64 * MIB, scatter=0.05),
    "mps": Framework(base=400 * MIB, scatter=0.15),
}
CONTEXT = 520 * MIB  # of a CUDA process, outside torch's allocator


@dataclass(frozen=True)
class Part:
    """Bytes of one kind, alive at the peak."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Memory:
    """The peak of a training step, and what it is made of."""

    parts: list[Part]
    moment: str  # when the peak is reached

    @property
    def peak(self) -> int:
        """Bytes at the peak, all parts together."""
        return sum(part.bytes for part in self.parts)

    def of(self, *names: str) -> int:
        """Bytes of the parts with these names."""
        return sum(part.bytes for part in self.parts if part.name in names)

    @property
    def tensors(self) -> int:
        """Bytes of tensors and workspaces, as torch's allocator counts them: no scatter, no context."""
        return self.peak - self.of("fragmentation", "GPU context")


def predict_memory(load: Load) -> Memory:
    """The peak memory of training with this load."""
    lasting = _lasting(load)
    moments = {name: {**lasting, **parts} for name, parts in _moments(load).items()}
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    parts = moments[moment]
    frame = FRAMEWORK.get(load.device, FRAMEWORK["cpu"])
    parts["fragmentation"] = frame.scatter * _moving(load)
    parts["framework"] = frame.base
    if load.device == "cuda":
        parts["GPU context"] = CONTEXT
    return Memory([Part(name, round(size)) for name, size in parts.items() if size >= 1], moment)


def _moving(load: Load) -> float:
    """What comes and goes within a step and so leaves holes: all but gradients and tables, which are large."""
    table = FULL * load.vocabulary * load.body.hidden_size
    forward = max(0, score_bytes(load)[0] - table)
    return activations(load) + layer_working(load) + forward + update_working(load)


def _lasting(load: Load) -> dict[str, float]:
    """What stays from step to step."""
    weights = FULL * load.account.total / load.parts
    return {
        "weights": weights,
        "optimiser": optimizer_bytes(load) / load.parts,
        "best weights": weights if load.keeps_best else 0,
        "averaged weights": weights if load.averages else 0,
        "batch": 25 * load.tokens + window_mask(load),  # tokens, which are real, labels
    }


def window_mask(load: Load) -> int:
    """Bytes that say which token of its window each token may read."""
    return 0 if load.body.sliding_window is None else load.tokens * load.length


def optimizer_bytes(load: Load) -> float:
    """Two numbers a weight for Adam; one for each matrix of a block under Muon."""
    total = load.account.total
    return FULL * (2 * total - (block_matrices(load) if load.optimizer == "muon" else 0))


def block_matrices(load: Load) -> int:
    """Weights in the matrices of the layers, which Muon changes."""
    return load.account.matrices


def _moments(load: Load) -> dict[str, dict[str, float]]:
    """What is alive beside the lasting parts, at each moment that can be the peak."""
    kept = activations(load)
    gathered, whole_gradients = gathered_bytes(load)
    gradients = FULL * load.account.total / load.parts
    before = gradients if load.accumulate > 1 else 0  # earlier batches of the step left theirs
    own_head = FULL * sum(block.total for block in load.account.heads)
    table = FULL * load.vocabulary * load.body.hidden_size
    late = own_head or (table if load.asked else 0)
    is_shared = load.body.tie_embeddings and load.asked > 0  # two gradients of one table meet
    copies = low_copies(load)
    forward, held, backward = score_bytes(load)
    body = {"activations": kept, "low-precision weights": copies, "gathered weights": gathered}
    return {
        "scoring": {**body, "gradients": before, "logits": forward},
        "way back through the scores": {**body, "gradients": before, "logits": held + backward},
        "way back through the top layer": {
            **body, "gradients": max(before, late) + whole_gradients, "working": layer_working(load),
        },
        "gradient of the token table": {
            "gradients": gradients + whole_gradients, "working": table * (is_shared + bool(before)),
            "gathered weights": gathered,
        },
        "update": {"gradients": gradients, "working": update_working(load)},
    }  # fmt: skip


def gathered_bytes(load: Load) -> tuple[float, float]:
    """Bytes of a sharded model's weights that are whole at once, and of gradients before they are added up.

    Those outside of layers stay whole while a batch is read; of the layers, the one that is read and the next.
    """
    if load.parts == 1:
        return 0, 0
    layer = load.account.matrices / max(1, load.body.num_layers)
    rest = load.account.total - load.account.matrices
    return FULL * rest + 2 * load.low * layer, FULL * rest + (load.low + FULL) * layer


def activations(load: Load) -> float:
    """Bytes that autograd keeps of the body in one batch."""
    width, extra = load.body.hidden_size, _noise(load) * load.body.hidden_size
    top = load.low * width + (_norm_input(load) if load.body.norm_first else 0)
    embedding = extra if load.body.dropout else 0
    kept = 0.0
    for stack in load.stacks:
        layers = stack.layers + generator_layers(load)
        kept += layers * layer_activations(load, stack) + stack.length * (load.finished * top + embedding)
        kept -= stack.length * (1 - load.finished) * _above_attention(load)
    return load.passes * load.batch * kept


def has_generator(load: Load) -> bool:
    """Whether tokens are drawn from the scores of a generator, which are marked plainly also in compiled steps."""
    return any(spec.kind == "generator" for spec in load.heads.values())


def generator_layers(load: Load) -> float:
    """A generator's narrow layers, half as many as the body's, as so many whole ones."""
    shares = [spec.settings.get("share", 0.5) for spec in load.heads.values() if spec.kind == "generator"]
    return sum(share * max(1, load.body.num_layers // 2) for share in shares)


def layer_activations(load: Load, stack: Stack) -> float:
    """Bytes that autograd keeps of one layer, for each text."""
    return KEPT.get(load.body.architecture, _attention_layer)(load, stack)


def _recurrent_layer(load: Load, stack: Stack) -> float:
    """An LSTM both ways: what it read, what it gave, and its gates; torch's CPU kernel keeps a large workspace."""
    gates = 22 if load.device == "cpu" else 8
    return stack.length * (_norm_input(load) + (2 * load.low + gates * FULL) * load.body.hidden_size)


def _convolutional_layer(load: Load, stack: Stack) -> float:
    """What a convolution read, and both halves of its gate."""
    return stack.length * (_norm_input(load) + 3 * load.low * load.body.hidden_size)


def _attention_layer(load: Load, stack: Stack) -> float:
    """Attention and feed-forward, and what is read across between them."""
    body, low = load.body, load.low
    width, inner, heads = body.hidden_size, body.intermediate_size, body.num_heads
    linear = 3 * low * width  # what attention in, attention out and feed-forward in read
    noise = _noise(load) * (2 * width + inner) if body.dropout else 0
    if is_plain_attention(load):  # copies of query, key, value; weights, their dropout, the product
        attention = 3 * low * width + 3 * low * heads * stack.length
    else:
        turned = 2 * low * width if body.position_embedding == "rotary" or body.qk_norm else 0
        attention = 3 * low * width + turned + FULL * heads
        if (
            load.device == "cuda" and (width // heads) % 8
        ):  # its kernels pad odd widths, so the output is cut out
            attention += low * width
    if body.qk_norm:
        attention += 2 * FULL * width * (2 if load.low == 2 else 1)
    own = 2 * _norm_input(load) + linear + attention + low * inner * _feed_forward_copies(load) + noise
    return stack.length * own + _crossing(load, stack)


def _above_attention(load: Load) -> float:
    """Bytes a token that a layer keeps above its attention, where the last one is not finished everywhere."""
    body, low = load.body, load.low
    noise = _noise(load) * (2 * body.hidden_size + body.intermediate_size) if body.dropout else 0
    inner = low * body.intermediate_size * _feed_forward_copies(load)
    return _norm_input(load) + 2 * low * body.hidden_size + inner + noise


def _crossing(load: Load, stack: Stack) -> float:
    """What cross-attention keeps of a text: queries for each token, keys and values for each token of the source."""
    if not stack.source:
        return 0
    body, low = load.body, load.low
    width, heads = body.hidden_size, body.num_heads
    query = 3 * low * width + _norm_input(load)  # what the query's map and the last one read, and the query
    memory = 2 * low * width
    if is_plain_attention(load):
        query += 3 * low * heads * stack.source
    else:
        query += FULL * heads
    if body.qk_norm:
        normed = FULL * width * (2 if load.low == 2 else 1) + low * width
        query, memory = query + normed, memory + normed
    noise = _noise(load) * width if body.dropout else 0
    return stack.length * (query + noise) + stack.source * memory


def _feed_forward_copies(load: Load) -> int:
    """How often the inner width is kept: before, between and after the activation.

    Compiled code bends a gate anew on the way back instead of keeping what came out.
    """
    if load.body.activation in GATED:
        return 3 if load.is_compiled else 4
    if load.body.activation == "relu":
        return 2 if load.body.dropout else 1
    return 2


def _norm_input(load: Load) -> float:
    """Bytes a token that a norm keeps: its input; on a CPU RMSNorm is made of parts and keeps the quotient too."""
    copies = 2 if load.body.norm == "rms" and load.device != "cuda" else 1
    return FULL * (copies * load.body.hidden_size + 2)


def _noise(load: Load) -> int:
    """Bytes of one dropout decision: a number on a CPU, a truth on a GPU."""
    return load.low if load.device == "cpu" else 1


def is_plain_attention(load: Load) -> bool:
    """Whether attention weights exist in memory: torch's fused CPU attention knows no dropout."""
    return load.device != "cuda" and load.body.attention_dropout > 0


def low_copies(load: Load) -> float:
    """Bytes of the bfloat16 copies of matrices that one pass under autocast keeps."""
    if load.low == FULL:
        return 0
    table = load.vocabulary * load.body.hidden_size if load.asked else 0
    matrices = load.account.matrices if load.parts == 1 else 0  # sharded, they are gathered in that precision
    return load.low * (matrices + table)


def score_bytes(load: Load) -> tuple[float, float, float]:
    """Bytes of scoring the vocabulary: at most on the way forward, kept, and at most added on the way back."""
    if not load.asked:
        return 0, 0, 0
    answers, size, width = load.answers, load.vocabulary, load.body.hidden_size
    table = size * width
    vectors = load.low * answers * width
    piece = PIECE.get(load.device, OTHER_PIECE)
    if has_generator(load):  # all scores at once, and a draw from them
        scores = FULL * answers * size
        return 5 * scores + vectors, 2 * scores + vectors, 2 * scores + FULL * table
    if not load.is_compiled and answers * size <= WHOLE.get(
        load.device, OTHER_PIECE
    ):  # scores, their log-softmax; on the way back two slopes more
        scores = FULL * answers * size
        return 2 * scores + vectors, scores + vectors, 2 * scores + FULL * table
    rows = min(answers, max(1, piece // size))
    if load.device == "cpu":  # a piece, a tile in low precision and its share of two slopes
        slopes = FULL * (table + answers * width)
        tile = load.low * rows * min(size, TILE) + FULL * rows * width if load.low == 2 else 0
        low = load.low * table if load.low == 2 else 0
        return FULL * rows * size + tile + slopes + vectors, slopes + vectors, low
    if load.is_compiled:  # pieces of one size, of which scores, slopes and the last piece's slopes are alive
        pieces = -(-answers * size // piece)
        alive = load.low * (3 if pieces > 1 else 2) * -(-answers // pieces) * size
    else:
        first, second = rows * size, min(rows, answers - rows) * size
        # The old piece's slopes live until the new one's replace them; logsumexp makes a copy.
        alive = max(
            8 * first, (FULL + 4) * second + load.low * first + (load.low if load.low == 2 else 0) * second
        )
    kept = FULL * table + vectors
    temporary = load.low * table if load.low == 2 else 0
    return alive + kept + temporary, kept, FULL * table + temporary + vectors


def layer_working(load: Load) -> float:
    """Bytes of slopes in flight on the way back through one layer.

    Compiled, a gated part has those of its product, gate and value; plainly also what they were cut out of.
    """
    body, low, found = load.body, load.low, 0.0
    gated = 3 if load.is_compiled else 5
    inner = low * body.intermediate_size * (gated if body.activation in GATED else 2)
    for stack in load.stacks:
        attention = 4 * low * body.hidden_size
        if is_plain_attention(load):
            attention += 3 * low * body.num_heads * max(stack.length, stack.source)
        slopes = stack.length * (2 * FULL * body.hidden_size + max(inner, attention))
        # All layers of a decoder add to the slope of what they read of the source.
        found = max(found, slopes + 2 * FULL * stack.source * body.hidden_size)
    return load.batch * found


def update_working(load: Load) -> float:
    """Bytes that the optimiser's step needs for a moment; Muon pushes all matrices and turns a group at a time.

    Of a sharded model it turns one matrix at a time.
    """
    if load.optimizer != "muon":
        return 0
    body = load.body
    wide = body.intermediate_size * body.hidden_size * (2 if body.activation in GATED else 1)
    if load.parts > 1:
        return FULL * (block_matrices(load) / load.parts + 9 * max(3 * body.hidden_size**2, wide))
    layers = sum(stack.layers for stack in load.stacks)
    squares = 4 * sum(stack.layers * (2 if stack.source else 1) for stack in load.stacks)
    group = max(squares * body.hidden_size**2, layers * wide)
    return FULL * (block_matrices(load) + 8 * group)


KEPT: dict[str, Callable[[Load, Stack], float]] = {
    "causal": _attention_layer,
    "bidirectional": _attention_layer,
    "encoder-decoder": _attention_layer,
    "bi-lstm": _recurrent_layer,
    "cnn": _convolutional_layer,
}
