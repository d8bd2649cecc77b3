"""Commands that look inside: plan, complexity, plot attention, plot masks, plot positions, plot heads."""

from pathlib import Path
from typing import Any

from headstart.cli.options import Call, argument, command, flag, out_flag, print_tables
from headstart.config import merge
from headstart.errors import ConfigError

PRESET = "the preset's"
TYPES = "cross|encoder|decoder"
RUN = argument("RUN", "The folder of a finished run, or the name of a shipped base.")
OUT = out_flag("Where to plot; a folder gets PNG, SVG and HTML.", None, "FOLDER|FILE.png|.svg|.html")


@command(
    "plan --preset small --gpu 'RTX 3060' --tokens 100000000",
    "plan --preset lab --classes 2 --json",
    settings="objective.name training.precision optimizer.name",
    config=True,
)
def plan(
    call: Call,
    preset: str = flag("tiny", "Named settings: tiny, small, lab, bert, translate-tiny, …"),
    classes: int | None = flag(None, "Classes to tell apart; implies --objective classify.", min=2),
    vocab: int | None = flag(None, "Size of the vocabulary.", min=2, show_default=PRESET),
    batch: int | None = flag(None, "Texts in a batch.", min=1, show_default=PRESET),
    max_length: int | None = flag(None, "Tokens of each text.", min=2, show_default=PRESET),
    tokens: int | None = flag(None, "Tokens in the text to be read.", min=1),
    epochs: float | None = flag(None, "How often that text is read."),
    gpu: str | None = flag(None, "A device by name, e.g. 'RTX 3060'.", show_default="this machine, and all"),
    gpus: int = flag(1, "Such devices in each machine.", min=1),
    nodes: int = flag(1, "Machines that train together.", min=1),
    network: float = flag(100.0, "Gigabits a second out of each machine.", min=0.001),
    price: float | None = flag(None, "Price of one device for an hour.", min=0),
    calibrate: bool = flag(False, "Time a few real steps on this machine instead."),
) -> None:
    """Estimate what a run needs: parameters, memory, time, and whether it fits on a GPU.

    Needs no data and trains nothing.
    """
    from headstart.planning.summary import plan_to_dict
    from headstart.workflows.plan import plan as run

    settings = call.settings
    if classes is not None and "name" not in settings.get("objective", {}):
        settings = merge(settings, {"objective": {"name": "classify"}})
    found = run(
        preset, gpu=gpu, settings=settings, measure=calibrate, gpus=gpus, nodes=nodes, network=network,
        classes=classes or 2, vocabulary=vocab, batch=batch, length=max_length, tokens=tokens, epochs=epochs,
        price=price,
    )  # fmt: skip
    from headstart.reports.tables import plan_lines, plan_tables

    call.show(plan_to_dict(found), lambda content: print_tables(plan_tables(content), plan_lines(content)))


@command("complexity --quick", "complexity -o plots")
def complexity(
    call: Call,
    quick: bool = flag(False, "Small sizes only: seconds instead of a minute."),
    out: Path | None = out_flag("A folder for complexity.png, complexity.svg and complexity.json.", None),
    device: str = flag("auto", "auto, cpu, cuda, mps."),
) -> None:
    """Measure how self-attention, recurrence and convolution scale with length and width, and compare with theory."""
    from headstart.reports.tables import complexity_tables, crossing_lines
    from headstart.workflows.complexity import complexity as run

    content = run(quick=quick, device=device)
    place = []
    if out is not None:
        from headstart.atomic_io import write_json
        from headstart.plots.complexity import draw_growth
        from headstart.plots.style import save_figure

        write_json(out / "complexity.json", content)
        figure = draw_growth(content)
        for name in ("complexity.png", "complexity.svg"):
            save_figure(figure, out / name)
        place = [f"plots in {out}"]
    call.show(content, lambda _: print_tables(complexity_tables(content), [*crossing_lines(content), *place]))


@command(
    'plot attention en-tiny "The film was not as good as the book." -o plots',
    'plot attention en-tiny "Good." --layer 1 --attention-head 1 --json',
)
def attention(
    call: Call,
    run: str = RUN,
    text: str = argument("TEXT", "The text to read, in quotes."),
    out: Path | None = OUT,
    target: str | None = flag(None, "The translation of TEXT.", metavar="TEXT", show_default="the translator's own"),
    attention_type: str | None = flag(None, "Attention of a translator.", metavar=TYPES, show_default="cross"),
    layer: int | None = flag(None, "Plot this layer alone, counted from 1."),
    attention_head: int | None = flag(None, "Plot this attention head alone, counted from 1."),
) -> None:
    """Plot where each token of TEXT attends, in every layer and attention head.

    For a translator: where the translation of TEXT attends in it.
    """
    _need_target(out, call)
    from headstart.workflows.plot import plot_attention

    maps, files = plot_attention(
        run, text, out, target=target, attention_type=attention_type, layer=layer, attention_head=attention_head
    )

    keys = "" if maps.is_self else f" that attend to {len(maps.keys)}"
    line = f"{len(maps.queries)} tokens{keys}, {maps.layers} layers of {maps.attention_heads} attention heads"
    _show(call, maps.to_dict(layer, attention_head), [line], files)


@command("plot masks -o plots/masks.png", "plot masks --max-length 12 --json")
def masks(call: Call, max_length: int = flag(8, "Tokens of the texts that are drawn."), out: Path | None = OUT) -> None:
    """Plot which token may attend to which: causal, padding, both, packed documents, prefix, cross."""
    _need_target(out, call)
    from headstart.workflows.plot import plot_masks

    found, files = plot_masks(out, length=max_length)

    sources = {True: "as the model applies it", False: "a definition"}
    lines = [f"{mask.name:18} {sources[mask.source == 'model']}" for mask in found]
    _show(call, [mask.to_dict() for mask in found], lines, files)


@command("plot positions -o plots/sinusoids.png --width 64", "plot positions en-tiny -o plots/positions.png")
def positions(
    call: Call,
    run: str | None = argument("[RUN]", "A run whose positions to plot; without one, sinusoids alone.", None),
    width: int | None = flag(None, "Size of a position's vector."),
    max_length: int | None = flag(None, "How many positions."),
    out: Path | None = OUT,
) -> None:
    """Plot position vectors as a heat map, and how alike positions are by their distance."""
    _need_target(out, call)
    from headstart.workflows.plot import plot_positions

    found, files = plot_positions(run, out, width=width, length=max_length)

    lines = []
    for each in found:
        near = ", ".join(f"{n}: {each.cosine[n]:.3f}" for n in (1, 2, 4, 8) if n < len(each.cosine))
        lines.append(f"{each.kind}: {each.vectors.shape[0]} positions, cosine by distance {near}")
    _show(call, [each.to_dict() for each in found], lines, files)


@command(
    "plot heads en-tiny rotten-tomatoes -o plots/heads.png",
    "plot heads runs/mine reviews.tsv --max-texts 50 --json",
    settings="data.text_column data.label_column",
)
def heads(
    call: Call,
    run: str = RUN,
    file: str = argument(
        "FILE", "Texts for a base (.txt, one a line, or a table), labelled data for a classifier, or a built-in name."
    ),
    out: Path | None = OUT,
    max_texts: int = flag(200, "Texts to read at most.", min=2),
) -> None:
    """Measure what each attention head does: entropy, mean distance, and the loss without it."""
    _need_target(out, call)
    from headstart.workflows.plot import plot_attention_heads

    with call.progress() as progress:
        study, files = plot_attention_heads(
            run, file, out, max_texts=max_texts, settings=call.settings, on_event=progress
        )

    lines = [
        f"loss with all attention heads {study.loss:.4f}, over {study.answers:,} answers of {study.texts} texts",
        "layer  attention head  entropy  distance  loss rises by  95 % interval",
    ]
    for row in study.rows():
        lines.append(
            f"{row['layer']:5}  {row['attention_head']:14}  {row['entropy']:7.2f}  {row['distance']:8.1f}  "
            f"{row['ablation']:+13.4f}  {study.range_words(row['layer'] - 1, row['attention_head'] - 1)}"
        )
    _show(call, study.to_dict(), lines, files)


def _need_target(out: Path | None, call: Call) -> None:
    """Refuse to compute what is neither plotted nor printed."""
    if out is None and not call.as_json:
        problem = "there is no file to plot to"
        raise ConfigError(problem, hint="add --out FOLDER or --out FILE.png, or --json for numbers")


def _show(call: Call, content: Any, lines: list[str], files: list[Path]) -> None:
    lines = [*lines, *(f"plotted in {path}" for path in files)]
    call.show(content, lambda _: print("\n".join(lines)), compact=True)
