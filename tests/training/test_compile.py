"""Compiled steps take the weights where plain ones take them, and nothing is compiled twice."""

import pytest
import torch

from headstart.batch import TextLoader
from headstart.config import RunConfig
from headstart.data.corpus_loaders import BlockLoader
from headstart.models.model import build_model
from headstart.objectives import OBJECTIVES
from headstart.objectives.distillation import Distillation, distill
from headstart.training.compile import SIZED_OPTIONS, CompiledSteps, can_compile, options_for_any_size, should_compile
from headstart.training.runtime import Runtime
from headstart.training.trainer import Evaluation, Trainer
from tests.helpers.tiny_models import VOCABULARY, random_rows, tiny_config

CPU = Runtime(torch.device("cpu"), torch.float32)
GPU = Runtime(torch.device("cuda"), torch.bfloat16)


class Tokens:
    """A stream of 15 blocks of 8: batches of two, and a last one that is short."""

    def __len__(self):
        return 121

    def slice(self, start, stop):
        return random_rows([150])[0].tokens[1:-1][start:stop]


def make_trainer(name, dropout=0.0, seed=0, teachers=(), **training):
    torch.manual_seed(seed)
    objective = OBJECTIVES[name]()
    if teachers:
        objective = distill(objective, Distillation(tuple(teachers), 0.5, 2.0))
    body = tiny_config(objective.architectures[0], dropout=dropout)
    model = build_model(body, VOCABULARY.size, objective.heads(body, VOCABULARY.size, 3))
    settings = {"max_epochs": 2, "checkpoint_selection": "last", **training}
    config = RunConfig(job="finetune", model=body, optimizer={"name": "muon"}, training=settings)
    if objective.reads == "blocks":
        loader = BlockLoader(Tokens(), 8, 16, 0, objective.lookahead)
    else:
        lengths = [5, 9, 7, 12, 9, 4, 10, 6, 6, 6, 13, 8]
        loader = TextLoader(random_rows(lengths, sources=objective.reads == "translations"), batch_tokens=40)
    return Trainer(model, objective, loader, VOCABULARY, config, CPU, lambda model: Evaluation({"loss": 0.0}, 0.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "graphs"), [("masked-lm", 1), ("causal-lm", 1), ("causal+masked", 2), ("classify", 1), ("translate", 1)]
)
def test_compiled_steps_are_the_plain_ones_and_are_compiled_once(name, graphs):
    from torch._dynamo.utils import counters

    plain, fast = make_trainer(name), make_trainer(name)
    torch._dynamo.reset()
    counters.clear()
    fast.compiled = CompiledSteps(fast.model, fast.objective, backend="aot_eager")
    plain.run()
    fast.run()
    assert counters["stats"]["unique_graphs"] == graphs
    assert not counters["graph_break"]
    for one, other in zip(plain.model.parameters(), fast.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["masked-lm", "classify", "translate"])
def test_dropout_is_compiled_with_the_rest(name):
    from torch._dynamo.utils import counters

    run = make_trainer(name, dropout=0.1)
    torch._dynamo.reset()
    counters.clear()
    run.compiled = CompiledSteps(run.model, run.objective, backend="aot_eager")
    run.run()
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["masked-lm", "causal-lm", "classify"])
def test_teachers_are_compiled_too_and_nothing_else_changes(name):
    from torch._dynamo.utils import counters

    teachers = [make_trainer(name, seed=seed).model.eval().requires_grad_(False) for seed in (1, 2)]
    plain, fast = (make_trainer(name, teachers=teachers) for _ in range(2))
    torch._dynamo.reset()
    counters.clear()
    fast.compiled = CompiledSteps(fast.model, fast.objective, backend="aot_eager")
    plain.run()
    fast.run()
    assert counters["stats"]["unique_graphs"] == 2  # one that learns, one for teachers of one shape
    assert not counters["graph_break"]
    for one, other in zip(plain.model.parameters(), fast.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert not any("forward" in vars(model.backbone) for model in (fast.model, *teachers))


@pytest.mark.slow
def test_a_compiled_run_resumes_exactly():
    def compiled(**training):
        run = make_trainer("masked-lm", checkpoint_selection="last", max_epochs=None, max_steps=6, **training)
        run.compiled = CompiledSteps(run.model, run.objective, backend="aot_eager")
        return run

    whole, first, second = compiled(), compiled(save_steps=3), compiled()
    whole.run()
    saved = {}

    def save():
        parts = first.parts()
        saved["parts"] = {name: {key: tensor.clone() for key, tensor in part.items()} for name, part in parts.items()}
        saved["state"] = first.state.to_dict()

    first.run(save)
    second.load(saved["parts"], saved["state"])
    assert second.state.step == 3
    second.run()
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_outside_of_a_step_the_backbone_is_not_compiled():
    run = make_trainer("masked-lm")
    compiled = CompiledSteps(run.model, run.objective, backend="eager")
    batch = next(run._collated())[0]
    with compiled.installed_for(batch):
        assert "forward" in vars(run.model.backbone)
    assert "forward" not in vars(run.model.backbone)
    with compiled.installed_for(batch.rows(0, 1)):  # the short batch at an epoch's end
        assert "forward" not in vars(run.model.backbone)


def pretend_to_have_a_gpu(monkeypatch, capability=(9, 0)):
    for name in ("find_spec", "shutil.which"):
        monkeypatch.setattr(f"headstart.training.compile.{name}", lambda name: name)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)


@pytest.mark.parametrize(
    ("budget", "runtime", "is_compiled"),
    [
        ({"max_minutes": 30}, GPU, True),
        ({"max_minutes": 1}, GPU, False),
        ({"max_minutes": 30}, CPU, False),
        ({"max_steps": 100_000}, GPU, True),
        ({"max_steps": 1000}, GPU, False),
        ({"max_minutes": 30, "freeze_backbone": True}, GPU, False),
        ({"max_minutes": 30, "deterministic": True}, GPU, False),
    ],
)
def test_compiling_is_left_to_long_runs_on_a_gpu(monkeypatch, budget, runtime, is_compiled):
    run = make_trainer("masked-lm")
    pretend_to_have_a_gpu(monkeypatch)
    config = RunConfig(job="pretrain", model=run.config.model, training={**budget, "compile": "auto"})
    assert should_compile(config, run.model, run.objective, runtime, budget.get("max_steps")) is is_compiled
    other = config.with_({"training": {"compile": not is_compiled}})
    assert should_compile(other, run.model, run.objective, runtime, None) is not is_compiled


def test_a_gpu_that_triton_does_not_know_is_not_compiled_for(monkeypatch):
    pretend_to_have_a_gpu(monkeypatch, capability=(7, 0))
    assert can_compile("cuda")
    assert not can_compile("cpu")
    pretend_to_have_a_gpu(monkeypatch, capability=(6, 1))
    assert not can_compile("cuda")


@pytest.mark.parametrize("missing", ["find_spec", "shutil.which"])
def test_without_triton_or_a_c_compiler_nothing_is_compiled(monkeypatch, missing):
    pretend_to_have_a_gpu(monkeypatch)
    monkeypatch.setattr(f"headstart.training.compile.{missing}", lambda name: None)
    assert not can_compile("cuda")


@pytest.mark.parametrize(("name", "is_for_any_size"), [("classify", True), ("masked-lm", False)])
def test_code_for_texts_serves_any_size(monkeypatch, name, is_for_any_size):
    """Each switch must be one of the installed torch: a name that it has given up would do nothing."""
    assert set(options_for_any_size()) == set(SIZED_OPTIONS)
    options = {}
    monkeypatch.setattr(torch, "compile", lambda body, **how: options.update(how))
    run = make_trainer(name)
    CompiledSteps(run.model, run.objective)
    assert options["options"] == (dict.fromkeys(SIZED_OPTIONS, False) if is_for_any_size else None)
    assert options["dynamic"] is is_for_any_size
