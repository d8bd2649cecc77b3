"""A plan says whether a run fits, how long it takes and what to change."""

import json
from dataclasses import replace

import pytest

from headstart.config import resolve
from headstart.errors import ConfigError
from headstart.planning.devices import find_device
from headstart.planning.memory import predict_memory
from headstart.planning.plan import check_memory, largest_batch, make_plan, predict_step_time
from headstart.planning.summary import find_advice, plan_to_dict
from headstart.planning.workload import count_flops, make_workload


def plan_of(job="pretrain", preset="small", gpu="rtx 3060", settings=None, **sizes):
    return make_plan(resolve(job, preset, settings or {}), find_device(gpu), **sizes)


def test_the_plan_is_json_with_parameters_flops_memory_time_and_verdict():
    content = json.loads(json.dumps(plan_to_dict(plan_of(tokens=1_000_000, price=1.5, batch=32))))
    assert list(content) == ["parameters", "flops", "memory", "time", "verdict", "note", "devices"]
    assert content["parameters"]["total"] == sum(block["total"] for block in content["parameters"]["blocks"])
    assert content["memory"]["peak_bytes"] == sum(content["memory"]["parts"].values())
    assert content["time"]["cost"] == pytest.approx(1.5 * content["time"]["hours"])
    assert content["verdict"]["fits"] is True


def test_flops_of_the_lab_are_two_for_each_matrix_weight_and_four_for_each_key():
    load = make_workload(resolve("pretrain", "lab"), "cuda", "bfloat16", length=255)
    flops = count_flops(load)
    assert flops.body == 2 * 960_000
    assert flops.attention == 4 * 200 * 128 * 4  # a causal token reads 128 of 255 keys on average
    assert flops.heads == 2 * 50_001 * 200
    assert flops.forward == flops.body + flops.attention + flops.heads
    assert flops.training == 3 * flops.forward


def test_a_masked_language_model_scores_asked_positions_alone():
    load = make_workload(resolve("pretrain", "tiny"), "cpu", "float32")
    assert count_flops(load).heads == pytest.approx(2 * 8000 * 128 * 0.2)


def test_the_largest_batch_fits_and_one_more_does_not():
    plan = plan_of("finetune", gpu="gtx 1050 ti")
    device, load = plan.device, plan.workload
    most = largest_batch(load, device)
    assert predict_memory(replace(load, batch_size=most)).peak <= device.usable_bytes
    assert predict_memory(replace(load, batch_size=most + 1)).peak > device.usable_bytes


def test_what_does_not_fit_is_answered_with_changes_that_do():
    large = {"model": {"hidden_size": 1024, "num_layers": 24, "num_heads": 16, "intermediate_size": 4096}}
    plan = plan_of(gpu="rtx 3090", settings={**large, "training": {"precision": "float32"}})
    assert not plan.fits
    words = " ".join(find_advice(plan))
    assert "gradient_accumulation_steps" in words
    assert "--preset" in words
    assert "does not fit" in plan.lines()[0]
    with pytest.raises(ConfigError) as caught:
        check_memory(plan, plan.device.usable_bytes)
    assert "--ignore-memory-check" in caught.value.hint
    assert find_advice(plan)[0] in caught.value.hint


def test_a_run_that_fits_is_not_refused_and_says_so_in_two_lines():
    plan = plan_of("finetune", "tiny", gpu="cpu 2 cores")
    check_memory(plan, plan.device.usable_bytes)
    assert len(plan.lines()) == 2
    assert "fits" in plan.lines()[0]


def test_faster_machines_and_fewer_tokens_take_less_time():
    slow, fast = plan_of(gpu="t4"), plan_of(gpu="a100")
    assert fast.step_time.seconds < slow.step_time.seconds
    assert plan_of(tokens=1e6).seconds == pytest.approx(plan_of(tokens=2e6).seconds / 2)
    assert plan_of(tokens=1e6, epochs=3).tokens == 3e6


def test_what_was_measured_replaces_what_was_estimated():
    plan = plan_of(seconds_per_step=0.5)
    assert plan.step_time.seconds == pytest.approx(0.5)
    assert plan.is_measured
    assert sum(plan.step_time.parts.values()) > 0


def test_accumulating_takes_as_many_times_as_long_but_for_the_update():
    load = make_workload(resolve("pretrain", "tiny"), "cpu", "float32")
    once, twice = (predict_step_time(replace(load, accumulation_steps=n), find_device("cpu 2 cores")) for n in (1, 2))
    assert 1.5 * once.seconds < twice.seconds < 2 * once.seconds
