"""What an audit of parallel text found, as tables for a terminal."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from headstart.views import wording

SPREAD = {"mean": "mean", "p5": "5 %", "p50": "median", "p95": "95 %", "p99": "99 %", "max": "longest"}
RATIO = {"p5": "5 %", "p50": "median", "p95": "95 %", "max": "most"}
PAIRS = {"count": "pairs", "duplicates": "repeats", "copies": "copies", "in_train": "in train"}
SIDES = {
    "duplicates": "repeats",
    "several": "several",
    "in_train": "in train",
    "near_in_train": "nearly",
    "truncated": "cut",
    "unknown": "unknown",
}
SHARES = ("truncated", "unknown")


def parallel_tables(audit: Mapping[str, Any]) -> list[Table]:
    """The audit's counts of pairs, its counts on each side, and lengths, each narrow enough for 80 columns."""
    splits: Mapping[str, Any] = audit["splits"]
    source, target = audit["pair"]
    words = f"pairs; characters of {target} for one of {source}"
    pairs = _table(words, ["split", *PAIRS.values(), *RATIO.values()])
    for name, part in splits.items():
        shown = (f"{part['ratio'][key]:.2f}" for key in RATIO)
        pairs.add_row(escape(name), *(f"{part[key]:,}" for key in PAIRS), *shown)
    return [pairs, _sides(splits), _lengths(splits)]


def _sides(splits: Mapping[str, Any]) -> Table:
    rows = [(name, side, found) for name, part in splits.items() for side, found in part["sides"].items()]
    known = {key: title for key, title in SIDES.items() if any(found[key] is not None for *_, found in rows)}
    table = _table("each side", ["split", "in", *known.values()])
    for name, side, found in rows:
        table.add_row(escape(name), escape(side), *(_number(found[key], key) for key in known))
    return table


def _lengths(splits: Mapping[str, Any]) -> Table:
    table = _table("lengths", ["split", "in", "of", *SPREAD.values()])
    for name, part in splits.items():
        for side, found in part["sides"].items():
            for unit in ("words", "characters", "tokens"):
                if found[unit] is not None:
                    values = (f"{found[unit][key]:,.0f}" for key in SPREAD)
                    table.add_row(escape(name), escape(side), unit, *values)
    return table


def _table(title: str, columns: list[str]) -> Table:
    table = Table(
        title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False
    )
    for column in columns:
        is_word = column in ("split", "in", "of")
        table.add_column(escape(column), justify="left" if is_word else "right", no_wrap=True)
    return table


def _number(value: Any, key: str) -> str:
    if value is None:
        return wording.UNKNOWN
    return f"{value:.1%}" if key in SHARES else f"{value:,}"
