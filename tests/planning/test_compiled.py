"""A plan counts on compiled steps exactly where training compiles them, and knows what they change."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headstart.config import resolve
from headstart.models.model import build_model
from headstart.models.transformer import FeedForward
from headstart.objectives import make_objective
from headstart.planning.devices import DEVICES, find_device
from headstart.planning.memory import layer_activations, loss_bytes
from headstart.planning.plan import count_operations, make_plan
from headstart.planning.summary import plan_on_all_devices, plan_to_dict
from headstart.training.compile import COMPILE_SECONDS, should_compile
from headstart.training.runtime import Runtime

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
H200 = find_device("H200")


def plan_of(device=H200, preset="small", job="pretrain", tokens=None, settings=None, **training):
    config = resolve(job, preset, {**(settings or {}), "training": training})
    return make_plan(config, device, tokens=tokens)


@pytest.mark.parametrize("compile", [True, False, "auto"])
@pytest.mark.parametrize(
    "training",
    [
        {"max_steps": 20_000},
        {"max_steps": 100},
        {"max_tokens": 10**10},
        {"max_tokens": 10**6},
        {"max_minutes": 30},
        {"max_minutes": 2},
        {"max_minutes": 30, "deterministic": True},
        {"max_minutes": 30, "freeze_backbone": True},
    ],
    ids=lambda training: "-".join(f"{key}={value}" for key, value in training.items()),
)
def test_the_plan_and_the_training_go_by_one_rule(monkeypatch, training, compile):
    monkeypatch.setattr("headstart.training.compile.can_compile", lambda device: device == "cuda")
    config = resolve("pretrain", "tiny", {"training": {**training, "compile": compile}})
    objective, size = make_objective(config.objective), config.tokenizer.vocab_size
    body = objective.resolve_backbone(config.model)
    model = build_model(body, size, objective.heads(body, size, 2))
    for kind, name in (("cuda", "H200"), ("cpu", "CPU 2 cores")):
        runtime = Runtime(torch.device(kind), torch.float32)
        done = should_compile(config, model, objective, runtime, training.get("max_steps"))
        assert make_plan(config, find_device(name)).is_compiled is done


def test_a_gpu_from_before_volta_is_planned_with_plain_steps():
    saved = [
        name
        for name, device in DEVICES.items()
        if device.kind == "cuda" and not (device.kind == "cuda" and device.compiles)
    ]
    for chosen in ("auto", True):
        assert not any(plan_of(DEVICES[name], max_minutes=60, compile=chosen).workload.is_compiled for name in saved)
    assert "GTX 1050 Ti" in saved
    assert "GTX 1650" not in saved
    assert plan_of(find_device("T4"), max_minutes=60, compile="auto").is_compiled
    assert not make_plan(
        resolve("pretrain", "small", {"training": {"max_minutes": 60, "compile": "auto"}}),
        find_device("T4"),
        can_compile=False,
    ).is_compiled


def test_compiled_steps_are_shorter_smaller_and_cost_a_minute_once():
    plain, swift = plan_of(tokens=1e9, compile=False), plan_of(tokens=1e9, compile=True)
    assert swift.step_time.seconds < plain.step_time.seconds
    assert swift.memory.peak < plain.memory.peak
    assert count_operations(swift.workload) < count_operations(plain.workload)
    steps = 1e9 * 5 / swift.step.tokens_per_step  # five epochs
    assert swift.seconds == pytest.approx(steps * swift.step_time.seconds + COMPILE_SECONDS)
    found = plan_to_dict(swift)["time"]
    assert (found["compiled"], found["compile_seconds"]) == (True, COMPILE_SECONDS)
    assert plan_to_dict(plain)["time"]["compiled"] is False
    assert "a compiled step" in swift.lines()[1]


def test_a_budget_in_minutes_pays_for_compiling_too():
    plan = plan_of(max_minutes=30, compile=True)
    assert plan.seconds == pytest.approx(30 * 60)
    assert plan_of(max_minutes=0.1, compile=True).tokens == plan.step.tokens_per_step


def test_on_a_cpu_compiled_steps_are_told_but_counted_as_plain():
    plan = plan_of(find_device("CPU 2 cores"), compile=True)
    assert plan.is_compiled
    assert plan_to_dict(plan)["time"]["compile_seconds"] == 0
    assert not plan.workload.is_compiled
    assert plan.workload.last_layer_fraction == 1.0  # compiled code finishes every position


def test_every_device_of_the_table_goes_by_the_rule():
    config = resolve("pretrain", "small", {"training": {"compile": "auto"}})
    plans = plan_on_all_devices(make_plan(config, H200, tokens=1e9))
    assert {plan.device.name for plan in plans if plan.workload.is_compiled} == {
        name for name, device in DEVICES.items() if (device.kind == "cuda" and device.compiles)
    }


def test_logits_of_a_generator_are_not_compiled():
    replaced = {"objective": {"name": "replaced-token"}}
    plain, swift = (plan_of(settings=replaced, compile=chosen) for chosen in (False, True))
    assert swift.step_time.parts["logits"] == plain.step_time.parts["logits"]
    assert loss_bytes(swift.workload) == loss_bytes(plain.workload)


def saved_inner(activation: str) -> int:
    """How many tensors of the inner width compiled code saves, by torch's own partition."""
    from functorch.compile import aot_module, min_cut_rematerialization_partition

    config = resolve("pretrain", "tiny", {"model": {"activation": activation}}).model
    rows, saved = 61, []  # as no weight has

    def forward(graph, inputs):
        (made,) = (node for node in graph.graph.nodes if node.op == "output")
        saved.extend(node.meta["val"].shape for node in made.args[0][1:] if node.op == "call_function")
        return graph

    compiled = aot_module(
        FeedForward(config),
        fw_compiler=forward,
        bw_compiler=lambda graph, inputs: graph,
        partition_fn=min_cut_rematerialization_partition,
    )
    compiled(torch.randn(rows, config.hidden_size, requires_grad=True)).sum().backward()
    return sum(shape[1] // config.intermediate_size for shape in saved if shape[0] == rows)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["swiglu", "geglu", "gelu", "relu2"])
def test_compiled_code_keeps_of_the_inner_width_what_torch_says_it_keeps(activation):
    load = plan_of(preset="tiny", settings={"model": {"activation": activation}}, compile=True).workload
    with_more = replace(
        load, model=load.model.model_copy(update={"intermediate_size": load.model.intermediate_size + 1})
    )
    a_text = layer_activations(with_more, with_more.stacks[0]) - layer_activations(load, load.stacks[0])
    assert a_text == load.length * load.matmul_bytes * saved_inner(activation)


def measured(name):
    content = json.loads((RESULTS / "plan-h200.json").read_text("utf-8"))
    return [pytest.param(row, id=row["name"]) for row in content[name]]


@pytest.mark.parametrize("row", [*measured("rows"), *measured("speed")])
def test_what_was_measured_on_an_h200_is_what_is_planned_now(row):
    settings = row["settings"] if not row["compiled"] else {**row["settings"], "training": {"compile": True}}
    config = resolve(row["job"], row["preset"], settings)
    plan = make_plan(config, H200, batch=row["batch"], length=row["length"])
    assert plan.memory.tensors == pytest.approx(row["measured_bytes"], rel=0.10)
    assert plan.step_time.seconds == pytest.approx(row["measured_seconds"], rel=0.25)
    assert plan.step_time.seconds == pytest.approx(row["predicted_seconds"]), "the page is of other constants"


def attention_of(job, preset, length, **settings):
    config = resolve(job, preset, settings)
    return make_plan(config, H200, batch=64, length=length).step_time.parts["attention"]


def test_attention_over_padded_texts_reads_a_mask_in_tiles_where_it_looks_both_ways():
    both = attention_of("finetune", "small", 512)
    causal = attention_of("finetune", "small", 512, model={"architecture": "causal"})
    assert both > 5 * causal  # padding is after every token of a causal backbone
    assert attention_of("finetune", "small", 65) == pytest.approx(attention_of("finetune", "small", 128))
    assert attention_of("finetune", "small", 64) < attention_of("finetune", "small", 65)
    assert attention_of("pretrain", "small", 512) < both  # blocks have no padding
    alone = attention_of("finetune", "vaswani-base", 64)
    assert attention_of("finetune", "vaswani-base", 256) > 10 * alone


def test_compiled_texts_cost_the_host_more_than_blocks():
    texts, blocks = (plan_of(job=job, max_steps=20_000, compile=True) for job in ("finetune", "pretrain"))
    cost = [plan.step_time.parts["launches"] / count_operations(plan.workload) for plan in (texts, blocks)]
    assert cost[0] > 1.5 * cost[1]
