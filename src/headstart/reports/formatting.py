"""Numbers as text, and the templates of pages and terminal output.

Templates named *.html escape every value. CSS and JavaScript are inlined, so that each page is one file.
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from statistics import median
from typing import TYPE_CHECKING, Any

from headstart.atomic_io import finite
from headstart.results import Interval

if TYPE_CHECKING:
    from jinja2 import Environment

UNKNOWN = "–"


def format_score(value: float, digits: int = 3) -> str:
    """An accuracy or another fraction, or a dash when it is unknown."""
    return UNKNOWN if math.isnan(value) else f"{value:.{digits}f}"


def format_points(value: float) -> str:
    """A difference of accuracies in percentage points, always with its sign."""
    rounded = round(100 * value, 1) + 0.0  # + 0.0 removes the sign of -0.0
    return f"{'−' if rounded < 0 else '+'}{abs(rounded):.1f}"


def format_p_value(p_value: float) -> str:
    """A p-value as "p = 0.012" or "p < 0.001"."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def format_interval(interval: Interval, digits: int = 3) -> str:
    """The 95 % interval as "[low, high]", or nothing when it is unknown."""
    if math.isnan(interval.low) or math.isnan(interval.high):
        return ""
    return f"[{format_score(interval.low, digits)}, {format_score(interval.high, digits)}]"


def format_points_interval(interval: Interval) -> str:
    """The 95 % interval of a difference, in percentage points."""
    return f"{format_points(interval.low)} to {format_points(interval.high)}"


def format_duration(seconds: float) -> str:
    """A duration as 12 ms, 0.4 s, 12 s, 3 min 20 s, 2 h 5 min or 3.5 days."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.2g} ms" if seconds else "0 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 2 * 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{seconds / 86400:,.1f} days"


def format_count(value: float | None, name: str = "") -> str:
    """A count of an audit with thousands separators, a fraction in per cent, or a dash."""
    if value is None:
        return UNKNOWN
    if name in ("truncated", "unknown"):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}"


def format_value(value: Any) -> str:
    """A metric, a setting or a fact: floats with four decimals, the items of lists and dicts on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def format_markdown_cell(value: Any) -> str:
    """A value in a cell of a Markdown table, on one line."""
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return " ".join(text.replace("|", "\\|").split())


def format_benchmark(row: Mapping[str, Any]) -> str:
    """A published score of a base in one line."""
    count = row.get("labels")
    labels = "" if count is None else f", {count:,} labels" if count else ", no labels"
    low, high = format_benchmark_score(row["low"]), format_benchmark_score(row["high"])
    return f"{row['task']}{labels}: {row['metric']} {format_benchmark_score(row['value'])} ({low} to {high})"


def format_benchmark_score(value: float) -> str:
    """A fraction with four decimals, or a score up to 100 with one."""
    return f"{value:.4f}" if abs(value) <= 1 else f"{value:.1f}"


def format_epochs_to_target(epochs: Sequence[float | None]) -> str:
    """The first epoch at the target accuracy: the median when every seed reaches it, else how many seeds do."""
    reached = sorted(epoch for epoch in epochs if epoch is not None)
    if not epochs:
        return UNKNOWN
    if not reached:
        return "never"
    if len(reached) < len(epochs):
        return f"{len(reached)} of {len(epochs)}"
    return f"{median(reached):g}"


def render(template: str, **context: Any) -> str:
    """The template filled in with `context`."""
    return _environment().get_template(template).render(context)


@cache
def _environment() -> "Environment":
    """The templates of this package, with every `format_*` function as a filter."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
    from markupsafe import Markup
    from rich.markup import escape

    env = Environment(
        loader=PackageLoader("headstart.reports"),
        autoescape=select_autoescape(("html",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters = {name.removeprefix("format_"): each for name, each in globals().items() if name.startswith("format_")}
    env.filters |= {**filters, "indented_json": indented_json, "markup": escape}
    env.filters["script_json"] = lambda value: Markup(script_json(value))
    env.globals["static"] = lambda name: Markup(static_file(name))
    return env


def static_file(name: str) -> str:
    """The text of a stylesheet or script of this package."""
    return resources.files("headstart.reports").joinpath("static", name).read_text("utf-8")


def script_json(value: object) -> str:
    """JSON inside a <script> element: no text in it can end the element."""
    text = json.dumps(value, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def indented_json(value: object) -> str:
    """JSON for readers, with null instead of NaN."""
    return json.dumps(finite(value), ensure_ascii=False, indent=2, default=str)
