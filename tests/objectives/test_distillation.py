"""What a teacher adds to an objective."""

from copy import deepcopy

import pytest
import torch

from headstart import constants
from headstart.fast import linear_cross_entropy as chunked
from headstart.models.model import build_model
from headstart.objectives import distillation as module
from headstart.objectives.causal_lm import CausalLM
from headstart.objectives.classification import Classification
from headstart.objectives.distillation import DISTILLED, Distillation, can_teach, distill
from headstart.objectives.masked_lm import CausalAndMasked, MaskedLM
from tests.helpers.tiny_models import VOCABULARY, generator, random_rows, tiny_config

CASES = [
    (MaskedLM(mask_rate=0.3), "bidirectional"),
    (CausalLM(), "causal"),
    (Classification(), "bidirectional"),
    (Classification(), "causal"),
]
IDS = [f"{objective.name}-{kind}" for objective, kind in CASES]


def model_for(objective, kind, seed=0, **changes):
    torch.manual_seed(seed)
    body = tiny_config(kind, **changes)
    model = build_model(body, VOCABULARY.size, objective.heads(body, VOCABULARY.size, 3))
    return model.eval()


def batch_for(objective, lengths=(7, 12, 9, 12)):
    return objective.collate(random_rows(lengths), VOCABULARY, generator())


def total(losses):
    return sum(loss.total for loss in losses.values())


@pytest.mark.parametrize(("objective", "kind"), CASES, ids=IDS)
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_it(objective, kind, temperature):
    student = model_for(objective, kind)
    distillation = Distillation((deepcopy(student).requires_grad_(False),), 1.0, temperature)
    losses = distill(objective, distillation).losses(student, batch_for(objective))
    assert float(total(losses).detach()) == 0
    total(losses).backward()
    assert all(weight.grad is None or weight.grad.abs().max() < 1e-6 for weight in student.parameters())


@pytest.mark.parametrize(("objective", "kind"), CASES, ids=IDS)
def test_without_any_share_it_is_the_plain_objective(objective, kind):
    student, teacher = model_for(objective, kind), model_for(objective, kind, seed=1, hidden_size=24)
    batch = batch_for(objective)
    plain = objective.losses(student, batch)
    beside = distill(objective, Distillation((teacher,), 0.0, 2.0)).losses(student, batch)
    assert beside.keys() == plain.keys()
    for name in plain:
        assert torch.allclose(beside[name].total, plain[name].total, rtol=1e-5)
        assert beside[name].count == plain[name].count
        assert int(beside[name].correct) == int(plain[name].correct)


@pytest.mark.parametrize(("objective", "kind"), CASES, ids=IDS)
def test_a_student_comes_near_its_teacher(objective, kind):
    student, teacher = model_for(objective, kind), model_for(objective, kind, seed=1, hidden_size=24)
    with torch.no_grad():
        for weight in teacher.parameters():
            weight *= 3  # so that it is confident
    distilled = distill(objective, Distillation((teacher.requires_grad_(False),), 1.0, 1.0))
    batch = batch_for(objective)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.02)
    found = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = total(distilled.losses(student, batch))
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    assert found[-1] < 0.3 * found[0]
    assert min(found) >= 0


@pytest.mark.parametrize(("objective", "kind"), CASES[:2], ids=IDS[:2])
def test_logits_in_chunks_give_the_loss_and_the_gradients_of_the_whole(objective, kind, monkeypatch):
    teachers = tuple(model_for(objective, kind, seed=seed).requires_grad_(False) for seed in (1, 2))
    distilled = distill(objective, Distillation(teachers, 0.7, 1.5))
    batch, grads = batch_for(objective), []
    for room in (2**24, 400):
        monkeypatch.setitem(constants.LOGITS_PER_CHUNK, "cpu", room)
        student = model_for(objective, kind)
        loss = distilled.losses(student, batch)["lm"]
        loss.total.backward()
        grads.append((loss.total.detach(), int(loss.correct), [w.grad.clone() for w in student.parameters()]))
    assert torch.allclose(grads[0][0], grads[1][0], rtol=1e-5)
    assert grads[0][1] == grads[1][1]
    for one, other in zip(grads[0][2], grads[1][2], strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_several_teachers_give_the_mean_of_their_probabilities():
    objective = Classification()
    teachers = tuple(model_for(objective, "bidirectional", seed=seed) for seed in (1, 2, 3))
    batch = batch_for(objective)
    with torch.no_grad():
        logits = [teacher(batch)["class"] for teacher in teachers]
    mean = torch.stack([own.softmax(dim=-1) for own in logits]).mean(dim=0)
    assert torch.allclose(Distillation(teachers, 1.0, 1.0).teacher_log_probs(logits).exp(), mean, atol=1e-6)


def test_r_drop_and_a_teacher_go_together():
    objective = Classification(head_dropout=0.1, r_drop_alpha=1.0)
    student, teacher = (model_for(objective, "bidirectional", seed=seed) for seed in (0, 1))
    losses = distill(objective, Distillation((teacher,), 0.5, 2.0)).losses(student.train(), batch_for(objective))
    assert losses.keys() == {"class", "agreement"}
    total(losses).backward()
    assert all(weight.grad is None for weight in teacher.parameters())


def test_a_hybrid_teaches_masked_language_modelling():
    objective = MaskedLM()
    student, teacher = (
        model_for(objective, "bidirectional", seed=0),
        model_for(CausalAndMasked(), "bidirectional", seed=1),
    )
    batch = batch_for(objective)
    assert can_teach(CausalAndMasked(), objective)
    assert not can_teach(objective, CausalAndMasked())
    assert not can_teach(CausalAndMasked(), CausalLM())
    by_hybrid, by_masked = (
        distill(objective, Distillation((own,), 1.0, 1.0)).losses(student, batch)["lm"].total
        for own in (teacher, model_for(objective, "bidirectional", seed=1))
    )
    assert torch.equal(by_hybrid, by_masked)


def test_teachers_do_not_change():
    objective = MaskedLM()
    student, teacher = (model_for(objective, "bidirectional", seed=seed) for seed in (0, 1))
    before = {name: weight.clone() for name, weight in teacher.state_dict().items()}
    total(
        distill(objective, Distillation((teacher,), 1.0, 1.0)).losses(student.train(), batch_for(objective))
    ).backward()
    assert all(torch.equal(before[name], weight) for name, weight in teacher.state_dict().items())
    assert all(weight.grad is None for weight in teacher.parameters())


def test_every_distilled_objective_has_the_settings_of_the_plain_one():
    for kind in DISTILLED:
        assert distill(kind(), Distillation((), 0.5, 2.0)).name == kind.name
    assert distill(MaskedLM(mask_rate=0.4), Distillation((), 0.5, 2.0)).mask_rate == 0.4


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("kind", [torch.float, torch.bfloat16])
def test_the_gradients_are_those_that_autograd_finds(temperature, kind):
    torch.manual_seed(0)
    distillation = Distillation((), 0.7, temperature)
    logits, *teacher_logits = (torch.randn(9, 40).to(kind) for _ in range(3))
    labels = torch.randint(40, (9,))
    full = logits.float().requires_grad_()
    true = torch.nn.functional.cross_entropy(full, labels, reduction="sum")
    expected = distillation.weighted(
        true,
        distillation.distance(distillation.student_log_probs(full), distillation.teacher_log_probs(teacher_logits)),
    )
    (grad,) = torch.autograd.grad(expected, full)
    loss, correct, found = module.token_loss_and_grad([logits, *teacher_logits], labels, distillation, True)
    assert torch.allclose(loss, expected, rtol=1e-5)
    assert int(correct) == int((full.argmax(-1) == labels).sum())
    assert found.dtype == kind
    assert torch.allclose(found.float(), grad, atol=1e-5 if kind == torch.float else 1e-2)


@pytest.mark.slow
def test_distillation_is_compiled_once_for_any_number_of_rows(monkeypatch):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    compiled_loss = torch.compile(module.token_loss_and_grad, backend="aot_eager")
    monkeypatch.setattr(chunked, "_compile", lambda function: compiled_loss)
    monkeypatch.setattr(chunked, "is_compiled", lambda hidden: True)
    objective = MaskedLM(mask_rate=0.3)
    teachers = tuple(model_for(objective, "bidirectional", seed=seed).requires_grad_(False) for seed in (1, 2))
    distilled, student = (distill(objective, Distillation(teachers, 0.7, 1.5)), model_for(objective, "bidirectional"))
    for lengths in ((7, 12, 9, 12), (12, 12, 12, 12, 12), (9, 9), (30, 31, 12)):
        batch = batch_for(objective, lengths)
        compiled = distilled.losses(student, batch)["lm"]
        with monkeypatch.context() as patch:
            patch.setattr(chunked, "is_compiled", lambda hidden: False)
            plain = distilled.losses(student, batch)["lm"]
        assert torch.allclose(compiled.total, plain.total, rtol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
