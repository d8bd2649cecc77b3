"""A plan for many machines counts what they say to each other."""

from dataclasses import replace

import pytest

from headstart.config import resolve
from headstart.errors import ConfigError
from headstart.planning.communication import (
    LINK_LATENCY,
    NETWORK_LATENCY,
    Cluster,
    link_gbs,
    predict_communication,
    share_of,
)
from headstart.planning.devices import DEVICES, find_device
from headstart.planning.memory import predict_memory
from headstart.planning.plan import make_plan
from headstart.planning.summary import find_advice, plan_to_dict
from headstart.planning.workload import make_workload
from headstart.reports.tables import plan_lines
from headstart.workflows.plan import plan as run_plan

LARGE = {
    "model": {
        "hidden_size": 2048,
        "num_layers": 24,
        "num_heads": 16,
        "intermediate_size": 5504,
        "max_position_embeddings": 2048,
    }
}


def load_of(**changes):
    load = make_workload(resolve("pretrain", "small", LARGE), "cuda", "bfloat16", batch=64, length=1024)
    return replace(load, **changes)


def test_gradients_go_round_the_ring_inside_and_between_machines():
    load, device = load_of(), find_device("h100 sxm")
    size = 4 * load.parameters.total
    found = predict_communication(load, device, Cluster(8, 4, network=100), batch_seconds=0.0)
    inside, between = 2 * size * 7 / 8 / (450e9 * 0.8), 2 * size * 3 / 4 / (100e9 / 8 * 0.8)
    buckets = -(-size // (25 * 2**20))
    delay = 2 * buckets * (7 * LINK_LATENCY + 3 * NETWORK_LATENCY)
    assert found.seconds == pytest.approx(inside + between + delay)
    assert found.bytes == 2 * size
    assert found.exposed == found.seconds


def test_what_runs_beside_the_way_back_costs_only_its_last_bucket():
    load, device, cluster = load_of(), find_device("h100 sxm"), Cluster(8, 1)
    found = predict_communication(load, device, cluster, batch_seconds=10.0)
    assert 0 < found.exposed < found.seconds / 50
    assert predict_communication(load, device, Cluster(), 1.0).seconds == 0


def test_a_process_takes_whole_batches_where_there_are_enough_and_slices_where_not():
    load = load_of(accumulation_steps=32)
    assert (share_of(load, Cluster(8, 2)).batch_size, share_of(load, Cluster(8, 2)).accumulation_steps) == (64, 2)
    few = share_of(load_of(accumulation_steps=1), Cluster(8, 2))
    assert (few.batch_size, few.accumulation_steps) == (4, 1)


def test_a_sharded_model_needs_less_memory_the_more_processes_hold_it():
    peaks = [predict_memory(load_of(batch_size=1, num_shards=count)).peak for count in (1, 2, 8, 64)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < peaks[0] / 4
    plan = make_plan(
        resolve("pretrain", "small", LARGE), find_device("rtx 3090"), batch=8, length=1024, cluster=Cluster(8, 1)
    )
    assert not plan.fits
    assert any("training.fsdp=true" in advice for advice in find_advice(plan))


def test_more_devices_are_faster_but_never_more_than_their_number():
    for name in ("h100 sxm", "rtx 3090", "t4"):
        plans = [
            make_plan(resolve("pretrain", "small", LARGE), find_device(name), batch=512, length=1024, cluster=cluster)
            for cluster in (Cluster(2, 1), Cluster(8, 1), Cluster(8, 4))
        ]
        faster = [plan_to_dict(plan)["cluster"]["faster_than_one"] for plan in plans]
        assert faster == sorted(faster)
        assert all(value <= plan.cluster.count * 1.001 for value, plan in zip(faster, plans, strict=True))


def test_a_slower_network_costs_time_and_money_is_for_every_device():
    config, device = resolve("pretrain", "small", LARGE), find_device("a100 80gb")
    sizes = {"batch": 512, "length": 1024, "tokens": 1e9, "price": 2.0}
    slow, fast = (make_plan(config, device, cluster=Cluster(8, 4, network), **sizes) for network in (10, 800))
    assert slow.seconds > fast.seconds
    assert fast.cost == pytest.approx(2.0 * 32 * fast.seconds / 3600)
    assert fast.step.tokens_per_step == 512 * 1024


def test_the_plan_in_words_tells_of_the_exchange():
    found = plan_to_dict(run_plan("small", gpu="h100 sxm", gpus=8, nodes=4, network=400, tokens=1_000_000))
    line = next(line for line in plan_lines(found) if "machines of 8" in line)
    assert "a network of 400 Gbit/s" in line
    assert "links of 450 GB/s" in line
    assert "cluster" not in plan_to_dict(run_plan("small", gpu="h100 sxm"))


def test_every_device_has_a_link():
    assert all(link_gbs(device) > 0 for device in DEVICES.values())


def test_advice_for_many_processes_fits_them():
    config, device, cluster = resolve("pretrain", "small", LARGE), find_device("h100 sxm"), Cluster(8, 1)
    plan = make_plan(config, device, batch=2048, length=1024, cluster=cluster)
    assert not plan.fits
    words = dict(word.split("=") for word in find_advice(plan)[0].split() if word.startswith("training."))
    tokens, rounds = (int(words["training.tokens_per_batch"]), int(words["training.gradient_accumulation_steps"]))
    changed = config.with_(
        {"training": {"tokens_per_batch": tokens, "gradient_accumulation_steps": rounds, "max_length": 1024}}
    )
    better = make_plan(changed, device, length=1024, cluster=cluster)
    assert better.fits
    assert better.step.tokens_per_step >= plan.step.tokens_per_step


def test_translators_are_planned_with_whole_copies_alone():
    wide = {"model": {"hidden_size": 3072, "num_heads": 24, "intermediate_size": 12288}}
    planned = run_plan("vaswani-base", gpu="rtx 3090", settings=wide, gpus=8, batch=8)
    assert predict_memory(planned.workload).peak > planned.device.usable_bytes
    assert predict_memory(replace(planned.workload, num_shards=8)).peak < planned.device.usable_bytes
    assert not [line for line in find_advice(planned) if "sharded" in line]
    with pytest.raises(ConfigError, match="a whole copy in each process"):
        run_plan("vaswani-base", gpu="rtx 3090", settings={"training": {"fsdp": True}}, gpus=8)
