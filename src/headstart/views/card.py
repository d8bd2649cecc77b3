"""A base's card: what it is, what it was made of and how, what it scores, and what it is not for."""

from collections.abc import Mapping, Sequence
from typing import Any

NOT_STATED = "Not stated."


def render_card(card: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    parts = [
        f"# {card['name']}",
        card["title"] or NOT_STATED,
        _table(("what", ""), list(card["shape"].items())),
        card["note"],
        "## Scores",
        _scores(card["scores"]),
        "## Fine-tuning it" if card["finetune_defaults"] else "",
        _finetune_defaults(card["name"], card["finetune_defaults"]) if card["finetune_defaults"] else "",
        "## The loss of storing",
        _storing(card["storing"]),
        "## Data and licences",
        _table(
            ("text", "licence", "words"),
            [(row["name"], row["licence"], row["words"]) for row in card["data"]],
        ),
        card["kept_apart"],
        "## How it was made",
        _table(
            ("stage", "kind", "tokens or texts", "steps", "time", "machine", "commit"),
            [tuple(stage.values()) for stage in card["stages"]],
        ),
        card["compute"],
        card["over"],
        f"```toml\n{card['recipe'].strip()}\n```" if card["recipe"] else "",
        "## What it is not for",
        "\n".join(f"- {line}" for line in card["not_for"]) or NOT_STATED,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return NOT_STATED
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(value) for value in line) + " |" for line in lines)


def _cell(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return " ".join(text.replace("|", "\\|").split())


def score_words(row: Mapping[str, Any]) -> str:
    """A score in one line."""
    count = row.get("labels")
    labels = "" if count is None else f", {count:,} labels" if count else ", no labels"
    value, low, high = (_number(row[key]) for key in ("value", "low", "high"))
    return f"{row['task']}{labels}: {row['metric']} {value} ({low} to {high})"


def _labels(count: int | None) -> str:
    return "all" if count is None else f"{count:,}" if count else "none"


def _number(value: float) -> str:
    """Shares to four places, scores of a hundred to one."""
    return f"{value:.4f}" if abs(value) <= 1 else f"{value:.1f}"


def _scores(rows: Sequence[Mapping[str, Any]]) -> str:
    found = [
        (row["task"], _labels(row["labels"]), row["metric"], _number(row["value"]),
         f"{_number(row['low'])} to {_number(row['high'])}", row["seeds"])
        for row in rows
    ]  # fmt: skip
    return _table(("task", "labels", "measure", "score", "95 % interval", "seeds"), found)


def _finetune_defaults(name: str, settings: str) -> str:
    words = f"`headstart finetune {name} DATA` uses these settings where they fit the data, except where you set others:"
    return f"{words}\n\n```toml\n{settings.strip()}\n```"


def _storing(storing: Mapping[str, Any]) -> str:
    error = f"Weights are stored as {storing['form']}; they are off by {storing['weight_error']:.2%} of their size."
    if not storing["before"]:
        return f"{error} No score was measured: {storing['measured_on']}."
    rows = [
        (name, f"{storing['before'][name]:.5f}", f"{storing['after'][name]:.5f}")
        for name in storing["before"]
    ]
    return f"{error} On {storing['measured_on']}:\n\n" + _table(("measure", "before", "as stored"), rows)
