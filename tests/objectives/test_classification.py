"""R-Drop: two passes, one gradient, both parts of the loss reported."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.batch import TextLoader
from headstart.config import RunConfig
from headstart.errors import ConfigError
from headstart.models.model import build_model
from headstart.objectives.base import symmetric_kl
from headstart.objectives.classification import Classification
from headstart.training.callbacks import StepDone
from headstart.training.runtime import Runtime
from headstart.training.trainer import Trainer
from tests.helpers.tiny_models import VOCABULARY, check_gradient_accumulation, generator, random_rows, tiny_config

CPU = Runtime(torch.device("cpu"), torch.float32)


def make_model(kind="bidirectional", dropout=0.0):
    torch.manual_seed(0)
    body = tiny_config(kind, dropout=dropout)
    return build_model(body, VOCABULARY.size, Classification().heads(body, VOCABULARY.size, 3))


@pytest.fixture
def _passes_differ(monkeypatch):
    """Each second pass scales its answers, so that two passes differ and still no chance is drawn."""
    number = iter(range(10**6))
    forward = torch.nn.Module.__call__

    def call(self, *args, **kinds):
        found = forward(self, *args, **kinds)
        if type(self).__name__ == "Model":
            return {name: score * (1 + 0.5 * (next(number) % 2)) for name, score in found.items()}
        return found

    monkeypatch.setattr(torch.nn.Module, "__call__", call)


@pytest.mark.usefixtures("_passes_differ")
@pytest.mark.parametrize("kind", ["bidirectional", "causal", "bi-lstm", "cnn"])
def test_parts_of_a_step_give_the_gradient_of_one_big_batch(kind):
    objective, model = Classification(r_drop_alpha=2.0), make_model(kind).train()
    whole = objective.collate(random_rows([9, 4, 12, 7, 5, 3]), VOCABULARY, generator())
    losses = check_gradient_accumulation(objective, model, whole)
    assert losses["agreement"].total.detach() > 0


def test_passes_that_agree_cost_what_one_pass_costs():
    batch = Classification(r_drop_alpha=3.0).collate(random_rows([9, 4]), VOCABULARY, generator())
    model = make_model().train()  # no dropout, so both passes say the same
    both, one = Classification(r_drop_alpha=3.0).losses(model, batch), Classification().losses(model, batch)
    assert torch.equal(both["class"].total, one["class"].total)
    assert float(both["agreement"].total.detach()) == 0
    assert list(one) == ["class"]


def test_nothing_is_passed_twice_when_a_model_is_evaluated():
    objective, model = Classification(r_drop_alpha=1.0), make_model(dropout=0.5).eval()
    batch = objective.collate(random_rows([9, 4]), VOCABULARY, generator())
    found = objective.losses(model, batch)
    assert list(found) == ["class"]
    assert torch.equal(found["class"].total, Classification().losses(model, batch)["class"].total)


scores = st.lists(st.floats(-20, 20), min_size=6, max_size=6).map(lambda row: torch.tensor(row).view(2, 3))


@settings(deadline=None)
@given(scores, scores)
def test_divergence_is_symmetric_and_zero_only_for_like_answers(first, second):
    found = symmetric_kl(first, second)
    assert found >= -1e-6
    assert torch.allclose(found, symmetric_kl(second, first), atol=1e-5)
    one, other = (score.double().softmax(-1) for score in (first, second))
    expected = ((one * (one / other).log()).sum() + (other * (other / one).log()).sum()) / 2
    assert torch.allclose(found.double(), expected, atol=1e-4, rtol=1e-4)
    assert symmetric_kl(first, first) == 0


def test_the_parts_of_the_loss_are_reported_separately():
    events = []
    body, objective = tiny_config("bidirectional", dropout=0.3), Classification(r_drop_alpha=1.0)
    config = RunConfig(job="finetune", model=body, training={"max_steps": 2, "checkpoint_selection": "last"})
    loader = TextLoader(random_rows([9] * 8), batch_tokens=40)
    Trainer(make_model(dropout=0.3), objective, loader, VOCABULARY, config, CPU, on_event=events.append).run()
    last = [event for event in events if isinstance(event, StepDone)][-1]
    assert set(last.losses) == {"class", "agreement"}
    assert last.losses["agreement"] > 0
    assert 0 <= last.accuracy <= 1


def test_r_drop_without_dropout_is_refused():
    with pytest.raises(ConfigError, match="there is no dropout"):
        Classification(r_drop_alpha=1.0).resolve_backbone(tiny_config("auto"))
    assert (
        Classification(r_drop_alpha=1.0, head_dropout=0.1).resolve_backbone(tiny_config("auto")).architecture
        == "bidirectional"
    )


def test_r_drop_reads_twice_and_the_plan_knows():
    from headstart.config import resolve
    from headstart.planning.memory import activations
    from headstart.planning.workload import count_flops, make_workload

    plain, twice = (
        make_workload(resolve("finetune", "tiny", {"objective": {"r_drop_alpha": weight}}), "cpu", "float32")
        for weight in (0.0, 1.0)
    )
    assert activations(twice) == 2 * activations(plain)
    assert count_flops(twice).training == 2 * count_flops(plain).training
    assert twice.batch_size == plain.batch_size
