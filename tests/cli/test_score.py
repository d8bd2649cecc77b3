"""Scores in words."""

import math

import pytest

from headstart.cli.training import show_score
from headstart.results import Score


@pytest.mark.parametrize(
    ("leaked", "words"),
    [
        (0, None),
        (3, "leak-free accuracy 0.5000 over 7 texts: 3 of 10 were seen in training"),
        (10, "all 10 texts were seen in training: this score is not fair"),
    ],
)
def test_a_score_tells_how_much_of_it_is_fair(capsys, leaked, words):
    fair = 0.5 if leaked < 10 else math.nan
    show_score(Score(0.6, 0.6, 0.7, 0.1, 10, 6, leaked, fair, 10 - leaked, {}, split="valid"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("valid: accuracy 0.6000 (6 of 10)")
    assert lines[1:] == ([] if words is None else [words])
    assert "nan" not in "".join(lines)
