"""Pages that show one figure: attention masks, position embeddings, head ablation."""

from collections.abc import Sequence

from markupsafe import Markup
from matplotlib.figure import Figure

from headstart.evaluation.head_ablation import HeadAblation
from headstart.plots.masks import Mask
from headstart.plots.style import inline_svg
from headstart.reports.render import render


def svg_markup(figure: Figure, prefix: str, label: str) -> Markup:
    """A figure as SVG that a template does not escape."""
    return Markup(inline_svg(figure, prefix, label))


def render_masks(masks: Sequence[Mask], figure: Figure) -> str:
    """The attention masks with their descriptions."""
    return _render("Attention masks", figure, lines=[f"{mask.name}: {mask.description}" for mask in masks])


def render_positions(figure: Figure) -> str:
    """Position embeddings."""
    return _render("Position embeddings", figure)


def render_head_ablation(study: HeadAblation, figure: Figure) -> str:
    """The head ablation with its numbers as a table."""
    return _render("Attention heads: entropy, distance and ablation", figure, study=study)


def _render(
    title: str, figure: Figure, *, lines: Sequence[str] = (), study: HeadAblation | None = None
) -> str:
    svg = svg_markup(figure, "figure", title)
    return render("figure.html", title=title, svg=svg, lines=lines, study=study)
