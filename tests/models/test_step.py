"""One token a row, read by a step, is what the body reads."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from headstart.batch import pad
from headstart.generation.generate import staying
from headstart.generation.reader import ModelReader
from headstart.models.heads import LanguageHead
from headstart.models.kv_cache import Past, moves
from headstart.models.model import Model
from headstart.models.step import make_step
from tests.helpers.tiny_models import CACHED, SHAPES, VOCABULARY, make_backbone, make_batch


def begun(body, lengths, room):
    """A cache after prompts of these lengths."""
    batch = make_batch(lengths)
    tokens, real = pad([row[:length] for row, length in zip(batch.tokens, lengths, strict=True)], 17)
    cache = body.begin(batch, room)
    body.read(tokens, cache, real)
    return cache


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("room", [1, 40])
@pytest.mark.parametrize("lengths", [[1, 1, 1], [6, 2, 4]])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", CACHED)
def test_a_step_gives_what_reading_gives(kind, shape, lengths, room, shares):
    """Rows with padding and without, that multiply, change places and leave with their sources; sharing or apart."""
    body = make_backbone(kind, shape)
    step, rng = make_step(body), torch.Generator().manual_seed(0)
    shares = shares and step.can_share
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
        cache.shares = shares
        for move in moves:
            if move is not None:
                cache.select(*move)
                other.select(*move)
                rows = len(move[0])
            for _ in range(2):
                tokens = torch.randint(5, VOCABULARY.size, (rows, 1), generator=rng)
                assert torch.allclose(step(tokens, cache), body.read(tokens, other)[:, 0], atol=1e-5)
        assert cache.length == other.length


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", ["modern", "lab", "shared-keys"])
@pytest.mark.parametrize("kind", CACHED)
def test_rows_that_share_their_past_read_what_rows_apart_read(kind, shape, seed):
    """Long enough for what nobody sees to be given up, for rows that drift apart or follow one, and for sources to go."""
    body, chance = make_backbone(kind, shape), np.random.default_rng(seed)
    step, sources, width = make_step(body), 5, 3
    with torch.inference_mode():
        cache = begun(body, [1] * sources if seed % 2 else [4, 2, 6, 1, 3], 6)
        other = deepcopy(cache)
        cache.shares, before, most = True, 1, 0
        for number in range(40):
            parents = np.sort(chance.integers(0, before, (sources, width)), axis=1)
            if number % 3 == 0:
                parents[:] = parents[:, :1] if number % 2 else np.arange(width) % before
            rows, kept = parents + before * np.arange(sources)[:, None], None
            if number in (9, 25):
                kept = staying(np.arange(sources) == chance.integers(sources))
                rows, sources = rows[kept], sources - 1
            for each in (cache, other):
                each.select(torch.from_numpy(rows.ravel()), None if kept is None else torch.from_numpy(kept))
            tokens = torch.randint(5, VOCABULARY.size, (sources * width, 1))
            assert torch.allclose(step(tokens, cache), body.read(tokens, other)[:, 0], atol=1e-5)
            before, most = width, max(most, cache.pasts[0].length)
    assert most < width * 25  # of 40 tokens, W each


@pytest.mark.parametrize(
    ("rows", "few"),
    [([0, 1, 2], True), ([0, 5, 2, 4], True), ([0, 2, 1], False), ([0, 0, 1, 1], False), ([1, 2], False), ([], True)],
)
def test_few_rows_move_where_the_last_fill_the_gaps(rows, few):
    rows, store = torch.tensor(rows, dtype=torch.long), torch.arange(2.0 * 6 * 4 * 3).view(2, 6, 1, 4, 3)
    assert (moves(rows) is not None) == few
    past = Past(store.clone(), length=2)
    past.select(rows, moves(rows))
    assert torch.equal(past.store[:, :, :, :2], store[:, rows, :, :2])


def test_a_model_reads_one_token_by_a_step_but_not_in_half_precision(monkeypatch):
    body = make_backbone("causal", "modern")
    reader = ModelReader(Model(body, {"lm": LanguageHead(body.config, VOCABULARY.size)}))
    asked = []
    monkeypatch.setattr(reader, "step", lambda tokens, cache: asked.append(tokens) or torch.zeros(len(tokens), 16))
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
    assert make_step(make_backbone("causal", "modern").bfloat16()) is None
