"""Exponents, crossings and the table of theory."""

import pytest

from headstart.plots.complexity import draw_growth
from headstart.reports.tables import complexity_tables, crossing_lines
from headstart.workflows.complexity import KINDS, Point, crossings, fit_exponent, growths, summarise

SIZES = (64, 128, 256, 512, 1024)


def law(kind, length, width):
    """Points that follow theory to the letter."""
    seconds = {
        "self-attention": length**2 * width,
        "recurrence": length * width**2,
        "convolution": 3 * length * width**2,
        "attention block": length**2 * width + 4 * length * width**2,
    }[kind]
    return Point(kind, length, width, seconds / 3e9, 2 * seconds / 3e9, 4 * length * width)


LENGTHS = [law(kind, size, 256) for size in SIZES for kind in KINDS]
WIDTHS = [law(kind, 256, size) for size in SIZES for kind in KINDS]


def test_a_power_law_gives_back_its_power():
    assert fit_exponent(SIZES, [size**1.7 for size in SIZES]) == pytest.approx(1.7)


def test_points_that_follow_theory_have_its_exponents_and_cross_at_n_equals_d():
    for growth in growths(LENGTHS, WIDTHS):
        if KINDS[growth["kind"]].is_theory:
            assert growth["time_exponent"] == pytest.approx(growth["theory"])
    found = {crossing["other"]: crossing for crossing in crossings(LENGTHS)}
    assert found["recurrence"]["length"] == pytest.approx(256)
    assert found["convolution"]["length"] == pytest.approx(768)
    assert found["recurrence"]["is_measured"]


def test_the_picture_and_the_words_are_made_from_the_same_numbers():
    content = summarise("a machine", 256, 256, LENGTHS, WIDTHS)
    panels = draw_growth(content).axes
    assert [panel.get_ylabel().split(",")[0] for panel in panels] == ["milliseconds", "milliseconds", "MiB", "MiB"]
    measured, theory = (line.get_ydata() for line in panels[0].lines[:2])  # self-attention
    assert measured == pytest.approx(theory)
    assert measured == pytest.approx([1e3 * size**2 * 256 / 1e9 for size in SIZES])
    assert "self-attention, n^2.00" in [text.get_text() for text in panels[0].get_legend().get_texts()]
    assert complexity_tables(content)[0].row_count == len(KINDS)
    assert any("n ≈ 256 = 1.0 d" in line for line in crossing_lines(content))
