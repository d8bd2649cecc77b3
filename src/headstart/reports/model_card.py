"""Model card of a packaged base, as Markdown."""

from collections.abc import Mapping
from typing import Any

from headstart.reports.render import render


def render_model_card(card: Mapping[str, Any]) -> str:
    """The card as Markdown: model, scores, data, training and limits."""
    before, after = card["storing"]["before"], card["storing"]["after"]
    scores = [
        (
            row["task"],
            _train_size(row["labels"]),
            row["metric"],
            _score(row["value"]),
            _interval(row),
            row["seeds"],
        )
        for row in card["scores"]
    ]
    return render(
        "model_card.md",
        card=card,
        cell=_cell,
        model=list(card["shape"].items()),
        scores=scores,
        storing=card["storing"],
        stored_scores=[(name, f"{before[name]:.5f}", f"{after[name]:.5f}") for name in before],
        data=[(row["name"], row["licence"], row["words"]) for row in card["data"]],
        stages=[tuple(stage.values()) for stage in card["stages"]],
    )


def format_benchmark(row: Mapping[str, Any]) -> str:
    """A score of the card in one line."""
    count = row.get("labels")
    labels = "" if count is None else f", {count:,} labels" if count else ", no labels"
    return f"{row['task']}{labels}: {row['metric']} {_score(row['value'])} ({_interval(row)})"


def _cell(value: Any) -> str:
    """A value in a cell of a Markdown table, on one line."""
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return " ".join(text.replace("|", "\\|").split())


def _train_size(count: int | None) -> str:
    return "all" if count is None else f"{count:,}" if count else "none"


def _interval(row: Mapping[str, Any]) -> str:
    return f"{_score(row['low'])} to {_score(row['high'])}"


def _score(value: float) -> str:
    """Fractions with four decimals, scores up to 100 with one."""
    return f"{value:.4f}" if abs(value) <= 1 else f"{value:.1f}"
