"""Decoding of one token per row equals the plain decoding."""

import numpy as np
import pytest
import torch

from headstart.batch import pad
from headstart.fast.beam_search import BeamKVCache
from headstart.fast.cpu_decoder import CPUDecoder, install_cpu_decoder
from headstart.generation.generate import ModelDecoder, unfinished
from headstart.models.backbones import CausalBackbone
from headstart.models.heads import LanguageHead
from headstart.models.model import Model
from tests.helpers.tiny_models import CACHED, SHAPES, VOCABULARY, make_backbone, make_batch


def caches(body, lengths, capacity, shares):
    """A fast and a plain cache after prompts of these lengths."""
    batch = make_batch(lengths)
    tokens, real = pad([row[:length] for row, length in zip(batch.tokens, lengths, strict=True)], 17)
    plain = body.new_cache(batch, capacity)
    cache = BeamKVCache.of(plain, shares)
    for each in (cache, plain):
        body.decode(tokens, each, real)
    return cache, plain


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("capacity", [1, 40])
@pytest.mark.parametrize("lengths", [[1, 1, 1], [6, 2, 4]])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", CACHED)
def test_a_step_equals_plain_decoding(kind, shape, lengths, capacity, shares):
    """Rows with padding and without, that multiply, change order and leave with their sources; sharing or apart."""
    body = make_backbone(kind, shape)
    step, rng = CPUDecoder(body), torch.Generator().manual_seed(0)
    shares = shares and step.can_share
    moves = [
        None,
        (torch.tensor([0, 0, 1, 1, 2, 2]), None),
        (torch.tensor([1, 0, 2, 2, 5, 4]), None),
        (torch.tensor([0, 1, 5, 5]), torch.tensor([0, 2])),
        (torch.tensor([3, 2]), torch.tensor([1])),
    ]
    with torch.inference_mode():
        cache, other = caches(body, lengths, capacity, shares)
        rows = len(lengths)
        for move in moves:
            if move is not None:
                cache.select(*move)
                other.select(*move)
                rows = len(move[0])
            for _ in range(2):
                tokens = torch.randint(5, VOCABULARY.size, (rows, 1), generator=rng)
                assert torch.allclose(step(tokens, cache), body.decode(tokens, other)[:, 0], atol=1e-5)
        assert cache.length == other.length


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", ["modern", "lab", "shared-keys"])
@pytest.mark.parametrize("kind", CACHED)
def test_rows_that_share_their_past_read_what_rows_apart_read(kind, shape, seed):
    """Long enough for what nobody sees to be given up, for rows that drift apart or follow one, and for sources to go."""
    body, chance = make_backbone(kind, shape), np.random.default_rng(seed)
    step, sources, width = CPUDecoder(body), 5, 3
    with torch.inference_mode():
        cache, other = caches(body, [1] * sources if seed % 2 else [4, 2, 6, 1, 3], 6, True)
        before, most = 1, 0
        for number in range(40):
            parents = np.sort(chance.integers(0, before, (sources, width)), axis=1)
            if number % 3 == 0:
                parents[:] = parents[:, :1] if number % 2 else np.arange(width) % before
            rows, left = parents + before * np.arange(sources)[:, None], None
            if number in (9, 25):
                left = unfinished(np.arange(sources) == chance.integers(sources))
                rows, sources = rows[left], sources - 1
            for each in (cache, other):
                each.select(torch.from_numpy(rows.ravel()), None if left is None else torch.from_numpy(left))
            tokens = torch.randint(5, VOCABULARY.size, (sources * width, 1))
            assert torch.allclose(step(tokens, cache), body.decode(tokens, other)[:, 0], atol=1e-5)
            before, most = width, max(most, cache.layers[0].length)
    assert most < width * 25  # of 40 tokens, W each


def test_a_model_decodes_one_token_by_a_step_but_not_in_half_precision(monkeypatch):
    body = make_backbone("causal", "modern")
    decoder = ModelDecoder(Model(body, {"lm": LanguageHead(body.config, VOCABULARY.size)}))
    steps = []
    step = decoder.backbone.step
    monkeypatch.setattr(CPUDecoder, "__call__", lambda self, tokens, cache: steps.append(1) or torch.zeros(1, 16))
    assert step.can_share
    with torch.inference_mode():
        cache = decoder.new_cache(make_batch([3]), 8)
        decoder.decode(torch.tensor([[5, 6]]), cache)
        assert not steps
        assert decoder.decode(torch.tensor([[7]]), cache).shape == (1, 1, 16)
        assert len(steps) == 1
        with torch.autocast("cpu", torch.bfloat16):
            decoder.decode(torch.tensor([[7]]), cache)
        assert len(steps) == 1
    assert type(body) is CausalBackbone


def test_only_float32_has_a_step():
    body = make_backbone("causal", "modern").bfloat16()
    install_cpu_decoder(body)
    assert type(body) is CausalBackbone
