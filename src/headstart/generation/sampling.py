"""The next token: the likeliest, or one drawn from a distribution that is first made sharper and shorter.

Chance is a function of (seed, stream, step), a stream being what a text has of its own: its prompt and its number. So
a text is the same whatever else is in its batch.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headstart.errors import ConfigError
from headstart.generation.reader import likeliest, ranked

FEW = 256  # tokens ranked first when the cut may fall anywhere


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; steps in this order, each of which can be left out."""

    repetition_penalty: float = 1.0  # Keskar et al. (2019): tokens of the text so far score this much less
    temperature: float = 1.0  # scores are divided by it; 0 = the likeliest token, always
    top_k: int | None = None  # Fan et al. (2018): the k likeliest
    top_p: float = 1.0  # Holtzman et al. (2020): the fewest likeliest whose probability reaches p
    min_p: float = 0.0  # Nguyen et al. (2024): those at least this share as likely as the likeliest
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
        """Whether the likeliest token is always taken."""
        return self.temperature == 0 or self.top_k == 1


GREEDY = Sampling(temperature=0.0)


def choose(scores: Tensor, sampling: Sampling, history: Tensor | None, draws: Tensor) -> Tensor:
    """The next token (R,) of each row from its scores (R, V), its tokens so far (R, T) and its draw in [0, 1)."""
    scores = discouraged(scores, history, sampling.repetition_penalty)
    if sampling.is_greedy:
        return likeliest(scores)
    chances, places = shortlist(scores, sampling)
    rank = drawn(chances, draws)
    return rank if places is None else places.gather(1, rank[:, None])[:, 0]


def discouraged(scores: Tensor, history: Tensor | None, penalty: float) -> Tensor:
    """Scores with those of tokens in `history` (R, T) divided by the penalty, or times it when below zero."""
    if penalty == 1.0 or history is None:
        return scores
    old = scores.gather(1, history)
    return scores.scatter(1, history, torch.where(old > 0, old / penalty, old * penalty))


def shortlist(scores: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor | None]:
    """Chances (R, C), not yet adding up to one, and the tokens (R, C) they are of; None = all, in order.

    Each of top-k, top-p and min-p keeps the beginning of the ranking, so that they meet in the shortest.
    """
    scores = scores / sampling.temperature
    if sampling.top_k is None and sampling.top_p == 1 and sampling.min_p == 0:
        return scores.softmax(dim=-1), None
    size = scores.shape[-1]
    if sampling.top_k is not None:
        return _cut(*ranked(scores, min(sampling.top_k, size)), None, sampling)
    whole = scores.logsumexp(dim=-1, keepdim=True)
    if size > FEW:
        chances, places = _cut(*ranked(scores, FEW), whole, sampling)
        if bool((chances[:, -1] == 0).all()):  # every row's cut fell among the first few
            return chances, places
    return _cut(*ranked(scores, size), whole, sampling)


def _cut(values: Tensor, places: Tensor, whole: Tensor | None, sampling: Sampling) -> tuple[Tensor, Tensor | None]:
    """Chances of ranked scores, 0 where top-p or min-p leaves them out."""
    whole = values.logsumexp(dim=-1, keepdim=True) if whole is None else whole
    chances = (values - whole).exp()
    before = chances.cumsum(dim=-1) - chances
    kept = (before < sampling.top_p) & (chances >= sampling.min_p * chances[:, :1])
    kept[:, 0] = True
    return chances * kept, places


def drawn(chances: Tensor, draws: Tensor) -> Tensor:
    """The place (R,) at which the running sum of the chances (R, C) passes each draw's share of the whole."""
    reached = chances.cumsum(dim=-1)
    whole = reached[:, -1:]
    aim = torch.minimum(draws[:, None] * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    return torch.searchsorted(reached, aim, right=True)[:, 0]


def uniform(seed: int, streams: np.ndarray, steps: int) -> Tensor:
    """Numbers in [0, 1) for each stream (R,) and step (R, steps): a hash of seed, stream and step."""
    mixed = _mix(np.array(seed, np.uint64)[None] ^ np.uint64(0x9E3779B97F4A7C15))
    mixed = _mix(mixed ^ streams.astype(np.uint64))
    found = _mix(mixed[:, None] ^ np.arange(steps, dtype=np.uint64))
    return torch.from_numpy((found >> np.uint64(40)).astype(np.float32) * np.float32(2**-24))


def _mix(x: np.ndarray) -> np.ndarray:
    """The finisher of SplitMix64 (Steele et al., 2014), over whole arrays."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def stream_of(prompt: np.ndarray, number: int = 0) -> int:
    """The stream of a prompt's `number`-th text: other prompts and other numbers draw apart."""
    content = np.asarray(prompt, dtype="<i8").tobytes() + number.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
