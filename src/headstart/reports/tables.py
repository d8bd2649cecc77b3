"""Results as tables and lines for a terminal (rich)."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from headstart.reports.formatting import (
    UNKNOWN,
    format_count,
    format_duration,
    format_epochs_to_target,
    format_interval,
    format_score,
    format_test,
    has_leaks,
    headline,
    mean_seconds,
)
from headstart.results import Arm, Comparison

MIB, GIB = 2**20, 2**30
VERDICT_COLOURS = {"better": "green", "worse": "red", "no difference shown": "yellow"}
AUDIT_COUNTS = ("count", "duplicates", "conflicts", "in_train", "near_in_train", "truncated", "unknown")
QUANTILES = {"mean": "mean", "p5": "5 %", "p50": "median", "p95": "95 %", "p99": "99 %", "max": "longest"}
RATIO_QUANTILES = {"p5": "5 %", "p50": "median", "p95": "95 %", "max": "max"}
PAIR_COUNTS = {"count": "pairs", "duplicates": "repeats", "copies": "copies", "in_train": "in train"}
SIDE_COUNTS = {
    "duplicates": "repeats",
    "several": "several",
    "in_train": "in train",
    "near_in_train": "near",
    "truncated": "cut",
    "unknown": "unknown",
}
MAX_TRIALS = 4  # columns of the table of trials


def _table(
    title: str, columns: Sequence[str], text_columns: Collection[str] = (), *, no_wrap: bool = True
) -> Table:
    """A table whose first column and `text_columns` are aligned left."""
    table = Table(
        title=escape(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for index, column in enumerate(columns):
        is_text = index == 0 or column in text_columns
        table.add_column(escape(column), justify="left" if is_text else "right", no_wrap=no_wrap)
    return table


# Comparison


def comparison_table(comparison: Comparison) -> Table:
    """The arms of a comparison with their scores, narrow enough for 80 columns."""
    leaks, has_budgets = has_leaks(comparison), len(comparison.label_budgets) > 1
    split = comparison.scored_split + ("" if "folds" in comparison.scored_split else " split")
    title = f"{comparison.data}, {split}, {comparison.scored_count:,} texts"
    if not has_budgets:
        title += f", {comparison.label_budgets[0]:,} labels"
    table = _table(title, [])
    if has_budgets:
        table.add_column("labels", justify="right", no_wrap=True)
    table.add_column("arm")
    names = ["accuracy", "95 % interval", "leak-free" if leaks else "F1", "target", "time"]
    cells = [_arm_cells(arm, leaks) for arm in comparison.arms]
    for column in zip(names, *cells, strict=True):  # a narrow terminal wraps names, never numbers
        table.add_column(column[0], justify="right", no_wrap=True, min_width=max(map(len, column)))
    for budget in sorted(comparison.label_budgets, reverse=True):
        for number, arm in enumerate(arm for arm in comparison.arms if arm.labels == budget):
            first = [f"{budget:,}" if number == 0 else ""] if has_budgets else []
            table.add_row(*first, *map(escape, (arm.name, *_arm_cells(arm, leaks))))
        table.add_section()
    return table


def _arm_cells(arm: Arm, leaks: bool) -> list[str]:
    spread = f" ±{format_score(arm.accuracy.spread)}" if len(arm.results) > 1 else ""
    return [
        format_score(arm.accuracy.mean) + spread,
        format_interval(arm.accuracy) or UNKNOWN,
        format_score((arm.leak_free_accuracy if leaks else arm.macro_f1).mean),
        format_epochs_to_target(arm.passes_mark),
        format_duration(mean_seconds(arm)),
    ]


def verdict_lines(comparison: Comparison) -> list[str]:
    """The headline and one line for each paired test, with rich's markup for colour."""
    return [f"[bold]{escape(headline(comparison))}[/]"] + [
        f"[{VERDICT_COLOURS[test.verdict]}]●[/] {escape(format_test(test))}" for test in comparison.tests
    ]


# Data audit


def audit_tables(audit: Mapping[str, Any]) -> list[Table]:
    """Counts, class balance and lengths by split; parts that the audit lacks are left out."""
    splits = audit.get("splits")
    if not isinstance(splits, Mapping) or not splits:
        return [_pairs(audit)] if audit else []
    names = [name for name in AUDIT_COUNTS if any(part.get(name) is not None for part in splits.values())]
    counts = _table("counts", ["split", *(name.replace("_", " ") for name in names)], no_wrap=False)
    for split, part in splits.items():
        counts.add_row(escape(split), *(format_count(part.get(name), name) for name in names))
    return [counts, *_class_balance(splits), *_lengths(splits)]


def audit_lines(audit: Mapping[str, Any], max_rows: int = 20) -> list[str]:
    """Warnings, notes, skipped rows and leaks as lines; at most `max_rows` of each kind of row."""
    lines = [f"[yellow]![/] {escape(str(warning))}" for warning in audit.get("warnings", [])]
    lines += [f"[dim]·[/] {escape(str(note))}" for note in audit.get("notes", [])]
    for skip in audit.get("skips", [])[:max_rows]:
        lines.append(f"[dim]skipped[/] {escape(skip['origin'])}: {escape(skip['reason'])}")
    for kind, title in (("leaks", "leak"), ("near", "near leak")):
        leaks = audit.get(kind, [])
        for leak in leaks[:max_rows]:
            side = f" in {leak['side']}" if "side" in leak else ""
            origins = " = ".join(f"{split} {', '.join(rows)}" for split, rows in leak["origins"].items())
            lines.append(f"[red]{title}{escape(side)}[/] {escape(origins)}: {escape(leak['excerpt'])}")
        if len(leaks) > max_rows:
            lines.append(f"[dim]… and {len(leaks) - max_rows} more; --json lists them all[/]")
    return lines


def _class_balance(splits: Mapping[str, Any]) -> list[Table]:
    labels = list(dict.fromkeys(label for part in splits.values() for label in part.get("classes") or {}))
    if not labels:
        return []
    table = _table("class balance", ["class", *splits], no_wrap=False)
    for label in labels:
        counts = ((part.get("classes") or {}).get(label, 0) for part in splits.values())
        table.add_row(escape(str(label)), *(f"{count:,}" for count in counts))
    return [table]


def _lengths(splits: Mapping[str, Any]) -> list[Table]:
    table = _table("lengths", ["split", "in", *QUANTILES], ["in"], no_wrap=False)
    for name, part in splits.items():
        for unit in ("characters", "tokens"):
            if isinstance(part.get(unit), Mapping):
                table.add_row(escape(name), unit, *(f"{part[unit].get(key, 0):,.0f}" for key in QUANTILES))
    return [table] if table.row_count else []


def _pairs(content: Mapping[str, Any]) -> Table:
    table = _table("audit", ["", ""], no_wrap=False)
    for key, value in content.items():
        table.add_row(escape(str(key)), escape(str(value)))
    return table


def parallel_tables(audit: Mapping[str, Any]) -> list[Table]:
    """Audit of parallel text: counts of pairs, counts of each side, and lengths, narrow enough for 80 columns."""
    splits: Mapping[str, Any] = audit["splits"]
    source, target = audit["pair"]
    title = f"pairs; characters of {target} for one of {source}"
    pairs = _table(title, ["split", *PAIR_COUNTS.values(), *RATIO_QUANTILES.values()])
    for name, part in splits.items():
        ratios = (f"{part['ratio'][key]:.2f}" for key in RATIO_QUANTILES)
        pairs.add_row(escape(name), *(f"{part[key]:,}" for key in PAIR_COUNTS), *ratios)
    return [pairs, _side_counts(splits), _side_lengths(splits)]


def _side_counts(splits: Mapping[str, Any]) -> Table:
    rows = [(name, side, found) for name, part in splits.items() for side, found in part["sides"].items()]
    known = {
        key: title for key, title in SIDE_COUNTS.items() if any(found[key] is not None for *_, found in rows)
    }
    table = _table("each side", ["split", "in", *known.values()], ["in"])
    for name, side, found in rows:
        table.add_row(escape(name), escape(side), *(format_count(found[key], key) for key in known))
    return table


def _side_lengths(splits: Mapping[str, Any]) -> Table:
    table = _table("lengths", ["split", "in", "of", *QUANTILES.values()], ["in", "of"])
    for name, part in splits.items():
        for side, found in part["sides"].items():
            for unit in ("words", "characters", "tokens"):
                if found[unit] is not None:
                    values = (f"{found[unit][key]:,.0f}" for key in QUANTILES)
                    table.add_row(escape(name), escape(side), unit, *values)
    return table


# Plan


def plan_tables(plan: Mapping[str, Any]) -> list[Table]:
    """Parameters by block and memory by part, and every device when the plan is for none in particular."""
    tables = [_parameter_table(plan["parameters"]), _memory_table(plan["memory"])]
    return [*tables, _device_table(plan["devices"])] if plan.get("devices") else tables


def _parameter_table(parameters: Mapping[str, Any]) -> Table:
    columns = ["block", "formula", "in numbers", "times", "total"]
    table = _table(f"{parameters['total']:,} parameters", columns, ["formula", "in numbers"])
    table.columns[2].no_wrap = False
    for block in parameters["blocks"]:
        counts = (f"{block['times']:,}", f"{block['total']:,}")
        table.add_row(escape(block["name"]), block["symbols"], block["numbers"], *counts)
    table.caption = "V vocabulary, U the source's own, P longest text, D width, H width of an attention head, F feed-forward, C classes"
    table.caption_justify = "left"
    return table


def _memory_table(memory: Mapping[str, Any]) -> Table:
    source_length = memory.get("source_length")
    texts = (
        f"pairs of {source_length:,} + {memory['length']:,}"
        if source_length
        else f"texts of {memory['length']:,}"
    )
    peak = memory["peak_bytes"]
    title = f"{peak / GIB:.2f} GiB at the peak: {memory['batch']:,} {texts} tokens, {memory['precision']}"
    table = _table(title, ["part", "MiB", "share"])
    for name, size in sorted(memory["parts"].items(), key=lambda part: -part[1]):
        table.add_row(escape(name), f"{size / MIB:,.1f}", f"{size / peak:.0%}")
    table.caption = f"the peak is in the {memory['moment']}"
    table.caption_justify = "left"
    return table


def _device_table(devices: Sequence[Mapping[str, Any]]) -> Table:
    has_cost = any(row["cost"] is not None for row in devices)
    columns = [
        "device",
        "GiB",
        "needs",
        "fits",
        "batch ≤",
        "numbers",
        "time",
        *(["cost"] if has_cost else []),
    ]
    table = _table("will it train there?", columns, ["numbers"])
    for row in devices:
        table.add_row(
            escape(row["device"]),
            f"{row['memory_gib']:g}",
            f"{row['needs_gib']:.1f}",
            "[green]yes[/]" if row["fits"] else "[red]no[/]",
            f"{row['largest_batch']:,}",
            row["precision"],
            format_duration(row["hours"] * 3600),
            *([f"{row['cost']:,.2f}"] if has_cost else []),
        )
    if any(row["compiled"] for row in devices):
        table.caption = "steps are compiled on GPUs from Volta on, and plain elsewhere"
        table.caption_justify = "left"
    return table


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """FLOPs, time and verdict as lines, with rich's markup for colour."""
    flops, time, verdict = plan["flops"], plan["time"], plan["verdict"]
    source = "measured here" if time["measured"] else "from the device table and fitted constants"
    cost = "" if time["cost"] is None else f", cost {time['cost']:,.2f}"
    note = [escape(plan["note"])] if plan.get("note") else []
    step = "compiled" if time["compile_seconds"] else "plain"
    compiling = f", {time['compile_seconds']:.0f} s of it to compile" if time["compile_seconds"] else ""
    lines = [
        *note,
        f"operations a token: {flops['forward_per_token'] / 1e6:,.2f} MFLOPs forward, "
        f"{flops['backward_per_token'] / 1e6:,.2f} backward; {flops['step'] / 1e12:,.3f} TFLOPs a step",
        f"time: {time['tokens_per_step']:,} tokens a {step} step in {time['seconds_per_step']:.4g} s, "
        f"{time['tokens_per_second']:,.0f} tokens a second ({source})",
        f"{time['tokens']:,.0f} tokens take {format_duration(time['hours'] * 3600)}{compiling}{cost}",
    ]
    if time["compiled"] and not time["compile_seconds"]:
        lines.append("its steps are compiled; the speed-up there is unknown, so the estimate is without it")
    if "cluster" in plan:
        lines.append(_cluster_line(plan["cluster"]))
    if verdict["fits"]:
        batch = "of a batch in each process" if "cluster" in plan else "a batch"
        fits = f"[green]yes[/], it trains on {escape(verdict['device'])}"
        return [*lines, f"{fits}; at most {verdict['largest_batch']:,} texts {batch}"]
    lines.append(f"[red]no[/], it does not fit on {escape(verdict['device'])}")
    return [*lines, *(f"  try {escape(advice)}" for advice in verdict["advice"])]


def _cluster_line(cluster: Mapping[str, Any]) -> str:
    """Communication between processes, and its cost."""
    content = "weights and gradients" if cluster["sharded"] else "gradients"
    links = [f"links of {cluster['link']:g} GB/s"] if cluster["gpus"] > 1 else []
    links += [f"a network of {cluster['network']:g} Gbit/s"] if cluster["nodes"] > 1 else []
    machines = f"{cluster['nodes']} machine{'s' * (cluster['nodes'] > 1)} of {cluster['gpus']}"
    return (
        f"{cluster['processes']} processes ({machines}): each sends "
        f"{cluster['exchanged_bytes'] / 1e9:.3g} GB of {content} a step, {cluster['exchange_seconds']:.3g} s over "
        f"{' and '.join(links)}, of which {cluster['exposed_seconds']:.3g} s do not overlap with computation; "
        f"{cluster['faster_than_one']:.1f} times as fast as one ({cluster['efficiency']:.0%})"
    )


# Hyperparameter search


def trials_table(search: Mapping[str, Any]) -> Table:
    """The best trials and the default settings as columns, the searched settings as rows."""
    sign = -1 if search["direction"] == "maximize" else 1
    trials, default = search["trials"], search["standing"]
    finished = [trial for trial in trials if trial["state"] == "finished"]
    columns = sorted(finished, key=lambda trial: sign * trial["value"])[:MAX_TRIALS]
    if default not in columns:
        columns.append(default)
    counts = {
        state: sum(trial["state"] == state for trial in trials) for state in ("finished", "pruned", "failed")
    }
    names = [
        f"{trial['number']}{' default' if trial['number'] == default['number'] else ''}" for trial in columns
    ]
    title = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    table = _table(f"trials: {title}", ["trial", *names])
    table.add_row(
        escape(search["metric"]), *(_format_value(trial["value"]) for trial in columns), style="bold"
    )
    for dim in search["search"]:
        name = dim.partition("=")[0]
        table.add_row(escape(name), *(escape(_format_value(trial["values"][name])) for trial in columns))
    return table


def _format_value(value: Any) -> str:
    return UNKNOWN if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


# Complexity


def complexity_tables(content: Mapping[str, Any]) -> list[Table]:
    """The theoretical complexity, the measured exponents beside it, and the times."""
    kinds = [kind["name"] for kind in content["theory"]]
    theory = _table("in theory", ["layer", "operations", "sequential steps", "longest path"])
    for kind in content["theory"]:
        theory.add_row(escape(kind["name"]), kind["operations"], kind["sequential"], kind["path"])
    columns = ["layer", "along", "exponent in theory", "of time", "of memory"]
    exponents = _table(f"measured: {content['machine']}", columns)
    for row in content["growths"]:
        axis = f"{row['axis']} {'n' if row['axis'] == 'length' else 'd'}"
        measured = (f"{row['time_slope']:.2f}", f"{row['memory_slope']:.2f}")
        exponents.add_row(row["kind"], axis, f"{row['theory']:g}", *measured)
    times = _table(f"milliseconds forward + backward at d = {content['width']}", ["length n", *kinds])
    for length in sorted({point["length"] for point in content["lengths"]}):
        points = {point["kind"]: point for point in content["lengths"] if point["length"] == length}
        cells = (f"{points[k]['forward'] * 1e3:.2f} + {points[k]['backward'] * 1e3:.2f}" for k in kinds)
        times.add_row(f"{length:,}", *cells)
    return [theory, exponents, times]


def crossing_lines(content: Mapping[str, Any]) -> list[str]:
    """The lengths from which self-attention takes longer than the other layers."""
    width = content["width"]
    lines = [
        f"in theory n²·d exceeds n·d² from n = d, here {width:,}; with the constants of these layers"
        " (4·n²·d against 16·n·d² and 6·n·d²) from 4 d for recurrence and from 1.5 d for convolution:"
    ]
    for crossing in content["crossings"]:
        length, other = crossing["length"], crossing["other"]
        if length is None or not math.isfinite(length):
            lines.append(f"  {other}: no crossing")
            continue
        how = "measured" if crossing["is_measured"] else "extrapolated from the fitted lines"
        lines.append(
            f"  self-attention takes longer than {other} from n ≈ {length:,.0f} = {length / width:.1f} d ({how})"
        )
    return lines
