"""Results as tables for a terminal."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from headstart.results import Arm, Comparison
from headstart.views import wording

COLOURS = {"better": "green", "worse": "red", "no difference shown": "yellow"}
COUNTS = ("count", "duplicates", "conflicts", "in_train", "near_in_train", "truncated", "unknown")


def summary_table(comparison: Comparison) -> Table:
    """The arms of a comparison with their marks, narrow enough for 80 columns."""
    leaks, several = wording.has_leaks(comparison), len(comparison.label_budgets) > 1
    where = comparison.scored_split + ("" if "folds" in comparison.scored_split else " split")
    words = f"{comparison.data}, {where}, {comparison.scored_count:,} texts"
    if not several:
        words += f", {comparison.label_budgets[0]:,} labels"
    table = Table(
        title=escape(words),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
    )
    names = ["accuracy", "95 % interval", "leak-free" if leaks else "F1", "mark at", "time"]
    if several:
        table.add_column("labels", justify="right", no_wrap=True)
    table.add_column("arm")
    marks = [_marks(arm, leaks) for arm in comparison.arms]
    for column in zip(names, *marks, strict=True):  # where it is narrow a name is broken, a number never
        table.add_column(column[0], justify="right", no_wrap=True, min_width=max(map(len, column)))
    for budget in sorted(comparison.label_budgets, reverse=True):
        for number, arm in enumerate(arm for arm in comparison.arms if arm.labels == budget):
            first = [f"{budget:,}" if number == 0 else ""] if several else []
            table.add_row(*first, *map(escape, (arm.name, *_marks(arm, leaks))))
        table.add_section()
    return table


def _marks(arm: Arm, leaks: bool) -> list[str]:
    spread = f" ±{wording.share(arm.accuracy.spread)}" if len(arm.results) > 1 else ""
    return [
        wording.share(arm.accuracy.mean) + spread,
        wording.range_words(arm.accuracy) or wording.UNKNOWN,
        wording.share((arm.leak_free_accuracy if leaks else arm.macro_f1).mean),
        wording.mark_words(arm.passes_mark),
        wording.duration(wording.seconds_of(arm)),
    ]


def verdict_lines(comparison: Comparison) -> list[str]:
    """The headline, and one line for each paired test, with rich's markup for colour."""
    return [f"[bold]{escape(wording.headline(comparison))}[/]"] + [
        f"[{COLOURS[test.verdict]}]●[/] {escape(wording.test_line(test))}" for test in comparison.tests
    ]


def audit_tables(audit: Mapping[str, Any]) -> list[Table]:
    """The audit's counts, balance and lengths by split; parts that the audit lacks are left out."""
    splits = audit.get("splits")
    if not isinstance(splits, Mapping) or not splits:
        return [_pairs(audit)] if audit else []
    names = [name for name in COUNTS if any(part.get(name) is not None for part in splits.values())]
    counts = _table("what is in it", ["split", *(name.replace("_", " ") for name in names)])
    for split, part in splits.items():
        counts.add_row(escape(split), *(_number(part.get(name), name) for name in names))
    return [counts, *_balance(splits), *_lengths(splits)]


def audit_lines(audit: Mapping[str, Any], most: int = 20) -> list[str]:
    """Warnings, notes, skipped rows and the rows that leak, in words; `most` of each kind of row."""
    lines = [f"[yellow]![/] {escape(str(words))}" for words in audit.get("warnings", [])]
    lines += [f"[dim]·[/] {escape(str(words))}" for words in audit.get("notes", [])]
    for skip in audit.get("skips", [])[:most]:
        lines.append(f"[dim]skipped[/] {escape(skip['origin'])}: {escape(skip['reason'])}")
    for kind, title in (("leaks", "leak"), ("near", "near leak")):
        leaks = audit.get(kind, [])
        for leak in leaks[:most]:
            side = f" in {leak['side']}" if "side" in leak else ""
            places = " = ".join(f"{split} {', '.join(rows)}" for split, rows in leak["origins"].items())
            lines.append(f"[red]{title}{escape(side)}[/] {escape(places)}: {escape(leak['excerpt'])}")
        if len(leaks) > most:
            lines.append(f"[dim]… and {len(leaks) - most} more; --json lists them all[/]")
    return lines


def _balance(splits: Mapping[str, Any]) -> list[Table]:
    classes = list({label: None for part in splits.values() for label in part.get("classes") or {}})
    if not classes:
        return []
    table = _table("balance", ["class", *splits])
    for label in classes:
        counts = ((part.get("classes") or {}).get(label, 0) for part in splits.values())
        table.add_row(escape(str(label)), *(f"{count:,}" for count in counts))
    return [table]


def _lengths(splits: Mapping[str, Any]) -> list[Table]:
    keys = ("mean", "p5", "p50", "p95", "p99", "max")
    table = _table("lengths", ["split", "in", *keys])
    for name, part in splits.items():
        for unit in ("characters", "tokens"):
            if isinstance(part.get(unit), Mapping):
                table.add_row(escape(name), unit, *(f"{part[unit].get(key, 0):,.0f}" for key in keys))
    return [table] if table.row_count else []


def _pairs(content: Mapping[str, Any]) -> Table:
    table = _table("audit", ["", ""])
    for key, value in content.items():
        table.add_row(escape(str(key)), escape(str(value)))
    return table


def _table(title: str, columns: list[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(escape(column), justify="right" if index else "left")
    return table


def _number(value: Any, name: str) -> str:
    if value is None:
        return wording.UNKNOWN
    return f"{value:.1%}" if name in ("truncated", "unknown") else f"{value:,}"
