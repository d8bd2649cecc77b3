from types import SimpleNamespace

import torch

from headstart.objectives import OBJECTIVES
from tests.helpers.tiny_models import VOCABULARY, generator, random_rows

OBJECTIVE = OBJECTIVES["replaced-token"]()


def discriminator_inputs(batch, probabilities):
    """The tokens that the discriminator sees when the generator predicts `probabilities` at every position."""
    seen = []

    def backbone(batch):
        seen.append(batch.tokens)
        return torch.zeros(*batch.tokens.shape, 4)

    def predict(tokens, batch, backbone):
        return probabilities.log().expand(len(batch.labels["generator"]), -1)

    heads = {"generator": predict, "replaced": lambda hidden, batch, backbone: hidden[..., 0]}
    OBJECTIVE.losses(SimpleNamespace(heads=heads, backbone=backbone), batch)
    return seen[0].flatten()


def masked_batch():
    return OBJECTIVE.collate(random_rows([60] * 100), VOCABULARY, generator())


def test_replacements_are_drawn_from_the_distribution_of_the_generator():
    batch = masked_batch()
    probabilities = torch.zeros(VOCABULARY.size)
    probabilities[[10, 20, 30]] = torch.tensor([0.5, 0.3, 0.2])
    torch.manual_seed(0)
    drawn = discriminator_inputs(batch, probabilities)[batch.label_positions]
    assert len(drawn) > 500
    found = torch.bincount(drawn, minlength=VOCABULARY.size) / len(drawn)
    assert (found - probabilities).abs().max() < 0.07


def test_replacements_are_drawn_anew_at_every_step():
    batch = masked_batch()
    uniform = torch.full((VOCABULARY.size,), 1 / VOCABULARY.size)
    torch.manual_seed(0)
    first, second = (discriminator_inputs(batch, uniform) for _ in range(2))
    torch.manual_seed(0)
    again = discriminator_inputs(batch, uniform)
    assert not torch.equal(first, second)
    assert torch.equal(first, again)


def test_only_masked_tokens_are_replaced():
    batch = masked_batch()
    certain = torch.zeros(VOCABULARY.size)
    certain[10] = 1.0
    seen = discriminator_inputs(batch, certain)
    masked = torch.zeros_like(seen, dtype=torch.bool).index_fill(0, batch.label_positions, True)
    assert (seen[masked] == 10).all()
    assert torch.equal(seen[~masked], batch.tokens.flatten()[~masked])
