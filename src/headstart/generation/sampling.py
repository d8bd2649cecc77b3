"""The next token: the most probable one, or a sample by temperature, top-k, top-p and min-p.

Random numbers are a function of (seed, stream, step). A stream is a hash of a text's prompt and number, so a text does not
depend on the other texts in its batch.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headstart import fast
from headstart.errors import ConfigError
from headstart.fast import beam_search as fast_search

SHORTLIST = 256  # tokens that are sorted at first; the whole vocabulary only if they are not enough


@dataclass(frozen=True)
class Sampling:
    """How the next token is sampled: these steps in this order, each of them optional."""

    repetition_penalty: float = 1.0  # Keskar et al. (2019): divides the logits of earlier tokens
    temperature: float = 1.0  # divides the logits; 0 = always the most probable token
    top_k: int | None = None  # Fan et al. (2018): the k most probable
    top_p: float = 1.0  # Holtzman et al. (2020): the most probable whose sum reaches p
    min_p: float = 0.0  # Nguyen et al. (2024): at least this fraction of the largest probability
    seed: int = 0

    def __post_init__(self) -> None:
        wrong = {
            "temperature": (not 0 <= self.temperature < float("inf"), "0 or more"),
            "top_k": (self.top_k is not None and self.top_k < 1, "1 or more"),
            "top_p": (not 0 < self.top_p <= 1, "above 0 and at most 1"),
            "min_p": (not 0 <= self.min_p <= 1, "from 0 to 1"),
            "repetition_penalty": (not 0 < self.repetition_penalty < float("inf"), "above 0; 1 = none"),
            "seed": (not 0 <= self.seed < 2**63, "from 0 to 2**63 - 1"),
        }
        for name, (is_wrong, hint) in wrong.items():
            if is_wrong:
                raise ConfigError(f"{name} cannot be {getattr(self, name)}", hint=f"it is {hint}")

    @property
    def is_greedy(self) -> bool:
        """Whether always the most probable token is taken."""
        return self.temperature == 0 or self.top_k == 1


GREEDY = Sampling(temperature=0.0)


def argmax(logits: Tensor) -> Tensor:
    """The first index (R,) of each row's maximum."""
    return fast_search.argmax(logits) if fast.is_enabled() else logits.argmax(dim=-1)


def top_k(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Each row's `count` largest logits in descending order, and their indices; of equal ones the first wins."""
    if fast.is_enabled():
        return fast_search.top_k(logits, count)
    values, indices = logits.sort(dim=-1, descending=True, stable=True)
    return values[..., :count], indices[..., :count]


def sample(logits: Tensor, sampling: Sampling, history: Tensor | None, draws: Tensor) -> Tensor:
    """The next token (R,) of each row from its logits (R, V), its tokens so far (R, T) and a number in [0, 1)."""
    logits = penalize_repetition(logits, history, sampling.repetition_penalty)
    if sampling.is_greedy:
        return argmax(logits)
    probs, tokens = candidates(logits, sampling)
    index = inverse_transform(probs, draws)
    return index if tokens is None else tokens.gather(1, index[:, None])[:, 0]


def penalize_repetition(logits: Tensor, history: Tensor | None, penalty: float) -> Tensor:
    """Logits with those of tokens in `history` (R, T) divided by the penalty, or multiplied by it if negative."""
    if penalty == 1.0 or history is None:
        return logits
    old = logits.gather(1, history)
    return logits.scatter(1, history, torch.where(old > 0, old / penalty, old * penalty))


def candidates(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor | None]:
    """Unnormalized probabilities (R, C), and their tokens (R, C); None = the whole vocabulary in order.

    Top-k, top-p and min-p each select the beginning of the sorted tokens, so the shortest selection counts.
    """
    logits = logits / sampling.temperature
    if sampling.top_k is None and sampling.top_p == 1 and sampling.min_p == 0:
        return logits.softmax(dim=-1), None
    size = logits.shape[-1]
    if sampling.top_k is not None:
        return _truncate(*top_k(logits, min(sampling.top_k, size)), None, sampling)
    log_sum = logits.logsumexp(dim=-1, keepdim=True)
    if size > SHORTLIST:
        probs, tokens = _truncate(*top_k(logits, SHORTLIST), log_sum, sampling)
        if bool((probs[:, -1] == 0).all()):  # no row needs more tokens
            return probs, tokens
    return _truncate(*top_k(logits, size), log_sum, sampling)


def _truncate(
    logits: Tensor, tokens: Tensor, log_sum: Tensor | None, sampling: Sampling
) -> tuple[Tensor, Tensor | None]:
    """Probabilities of sorted logits, 0 for tokens that top-p or min-p excludes."""
    log_sum = logits.logsumexp(dim=-1, keepdim=True) if log_sum is None else log_sum
    probs = (logits - log_sum).exp()
    before = probs.cumsum(dim=-1) - probs
    is_candidate = (before < sampling.top_p) & (probs >= sampling.min_p * probs[:, :1])
    is_candidate[:, 0] = True
    return probs * is_candidate, tokens


def inverse_transform(probs: Tensor, draws: Tensor) -> Tensor:
    """The index (R,) at which the cumulative sum of `probs` (R, C) exceeds the fraction `draws` of the total."""
    cumulative = probs.cumsum(dim=-1)
    total = cumulative[:, -1:]
    target = torch.minimum(draws[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def uniform(seed: int, streams: np.ndarray, steps: int) -> Tensor:
    """Numbers in [0, 1) for each stream (R,) and step (R, steps): a hash of seed, stream and step."""
    mixed = _mix(np.array(seed, np.uint64)[None] ^ np.uint64(0x9E3779B97F4A7C15))
    mixed = _mix(mixed ^ streams.astype(np.uint64))
    found = _mix(mixed[:, None] ^ np.arange(steps, dtype=np.uint64))
    return torch.from_numpy((found >> np.uint64(40)).astype(np.float32) * np.float32(2**-24))


def _mix(x: np.ndarray) -> np.ndarray:
    """The last step of SplitMix64 (Steele et al., 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: np.ndarray = x ^ (x >> np.uint64(31))
    return found


def stream_of(prompt: np.ndarray, number: int = 0) -> int:
    """The stream of a prompt's `number`-th text."""
    content = np.asarray(prompt, dtype="<i8").tobytes() + number.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
