"""What every objective promises."""

from dataclasses import replace

import pytest
import torch

from headstart.batch import TextLoader
from headstart.config import RunConfig
from headstart.models.model import build_model
from headstart.objectives import OBJECTIVES
from headstart.training.runtime import Runtime
from headstart.training.trainer import Trainer
from tests.helpers.tiny_models import VOCABULARY, generator, random_rows, tiny_config, trainable_combinations

CPU = Runtime(torch.device("cpu"), torch.float32)


def rows_for(objective, lengths):
    return random_rows(lengths, sources=objective.reads == "translations")


def make_model(name, kind, seed=0):
    torch.manual_seed(seed)
    objective, body = OBJECTIVES[name](), tiny_config(kind)
    return objective, build_model(body, VOCABULARY.size, objective.heads(body, VOCABULARY.size, 3))


@pytest.mark.parametrize(("name", "kind"), trainable_combinations())
@pytest.mark.slow
def test_an_objective_learns_eight_examples_by_heart(name, kind):
    objective, model = make_model(name, kind)
    config = RunConfig(
        job="finetune",
        model=tiny_config(kind),
        optimizer={"learning_rate": 1e-2, "weight_decay": 0.0},
        lr_schedule={"name": "constant", "warmup_ratio": 0.0},
        training={"max_steps": 250, "checkpoint_selection": "last"},
    )
    loader = TextLoader(rows_for(objective, [10] * 8), batch_tokens=200)
    events = []
    trainer = Trainer(model, objective, loader, VOCABULARY, config, CPU, on_event=events.append)
    trainer.run()
    first, last = (sum(event.losses.values()) / len(event.losses) for event in (events[0], events[-1]))
    hides = hasattr(objective, "mask_token_prob")  # masks change at every step: no model can know them all by heart
    assert last < (0.6 if hides else 0.35) * first
    assert hides or events[-1].accuracy > 0.9


@pytest.fixture
def greedy_generator(monkeypatch):
    """ELECTRA's generator replaces a token by its most probable one: batches of any shape get the same replacements."""
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda self, *args, **kinds: self.fill_(1.0))


@pytest.mark.parametrize(("name", "kind"), trainable_combinations())
@pytest.mark.usefixtures("greedy_generator")
def test_parts_of_a_step_give_the_gradient_of_one_big_batch(name, kind):
    objective, model = make_model(name, kind)
    whole = objective.collate(rows_for(objective, [9, 4, 12, 7, 5, 3]), VOCABULARY, generator())
    sum(loss.weight * loss.total / loss.count for loss in objective.losses(model, whole).values()).backward()
    expected = {key: weight.grad.clone() for key, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    parts = [whole.rows(0, 2), whole.rows(2, 6)]
    total = {key: sum(part.label_counts[key] for part in parts) for key in whole.label_counts}
    assert total == whole.label_counts
    for part in parts:
        losses = objective.losses(model, part)
        sum(loss.weight * loss.total / total[key] for key, loss in losses.items()).backward()
    for key, grad in expected.items():
        assert torch.allclose(dict(model.named_parameters())[key].grad, grad, atol=1e-5), key


@pytest.mark.parametrize("name", [name for name, kind in OBJECTIVES.items() if kind.is_rowwise])
def test_an_objective_that_asks_by_row_asks_the_same_of_a_row_alone(name):
    objective = OBJECTIVES[name]()
    rows = rows_for(objective, [9, 4, 12, 7])
    whole = objective.collate(rows, VOCABULARY, generator())
    for number, row in enumerate(rows):
        alone, among = objective.collate([row], VOCABULARY, generator(1)), whole.rows(number, number + 1)
        length = alone.tokens.shape[1]
        assert torch.equal(alone.tokens, among.tokens[:, :length])
        for key, label in alone.labels.items():
            assert torch.equal(label.flatten(), among.labels[key])
        if alone.source is not None:
            width = alone.source.shape[1]
            assert torch.equal(alone.source, among.source[:, :width])
            assert torch.equal(alone.source_attention_mask, among.source_attention_mask[:, :width])
            assert not among.source_attention_mask[:, width:].any()


@pytest.mark.parametrize(("name", "kind"), trainable_combinations())
@pytest.mark.usefixtures("greedy_generator")
def test_losses_do_not_depend_on_padding(name, kind):
    objective, model = make_model(name, kind)
    model.eval()
    batch = objective.collate(rows_for(objective, [9, 9]), VOCABULARY, generator())
    pair = replace(batch.rows(0, 1), unpadded=False)
    wide = replace(
        pair,
        tokens=torch.nn.functional.pad(pair.tokens, (0, 3)),
        attention_mask=torch.nn.functional.pad(pair.attention_mask, (0, 3)),
    )
    if pair.label_positions is not None:
        labels = {
            key: torch.nn.functional.pad(label, (0, 3), value=-100) if label.ndim == 2 else label
            for key, label in pair.labels.items()
        }
        wide = replace(wide, labels=labels)
    elif any(label.ndim == 2 for label in pair.labels.values()):  # a label for every token
        labels = {key: label.flatten() for key, label in pair.labels.items()}
        positions = wide.attention_mask.flatten().nonzero()[:, 0]
        wide = replace(wide, labels=labels, label_positions=positions, sparse_labels=tuple(labels))
    with torch.no_grad():
        for key, loss in objective.losses(model, pair).items():
            assert torch.allclose(loss.total, objective.losses(model, wide)[key].total, atol=1e-4)
            assert loss.count == objective.losses(model, wide)[key].count
