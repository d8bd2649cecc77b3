"""Style that all figures share, and how a figure becomes a file."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from headstart.atomic_io import write_with

INK, FAINT, PAPER = "#1f2430", "#8a93a3", "#ffffff"
# Okabe and Ito (2008): safe for colour-blind readers; each kind of arm always has the same colour.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#6b7280", "#cc79a7", "#56b4e9", "#b58900", "#7a5195")
BY_KIND = {"fine-tuned": 0, "scratch": 1, "frozen": 2, "classical": 3, "ensemble": 4}

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial", "sans-serif"],
    "font.size": 11,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name is not a formula
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "headstart",
    "savefig.transparent": False,
}


def arm_colours(arms: Iterable[tuple[str, str]]) -> dict[str, str]:
    """A colour for each arm of (name, kind), the same in every figure of one comparison."""
    kinds = dict(arms)
    # Colours of absent kinds come first: they differ more from each other than the rest of the palette.
    absent = [PALETTE[index] for kind, index in BY_KIND.items() if kind not in kinds.values()]
    colours: dict[str, str] = {}
    for name, kind in kinds.items():
        own = PALETTE[BY_KIND.get(kind, 0)]
        unused = [colour for colour in (*absent, *PALETTE[len(BY_KIND) :]) if colour not in colours.values()]
        colours[name] = own if own not in colours.values() else next(iter(unused), own)
    return colours


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG or SVG, by the suffix of `path`; the bytes are the same each time."""
    kind = path.suffix.lower().removeprefix(".") or "png"
    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
    with matplotlib.rc_context(STYLE):
        write_with(path, lambda beside: figure.savefig(beside, format=kind, dpi=160, metadata=metadata))


def truncate(text: str, limit: int) -> str:
    """A text of at most `limit` characters, with an ellipsis where it is cut."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
