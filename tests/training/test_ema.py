"""Averaged weights: what is averaged, what is judged, and that training itself never notices."""

import pytest
import torch

from headstart.batch import TextLoader
from headstart.config import RunConfig, TrainingConfig
from headstart.errors import ConfigError
from headstart.models.model import build_model
from headstart.objectives.classification import Classification
from headstart.training.runtime import Runtime
from headstart.training.trainer import Evaluation, Trainer
from tests.helpers.tiny_models import VOCABULARY, random_rows, tiny_config

CPU = Runtime(torch.device("cpu"), torch.float32)


def run(evaluate=None, watch=None, **training):
    """A finished trainer; `watch` sees it after each step's average was taken."""
    torch.manual_seed(0)
    body, objective = tiny_config("bidirectional", dropout=0.1), Classification()
    model = build_model(body, VOCABULARY.size, objective.heads(body, VOCABULARY.size, 3))
    config = RunConfig(job="finetune", model=body, training={"checkpoint_selection": "last", **training})
    loader = TextLoader(random_rows([8] * 12), batch_tokens=32, seed=0)
    trainer = Trainer(model, objective, loader, VOCABULARY, config, CPU, evaluate)
    if watch is not None:
        update = trainer._update_average
        trainer._update_average = lambda done: (update(done), watch(trainer))
    trainer.run()
    return trainer


def table(model):
    return model.backbone.table.detach().clone()


def test_training_is_the_same_whether_weights_are_averaged_or_not():
    tables = {kind: [] for kind in ("none", "ema", "last_epochs")}
    for kind, seen in tables.items():
        evaluate = lambda model: Evaluation({"accuracy": 0.5}, 0.5)
        run(evaluate, lambda trainer, seen=seen: seen.append(table(trainer.model)), max_epochs=4, weight_averaging=kind)
    for kind in ("ema", "last_epochs"):
        assert all(torch.equal(a, b) for a, b in zip(tables["none"], tables[kind], strict=True))


def test_the_moving_average_is_what_its_formula_says():
    weights, averages = [], []

    def watch(trainer):
        weights.append(table(trainer.model))
        averages.append(trainer.average.tensors["backbone.embedding.token_embedding.weight"].clone())

    done = run(watch=watch, max_epochs=4, weight_averaging="ema", averaging_epochs=2)
    steps = done.steps_in(0)
    expected = weights[0]
    for step, weight in enumerate(weights, start=1):
        decay = min(1 - 1 / (2 * steps), (1 + step) / (10 + step))
        if step > 1:
            expected = decay * expected + (1 - decay) * weight
        assert torch.allclose(averages[step - 1], expected, atol=1e-6)
    done.finish()
    assert torch.equal(table(done.model), averages[-1])


@pytest.mark.parametrize(
    ("budget", "epochs", "expected"),
    [
        ({"max_epochs": 5}, 3.0, [3, 4, 5]),
        ({"max_epochs": 5}, 1.0, [5]),
        ({"max_epochs": 2.5}, 1.0, [2, 8 / 3]),
        ({"max_epochs": 2}, 9.0, [1, 2]),
        ({"max_steps": 10}, 2.0, [2, 3, 10 / 3]),
    ],
)  # fmt: skip  (an epoch has three steps)
def test_the_ends_of_the_last_epochs_are_averaged(budget, epochs, expected):
    taken, last = [], [0]

    def watch(trainer):
        if trainer.state.num_averaged > last[0]:
            last[0] = trainer.state.num_averaged
            taken.append((trainer.epochs_done, table(trainer.model)))

    done = run(watch=watch, weight_averaging="last_epochs", averaging_epochs=epochs, **budget)
    assert [epoch for epoch, _ in taken] == pytest.approx(expected)
    mean = torch.stack([weight for _, weight in taken]).mean(dim=0)
    done.finish()
    assert torch.allclose(table(done.model), mean, atol=1e-6)


@pytest.mark.parametrize("kind", ["ema", "last_epochs"])
def test_metrics_and_the_best_weights_are_those_of_the_average(kind):
    evaluated = []

    def evaluate(model):
        evaluated.append(table(model))
        return Evaluation({"accuracy": len(evaluated)}, len(evaluated))

    averages = []

    def watch(trainer):
        if trainer.state.batch == 0:
            found = trainer.average.tensors.get("backbone.embedding.token_embedding.weight")
            averages.append(table(trainer.model) if found is None else found.clone())

    done = run(evaluate, watch, max_epochs=4, weight_averaging=kind, averaging_epochs=2, checkpoint_selection="best")
    assert all(torch.equal(a, b) for a, b in zip(evaluated[1:], averages, strict=True))
    assert not torch.equal(table(done.model), averages[-1])  # training continues from its own weights
    done.finish()
    assert torch.equal(table(done.model), averages[-1])


def test_an_average_over_less_than_a_step_is_the_weights_themselves():
    plain, short, one = run(max_epochs=3), run(max_epochs=3, weight_averaging="ema", averaging_epochs=1e-6), run(
        max_epochs=3, weight_averaging="last_epochs", averaging_epochs=0.5
    )  # fmt: skip
    for trainer in (plain, short, one):
        trainer.finish()
    for name, weight in plain.model.state_dict().items():
        assert torch.equal(weight, short.model.state_dict()[name])
        assert torch.equal(weight, one.model.state_dict()[name])


def test_frozen_weights_stay_bit_for_bit():
    done = run(max_epochs=2, weight_averaging="ema", freeze_backbone=True)
    before = table(done.model)
    done.finish()
    assert torch.equal(table(done.model), before)


@pytest.mark.parametrize("budget", [{"max_tokens": 100}, {"max_minutes": 1.0}])
def test_the_last_epochs_of_an_open_budget_are_refused(budget):
    with pytest.raises(ConfigError, match="budget in epochs or steps"):
        TrainingConfig(weight_averaging="last_epochs", **budget)
