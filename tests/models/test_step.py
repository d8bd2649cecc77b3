"""One token a row, read by a step, is what the body reads."""

from copy import deepcopy

import pytest
import torch

from headstart.batch import pad
from headstart.generation.reader import ModelReader
from headstart.models.heads import LanguageHead
from headstart.models.model import Model
from headstart.models.step import make_step
from tests.contracts.test_bodies import CACHED, make_batch, make_body
from tests.worlds import ALPHABET, SHAPES


def begun(body, lengths, room):
    """A cache after prompts of these lengths."""
    batch = make_batch(lengths)
    tokens, real = pad([row[:length] for row, length in zip(batch.tokens, lengths, strict=True)], 17)
    cache = body.begin(batch, room)
    body.read(tokens, cache, real)
    return cache


@pytest.mark.parametrize("room", [1, 40])
@pytest.mark.parametrize("lengths", [[1, 1, 1], [6, 2, 4]])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", CACHED)
def test_a_step_gives_what_reading_gives(kind, shape, lengths, room):
    """Rows with padding and without, that multiply, change places and leave with their sources."""
    body = make_body(kind, shape)
    step, rng = make_step(body), torch.Generator().manual_seed(0)
    moves = [
        None,
        (torch.tensor([0, 0, 1, 1, 2, 2]), None),
        (torch.tensor([1, 0, 2, 2, 5, 4]), None),
        (torch.tensor([0, 1, 5, 5]), torch.tensor([0, 2])),
        (torch.tensor([3, 2]), torch.tensor([1])),
    ]
    with torch.inference_mode():
        cache = begun(body, lengths, room)
        other, rows = deepcopy(cache), len(lengths)
        for move in moves:
            if move is not None:
                cache.select(*move)
                other.select(*move)
                rows = len(move[0])
            for _ in range(2):
                tokens = torch.randint(5, ALPHABET.size, (rows, 1), generator=rng)
                assert torch.allclose(step(tokens, cache), body.read(tokens, other)[:, 0], atol=1e-5)
        assert cache.length == other.length


def test_a_model_reads_one_token_by_a_step_but_not_in_half_precision(monkeypatch):
    body = make_body("causal", "modern")
    reader = ModelReader(Model(body, {"lm": LanguageHead(body.config, ALPHABET.size)}))
    asked = []
    monkeypatch.setattr(
        reader, "step", lambda tokens, cache: asked.append(tokens) or torch.zeros(len(tokens), 16)
    )
    with torch.inference_mode():
        cache = reader.begin(make_batch([3]), 8)
        reader.read(torch.tensor([[5, 6]]), cache)
        assert not asked
        assert reader.read(torch.tensor([[7]]), cache).shape == (1, 1, 16)
        assert len(asked) == 1
        with torch.autocast("cpu", torch.bfloat16):
            reader.read(torch.tensor([[7]]), cache)
        assert len(asked) == 1


def test_only_plain_numbers_on_a_processor_have_a_step():
    assert make_step(make_body("causal", "modern").bfloat16()) is None
