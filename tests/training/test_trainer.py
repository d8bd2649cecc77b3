import threading
from types import SimpleNamespace

import pytest
import torch

from headstart.batch import TextLoader
from headstart.config import RunConfig
from headstart.models.model import build_model
from headstart.objectives.classification import Classification
from headstart.training.callbacks import Evaluated, StepDone
from headstart.training.evaluate import predict_probabilities
from headstart.training.runtime import Runtime, seed_for
from headstart.training.trainer import Evaluation, State, Trainer, prefetch
from tests.helpers.tiny_models import VOCABULARY, random_rows, tiny_config

CPU = Runtime(torch.device("cpu"), torch.float32)


def trainer(rows, evaluate=None, on_event=lambda event: None, optimizer=None, **training):
    torch.manual_seed(0)
    body, objective = tiny_config("bidirectional"), Classification()
    model = build_model(body, VOCABULARY.size, objective.heads(body, VOCABULARY.size, 3))
    config = RunConfig(job="finetune", model=body, training=training, optimizer=optimizer or {})
    loader = TextLoader(rows, batch_tokens=training.get("tokens_per_batch", 64), seed=0)
    return Trainer(model, objective, loader, VOCABULARY, config, CPU, evaluate, on_event)


def test_accumulated_batches_take_the_step_of_one_big_batch():
    rows = random_rows([8, 8, 8, 8, 8, 8])
    plain = {"name": "adam", "max_grad_norm": 0.0}
    big = trainer(rows, max_steps=1, tokens_per_batch=1000, checkpoint_selection="last", optimizer=plain)
    small = trainer(
        rows,
        max_steps=1,
        tokens_per_batch=16,
        gradient_accumulation_steps=3,
        checkpoint_selection="last",
        optimizer=plain,
    )
    big.run()
    small.run()
    for one, other in zip(big.model.parameters(), small.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_the_model_is_evaluated_before_any_step_and_after_every_epoch():
    events = []
    rows = random_rows([6] * 12)
    run = trainer(rows, lambda model: Evaluation({"accuracy": 0.5}, 0.5), events.append, max_epochs=3)
    run.run()
    assert [event.epoch for event in events if isinstance(event, Evaluated)] == [0, 1, 2, 3]


def test_the_best_weights_on_validation_are_restored():
    accuracies = iter([0.1, 0.9, 0.2, 0.3])
    seen = []

    def evaluate(model):
        seen.append(model.backbone.table.detach().clone())
        value = next(accuracies)
        return Evaluation({"accuracy": value}, value)

    run = trainer(random_rows([6] * 12), evaluate, max_epochs=3, checkpoint_selection="best")
    run.run()
    run.finish()
    assert torch.equal(run.model.backbone.table, seen[1])
    assert run.state.best_step == run.state.step // 3


def test_a_budget_in_tokens_or_minutes_ends_the_run():
    run = trainer(random_rows([10] * 8), max_tokens=300, checkpoint_selection="last")
    run.run()
    assert 300 <= run.state.tokens < 400
    timed = trainer(random_rows([10] * 8), max_minutes=0.002, checkpoint_selection="last")
    timed.run()
    assert timed.state.seconds >= 0.12


def test_padding_speed_and_time_left_are_reported():
    events = []
    trainer(random_rows([4, 12, 7, 9] * 5), on_event=events.append, max_steps=20, checkpoint_selection="last").run()
    last = [event for event in events if isinstance(event, StepDone)][-1]
    assert last.step == 20
    assert 0 <= last.padding < 0.5
    assert last.tokens_per_second > 0
    assert last.seconds_left == 0
    assert last.progress == 1


def test_a_state_survives_json():
    state = State(step=3, epoch=1, batch=2, tokens=9, seconds=1.5, curve=[{"epoch": 1.0}])
    assert State.from_dict(state.to_dict()) == state


def test_seeds_are_the_same_for_ever():
    assert seed_for(0) == 6229623725594924965
    assert seed_for(1, 2, 3) != seed_for(3, 2, 1)


def test_predictions_do_not_depend_on_batch_mates():
    run = trainer(random_rows([6] * 4), max_steps=1)
    rows = random_rows([5, 30, 7, 2, 19], seed=3)
    together = predict_probabilities(run.model, run.objective, rows, VOCABULARY, CPU, 1000)
    apart = predict_probabilities(run.model, run.objective, rows, VOCABULARY, CPU, 1)
    assert abs(together - apart).max() < 1e-6
    assert abs(together.sum(axis=1) - 1).max() < 1e-6


def test_batches_made_in_another_thread_are_the_same_and_the_thread_ends():
    import threading

    class Pretend(Runtime):
        """A runtime that says it is no CPU, so that batches are made ahead, but computes on one."""

    def run(device):
        torch.manual_seed(0)
        job = trainer(random_rows([4, 9, 7, 12] * 6), max_epochs=2, checkpoint_selection="last")
        job.runtime = Pretend(torch.device(device), torch.float32)
        for epoch in range(2):
            job.state.epoch = epoch
            yield [part.tokens for parts in job.batches() for part in parts]

    before = threading.active_count()
    inline = list(run("cpu"))
    ahead = list(run("meta"))
    assert all(torch.equal(a, b) for x, y in zip(inline, ahead, strict=True) for a, b in zip(x, y, strict=True))
    job = trainer(random_rows([4, 9] * 30), max_epochs=2, checkpoint_selection="last")
    job.runtime = Pretend(torch.device("meta"), torch.float32)
    steps = job.batches()
    next(steps)
    steps.close()  # left in the middle, as when the budget is spent
    assert threading.active_count() == before


def prepared_steps(count, error_at=None):
    for number in range(count):
        if number == error_at:
            raise ValueError("a row that cannot be read")
        yield [SimpleNamespace(number=number, num_tokens=1, label_counts={})]


def test_prefetched_steps_come_in_order():
    assert [part.number for [part] in prefetch(prepared_steps(11), pin_memory=False)] == list(range(11))


def test_an_error_while_prefetching_is_raised_after_the_steps_before_it():
    found = []
    with pytest.raises(ValueError, match="cannot be read"):
        found.extend(part.number for [part] in prefetch(prepared_steps(9, error_at=6), pin_memory=False))
    assert found == list(range(6))


def test_prefetching_ends_with_the_loop_that_reads_it():
    threads = threading.active_count()
    steps = prefetch(prepared_steps(100), pin_memory=False)
    next(steps)
    assert threading.active_count() == threads + 1
    steps.close()
    assert threading.active_count() == threads
