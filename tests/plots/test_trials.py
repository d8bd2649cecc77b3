"""A hyperparameter search as data, as a figure and as a table."""

import io

import numpy as np
import pytest
from rich.console import Console

from headstart.plots.style import save_figure
from headstart.plots.trials import draw_trials
from headstart.reports.tables import trials_table


def content(direction="maximize", states="ffpfxf"):
    kinds = {"f": "finished", "p": "pruned", "x": "failed"}
    values = [0.7, 0.6, 0.3, 0.8, None, 0.75]
    trials = [
        {
            "number": number,
            "state": kinds[state],
            "value": values[number],
            "values": {"optimizer.learning_rate": 10.0 ** -(number + 1), "lr_schedule.name": "linear"},
        }
        for number, state in enumerate(states)
    ]
    return {
        "metric": "accuracy",
        "direction": direction,
        "search": ["optimizer.learning_rate=1e-06:0.1:log", "lr_schedule.name=linear,[cosine]"],
        "trials": trials,
        "default": trials[0],
        "best": max((trial for trial in trials if trial["state"] == "finished"), key=lambda trial: trial["value"]),
    }


@pytest.mark.parametrize(
    ("direction", "best"), [("maximize", [0.7, 0.7, 0.8, 0.8]), ("minimize", [0.7, 0.6, 0.6, 0.6])]
)
def test_finished_and_pruned_trials_are_separate(direction, best):
    history, rates, names = draw_trials(content(direction)).axes
    default, best_so_far = history.lines
    assert set(default.get_ydata()) == {0.7}
    assert best_so_far.get_xdata().tolist() == [0, 1, 3, 5, 5]
    assert best_so_far.get_ydata().tolist() == [*best, best[-1]]
    finished, pruned = history.collections
    assert finished.get_offsets().tolist() == [[0, 0.7], [1, 0.6], [3, 0.8], [5, 0.75]]
    assert pruned.get_offsets().tolist() == [[2, 0.3]]
    assert rates.get_xscale() == "log"
    assert np.allclose(sorted(rates.collections[0].get_offsets()[:, 0]), [1e-6, 1e-4, 1e-2, 1e-1])
    assert rates.collections[1].get_offsets().tolist() == [[1e-4, 0.8]]
    assert [label.get_text() for label in names.get_xticklabels()] == ["linear"]


@pytest.mark.parametrize("states", ["ffpfxf", "f", "xf", "pf"])
@pytest.mark.slow
def test_a_picture_is_the_same_each_time_and_reads_without_formulas(states, tmp_path):
    for name in ("a.svg", "b.svg", "c.png"):
        save_figure(draw_trials(content(states=states)), tmp_path / name)
    first = (tmp_path / "a.svg").read_text()
    assert first == (tmp_path / "b.svg").read_text()
    assert "optimizer.learning_rate" in first
    assert "mathdefault" not in first


def test_the_table_shows_the_best_first_and_the_default_settings():
    output = io.StringIO()
    Console(file=output, width=100).print(trials_table(content()))
    lines = output.getvalue().splitlines()
    assert "4 finished, 1 pruned, 1 failed" in lines[0]
    header = next(line for line in lines if line.lstrip().startswith("trial "))
    assert header.split() == ["trial", "3", "5", "0", "default", "1"]
    assert "0.8" in next(line for line in lines if "accuracy" in line)
