"""Tiny backbones, a vocabulary and random examples for contract tests."""

from dataclasses import dataclass

import numpy as np
import torch

from headstart.batch import Batch, EncodedExample, pad
from headstart.config import ModelConfig
from headstart.models import BACKBONES
from headstart.models.backbones import EncoderDecoderBackbone, TransformerBackbone
from headstart.objectives import OBJECTIVES


@dataclass(frozen=True)
class TinyVocabulary:
    size: int = 40
    pad_id: int = 0
    unk_id: int = 1
    bos_id: int = 2
    eos_id: int = 3
    mask_id: int | None = 4
    special_ids: frozenset[int] = frozenset({0, 1, 2, 3, 4})

    @property
    def word_starts(self):
        return np.arange(self.size) % 3 == 0  # two of three tokens continue a word

    def ends(self, unit):
        return np.arange(self.size) == {"sentence": 7, "line": 11}[unit]


VOCABULARY = TinyVocabulary()

ATTENTIVE = [kind for kind, body in BACKBONES.items() if issubclass(body, TransformerBackbone | EncoderDecoderBackbone)]
CACHED = [kind for kind, body in BACKBONES.items() if hasattr(body, "decode")]

# Together these use every option of the Transformer block.
SHAPES = {
    "modern": {},
    "lab": {
        "position_embedding": "sinusoidal",
        "norm": "layer",
        "norm_first": False,
        "activation": "relu",
        "bias": True,
        "tie_embeddings": False,
        "scale_embedding": True,
    },
    "learned-geglu": {"position_embedding": "learned", "activation": "geglu", "qk_norm": True},
    "gelu-layer-pre": {"norm": "layer", "activation": "gelu", "bias": True},
    "relu2-rms-post": {"norm_first": False, "activation": "relu2"},
    "no-positions": {"position_embedding": "none"},
    "shared-keys": {"num_heads": 4, "num_kv_heads": 2, "qk_norm": True},
    "windows": {
        "norm": "layer",
        "activation": "geglu",
        "embedding_norm": True,
        "norm_first_layer": False,
        "num_layers": 3,
        "sliding_window": 2,
        "global_attn_every_n_layers": 2,
        "local_rope_theta": 500.0,
    },
    "transform": {"norm": "layer", "activation": "gelu-tanh", "bias": True, "mlm_head_transform": True},
}


def tiny_config(architecture: str, shape: str = "modern", **changes) -> ModelConfig:
    settings = {
        "num_layers": 2,
        "hidden_size": 16,
        "num_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 64,
    }
    return ModelConfig(architecture=architecture, **{**settings, **SHAPES[shape], **changes})


def random_rows(lengths, seed=0, classes=3, vocabulary=VOCABULARY, sources=False):
    """Texts of random tokens with random classes; with `sources`, each has a random source text."""
    rng, source_rng = np.random.default_rng(seed), np.random.default_rng(seed + 1000)

    def random_text(rng, length):
        tokens = rng.integers(5, vocabulary.size, max(0, length - 2))
        return np.concatenate(([vocabulary.bos_id], tokens, [vocabulary.eos_id])).astype(np.int32)

    return [
        EncodedExample(
            random_text(rng, length),
            int(rng.integers(classes)),
            source=random_text(source_rng, 3 + (5 * index + length) % 8) if sources else None,
        )
        for index, length in enumerate(lengths)
    ]


def make_backbone(kind, shape, **changes):
    torch.manual_seed(1)
    return BACKBONES[kind](tiny_config(kind, shape, **changes), VOCABULARY.size).eval()


def make_batch(lengths, seed=0):
    """A batch of random texts, each with a random source text for backbones that read two."""
    rows = [torch.from_numpy(row.tokens).long() for row in random_rows(lengths, seed)]
    tokens, real = pad(rows, VOCABULARY.pad_id)
    source_lengths = [3 + (seed + 5 * row) % 7 for row in range(len(lengths))]
    sources = [torch.from_numpy(row.tokens).long() for row in random_rows(source_lengths, seed + 1)]
    source, source_attention_mask = pad(sources, VOCABULARY.pad_id)
    return Batch(tokens, real, source=source, source_attention_mask=source_attention_mask)


def trainable_combinations():
    """Every objective with every backbone that it can train."""
    return [
        (name, kind) for name, objective in OBJECTIVES.items() for kind in BACKBONES if kind in objective.architectures
    ]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def check_gradient_accumulation(objective, model, whole, atol=1e-5):
    """Two micro-batches of six rows give the gradient of the whole batch; `counts` knows the loss counts."""
    losses = objective.losses(model, whole)
    sum(loss.weight * loss.total / loss.count for loss in losses.values()).backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    for part in (whole.rows(0, 2), whole.rows(2, 6)):
        found = objective.losses(model, part)
        assert part.label_counts == {name: loss.count for name, loss in found.items()}
        sum(loss.weight * loss.total / whole.label_counts[name] for name, loss in found.items()).backward()
    for name, weight in model.named_parameters():
        assert torch.allclose(weight.grad, expected[name], atol=atol), name
    return losses
