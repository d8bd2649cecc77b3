"""Small bodies, alphabets and rows for contract tests."""

from dataclasses import dataclass

import numpy as np
import torch

from headstart.batch import Row
from headstart.config import BodyConfig
from headstart.models.bodies import BODIES
from headstart.objectives.base import counts
from headstart.objectives.table import OBJECTIVES


@dataclass(frozen=True)
class SmallAlphabet:
    size: int = 40
    padding: int = 0
    unknown: int = 1
    first: int = 2
    last: int = 3
    mask: int | None = 4
    special_ids: frozenset[int] = frozenset({0, 1, 2, 3, 4})

    @property
    def word_starts(self):
        return np.arange(self.size) % 3 == 0  # two tokens of three go on with a word

    def ends(self, unit):
        return np.arange(self.size) == {"sentence": 7, "line": 11}[unit]


ALPHABET = SmallAlphabet()

# One of every switch, so that a contract that holds here holds for the block.
SHAPES = {
    "modern": {},
    "lab": {
        "positions": "sinusoidal",
        "norm": "layer",
        "norm_first": False,
        "activation": "relu",
        "biases": True,
        "tied": False,
        "scale_embedding": True,
    },
    "learned-geglu": {"positions": "learned", "activation": "geglu", "qk_norm": True},
    "gelu-layer-pre": {"norm": "layer", "activation": "gelu", "biases": True},
    "relu2-rms-post": {"norm_first": False, "activation": "relu2"},
    "no-positions": {"positions": "none"},
    "shared-keys": {"attention_heads": 4, "key_value_heads": 2, "qk_norm": True},
    "windows": {
        "norm": "layer",
        "activation": "geglu",
        "embedding_norm": True,
        "first_norm": False,
        "layers": 3,
        "window": 2,
        "global_every": 2,
        "window_rotary_base": 500.0,
    },
    "transform": {"norm": "layer", "activation": "gelu-tanh", "biases": True, "lm_transform": True},
}


def small_body(kind: str, shape: str = "modern", **changes) -> BodyConfig:
    settings = {"layers": 2, "width": 16, "attention_heads": 2, "feed_forward": 24, "max_length": 64}
    return BodyConfig(kind=kind, **{**settings, **SHAPES[shape], **changes})


def random_rows(lengths, seed=0, classes=3, alphabet=ALPHABET, sources=False):
    """Texts of random tokens with random classes; with `sources`, each translates another text of its own length."""
    rng, other = np.random.default_rng(seed), np.random.default_rng(seed + 1000)

    def framed(chance, length):
        inner = chance.integers(5, alphabet.size, max(0, length - 2))
        return np.concatenate(([alphabet.first], inner, [alphabet.last])).astype(np.int32)

    return [
        Row(
            framed(rng, length),
            int(rng.integers(classes)),
            source=framed(other, 3 + (5 * place + length) % 8) if sources else None,
        )
        for place, length in enumerate(lengths)
    ]


def pairs_that_fit():
    """Every objective with every body it can train."""
    return [
        (name, kind) for name, objective in OBJECTIVES.items() for kind in BODIES if kind in objective.bodies
    ]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def check_parts_add_up(objective, model, whole, atol=1e-5):
    """The parts of a step of six rows give the gradient of one big batch, and count what they are marked on."""
    losses = objective.losses(model, whole)
    sum(loss.weight * loss.total / loss.count for loss in losses.values()).backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    for part in (whole.rows(0, 2), whole.rows(2, 6)):
        found = objective.losses(model, part)
        assert counts(part) == {name: loss.count for name, loss in found.items()}
        sum(loss.weight * loss.total / counts(whole)[name] for name, loss in found.items()).backward()
    for name, weight in model.named_parameters():
        assert torch.allclose(weight.grad, expected[name], atol=atol), name
    return losses
