"""A plan as tables and lines for a terminal, from the plan's JSON-able form."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

MIB, GIB = 2**20, 2**30


def plan_tables(content: Mapping[str, Any]) -> list[Table]:
    """Parameters by block, memory by part, and every device when the plan was for none in particular."""
    tables = [parameter_table(content["parameters"]), memory_table(content["memory"])]
    return [*tables, device_table(content["devices"])] if content.get("devices") else tables


def parameter_table(parameters: Mapping[str, Any]) -> Table:
    """A row for each block: formula in symbols, in numbers, and how many in all."""
    table = _table(
        f"{parameters['total']:,} parameters", ["block", "formula", "in numbers", "times", "total"]
    )
    for block in parameters["blocks"]:
        table.add_row(
            escape(block["name"]),
            block["symbols"],
            block["numbers"],
            f"{block['times']:,}",
            f"{block['total']:,}",
        )
    table.caption = "V vocabulary, U the source's own, P longest text, D width, H width of an attention head, F feed-forward, C classes"
    table.caption_justify = "left"
    return table


def memory_table(memory: Mapping[str, Any]) -> Table:
    """A row for each part alive at the peak."""
    title = (
        f"{memory['peak_bytes'] / GIB:.2f} GiB at the peak: {memory['batch']:,} {_texts(memory)} tokens, "
        f"{memory['precision']}"
    )
    table = _table(title, ["part", "MiB", "share"])
    for name, size in sorted(memory["parts"].items(), key=lambda part: -part[1]):
        table.add_row(escape(name), f"{size / MIB:,.1f}", f"{size / memory['peak_bytes']:.0%}")
    table.caption = f"the peak is in the {memory['moment']}"
    table.caption_justify = "left"
    return table


def _texts(memory: Mapping[str, Any]) -> str:
    if not memory.get("source_length"):
        return f"texts of {memory['length']:,}"
    return f"pairs of {memory['source_length']:,} + {memory['length']:,}"


def device_table(devices: Sequence[Mapping[str, Any]]) -> Table:
    """Will it train there? A row for each device."""
    has_cost = any(row["cost"] is not None for row in devices)
    columns = ["device", "GiB", "needs", "fits", "batch ≤", "numbers", "time"]
    table = _table("will it train there?", [*columns, *(["cost"] if has_cost else [])])
    for row in devices:
        table.add_row(
            escape(row["device"]),
            f"{row['memory_gib']:g}",
            f"{row['needs_gib']:.1f}",
            "[green]yes[/]" if row["fits"] else "[red]no[/]",
            f"{row['largest_batch']:,}",
            row["precision"],
            hours_in_words(row["hours"]),
            *([f"{row['cost']:,.2f}"] if has_cost else []),
        )
    if any(row["compiled"] for row in devices):
        table.caption = "steps are compiled on GPUs from Volta on, and plain elsewhere"
        table.caption_justify = "left"
    return table


def plan_lines(content: Mapping[str, Any]) -> list[str]:
    """Operations, time and the verdict in words, with rich's markup for colour."""
    flops, time, verdict = content["flops"], content["time"], content["verdict"]
    source = "measured here" if time["measured"] else "by the device's row and our constants"
    cost = "" if time["cost"] is None else f", cost {time['cost']:,.2f}"
    noted = [escape(content["note"])] if content.get("note") else []
    kind = "compiled" if time["compile_seconds"] else "plain"
    compiling = f", {time['compile_seconds']:.0f} s of it to compile" if time["compile_seconds"] else ""
    lines = [
        *noted,
        f"operations a token: {flops['forward_per_token'] / 1e6:,.2f} MFLOPs forward, "
        f"{flops['backward_per_token'] / 1e6:,.2f} backward; {flops['step'] / 1e12:,.3f} TFLOPs a step",
        f"time: {time['tokens_per_step']:,} tokens a {kind} step in {time['seconds_per_step']:.4g} s, "
        f"{time['tokens_per_second']:,.0f} tokens a second ({source})",
        f"{time['tokens']:,.0f} tokens take {hours_in_words(time['hours'])}{compiling}{cost}",
    ]
    if time["compiled"] and not time["compile_seconds"]:
        lines.append(
            "its steps are compiled, but what that saves there is not known: they are counted as plain"
        )
    if "cluster" in content:
        lines.append(cluster_line(content["cluster"]))
    if verdict["fits"]:
        words = f"[green]yes[/], it trains on {escape(verdict['device'])}"
        among = "of a batch in each process" if "cluster" in content else "a batch"
        return [*lines, f"{words}; at most {verdict['largest_batch']:,} texts {among}"]
    lines.append(f"[red]no[/], it does not fit on {escape(verdict['device'])}")
    return [*lines, *(f"  try {escape(advice)}" for advice in verdict["advice"])]


def cluster_line(cluster: Mapping[str, Any]) -> str:
    """What many processes say to each other, and what it costs."""
    kind = "weights and gradients" if cluster["sharded"] else "gradients"
    ways = [f"links of {cluster['link']:g} GB/s"] if cluster["gpus"] > 1 else []
    ways += [f"a network of {cluster['network']:g} Gbit/s"] if cluster["nodes"] > 1 else []
    return (
        f"{cluster['processes']} processes ({cluster['nodes']} machine{'s' * (cluster['nodes'] > 1)} of "
        f"{cluster['gpus']}): each sends "
        f"{cluster['exchanged_bytes'] / 1e9:.3g} GB of {kind} a step, {cluster['exchange_seconds']:.3g} s over "
        f"{' and '.join(ways)}, of which {cluster['exposed_seconds']:.3g} s are not beside arithmetic; "
        f"{cluster['faster_than_one']:.1f} times as fast as one ({cluster['efficiency']:.0%})"
    )


def hours_in_words(hours: float) -> str:
    """Hours as seconds, minutes, hours or days."""
    seconds = hours * 3600
    for size, word in ((86400 * 2, "days"), (5400, "h"), (90, "min")):
        if seconds >= size:
            unit = {"days": 86400, "h": 3600, "min": 60}[word]
            return f"{seconds / unit:,.1f} {word}"
    return f"{seconds:.1f} s"


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(
        title=escape(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for index, column in enumerate(columns):
        is_text = index == 0 or column in ("formula", "in numbers", "numbers")
        table.add_column(
            column,
            justify="left" if is_text else "right",
            no_wrap=column != "in numbers",
            overflow="ellipsis",
        )
    return table
