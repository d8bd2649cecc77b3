"""Fast paths can be switched off."""

import pytest

from headstart import fast
from headstart.config import TrainingConfig
from headstart.training.runtime import start_runtime


@pytest.fixture(autouse=True)
def _restored():
    yield
    fast.set_enabled(True)


def test_fast_paths_are_on_by_default(monkeypatch):
    monkeypatch.delenv("HEADSTART_FAST", raising=False)
    start_runtime(TrainingConfig(device="cpu"))
    assert fast.is_enabled()


def test_the_setting_of_a_run_switches_them_off_until_the_next_run(monkeypatch):
    monkeypatch.delenv("HEADSTART_FAST", raising=False)
    start_runtime(TrainingConfig(device="cpu", fast=False))
    assert not fast.is_enabled()
    start_runtime(TrainingConfig(device="cpu"))
    assert fast.is_enabled()


@pytest.mark.parametrize("value", ["0", "false"])
def test_the_environment_switches_them_off(value, monkeypatch):
    monkeypatch.setenv("HEADSTART_FAST", value)
    start_runtime(TrainingConfig(device="cpu"))
    assert not fast.is_enabled()
