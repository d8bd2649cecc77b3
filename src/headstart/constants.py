"""Constants that both the code and the plan of a run rely on; loads without torch."""

LOGITS_PER_CHUNK = {"cuda": 2**27}  # by device; other devices save memory, a GPU is fully used
# Up to so many logits the unchunked loss is faster: on a CPU they fit into its cache, on a GPU they do not fill it.
MAX_UNCHUNKED_LOGITS = {"cpu": 2**17, "cuda": 2**27}

GATED_ACTIVATIONS = ("swiglu", "geglu")  # feed-forward parts with a gate, and so with two up projections


def logits_per_chunk(device: str) -> int:
    """Logits that the chunked cross-entropy computes at once."""
    return LOGITS_PER_CHUNK.get(device, 2**24)
