"""A new head that is trained on the frozen backbone before fine-tuning."""

import numpy as np
import pytest
import torch

from headstart.batch import EncodedExample
from headstart.config import TrainingConfig
from headstart.models.model import build_model
from headstart.objectives.classification import Classification
from headstart.training.evaluate import MAX_TEXTS, fit_head, pooled_vectors, predict_probabilities
from headstart.training.runtime import seed_everything, start_runtime
from tests.helpers.tiny_models import VOCABULARY, tiny_config

RUNTIME = start_runtime(TrainingConfig(device="cpu"))
OBJECTIVE = Classification()


def model_and_rows(kind="bidirectional", count=60):
    seed_everything(3)
    body = tiny_config(kind)
    model = build_model(body, VOCABULARY.size, OBJECTIVE.heads(body, VOCABULARY.size, 3))
    rng = np.random.default_rng(0)
    rows = []
    for number in range(count):  # each class has tokens of its own
        low = 5 + 11 * (number % 3)
        inner = rng.integers(low, low + 11, 4 + number % 9)
        tokens = np.concatenate(([VOCABULARY.bos_id], inner, [VOCABULARY.eos_id])).astype(np.int32)
        rows.append(EncodedExample(tokens, number % 3))
    return model, rows


def accuracy(model, rows):
    found = predict_probabilities(model, OBJECTIVE, rows, VOCABULARY, RUNTIME, 1024)
    return (found.argmax(axis=1) == np.array([row.label for row in rows])).mean()


@pytest.mark.parametrize("kind", ["bidirectional", "causal", "bi-lstm", "cnn"])
def test_the_head_learns_and_the_backbone_stays(kind):
    model, rows = model_and_rows(kind)
    before = {name: weight.clone() for name, weight in model.backbone.state_dict().items()}
    start = accuracy(model, rows)
    fit_head(model, model.heads["class"], OBJECTIVE, rows, VOCABULARY, RUNTIME)
    assert accuracy(model, rows) > max(0.6, start + 0.1)
    for name, weight in model.backbone.state_dict().items():
        assert torch.equal(weight, before[name]), name
    assert all(weight.grad is None for weight in model.parameters())


def test_it_is_a_function_of_the_seed():
    heads = []
    for _ in range(2):
        model, rows = model_and_rows()
        fit_head(model, model.heads["class"], OBJECTIVE, rows, VOCABULARY, RUNTIME)
        heads.append(model.heads["class"].state_dict())
    for name, weight in heads[0].items():
        assert torch.equal(weight, heads[1][name]), name


def test_cached_vectors_are_what_the_head_reads():
    model, rows = model_and_rows()
    head = model.heads["class"]
    vectors = pooled_vectors(model, head, OBJECTIVE, rows, VOCABULARY, RUNTIME)
    with torch.no_grad():
        answers = head.classify(vectors).softmax(dim=-1).numpy()
    whole = predict_probabilities(model, OBJECTIVE, rows, VOCABULARY, RUNTIME, 1024)
    np.testing.assert_allclose(answers, whole, atol=1e-5)


def test_large_sets_are_sampled(monkeypatch):
    model, rows = model_and_rows()
    seen = []
    monkeypatch.setattr("headstart.training.evaluate.MAX_TEXTS", 7)
    monkeypatch.setattr(
        "headstart.training.evaluate.pooled_vectors",
        lambda model, head, objective, sample, *rest: (
            seen.append(len(sample)) or pooled_vectors(model, head, objective, sample, *rest)
        ),
    )
    fit_head(model, model.heads["class"], OBJECTIVE, rows, VOCABULARY, RUNTIME)
    assert seen[0] <= 7 < MAX_TEXTS
