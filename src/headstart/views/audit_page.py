"""What an audit found, as part of a page; an unknown shape is still shown, as it is."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from headstart.views.page import bullets, details, pairs, table

SHOWN = 20  # leaks and skipped rows named one by one
SPREAD = ("mean", "p5", "p50", "p95", "p99", "max")
COUNTS = {
    "count": "texts",
    "duplicates": "repeats",
    "conflicts": "two labels",
    "copies": "same on both sides",
    "several": "several translations",
    "in_train": "also in train",
    "near_in_train": "nearly in train",
    "truncated": "cut short",
    "unknown": "unknown tokens",
}
KNOWN = {"name", "pair", "splits", "leaks", "near", "skipped", "skips", "notes", "warnings", "limit"}


def audit_html(audit: Mapping[str, Any]) -> str:
    """The audit's splits, balance, lengths, leaks and warnings as HTML, or nothing for an empty audit."""
    if not audit:
        return ""
    splits = audit.get("splits")
    parts = [_alerts(audit.get("warnings"))]
    if (
        isinstance(splits, Mapping)
        and splits
        and all(isinstance(split, Mapping) for split in splits.values())
    ):
        rows = _with_sides(splits)
        parts += [_counts(rows), _balance(splits), _lengths(rows, audit.get("limit"))]
    elif splits is not None:
        parts.append(_as_it_is({"splits": splits}))
    parts += [_leaks("the same text in two splits", audit.get("leaks"))]
    parts += [_leaks("nearly the same text in two splits", audit.get("near")), _skips(audit.get("skips"))]
    parts.append(bullets([str(note) for note in audit.get("notes") or []]))
    other = {key: value for key, value in audit.items() if key not in KNOWN}
    parts.append(_as_it_is(other) if other else "")
    return "\n".join(part for part in parts if part)


def number(value: Any, name: str = "") -> str:
    """A count with thousands marked, a share in per cent, or a dash."""
    if value is None:
        return "–"
    if name in ("truncated", "unknown"):
        return f"{value:.1%}"
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )


def _alerts(warnings: Any) -> str:
    return f'<div class="worse">{bullets([str(line) for line in warnings])}</div>' if warnings else ""


def _counts(splits: Mapping[str, Mapping[str, Any]]) -> str:
    names = [name for name in COUNTS if any(split.get(name) is not None for split in splits.values())]
    rows = [[escape(s), *(escape(number(part.get(n), n)) for n in names)] for s, part in splits.items()]
    return table(["split", *(COUNTS[name] for name in names)], rows)


def _with_sides(splits: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The splits, those of parallel text followed by each of their languages."""
    rows: dict[str, Mapping[str, Any]] = {}
    for name, part in splits.items():
        rows[name] = part
        rows |= {f"{name}, {language}": side for language, side in (part.get("sides") or {}).items()}
    return rows


def _balance(splits: Mapping[str, Mapping[str, Any]]) -> str:
    classes = {label: None for part in splits.values() for label in part.get("classes") or {}}
    if not classes:
        return ""
    rows = []
    for label in classes:
        counts = [(part.get("classes") or {}).get(label, 0) for part in splits.values()]
        totals = [max(sum((part.get("classes") or {}).values()), 1) for part in splits.values()]
        cells = [
            f"{count:,} <small>{count / total:.0%}</small>"
            for count, total in zip(counts, totals, strict=True)
        ]
        rows.append([escape(str(label)), *cells])
    shown = table(["class", *splits], rows)
    return (
        f"<h3>Balance</h3>{shown if len(classes) <= SHOWN else details(f'{len(classes):,} classes', shown)}"
    )


def _lengths(splits: Mapping[str, Mapping[str, Any]], limit: Any) -> str:
    rows = [
        [f"{escape(name)}, {unit}", *(number(float(part[unit].get(key, 0))) for key in SPREAD)]
        for name, part in splits.items()
        for unit in ("words", "characters", "tokens")
        if isinstance(part.get(unit), Mapping)
    ]
    words = f"The model reads {limit:,} tokens of a text at most." if isinstance(limit, int) else ""
    head = ["split", "mean", "5 %", "median", "95 %", "99 %", "longest"]
    return f"<h3>Lengths</h3>{table(head, rows, caption=words)}" if rows else ""


def _leaks(title: str, leaks: Any) -> str:
    if not leaks:
        return ""
    rows = []
    for leak in leaks[:SHOWN]:
        origins = leak.get("origins", {}) if isinstance(leak, Mapping) else {}
        where = "; ".join(f"{split}: {', '.join(map(str, rows_of))}" for split, rows_of in origins.items())
        excerpt = leak.get("excerpt", leak) if isinstance(leak, Mapping) else leak
        side = f"{leak['side']}: " if isinstance(leak, Mapping) and "side" in leak else ""
        rows.append([escape(f"{side}{excerpt}"), escape(where)])
    more = f"<p>and {len(leaks) - SHOWN:,} more</p>" if len(leaks) > SHOWN else ""
    return details(f"{escape(title)}: {len(leaks):,}", table(["text", "where"], rows, words=[1]) + more)


def _skips(skips: Any) -> str:
    if not skips:
        return ""
    lines = [", ".join(map(str, skip.values())) if isinstance(skip, Mapping) else str(skip) for skip in skips]
    more = [f"and {len(lines) - SHOWN:,} more"] if len(lines) > SHOWN else []
    return details(f"rows skipped: {len(lines):,}", bullets(lines[:SHOWN] + more))


def _as_it_is(content: Mapping[str, Any]) -> str:
    """A shape that is not known here: short values as pairs, the rest as JSON."""
    short = {key: value for key, value in content.items() if not isinstance(value, Mapping | list | tuple)}
    rest = {key: value for key, value in content.items() if key not in short}
    text = json.dumps(rest, ensure_ascii=False, indent=2, default=str)
    return (pairs(short) if short else "") + (details("more", f"<pre>{escape(text)}</pre>") if rest else "")
