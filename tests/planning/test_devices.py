"""Devices are found by loose names, and a slip gets an answer."""

import pytest

from headstart.errors import ConfigError
from headstart.planning.devices import DEVICES, find_device
from headstart.planning.plan import this_machine


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("rtx3060", "RTX 3060"),
        ("RTX 3060 12GB", "RTX 3060"),
        ("NVIDIA GeForce GTX 1080 Ti", "GTX 1080 Ti"),
        ("h200", "H200"),
        ("NVIDIA H200", "H200"),
        ("A100-SXM4-80GB", "A100 80GB"),
        ("a100", "A100 40GB"),
        ("v100 32gb", "Tesla V100 32GB"),
        ("t4", "Tesla T4"),
        ("m2 max", "Apple M2 Max"),
        ("cpu 2 cores", "CPU 2 cores"),
    ],
)
def test_a_loose_name_finds_its_device(typed, meant):
    assert find_device(typed).name == meant


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_every_device_is_found_by_its_own_name(name):
    assert find_device(name).name == name
    assert find_device(name.lower().replace(" ", "-")).name == name


@pytest.mark.parametrize(("typed", "near"), [("rtx 3061", "RTX 3060"), ("h2000", "H200"), ("mi300", "MI300X")])
def test_a_name_that_does_not_exist_is_answered_with_the_nearest(typed, near):
    with pytest.raises(ConfigError) as caught:
        find_device(typed)
    assert near in caught.value.hint


def test_the_table_reaches_from_old_cards_to_new_ones_and_plain_cpus(monkeypatch):
    gpus = [device for device in DEVICES.values() if device.kind == "cuda"]
    assert len(gpus) >= 30
    assert {"GTX 1050 Ti", "Tesla T4", "RTX 3060", "H200"} <= DEVICES.keys()
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert this_machine("cpu").name == "CPU 2 cores"
    assert all(
        device.memory_gib > 0 and device.bandwidth_gbs > 0 and device.float32_tflops > 0 for device in DEVICES.values()
    )


def test_cards_without_bfloat16_compute_in_float32():
    assert find_device("t4").precision("auto") == "float32"
    assert find_device("rtx 3060").precision("auto") == "bfloat16"
    assert find_device("a100").matmul_flops("float32") > 1e12 * find_device("a100").float32_tflops  # TF32
