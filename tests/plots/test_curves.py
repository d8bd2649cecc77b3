from dataclasses import replace

import numpy as np
import pytest

from headstart.plots.curves import (
    accuracy_curves,
    draw_curves,
    draw_label_efficiency,
    draw_reliability,
    label_efficiency,
    reliability,
)
from headstart.plots.style import PALETTE, arm_colours, save_figure
from headstart.results import CurvePoint
from tests.helpers.comparisons import example_comparison


@pytest.fixture(scope="module")
def comparison():
    return example_comparison()


def test_a_curve_is_the_mean_of_its_seeds_between_lowest_and_highest(comparison):
    data = accuracy_curves(comparison, 800)
    line = next(line for line in data.lines if line.name == "scratch")
    curves = [[point.accuracy for point in result.curve] for result in comparison.arm("scratch", 800).results]
    np.testing.assert_allclose(line.mean, np.mean(curves, axis=0))
    np.testing.assert_allclose([line.low, line.high], [np.min(curves, axis=0), np.max(curves, axis=0)])
    assert line.x[0] == 0


def test_the_classical_baseline_is_a_level_and_not_a_line(comparison):
    data = accuracy_curves(comparison)
    assert [level.name for level in data.levels] == ["classical"]
    assert data.levels[0].mean[0] == pytest.approx(comparison.arm("classical").accuracy.mean)


def test_seeds_that_stop_at_different_epochs_are_drawn_as_far_as_all_reach(comparison):
    arm = comparison.arm("scratch")
    short = replace(arm.results[0], curve=[CurvePoint(e, 0, a, a, 0) for e, a in ((0.0, 0.5), (1.5, 0.8), (2.5, 0.9))])
    changed = replace(comparison, arms=[replace(arm, results=[short, *arm.results[1:]])])
    assert accuracy_curves(changed).lines[0].x.tolist() == [0, 1, 1.5, 2, 2.5]


def test_an_arm_has_one_colour_everywhere(comparison):
    drawn = {line.name: line.colour for line in accuracy_curves(comparison).lines}
    for data in (label_efficiency(comparison), reliability(comparison)):
        assert all(drawn.get(item.name, item.colour) == item.colour for item in data)


def test_two_arms_of_one_kind_have_two_colours():
    arms = [("a", "fine-tuned"), ("b", "fine-tuned"), ("s", "scratch"), ("c", "fine-tuned"), ("a", "fine-tuned")]
    colours = arm_colours(arms)
    assert len(set(colours.values())) == 4
    assert colours["a"] == PALETTE[0]
    assert len(arm_colours([(str(i), "fine-tuned") for i in range(20)])) == 20


def test_a_second_base_takes_a_colour_that_no_kind_there_needs():
    kinds = [("a", "fine-tuned"), ("b", "fine-tuned"), ("s", "scratch"), ("c", "classical")]
    assert arm_colours(kinds)["b"] == PALETTE[2]  # of the frozen, of which there are none
    assert arm_colours([*kinds, ("f", "frozen")])["f"] == PALETTE[2]
    assert arm_colours([*kinds, ("f", "frozen")])["b"] == PALETTE[4]


def test_a_line_that_ends_early_is_led_on_to_its_name(comparison):
    arm = comparison.arm("fine-tuned")
    short = [replace(result, curve=result.curve[:2]) for result in arm.results]
    others = [each for each in comparison.arms if each.name != arm.name]
    data = accuracy_curves(replace(comparison, arms=[*others, replace(arm, results=short)]))
    assert [line.name for line in data.shorter] == ["fine-tuned"]
    assert not accuracy_curves(comparison).shorter
    ends = [line.get_xdata() for line in draw_curves(data).axes[0].lines]
    assert [1.0, 8.0] in [list(x) for x in ends]


def test_one_budget_has_no_label_efficiency():
    assert not label_efficiency(example_comparison(budgets=[1600]))


def test_label_efficiency_runs_from_few_labels_to_many(comparison):
    lines = label_efficiency(comparison)
    assert len(lines) == 4
    assert all(line.x.tolist() == [200, 800, 1600] for line in lines)
    assert all((line.low <= line.mean).all() and (line.mean <= line.high).all() for line in lines)


def test_reliability_counts_every_answer_of_every_seed(comparison):
    for panel in reliability(comparison):
        assert panel.share.sum() == pytest.approx(1)
        right = (panel.accuracy * panel.share).sum()
        assert right == pytest.approx(comparison.arm(panel.name).accuracy.mean)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_saved_picture_is_the_same_each_time(comparison, tmp_path, suffix):
    for name in ("one", "two"):
        save_figure(draw_curves(accuracy_curves(comparison)), tmp_path / f"{name}.{suffix}")
    one, two = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("one", "two"))
    assert one == two
    assert one.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")


def test_other_pictures_can_be_drawn_and_saved(comparison, tmp_path):
    save_figure(draw_label_efficiency(label_efficiency(comparison), "test"), tmp_path / "labels.svg")
    save_figure(draw_reliability(reliability(comparison)), tmp_path / "reliability.svg")
    assert len(list(tmp_path.iterdir())) == 2


def test_the_legend_names_every_arm_with_its_last_value_the_highest_first(comparison):
    data = accuracy_curves(comparison)
    names = [text.get_text() for text in draw_curves(data).legends[0].get_texts()]
    assert names[-1] == "target 0.830"
    values = [float(name.rpartition(" ")[2]) for name in names[:-1]]
    assert values == sorted(values, reverse=True)
    assert {name.rpartition(" ")[0] for name in names} == {"fine-tuned", "frozen", "scratch", "classical", "target"}
