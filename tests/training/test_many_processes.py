"""Many processes take the steps that one would: the same losses, the same weights, each example evaluated once."""

import numpy as np
import pytest
import torch

from headstart.batch import TextLoader
from headstart.config import RunConfig
from headstart.errors import ConfigError, DataError
from headstart.models.model import build_model
from headstart.objectives import OBJECTIVES
from headstart.objectives.classification import Classification
from headstart.training.callbacks import StepDone
from headstart.training.distributed import BatchShard, batch_shards
from headstart.training.evaluate import predict_probabilities
from headstart.training.runtime import Runtime, init_processes
from headstart.training.trainer import Evaluation, Trainer, loss_sums
from tests.helpers.processes import in_processes
from tests.helpers.tiny_models import VOCABULARY, random_rows, tiny_config

LENGTHS = [9, 4, 12, 7, 5, 3, 8, 6, 11, 2, 10, 5, 7]  # batches of few rows, and a last one that is smaller
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _sure_generator(monkeypatch):
    """Replaced tokens are the generator's first choice: its draws are chance of each process's own."""
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda self, *args, **kinds: self.fill_(1.0))


def train(
    name="classify",
    kind="bidirectional",
    sharded=False,
    optimizer="adamw",
    shape=None,
    settings=None,
    precision=torch.float32,
    **training,
):
    """Losses, weights, tokens and loss sums of a short training, in as many processes as there are."""
    with init_processes() as processes:
        processes.start(CPU, 1.0)
        runtime = Runtime(CPU, precision, processes, sharded and not processes.is_alone)
        torch.manual_seed(0)
        objective, body = OBJECTIVES[name](**(settings or {})), tiny_config(kind, **(shape or {}))
        model = build_model(body, VOCABULARY.size, objective.heads(body, VOCABULARY.size, 3))
        config = RunConfig(
            job="finetune",
            model=body,
            optimizer={"name": optimizer},
            training={"max_steps": 7, "checkpoint_selection": "last", **training},
        )
        rows = random_rows(LENGTHS, sources=objective.reads == "translations")
        loader, events = TextLoader(rows, batch_tokens=40), []

        def evaluate(model):
            total, count, _ = next(iter(loss_sums(model, objective, loader, VOCABULARY, runtime).values()))
            return Evaluation({"loss": total / count}, objective_value=-total / count)

        trainer = Trainer(model, objective, loader, VOCABULARY, config, runtime, evaluate, events.append)
        trainer.run()
        trainer.finish()
        sums = trainer.strategy.read(lambda model: loss_sums(model, objective, loader, VOCABULARY, runtime))
        weights = trainer.strategy.whole(model.state_dict())
        return (
            [event.losses if isinstance(event, StepDone) else event.values for event in events],
            {key: weight.numpy() for key, weight in weights.items()},
            trainer.state.tokens,
            sums,
        )


def check_same(one, other):
    for some, others in zip(one[0], other[0], strict=True):
        assert some == pytest.approx(others, abs=2e-6)
    assert one[2] == other[2]
    for key, weight in one[1].items():
        assert np.allclose(weight, other[1][key], atol=1e-5), key
    for head, (total, count, right) in one[3].items():
        assert (count, right) == other[3][head][1:]
        assert total == pytest.approx(other[3][head][0], rel=1e-5)


TOGETHER = [
    {"name": "classify"},
    {"name": "masked-lm", "gradient_accumulation_steps": 3},
    {"name": "causal-lm", "kind": "causal", "gradient_accumulation_steps": 5},
    {"name": "causal+masked", "gradient_accumulation_steps": 4},
    {"name": "replaced-token"},
    {
        "name": "masked-lm+next-sentence",
        "gradient_accumulation_steps": 2,
        "shape": {"pooler": True, "token_type_embeddings": True},
    },
    {"name": "classify", "shape": {"pooler": True}},  # a pooler that no answer depends on
    {"name": "classify", "optimizer": "muon", "gradient_accumulation_steps": 3},
    {"name": "classify", "gradual_unfreezing_epochs": 1.0},
    {"name": "classify", "freeze_backbone": True},
    {"name": "masked-lm", "kind": "bi-lstm"},
    {"name": "translate", "kind": "encoder-decoder", "gradient_accumulation_steps": 2},
    {"name": "translate", "kind": "encoder-decoder", "checkpoint_selection": "best", "eval_steps": 2},
    {"name": "classify", "settings": {"r_drop_alpha": 1.0}, "gradient_accumulation_steps": 3},
    {"name": "classify", "weight_averaging": "ema", "eval_steps": 3},
    {"name": "classify", "weight_averaging": "last_epochs", "averaging_epochs": 2, "checkpoint_selection": "best"},
]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_many_processes_with_a_copy_each_train_what_one_would(count):
    alone = [train(**case) for case in TOGETHER]
    for one, *others in zip(alone, *in_processes(count, lambda: [train(**case) for case in TOGETHER]), strict=True):
        for other in others:
            check_same(one, other)


SHARDED = [
    {"name": "classify", "gradient_accumulation_steps": 3},
    {"name": "causal-lm", "kind": "causal"},
    {"name": "causal+masked", "optimizer": "muon", "gradient_accumulation_steps": 2},
    {"name": "replaced-token"},
    {"name": "classify", "freeze_backbone": True},
    {"name": "masked-lm", "kind": "bi-lstm"},
    {"name": "classify", "weight_averaging": "ema", "eval_steps": 3},
    {
        "name": "classify",
        "weight_averaging": "last_epochs",
        "averaging_epochs": 2,
        "checkpoint_selection": "best",
        "eval_steps": 2,
    },
]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_many_processes_with_a_part_each_train_what_one_would(count):
    alone = [train(**case) for case in SHARDED]
    found = in_processes(count, lambda: [train(**case, sharded=True) for case in SHARDED])
    for one, main in zip(alone, found[0], strict=True):  # only the main process keeps whole weights
        check_same(one, main)


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_many_processes_in_half_the_bits_lose_what_one_would(sharded):
    cases = [{"name": "classify", "gradient_accumulation_steps": 3}, {"name": "causal-lm", "kind": "causal"}]
    cases = [{**case, "precision": torch.bfloat16} for case in cases]
    alone, exact = ([train(**{**case, **more}) for case in cases] for more in ({}, {"precision": torch.float32}))
    found = in_processes(2, lambda: [train(**case, sharded=sharded) for case in cases])
    for one, full, main in zip(alone, exact, found[0], strict=True):
        for some, others in zip(one[0], main[0], strict=True):
            assert some == pytest.approx(others, abs=0.02)
        assert one[0] != full[0]  # bfloat16 changes the result
        assert all(weight.dtype == np.float32 for weight in main[1].values())


@pytest.mark.slow
def test_a_process_without_rows_takes_part():
    rows = random_rows([5, 6])

    def step():
        with init_processes() as processes:
            processes.start(CPU, 1.0)
            torch.manual_seed(0)
            objective, body = Classification(), tiny_config("bidirectional")
            model = build_model(body, VOCABULARY.size, objective.heads(body, VOCABULARY.size, 3))
            config = RunConfig(job="finetune", model=body, training={"max_steps": 2, "checkpoint_selection": "last"})
            runtime = Runtime(CPU, torch.float32, processes)
            Trainer(model, objective, TextLoader(rows, 100), VOCABULARY, config, runtime).run()
            found = predict_probabilities(model, objective, random_rows([4]), VOCABULARY, runtime, 100)
            return model.backbone.table.detach().numpy(), found

    (table, found), others = step(), in_processes(3, step)
    for other in others:
        assert np.allclose(table, other[0], atol=1e-6)
        assert np.allclose(found, other[1], atol=1e-6)


@pytest.mark.slow
def test_a_problem_of_one_process_is_the_problem_of_all_and_settings_must_agree():
    def meet():
        events = []
        with init_processes() as processes:
            for work in (
                lambda: processes.broadcast(lambda: fail("main")),
                lambda: together(processes, lambda: fail("second") if processes.rank == 1 else None),
                lambda: processes.assert_equal({"training": {"seed": processes.rank // 2}}),
            ):
                try:
                    work()
                except (DataError, ConfigError) as error:
                    events.append((type(error).__name__, error.problem, error.hint, error.is_shared))
            events.append(processes.all_gather("é" * 5_000_000 if processes.rank == 1 else "short")[1][-3:])
        return events

    def fail(who):
        raise DataError(f"{who} found nothing", hint="look again")

    def together(processes, work):
        with processes.raise_on_all():
            work()

    found = in_processes(3, meet)
    assert found[0] == found[1] == found[2]
    assert found[0][0] == ("DataError", "main found nothing", "look again", True)
    assert found[0][1] == ("DataError", "process 1: second found nothing", "look again", True)
    assert "training.seed is 1, not 0" in found[0][2][1]
    assert found[0][3] == "ééé"


@pytest.mark.parametrize(("batches", "count"), [(1, 1), (1, 4), (5, 2), (8, 4), (3, 8), (7, 3)])
def test_every_row_of_a_step_is_read_by_one_process(batches, count):
    read = []
    for rank in range(count):
        own = batch_shards(batches, rank, count)
        assert len(own) == len(batch_shards(batches, 0, count))
        read += [(share.batch, row) for share in own for row in range(*share.rows(10))]
    assert sorted(read) == [(batch, row) for batch in range(batches) for row in range(10)]


def test_whole_batches_go_round_before_any_is_cut():
    assert batch_shards(5, 1, 2) == [BatchShard(1), BatchShard(3), BatchShard(4, 1, 2)]
