import pytest

from headstart.reports import formatting
from headstart.reports.comparison import headline, main_test
from headstart.results import Interval
from tests.helpers.comparisons import example_comparison


@pytest.mark.parametrize(("value", "words"), [(0.062, "+6.2"), (-0.0204, "−2.0"), (0.0, "+0.0"), (-0.0001, "+0.0")])
def test_points_have_a_sign(value, words):
    assert formatting.format_points(value) == words


@pytest.mark.parametrize(("value", "words"), [(1e-9, "p < 0.001"), (0.0123, "p = 0.012"), (0.4321, "p = 0.43")])
def test_p_values_are_short(value, words):
    assert formatting.format_p_value(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0 s"),
        (0.0123, "12 ms"),
        (0.44, "0.4 s"),
        (9.97, "10 s"),
        (12.2, "12 s"),
        (59.7, "1 min 0 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (302400, "3.5 days"),
    ],
)
def test_durations_have_the_unit_that_fits(value, words):
    assert formatting.format_duration(value) == words


@pytest.mark.parametrize(
    ("epochs", "words"), [([], "–"), ([None, None], "never"), ([2.0, None], "1 of 2"), ([1.0, 2.0, 4.0], "2")]
)
def test_the_target_is_reached_by_all_some_or_no_seeds(epochs, words):
    assert formatting.format_epochs_to_target(epochs) == words


def test_an_unknown_interval_is_nothing():
    assert formatting.format_interval(Interval(0.5, float("nan"), float("nan"), 0)) == ""


def test_the_main_test_is_fine_tuning_against_scratch_at_the_largest_budget():
    test = main_test(example_comparison())
    assert (test.arm, test.against, test.labels) == ("fine-tuned", "scratch", 1600)


def test_a_small_p_value_with_an_interval_over_zero_is_reported_as_both():
    from dataclasses import replace

    found = example_comparison()
    unsure = replace(
        main_test(found), difference=Interval(0.029, -0.001, 0.06, 0.01), p_value=1e-5,
        verdict="no difference shown",
    )  # fmt: skip
    words = headline(replace(found, tests=[unsure]))
    assert "p < 0.001" in words
    assert "does not exclude zero" in words
    assert "worth" not in words
