"""Constants that both the code and the plan of a run rely on; loads without torch."""

# Chunked cross-entropy: logits that are computed at once, by device. A CPU saves memory, a GPU is fully used.
LOGITS_PER_CHUNK = {"cpu": 2**24, "cuda": 2**27}
DEFAULT_LOGITS_PER_CHUNK = 2**24  # on any other device
# Up to so many logits the unchunked loss is faster: on a CPU they fit into its cache, on a GPU they do not fill it.
MAX_UNCHUNKED_LOGITS = {"cpu": 2**17, "cuda": 2**27}
VOCAB_TILE = 2048  # tokens of the vocabulary whose logits a CPU computes at once

GATED_ACTIVATIONS = ("swiglu", "geglu")  # feed-forward parts with a gate, and so with two up projections
