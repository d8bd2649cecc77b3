"""Attention maps of a small random model."""

import torch

from headstart.batch import Batch
from headstart.evaluation.attention import attention_maps
from headstart.models.model import build_model
from tests.helpers.tiny_models import VOCABULARY, random_rows, tiny_config

HOSTILE_TOKENS = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "$x$",
    "\u202eevil",
    "a\x0bb",
    "",
]


def make_maps(kind="bidirectional", length=9, pieces=None, **changes):
    torch.manual_seed(3)
    model = build_model(tiny_config(kind, **changes), VOCABULARY.size, {})
    tokens = torch.from_numpy(random_rows([length])[0].tokens).long()[None, :]
    batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool))
    words = [f"▁{number}" for number in tokens[0].tolist()]
    return attention_maps(model, batch, (pieces or []) + words[len(pieces or []) :], "a run")
