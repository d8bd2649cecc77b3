"""Pushes: as long as asked, along a way that turns answers more than chance does, and alike in every batch."""

from dataclasses import replace

import pytest
import torch

from headstart.config import resolve
from headstart.models.model import build_model
from headstart.objectives.classify import Classify
from headstart.objectives.push import Chance, turned, worst_push
from headstart.planning.cost import count_flops
from headstart.planning.load import make_load
from headstart.planning.memory import activations
from tests.worlds import ALPHABET, check_parts_add_up, generator, random_rows, small_body

KINDS = ["bidirectional", "causal", "bi-lstm", "cnn"]
LENGTHS = [9, 4, 12, 7, 5, 3]


def make_model(kind="bidirectional", dropout=0.0):
    torch.manual_seed(0)
    body = small_body(kind, dropout=dropout)
    return build_model(body, ALPHABET.size, Classify().heads(body, ALPHABET.size, 3)).train()


def make_batch(lengths=LENGTHS, objective=Classify(adversarial=1.0)):
    return objective.collate(random_rows(lengths), ALPHABET, generator())


def pushed(model, batch, reach):
    """The scores of a pass, and the push from there."""
    chance = Chance(torch.device("cpu"))
    scores = model(batch)["class"]
    return scores, worst_push(model, batch, scores, reach, chance), chance


def norms(vectors):
    return vectors.square().sum(dim=(1, 2)).sqrt()


@pytest.mark.parametrize("kind", KINDS)
def test_a_push_is_as_long_as_asked_and_spares_padding_and_weights(kind):
    model, batch = make_model(kind), make_batch()
    _, shift, _ = pushed(model, batch, 0.03)
    vectors = model.body.embedding(batch)[0].detach() * batch.real[..., None]
    assert torch.allclose(norms(shift), 0.03 * norms(vectors), rtol=1e-4)
    assert not shift[~batch.real].any()
    assert not shift.requires_grad
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_push_turns_answers_more_than_chance_does(kind, dropout):
    model, batch = make_model(kind, dropout), make_batch()
    scores, shift, chance = pushed(model, batch, 0.05)

    def felt(way):
        way = way * batch.real[..., None]
        way = way * (norms(shift) / norms(way))[:, None, None]
        with chance.again(), torch.no_grad():
            return float(turned(scores, model(replace(batch, shift=way))["class"]))

    by_chance = [felt(torch.randn_like(shift)) for _ in range(20)]
    assert felt(shift) > 2 * max(by_chance)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_pushed_alike_alone_and_among_others(kind):
    model, batch = make_model(kind), make_batch()
    _, together, _ = pushed(model, batch, 0.02)
    for row, length in enumerate(LENGTHS):
        own = batch.rows(row, row + 1)
        own = replace(own, tokens=own.tokens[:, :length], real=own.real[:, :length], is_full=True)
        _, alone, _ = pushed(model, own, 0.02)
        assert torch.allclose(together[row, :length], alone[0], atol=2e-4 * float(norms(alone))), row


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_step_give_the_gradient_of_one_big_batch(kind):
    objective, model = Classify(adversarial=2.0), make_model(kind)
    whole = make_batch(objective=objective)
    losses = check_parts_add_up(objective, model, whole, atol=2e-5)
    assert set(losses) == {"class", "push"}
    assert losses["push"].total.detach() > 0


def test_what_was_answered_before_is_given_and_learns_nothing_from_a_push():
    model, batch = make_model(), make_batch()
    scores, shift, _ = pushed(model, batch, 0.02)
    scores.retain_grad()
    turned(scores, model(replace(batch, shift=shift))["class"]).backward()
    assert scores.grad is None


def test_dropout_turns_nothing_where_a_push_is_felt():
    model, batch = make_model(dropout=0.5), make_batch()
    far = Classify(adversarial=1.0, reach=1e-7).losses(model.train(), batch)["push"]
    assert float(far.total.detach()) < 1e-6
    assert float(Classify(adversarial=1.0, reach=0.3).losses(model, batch)["push"].total.detach()) > 1e-4


def test_chance_goes_on_after_a_push_where_it_was():
    model, batch = make_model(dropout=0.5), make_batch()
    torch.manual_seed(3)
    Classify().losses(model, batch)
    expected = torch.rand(3)
    torch.manual_seed(3)
    Classify(adversarial=1.0).losses(model, batch)
    assert torch.equal(torch.rand(3), expected)


def test_steps_along_the_loss_make_answers_hold():
    model, batch = make_model(), make_batch()
    objective, plain = Classify(adversarial=5.0, reach=0.2), Classify()
    felt = {}
    for name, asked in (("pushed", objective), ("plain", plain)):
        model = make_model()
        steps = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(60):
            steps.zero_grad()
            sum(
                loss.weight * loss.total / loss.count for loss in asked.losses(model, batch).values()
            ).backward()
            steps.step()
        found = objective.losses(model, batch)
        assert int(found["class"].correct) == len(LENGTHS)
        felt[name] = float(found["push"].total.detach())
    assert felt["pushed"] < felt["plain"] / 2


def test_nothing_is_pushed_when_a_model_is_marked():
    objective, model = Classify(adversarial=1.0, r_drop=1.0), make_model(dropout=0.5).eval()
    batch = make_batch(objective=objective)
    found = objective.losses(model, batch)
    assert list(found) == ["class"]
    assert torch.equal(found["class"].total, Classify().losses(model, batch)["class"].total)


def test_a_push_goes_with_r_drop_and_with_a_frozen_body():
    objective, model = Classify(adversarial=1.0, r_drop=1.0), make_model(dropout=0.3)
    model.body.requires_grad_(False)
    losses = objective.losses(model, make_batch(objective=objective))
    assert set(losses) == {"class", "agreement", "push"}
    sum(loss.weight * loss.total / loss.count for loss in losses.values()).backward()
    assert all(weight.grad is None for weight in model.body.parameters())
    assert all(weight.grad is not None for weight in model.heads.parameters())


def test_the_plan_knows_of_two_more_passes():
    plain, pushed = (
        make_load(resolve("finetune", "tiny", {"objective": {"adversarial": weight}}), "cpu", "float32")
        for weight in (0.0, 1.0)
    )
    assert count_flops(pushed).training == 3 * count_flops(plain).training
    assert activations(pushed) == 2 * activations(plain)  # the search is over when the push is felt
