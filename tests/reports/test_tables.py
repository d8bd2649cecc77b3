import io
from dataclasses import replace

import pytest
from rich.console import Console

from headstart.reports.comparison import comparison_table, verdict_lines
from headstart.reports.tables import audit_tables, terminal_table
from tests.helpers.comparisons import example_comparison


def shown(*items, width=140):
    console = Console(width=width, record=True, file=io.StringIO())
    for item in items:
        console.print(item)
    return console.export_text()


@pytest.fixture(scope="module")
def comparison():
    return example_comparison()


def test_the_table_shows_every_arm_with_its_interval(comparison):
    text = shown(comparison_table(comparison))
    assert text.count("fine-tuned") == 3
    assert text.count("[0.") == len(comparison.arms)
    one = replace(comparison, label_budgets=[1600], arms=[arm for arm in comparison.arms if arm.labels == 1600])
    lines = shown(comparison_table(one), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


def test_a_terminal_of_80_columns_breaks_names_and_no_numbers(comparison):
    slow = [
        replace(arm, name=f"en-tiny {arm.name}", results=[replace(r, seconds=704.0) for r in arm.results])
        for arm in comparison.arms
        if arm.labels == 1600
    ]
    text = shown(comparison_table(replace(comparison, label_budgets=[1600], arms=slow)), width=80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.count("11 min 44 s") == len(slow)
    assert "…" not in text


def test_square_brackets_in_names_are_not_markup(comparison):
    arms = [replace(arm, name=f"[red]{arm.name}[/nothing]") for arm in comparison.arms]
    tests = [replace(test, arm=f"[bold]{test.arm}") for test in comparison.tests]
    changed = replace(comparison, arms=arms, tests=tests)
    assert "[red]scratch[/nothing]" in shown(comparison_table(changed), width=200)
    assert "[bold]fine-tuned" in shown(*verdict_lines(changed), width=200)


def test_every_test_has_its_line(comparison):
    lines = verdict_lines(comparison)
    assert "Pretraining is worth" in lines[0]
    assert len(lines) == 1 + len(comparison.tests)
    assert "fine-tuned (1,600 labels) is better than scratch" in shown(*lines)


def test_an_audit_becomes_counts_balance_and_lengths(comparison):
    tables = audit_tables(comparison.audit)
    text = shown(*map(terminal_table, tables))
    assert len(tables) == 3
    assert "1,600" in text
    assert "12.6%" in text


def test_an_audit_of_counts_alone_is_one_table():
    tables = audit_tables({"splits": {"train": {"count": 2}}})
    assert [table.title for table in tables] == ["Counts"]
    assert "train" in shown(*map(terminal_table, tables))
