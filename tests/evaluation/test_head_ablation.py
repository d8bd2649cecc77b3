import numpy as np
import pytest
import torch

from headstart.batch import Batch, pad
from headstart.evaluation.attention import ablated, mean_difference, measure_head_ablation
from headstart.models.model import HeadSpec, build_model
from headstart.objectives.masked_lm import MaskedLM
from headstart.plots.heatmaps import draw_head_ablation
from tests.helpers.tiny_models import VOCABULARY, generator, random_rows, tiny_config

ROWS = random_rows([9, 5, 12, 7, 8, 6, 10, 4, 9, 11], seed=4)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    return build_model(tiny_config("bidirectional"), VOCABULARY.size, {"lm": HeadSpec("lm", VOCABULARY.size)}).eval()


def parts():
    return [ROWS[at : at + 2] for at in range(0, len(ROWS), 2)]


def batches():
    padded = [pad([torch.from_numpy(row.tokens).long() for row in part], VOCABULARY.pad_id) for part in parts()]
    return [Batch(tokens, real) for tokens, real in padded]


@torch.no_grad()
def loss(model):
    totals, counts = [], []
    for index, part in enumerate(parts()):
        batch = MaskedLM(mask_rate=0.5).collate(part, VOCABULARY, generator(index))
        losses = MaskedLM().losses(model, batch)["lm"]
        totals.append(float(losses.total))
        counts.append(losses.count)
    return np.array(totals), np.array(counts)


def test_ablation_zeroes_one_attention_head_and_leaves_the_others(model):
    outputs = []
    out_proj = model.backbone.stack.blocks[1].attention.out_proj
    with ablated(model, 1, 0):
        handle = out_proj.register_forward_pre_hook(lambda module, inputs: outputs.append(inputs[0].clone()))
        model.backbone(batches()[0])
        handle.remove()
    assert (outputs[0][..., :8] == 0).all()
    assert (outputs[0][..., 8:] != 0).any()


def test_a_model_is_unchanged_after_ablation(model):
    before = model.backbone(batches()[0])
    with ablated(model, 0, 1):
        during = model.backbone(batches()[0])
    assert not torch.allclose(before, during)
    assert torch.equal(before, model.backbone(batches()[0]))


def test_silencing_equals_zeroing_the_weights_that_read_the_attention_head(model):
    from copy import deepcopy

    twin = deepcopy(model)
    with torch.no_grad():
        twin.backbone.stack.blocks[0].attention.out_proj.weight[:, 8:16] = 0
    with ablated(model, 0, 1):
        np.testing.assert_allclose(loss(model)[0], loss(twin)[0], rtol=1e-5)


def test_the_study_measures_every_attention_head_and_ablation_changes_the_loss(model):
    study = measure_head_ablation(model, batches(), loss)
    assert study.entropy.shape == study.distance.shape == study.ablation.shape == (2, 2)
    assert (study.ablation != 0).all()
    totals, counts = loss(model)
    assert study.loss == pytest.approx(totals.sum() / counts.sum())
    with ablated(model, 1, 1):
        without, _ = loss(model)
    assert study.ablation[1, 1] == pytest.approx((without - totals).sum() / counts.sum())
    assert (study.low <= study.ablation).all()
    assert (study.ablation <= study.high).all()
    assert (study.entropy <= study.even_entropy + 1e-5).all()


def test_padding_does_not_count_in_entropy_and_distance(model):
    together, apart = measure_head_ablation(model, batches(), loss), []
    for row in ROWS:
        tokens = torch.from_numpy(row.tokens).long()[None, :]
        apart.append(Batch(tokens, torch.ones_like(tokens, dtype=torch.bool)))
    alone = measure_head_ablation(model, apart, loss)
    np.testing.assert_allclose(together.entropy, alone.entropy, rtol=1e-4)
    np.testing.assert_allclose(together.distance, alone.distance, rtol=1e-4)
    assert together.even_distance == pytest.approx(alone.even_distance)


def test_the_interval_is_unknown_for_few_parts_and_none_wide_when_parts_agree():
    assert np.isnan(mean_difference(np.array([2.0, 4.0]), np.array([4, 8]))[1])
    totals = np.array([2.0, 4.0, 1.0, 3.0, 5.0])
    assert mean_difference(totals, 2 * totals) == pytest.approx((0.5, 0.5, 0.5))


def test_the_interval_of_equal_parts_is_student_s_over_them():
    totals = np.array([2.0, 4.0, 1.0, 3.0, 5.0, 6.0])
    mean, low, high = mean_difference(totals, np.ones(6))
    reach = 2.5706 * totals.std(ddof=1) / 6**0.5
    assert (mean, low, high) == pytest.approx((3.5, 3.5 - reach, 3.5 + reach), rel=1e-4)


def test_the_study_is_drawn_as_three_grids_with_numbers(model):
    figure = draw_head_ablation(measure_head_ablation(model, batches(), loss))
    assert len(figure.axes) == 3
    assert all(len(axes.texts) == 4 for axes in figure.axes)
