"""Results as tables and lines, for a terminal (rich) and for pages."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from rich import box
from rich.markup import escape
from rich.table import Table

from headstart.reports.formatting import UNKNOWN, format_count, format_duration, render

MIB, GIB = 2**20, 2**30
# Count of an audit -> its column in a terminal and on a page.
AUDIT_COUNTS = {
    "count": ("texts", "texts"),
    "duplicates": ("repeats", "duplicates"),
    "conflicts": ("conflicts", "conflicting labels or translations"),
    "copies": ("copies", "same on both sides"),
    "in_train": ("in train", "also in train"),
    "near_in_train": ("near", "near-duplicates in train"),
    "truncated": ("cut", "truncated"),
    "unknown": ("unknown", "unknown tokens"),
}
QUANTILES = {"mean": "mean", "p5": "5 %", "p50": "median", "p95": "95 %", "p99": "99 %", "max": "longest"}
MAX_TRIALS = 4  # columns of the table of trials


@dataclass(frozen=True)
class TextTable:
    """A table whose cells are text; its first `text_columns` columns are aligned left, the others hold numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    caption: str = ""


def terminal_table(table: TextTable) -> Table:
    """The table for rich; a terminal that is too small for it wraps text columns, never numbers."""
    shown = Table(title=escape(table.title), caption=escape(table.caption), box=box.SIMPLE_HEAD)
    shown.title_style, shown.title_justify, shown.caption_justify = "bold", "left", "left"
    shown.pad_edge = False
    for index, cells in enumerate(zip(table.columns, *table.rows, strict=True)):
        if index < table.text_columns:
            shown.add_column(escape(cells[0]))
        else:
            shown.add_column(escape(cells[0]), justify="right", no_wrap=True, min_width=max(map(len, cells)))
    for row in table.rows:
        shown.add_row(*map(escape, row))
    return shown


def _terminal_table(
    title: str, columns: str, cells: str, rows: Iterable[Mapping[str, Any]], text_columns: int, caption: str = ""
) -> Table:
    """A table with a name and a format string for the cells of each column, with " | " between them."""
    texts = [[cell.format(**row) for cell in cells.split(" | ")] for row in rows]
    return terminal_table(TextTable(title, columns.split(" | "), texts, text_columns, caption))


# Data audit


def audit_tables(audit: Mapping[str, Any], *, is_page: bool = False) -> list[TextTable]:
    """Counts, class balance, lengths and length ratios by split, each only where the audit has it.

    Parallel text has a row for each split and for each side of it.
    """
    splits: Mapping[str, Mapping[str, Any]] = audit["splits"]
    parts: dict[str, Mapping[str, Any]] = {}
    for name, split in splits.items():
        parts |= {name: split} | {f"{name}, {side}": found for side, found in split.get("sides", {}).items()}
    known = [key for key in AUDIT_COUNTS if any(part.get(key) is not None for part in parts.values())]
    counts = [[name, *(format_count(part.get(key), key) for key in known)] for name, part in parts.items()]
    lengths = [
        [name, unit, *(f"{part[unit].get(key, 0):,.0f}" for key in QUANTILES)]
        for name, part in parts.items()
        for unit in ("words", "characters", "tokens")
        if part.get(unit)
    ]
    limit = f"The model reads at most {audit['limit']:,} tokens of a text." if audit.get("limit") else ""
    ratios = [
        [name, *(f"{split['ratio'].get(key, 0):.2f}" for key in QUANTILES)]
        for name, split in splits.items()
        if split.get("ratio")
    ]
    source, target = audit.get("pair") or ("", "")
    tables = [
        TextTable("Counts", ["split", *(AUDIT_COUNTS[key][is_page] for key in known)], counts),
        TextTable("Class balance", ["class", *splits], _class_balance(splits)),
        TextTable("Lengths", ["split", "in", *QUANTILES.values()], lengths, 2, limit),
        TextTable(f"Characters of {target} for one of {source}", ["split", *QUANTILES.values()], ratios),
    ]
    return [table for table in tables if table.rows]


def _class_balance(splits: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """The count and fraction of each class in every split."""
    counts = [split.get("classes") or {} for split in splits.values()]
    totals = [max(sum(split.values()), 1) for split in counts]
    labels = dict.fromkeys(label for split in counts for label in split)
    return [
        [label, *(f"{c.get(label, 0):,} ({c.get(label, 0) / n:.0%})" for c, n in zip(counts, totals, strict=True))]
        for label in labels
    ]


def audit_leaks(audit: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """By kind of leak, the text of each one and the rows that hold it."""
    leaks: dict[str, list[tuple[str, str]]] = {}
    for key, kind in (("leaks", "exact duplicates across splits"), ("near", "near-duplicates across splits")):
        for leak in audit.get(key, []):
            side = f"{leak['side']}: " if leak.get("side") else ""
            rows = "; ".join(f"{split}: {', '.join(names)}" for split, names in leak["origins"].items())
            leaks.setdefault(kind, []).append((side + leak["excerpt"], rows))
    return leaks


def audit_lines(audit: Mapping[str, Any], max_rows: int = 20) -> list[str]:
    """Warnings, notes, skipped rows and leaks as lines; at most `max_rows` of each kind of row."""
    lines = [f"[yellow]![/] {escape(str(warning))}" for warning in audit.get("warnings", [])]
    lines += [f"[dim]·[/] {escape(str(note))}" for note in audit.get("notes", [])]
    for skip in audit.get("skips", [])[:max_rows]:
        lines.append(f"[dim]skipped[/] {escape(skip['origin'])}: {escape(skip['reason'])}")
    for kind, leaks in audit_leaks(audit).items():
        lines += [f"[red]{kind}[/] {escape(rows)}: {escape(text)}" for text, rows in leaks[:max_rows]]
        if len(leaks) > max_rows:
            lines.append(f"[dim]… and {len(leaks) - max_rows:,} more; --json lists them all[/]")
    return lines


def render_audit(audit: Mapping[str, Any]) -> Markup:
    """A data audit as part of a page."""
    html = render("audit.html", audit=audit, tables=audit_tables(audit, is_page=True), leaks=audit_leaks(audit))
    return Markup(html)


# Plan


def plan_tables(plan: Mapping[str, Any]) -> list[Table]:
    """Parameters by block and memory by part; and every device, when the plan is for no device in particular."""
    parameters, memory = plan["parameters"], plan["memory"]
    length, source_length, peak = memory["length"], memory.get("source_length"), memory["peak_bytes"]
    texts = f"pairs of {source_length:,} + {length:,}" if source_length else f"texts of {length:,}"
    symbols = "V vocabulary, U source vocabulary, P maximum length, D width, H width of an attention head, F feed-forward, C classes"
    parts = [
        {"name": name, "mib": size / MIB, "share": size / peak}
        for name, size in sorted(memory["parts"].items(), key=lambda part: -part[1])
    ]
    columns, cells = (
        "block | formula | in numbers | times | total",
        "{name} | {symbols} | {numbers} | {times:,} | {total:,}",
    )
    blocks = _terminal_table(f"{parameters['total']:,} parameters", columns, cells, parameters["blocks"], 3, symbols)
    title = f"{peak / GIB:.2f} GiB at the peak: {memory['batch']:,} {texts} tokens, {memory['precision']}"
    moment = f"the peak is in the {memory['moment']}"
    cells = "{name} | {mib:,.1f} | {share:.0%}"
    tables = [blocks, _terminal_table(title, "part | MiB | share", cells, parts, 1, moment)]
    return [*tables, _device_table(plan["devices"])] if plan.get("devices") else tables


def _device_table(devices: Sequence[Mapping[str, Any]]) -> Table:
    """Whether the training fits on each device; rows of devices on which it does not are dim."""
    columns = "device | precision | fits | GiB | needs | batch ≤ | time"
    cells = "{device} | {precision} | {answer} | {memory_gib:g} | {needs_gib:.1f} | {largest_batch:,} | {duration}"
    if any(row["cost"] is not None for row in devices):
        columns, cells = f"{columns} | cost", cells + " | {cost:,.2f}"
    rows = [
        {**row, "answer": "yes" if row["fits"] else "no", "duration": format_duration(row["hours"] * 3600)}
        for row in devices
    ]
    is_compiled = any(row["compiled"] for row in devices)
    caption = "steps are compiled on GPUs from Volta on, and plain elsewhere" if is_compiled else ""
    table = _terminal_table("will it train there?", columns, cells, rows, 3, caption)
    for shown, row in zip(table.rows, devices, strict=True):
        shown.style = None if row["fits"] else "dim"
    return table


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """FLOPs, time and verdict as lines, with rich's markup for colour."""
    return render("plan.txt", plan=plan).splitlines()


# Hyperparameter search


def trials_table(search: Mapping[str, Any]) -> Table:
    """The best trials and the default settings as columns, the searched settings as rows."""
    sign = -1 if search["direction"] == "maximize" else 1
    trials, default = search["trials"], search["default"]
    finished = [trial for trial in trials if trial["state"] == "finished"]
    best = sorted(finished, key=lambda trial: sign * trial["value"])[:MAX_TRIALS]
    shown = best if default in best else [*best, default]
    columns = [f"{trial['number']}{' default' * (trial['number'] == default['number'])}" for trial in shown]
    names = [dim.partition("=")[0] for dim in search["search"]]
    rows = [[search["metric"], *(_format_value(trial["value"]) for trial in shown)]]
    rows += [[name, *(_format_value(trial["values"][name]) for trial in shown)] for name in names]
    states = Counter(trial["state"] for trial in trials)
    title = ", ".join(f"{states[state]} {state}" for state in ("finished", "pruned", "failed") if states[state])
    table = terminal_table(TextTable(f"trials: {title}", ["trial", *columns], rows))
    table.rows[0].style = "bold"
    return table


def _format_value(value: Any) -> str:
    return UNKNOWN if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


# Complexity


def complexity_tables(content: Mapping[str, Any]) -> list[Table]:
    """The theoretical complexity, the measured exponents beside it, and the times."""
    types = [layer["name"] for layer in content["theory"]]
    times: dict[int, list[str]] = {}
    for point in sorted(content["lengths"], key=lambda point: (point["length"], types.index(point["kind"]))):
        cell = f"{point['forward'] * 1e3:.2f} + {point['backward'] * 1e3:.2f}"
        times.setdefault(point["length"], [f"{point['length']:,}"]).append(cell)
    growths = [{**row, "symbol": "n" if row["axis"] == "length" else "d"} for row in content["growths"]]
    columns, cells = (
        "layer | operations | sequential steps | longest path",
        "{name} | {operations} | {sequential} | {path}",
    )
    theory = _terminal_table("in theory", columns, cells, content["theory"], 4)
    columns = "layer | along | exponent in theory | of time | of memory"
    cells = "{kind} | {axis} {symbol} | {theory:g} | {time_exponent:.2f} | {memory_exponent:.2f}"
    measured = _terminal_table(f"measured: {content['machine']}", columns, cells, growths, 2)
    title = f"milliseconds forward + backward at d = {content['width']}"
    return [theory, measured, terminal_table(TextTable(title, ["length n", *types], list(times.values())))]


def crossing_lines(content: Mapping[str, Any]) -> list[str]:
    """The lengths from which self-attention takes longer than the other layers."""
    return render("crossings.txt", width=content["width"], crossings=content["crossings"]).splitlines()
