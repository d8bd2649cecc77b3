"""Fixtures and settings for all tests."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)  # a busy machine must not fail a test
settings.load_profile("no-deadline")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """Give every test an empty cache, never the user's."""
    monkeypatch.setenv("HEADSTART_CACHE", str(tmp_path_factory.mktemp("cache")))
