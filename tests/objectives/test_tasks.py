"""Objectives beyond one class a text: several labels, numbers, ordered classes and tags."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from headstart.batch import IGNORE, Batch
from headstart.errors import ConfigError
from headstart.models.heads import ClassHead, OrdinalHead, RegressionHead, pair_pooling
from headstart.models.model import build_model
from headstart.objectives.multi_label import MultiLabel
from headstart.objectives.ordinal import Ordinal
from headstart.objectives.regression import Regression
from headstart.objectives.token_classification import TokenClassification
from tests.helpers.tiny_models import VOCABULARY, check_gradient_accumulation, generator, random_rows, tiny_config

LENGTHS = [9, 4, 12, 7, 5, 3]


def rows_with(targets):
    return [replace(row, label=None, targets=target) for row, target in zip(random_rows(LENGTHS), targets, strict=True)]


def make(objective, classes=3, **settings):
    torch.manual_seed(0)
    body = tiny_config("bidirectional")
    return build_model(body, VOCABULARY.size, objective.heads(body, VOCABULARY.size, classes))


def targets_of(objective):
    rng = np.random.default_rng(0)
    if isinstance(objective, MultiLabel):
        return [rng.integers(0, 2, 3) for _ in LENGTHS]
    if isinstance(objective, Regression):
        return [np.array([value]) for value in rng.normal(size=len(LENGTHS))]
    return [np.where(rng.random(length) < 0.5, rng.integers(0, 3, length), IGNORE) for length in LENGTHS]


@pytest.mark.parametrize("kind", [MultiLabel, Regression, TokenClassification])
def test_parts_of_a_batch_give_the_gradient_of_the_whole(kind):
    objective = kind()
    batch = objective.collate(rows_with(targets_of(objective)), VOCABULARY, generator())
    check_gradient_accumulation(objective, make(objective), batch)


@pytest.mark.parametrize("settings", [{"r_drop_alpha": 1.0, "head_dropout": 0.5}, {"label_smoothing": 0.1}])
def test_several_labels_learn_with_r_drop_and_label_smoothing(settings):
    objective = MultiLabel(**settings)
    model = make(objective).train()
    losses = objective.losses(model, objective.collate(rows_with(targets_of(objective)), VOCABULARY, generator()))
    assert all(torch.isfinite(loss.total) and loss.total > 0 for loss in losses.values())


def test_the_loss_of_several_labels_is_the_mean_over_labels_and_texts():
    objective = MultiLabel()
    model, rows = make(objective).eval(), rows_with(targets_of(objective))
    batch = objective.collate(rows, VOCABULARY, generator())
    loss = objective.losses(model, batch)["class"]
    expected = torch.nn.functional.binary_cross_entropy_with_logits(model(batch)["class"], batch.labels["class"])
    torch.testing.assert_close(loss.total / loss.count, expected)


def test_the_metric_that_selects_the_weights_may_be_chosen():
    values = {"spearman": 0.5, "rmse": 2.0, "loss": 4.0}
    assert Regression().selection_value(values) == pytest.approx(0.5, abs=1e-5)
    assert Regression(metric_for_best_model="rmse").selection_value(values) == pytest.approx(-2.0, abs=1e-5)
    assert Regression().selection_value({**values, "spearman": float("nan")}) < -1
    with pytest.raises(ConfigError, match="micro_f1, which regression does not measure"):
        Regression(metric_for_best_model="micro_f1").selection_value(values)


def test_a_regression_predicts_in_the_units_of_its_labels():
    objective = Regression()
    model = make(objective, classes=1)
    head = model.heads["class"]
    assert isinstance(head, RegressionHead)
    batch = objective.collate(rows_with([np.array([1000.0])] * 6), VOCABULARY, generator())
    before = model(batch)["class"]
    head.mean.fill_(1000.0)
    head.scale.fill_(50.0)
    torch.testing.assert_close(model(batch)["class"], before * 50 + 1000)
    loss = objective.losses(model, batch)["class"]
    torch.testing.assert_close(loss.total, (before**2).sum(), rtol=1e-3, atol=1e-3)


def test_a_folded_regression_head_predicts_the_same():
    torch.manual_seed(0)
    head = RegressionHead(tiny_config("bidirectional"), 1, "mean", "dense")
    head.mean.fill_(3.0)
    head.scale.fill_(2.0)
    plain, pooled = head.folded(), torch.randn(4, 16)
    assert type(plain) is ClassHead
    torch.testing.assert_close(plain.classify(pooled), head.classify(pooled))


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_an_ordinal_head_gives_the_probabilities_of_a_cumulative_link_model(classes):
    torch.manual_seed(0)
    head = OrdinalHead(tiny_config("bidirectional"), classes, "mean", "dense")
    pooled = torch.randn(50, 16) * 5
    with torch.no_grad():
        found, score = head.classify(pooled).exp(), ClassHead.classify(head, pooled)
    assert found.shape == (50, classes)
    torch.testing.assert_close(found.cumsum(dim=1)[:, :-1], torch.sigmoid(head.cutpoints.detach() - score))
    torch.testing.assert_close(found.sum(dim=1), torch.ones(50))
    assert (head.cutpoints.diff() > 0).all()


def test_an_ordinal_head_stays_finite_far_from_its_cutpoints():
    head = OrdinalHead(tiny_config("bidirectional"), 4, "mean", "dense")
    pooled = torch.full((2, 16), 1e4, requires_grad=True)
    found = head.classify(pooled * torch.tensor([[1.0], [-1.0]]))
    loss = Ordinal().criterion(found, torch.tensor([0, 3]), head)
    loss.total.backward()
    assert torch.isfinite(loss.total)
    assert all(torch.isfinite(weight.grad).all() for weight in head.parameters() if weight.grad is not None)


def test_pair_pooling_reads_each_text_by_itself_and_never_padding():
    hidden, segments = torch.randn(1, 5, 2), torch.tensor([[0, 0, 1, 1, 0]])
    mask = torch.tensor([[True, True, True, True, False]])
    first, second = hidden[0, :2].mean(0), hidden[0, 2:4].mean(0)
    expected = torch.cat((first, second, (first - second).abs(), first * second))[None]
    torch.testing.assert_close(pair_pooling(hidden, mask, segments), expected)


def test_tags_are_predicted_at_the_first_sub_token_alone():
    objective = TokenClassification()
    targets = [np.array([IGNORE, 2, IGNORE, 1, IGNORE])]
    row = replace(random_rows([5])[0], targets=targets[0])
    batch = objective.collate([row], VOCABULARY, generator())
    assert isinstance(batch, Batch)
    assert batch.label_positions.tolist() == [1, 3]
    assert batch.labels["class"].tolist() == [2, 1]
    assert make(objective)(batch)["class"].shape == (2, 3)
