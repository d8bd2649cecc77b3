"""Small decoders for tests: a table of logits, and tiny random models."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from headstart.batch import Batch
from headstart.generation.generate import ModelDecoder, prompt_batch, source_batch
from headstart.models import BACKBONES
from headstart.models.heads import LanguageHead
from headstart.models.model import Model
from tests.helpers.tiny_models import tiny_config

STATES = 997  # a table's row is found by a hash of all tokens so far


@dataclass
class ToyCache:
    states: Tensor  # (R,)
    sources: Tensor  # (B,), each read by R / B rows that stand together

    def select(self, rows, sources=None):
        self.states = self.states[rows]
        if sources is not None:
            self.sources = self.sources[sources]


class TableDecoder:
    """Logits that depend on the source and on every token so far, looked up in a table."""

    device = torch.device("cpu")

    def __init__(self, vocabulary, seed=0, scale=2.0, sources=8, positions=None):
        rng = torch.Generator().manual_seed(seed)
        self.table = scale * torch.randn(sources * STATES, vocabulary, generator=rng)
        self.max_positions, self.read_rows = positions, 0

    def new_cache(self, batch, capacity):
        ids = torch.zeros(len(batch.tokens), dtype=torch.long) if batch.source is None else batch.source[:, 0]
        return ToyCache(torch.zeros(len(batch.tokens), dtype=torch.long), ids)

    def decode(self, tokens, cache, attention_mask=None):
        self.read_rows += len(tokens)
        found = []
        for index in range(tokens.shape[1]):
            moved = (cache.states * 31 + tokens[:, index] + 7) % STATES
            cache.states = (
                moved if attention_mask is None else torch.where(attention_mask[:, index], moved, cache.states)
            )
            each = len(cache.states) // len(cache.sources)
            found.append(cache.states + STATES * cache.sources.repeat_interleave(each))
        return torch.stack(found, dim=1)

    def logits(self, hidden):
        return self.table[hidden].clone()


def toy_batch(sources, first=0):
    tokens = torch.full((len(sources), 1), first)
    real = torch.ones_like(tokens, dtype=torch.bool)
    return Batch(tokens, real, source=torch.tensor(sources)[:, None], source_attention_mask=real)


def model_decoder(kind, shape="modern", vocabulary=40, seed=1, sharpness=6.0, **changes):
    """A random body under a head of its own, so that the likeliest token is far from even and not the last one."""
    torch.manual_seed(seed)
    config = tiny_config(kind, shape, **{**changes, "tie_embeddings": False})
    model = Model(BACKBONES[kind](config, vocabulary), {"lm": LanguageHead(config, vocabulary)}).eval()
    with torch.no_grad():
        model.heads["lm"].weight.mul_(sharpness)
    return ModelDecoder(model)


def body_batch(kind, lengths, vocabulary=40, seed=0):
    """Prompts of these lengths; for a body that reads two texts, sources of them, and a prompt of one token."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, vocabulary, length) for length in lengths]
    return source_batch(rows, 0, 2 % vocabulary) if kind == "encoder-decoder" else prompt_batch(rows, 0)


def alone(batch, row):
    """One row of a batch as a batch of its own, without padding."""
    own = slice(row, row + 1)
    length = int(batch.attention_mask[row].sum())
    source = {}
    if batch.source is not None:
        long = int(batch.source_attention_mask[row].sum())
        source = {"source": batch.source[own, :long], "source_attention_mask": batch.source_attention_mask[own, :long]}
    return Batch(batch.tokens[own, :length], batch.attention_mask[own, :length], **source)


def every_text(vocabulary, rules):
    """All texts that the rules allow, ended ones with `last` and cut ones without."""
    inner = [token for token in range(vocabulary) if token != rules.last and token not in rules.banned]
    for length in range(rules.most):
        if length >= rules.least:
            yield from ([*text, rules.last] for text in product(inner, repeat=length))
    yield from (list(text) for text in product(inner, repeat=rules.most))
