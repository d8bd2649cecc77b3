"""Predictions, translations, losses and parameter counts equal the fixtures that were computed before a refactoring."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.frozen import adapter
from tests.frozen.make_fixtures import BEAM_SIZES, FIXTURES, TrainingRuns, environment, single_thread


def read(name: str) -> Any:
    """One fixture."""
    return json.loads((FIXTURES / name).read_text("utf-8"))


STORED = read("environment.json")
IS_SAME_ENVIRONMENT = all(STORED[key] == value for key, value in environment().items())
# Another version of torch or another CPU type adds floats in another order: the last digits differ.
TOLERANCE = 1e-6 if IS_SAME_ENVIRONMENT else 1e-4
MACHINES = f"fixture: {STORED}; here: {environment()}"

CLASSIFIERS = [
    pytest.param(name, marks=[pytest.mark.slow] if name.endswith("small") else []) for name in adapter.CLASSIFIERS
]


@pytest.fixture(autouse=True)
def _single_thread() -> Iterator[None]:
    with single_thread():
        yield


@pytest.fixture(scope="module")
def training_runs(tmp_path_factory: pytest.TempPathFactory) -> TrainingRuns:
    return TrainingRuns(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_class_logits_are_unchanged(name: str) -> None:
    frozen = read("classifiers.json")
    logits = adapter.class_logits(name, frozen["texts"][adapter.CLASSIFIERS[name]])
    assert logits.dtype == np.float32
    expected = np.array(frozen["logits"][name], np.float32)
    np.testing.assert_allclose(logits, expected, rtol=TOLERANCE, atol=TOLERANCE, err_msg=MACHINES)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_text_embeddings_are_unchanged(name: str) -> None:
    texts = read("classifiers.json")["texts"][adapter.CLASSIFIERS[name]]
    with np.load(FIXTURES / "embeddings.npz") as frozen:
        expected = frozen[name]
    embeddings = adapter.text_embeddings(name, texts)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, expected, rtol=TOLERANCE, atol=TOLERANCE, err_msg=MACHINES)


@pytest.mark.parametrize("method", BEAM_SIZES)
@pytest.mark.parametrize("name", adapter.TRANSLATORS)
def test_translations_and_scores_are_unchanged(name: str, method: str) -> None:
    frozen = read("translators.json")
    expected_texts, expected_scores = zip(*frozen["translations"][name][method], strict=True)
    found = adapter.translations(name, frozen["sentences"], BEAM_SIZES[method])
    texts, scores = zip(*found, strict=True)
    assert texts == expected_texts
    assert scores == pytest.approx(expected_scores, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", adapter.RUNS)
def test_losses_of_a_seeded_run_are_unchanged(name: str, training_runs: TrainingRuns) -> None:
    frozen, losses = read("losses.json")[name], training_runs.train(name)
    for split in ("train", "valid"):
        found, expected = getattr(losses, split), frozen[split]
        assert len(found) == len(expected)
        if IS_SAME_ENVIRONMENT:
            assert found == expected, MACHINES
        else:
            assert found == pytest.approx(expected, rel=1e-5), MACHINES


def test_every_objective_has_a_frozen_run() -> None:
    assert adapter.objectives_without_run() == set()
    assert set(read("losses.json")) == set(adapter.RUNS)


@pytest.mark.parametrize(("name", "total"), [("language_model", 21_018_401), ("classifier", 10_968_602)])
def test_parameter_counts_of_the_course_lab_are_unchanged(name: str, total: int) -> None:
    counts = adapter.parameter_counts(adapter.COURSE_LAB[name])
    assert counts == read("parameters.json")[name]
    assert sum(counts.values()) == total
