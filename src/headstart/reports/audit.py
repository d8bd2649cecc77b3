"""A data audit as part of an HTML page; content of an unknown shape is shown as it is."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from headstart.reports.formatting import format_count
from headstart.reports.render import render

MAX_ROWS = 20  # leaks and skipped rows shown one by one
QUANTILES = {"mean": "mean", "p5": "5 %", "p50": "median", "p95": "95 %", "p99": "99 %", "max": "longest"}
COUNTS = {
    "count": "texts",
    "duplicates": "duplicates",
    "conflicts": "conflicting labels",
    "copies": "same on both sides",
    "several": "several translations",
    "in_train": "also in train",
    "near_in_train": "near-duplicates in train",
    "truncated": "truncated",
    "unknown": "unknown tokens",
}
KNOWN = {"name", "pair", "splits", "leaks", "near", "skipped", "skips", "notes", "warnings", "limit"}

Splits = Mapping[str, Mapping[str, Any]]


def render_audit(audit: Mapping[str, Any]) -> Markup:
    """The audit's splits, balance, lengths, leaks and warnings, or nothing for an empty audit."""
    if not audit:
        return Markup("")
    other = {key: value for key, value in audit.items() if key not in KNOWN}
    splits, rows = audit.get("splits") or {}, {}
    if isinstance(splits, Mapping) and all(isinstance(split, Mapping) for split in splits.values()):
        rows = _with_sides(splits)
    else:
        other["splits"], splits = splits, {}
    counts = [name for name in COUNTS if any(split.get(name) is not None for split in rows.values())]
    html = render(
        "audit.html",
        warnings=audit.get("warnings") or [],
        count_columns=["split", *(COUNTS[name] for name in counts)],
        counts=[
            [split, *(format_count(row.get(name), name) for name in counts)] for split, row in rows.items()
        ],
        class_columns=["class", *splits],
        classes=_class_balance(splits),
        length_columns=["split", *QUANTILES.values()],
        lengths=_lengths(rows),
        limit=audit.get("limit"),
        leaks={
            "exact duplicates across splits": _leaks(audit.get("leaks")),
            "near-duplicates across splits": _leaks(audit.get("near")),
        },
        skips=[_skip(skip) for skip in audit.get("skips") or []],
        notes=audit.get("notes") or [],
        max_rows=MAX_ROWS,
        values={key: value for key, value in other.items() if not isinstance(value, Mapping | list | tuple)},
        nested={key: value for key, value in other.items() if isinstance(value, Mapping | list | tuple)},
    )
    return Markup(html.strip())


def _with_sides(splits: Splits) -> dict[str, Mapping[str, Any]]:
    """The splits, those of parallel text followed by each of their languages."""
    rows: dict[str, Mapping[str, Any]] = {}
    for name, split in splits.items():
        rows[name] = split
        rows |= {f"{name}, {language}": side for language, side in (split.get("sides") or {}).items()}
    return rows


def _class_balance(splits: Splits) -> list[tuple[str, list[tuple[int, float]]]]:
    """For each class its count and fraction in every split."""
    counts = [split.get("classes") or {} for split in splits.values()]
    totals = [max(sum(split.values()), 1) for split in counts]
    labels = list(dict.fromkeys(label for split in counts for label in split))
    return [
        (
            str(label),
            [
                (split.get(label, 0), split.get(label, 0) / total)
                for split, total in zip(counts, totals, strict=True)
            ],
        )
        for label in labels
    ]


def _lengths(rows: Splits) -> list[list[str]]:
    return [
        [f"{name}, {unit}", *(format_count(float(row[unit].get(key, 0))) for key in QUANTILES)]
        for name, row in rows.items()
        for unit in ("words", "characters", "tokens")
        if isinstance(row.get(unit), Mapping)
    ]


def _leaks(leaks: Sequence[Any] | None) -> list[tuple[str, str]]:
    """The text of each leak, and the rows that hold it."""
    rows = []
    for leak in leaks or []:
        fields = leak if isinstance(leak, Mapping) else {"excerpt": leak}
        origins = fields.get("origins", {}).items()
        side = f"{fields['side']}: " if "side" in fields else ""
        where = "; ".join(f"{split}: {', '.join(map(str, names))}" for split, names in origins)
        rows.append((f"{side}{fields.get('excerpt', leak)}", where))
    return rows


def _skip(skip: Any) -> str:
    return ", ".join(map(str, skip.values())) if isinstance(skip, Mapping) else str(skip)
