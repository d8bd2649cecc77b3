"""Style that all figures share, and how a figure becomes a file or inline SVG."""

import io
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from markupsafe import Markup
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


def inline_svg(figure: Figure, prefix: str, label: str) -> Markup:
    """A figure as SVG inside a page: unique ids, a label for screen readers, colours that the page may set.

    Colours become CSS variables (`--ink`, `--faint`, `--paper`, `--arm-0` ...) with the colour itself as fallback.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", svg)
    names = {INK: "ink", FAINT: "faint", PAPER: "paper"} | {c: f"arm-{i}" for i, c in enumerate(PALETTE)}
    for colour, name in names.items():
        svg = re.sub(rf"(:\s*){colour}\b", rf"\1var(--{name}, {colour})", svg)
    opening = f'<svg role="img" aria-label="{escape(label)}" viewBox='
    svg = re.sub(r"<svg [^>]*?viewBox=", lambda _: opening, svg, count=1)
    return Markup(re.sub(r'(viewBox="[^"]*")[^>]*>', r"\1>", svg, count=1).strip())
