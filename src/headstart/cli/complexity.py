"""headstart complexity."""

import json
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli import options as o


def complexity(
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes only: seconds instead of a minute.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="A folder for complexity.png, complexity.svg and complexity.json."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, mps.")] = "auto",
    as_json: o.Json = False,
) -> None:
    """Measure how self-attention, recurrence and convolution grow with length and width, beside theory."""
    from headstart.workflows.complexity import complexity as run

    content = run(quick=quick, device=device).to_dict()
    if out is not None:
        from headstart.atomic_io import write_json
        from headstart.plots.complexity import draw_growth
        from headstart.plots.style import save_figure

        write_json(out / "complexity.json", content)
        figure = draw_growth(content)
        for name in ("complexity.png", "complexity.svg"):
            save_figure(figure, out / name)
    if as_json:
        from headstart.atomic_io import finite

        print(json.dumps(finite(content), ensure_ascii=False, indent=2))
        return
    from rich.console import Console

    from headstart.reports.tables import complexity_tables, crossing_lines

    console = Console(highlight=False)
    for table in complexity_tables(content):
        console.print(table)
    for line in crossing_lines(content):
        console.print(line, markup=False, soft_wrap=True)
    if out is not None:
        console.print(f"pictures in {out}", markup=False, soft_wrap=True)
