"""What every objective promises."""

import pytest
import torch

from headstart.config import RunConfig
from headstart.data.loader import TextLoader
from headstart.models.model import build_model
from headstart.objectives.base import counts
from headstart.objectives.table import OBJECTIVES
from headstart.training.loop import Trainer
from headstart.training.runtime import Runtime
from tests.worlds import ALPHABET, generator, pairs_that_fit, random_rows, small_body

CPU = Runtime(torch.device("cpu"), torch.float32)


def make_model(name, kind, seed=0):
    torch.manual_seed(seed)
    objective, body = OBJECTIVES[name](), small_body(kind)
    return objective, build_model(body, ALPHABET.size, objective.heads(body, ALPHABET.size, 3))


@pytest.mark.parametrize(("name", "kind"), pairs_that_fit())
def test_an_objective_learns_eight_examples_by_heart(name, kind):
    objective, model = make_model(name, kind)
    config = RunConfig(
        job="finetune",
        body=small_body(kind),
        optimizer={"learning_rate": 1e-2, "weight_decay": 0.0},
        schedule={"kind": "constant", "warmup": 0.0},
        training={"steps": 250, "keep": "last"},
    )
    loader = TextLoader(random_rows([10] * 8), batch_tokens=80)
    told = []
    trainer = Trainer(model, objective, loader, ALPHABET, config, CPU, on_event=told.append)
    trainer.run()
    assert told[-1].loss < 0.35 * told[0].loss
    if name != "masked-lm":  # masks change at every step, so a masked model cannot know them all by heart
        assert told[-1].accuracy > 0.9


@pytest.mark.parametrize(("name", "kind"), pairs_that_fit())
def test_parts_of_a_step_give_the_gradient_of_one_big_batch(name, kind):
    objective, model = make_model(name, kind)
    rows = random_rows([9, 4, 12, 7, 5, 3])
    whole = objective.collate(rows, ALPHABET, generator())
    for loss in objective.losses(model, whole).values():
        (loss.total / loss.count).backward()
    expected = {
        key: weight.grad.clone() for key, weight in model.named_parameters() if weight.grad is not None
    }
    model.zero_grad()
    parts = [split(objective, whole, 0, 2), split(objective, whole, 2, 6)]
    total = {key: sum(counts(part)[key] for part in parts) for key in counts(whole)}
    assert total == counts(whole)
    for part in parts:
        for key, loss in objective.losses(model, part).items():
            (loss.total / total[key]).backward()
    for key, grad in expected.items():
        assert torch.allclose(dict(model.named_parameters())[key].grad, grad, atol=1e-5), key


def split(objective, batch, start, stop):
    """The rows from start to stop of a batch, asked the very same things."""
    from dataclasses import replace

    length, labels, asked = batch.tokens.shape[1], dict(batch.labels), batch.asked
    if asked is not None:
        inside = (asked >= start * length) & (asked < stop * length)
        labels = {"lm": labels["lm"][inside]}
        asked = asked[inside] - start * length
    else:
        labels = {key: label[start:stop] for key, label in labels.items()}
    return replace(
        batch,
        tokens=batch.tokens[start:stop],
        real=batch.real[start:stop],
        labels=labels,
        asked=asked,
        is_full=False,
    )


@pytest.mark.parametrize(("name", "kind"), pairs_that_fit())
def test_losses_do_not_depend_on_padding(name, kind):
    objective, model = make_model(name, kind)
    model.eval()
    batch = objective.collate(random_rows([9, 9]), ALPHABET, generator())
    pair = split(objective, batch, 0, 1)
    wide = type(batch)(
        torch.nn.functional.pad(pair.tokens, (0, 3)),
        torch.nn.functional.pad(pair.real, (0, 3)),
        {
            k: torch.nn.functional.pad(v, (0, 3), value=-100) if v.ndim == 2 else v
            for k, v in pair.labels.items()
        },
        pair.asked,
    )
    with torch.no_grad():
        for key, loss in objective.losses(model, pair).items():
            assert torch.allclose(loss.total, objective.losses(model, wide)[key].total, atol=1e-4)
            assert loss.count == objective.losses(model, wide)[key].count
