"""How time and memory grow with length, batch, depth, width, vocabulary and corpus, against the plan's formulas.

    python benchmarks/speed_cpu_growth.py [--seconds S] [--only DIMENSION]

Real training steps of a `tiny` masked language model on random tokens, one size changed at a time, each point in a fresh
process (as plan_accuracy.py measures them); and a made-up corpus of several sizes, prepared and then trained on. Writes
speed-cpu-growth.{md,json,png}.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import Sheet, number, options
from plan_accuracy import Setting, run

MIB = 2**20
AROUND = {"batch": 16, "length": 128}


def body(**changes: Any) -> dict[str, Any]:
    """The settings of a body with some sizes changed."""
    return {"model": changes, "optimizer": {"name": "adamw"}}


DIMENSIONS: dict[str, tuple[list[int], Callable[[int], Setting]]] = {
    "length": ([64, 128, 256, 512], lambda n: Setting(f"length {n}", "pretrain", "tiny", 16, n, body())),
    "batch": ([8, 16, 32, 64], lambda n: Setting(f"batch {n}", "pretrain", "tiny", n, 128, body())),
    "layers": ([1, 2, 4, 8], lambda n: Setting(f"layers {n}", "pretrain", "tiny", 16, 128, body(layers=n))),
    "width": (
        [64, 128, 256, 512],
        lambda n: Setting(f"width {n}", "pretrain", "tiny", 16, 128, body(width=n, feed_forward=3 * n)),
    ),
    "vocabulary": (
        [4000, 8000, 16000, 64000],
        lambda n: Setting(f"vocabulary {n}", "pretrain", "tiny", 16, 128, {**body(), "tokenizer": {"vocab_size": n}}),
    ),
}
CORPUS = [4, 8, 16, 32]  # megabytes


def corpus_child(megabytes: int) -> None:
    """Prepare a made-up corpus of this size, train on it for a moment, and tell seconds and peaks."""
    import numpy as np

    from headstart.config import DataConfig, TokenizerConfig, resolve
    from headstart.data.documents import open_documents
    from headstart.data.token_cache import prepare
    from headstart.data.tokenizer_training import train_tokenizer
    from headstart.models.model import build_model
    from headstart.objectives import make_objective
    from headstart.training.runtime import peak_memory, start_runtime
    from headstart.training.trainer import Trainer
    from headstart.workflows.pretrain import PretrainJob

    chance = np.random.default_rng(0)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    words = np.array(["".join(chance.choice(letters, chance.integers(2, 10))) for _ in range(20_000)])
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "text.txt"
        with open(path, "w", encoding="utf-8") as handle:
            while handle.tell() < megabytes * 10**6:
                spots = (len(words) * chance.random((1000, 40)) ** 3).astype(int)  # few words are frequent
                handle.writelines(" ".join(line) + "\n" for line in words[spots])
        documents = open_documents(str(path), DataConfig(document_separator="line"))
        texts = (text for text, _ in zip(documents, range(10_000), strict=False))
        tokenizer = train_tokenizer(texts, TokenizerConfig(vocab_size=8000))
        start = time.process_time()
        corpus = prepare(documents, tokenizer, Path(place) / "cache")
        prepared = time.process_time() - start
        peak = peak_memory()
        config = resolve("pretrain", "tiny", {"training": {"max_steps": 10**6, "save_minutes": None}})
        objective = make_objective(config.objective)
        config = config.with_({"model": objective.resolve_backbone(config.model).model_dump()})
        model = build_model(config.model, tokenizer.size, objective.heads(config.model, tokenizer.size, 0))
        runtime = start_runtime(config.training)
        loader = PretrainJob(config, runtime).make_loader(corpus.train, tokenizer)
        trainer = Trainer(model, objective, loader, tokenizer, config, runtime)
        for _, parts in zip(range(8), trainer.batches(), strict=False):
            trainer.step(parts)
    print(json.dumps({"seconds": prepared, "bytes": peak, "training bytes": peak_memory()}))


def corpora() -> list[dict[str, float]]:
    """What each size of corpus takes, in fresh processes."""
    found = []
    for megabytes in CORPUS:
        command = [sys.executable, __file__, "--child", str(megabytes)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
        if done.returncode:
            raise SystemExit(f"the corpus of {megabytes} MB failed:\n{done.stderr[-2000:]}")
        found.append({"size": megabytes, **json.loads(done.stdout.strip().splitlines()[-1])})
        print("corpus", found[-1], flush=True)
    return found


def power(sizes: list[float], values: list[float]) -> float:
    """The power of the size with which a value grows between the two largest sizes."""
    return math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2])


def short(size: int) -> str:
    """A size that fits under a tick."""
    return f"{size // 1000}k" if size >= 1000 else str(size)


def draw(found: dict[str, list[dict[str, Any]]], grown: list[dict[str, float]], path: Path) -> None:
    """Measured points over the plan's lines, time above and memory below."""
    import matplotlib
    from matplotlib.figure import Figure

    from headstart.plots.style import FAINT, PALETTE, STYLE

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(2.7 * (len(found) + 1), 6.2), layout="constrained")
        rows = (("milliseconds a step", "seconds", 1e3), ("MiB at the peak", "bytes", 1 / MIB))
        for row, (label, key, scale) in enumerate(rows):
            for column, (name, points) in enumerate(found.items()):
                axes = figure.add_subplot(2, len(found) + 1, row * (len(found) + 1) + column + 1)
                sizes = DIMENSIONS[name][0][: len(points)]
                axes.plot(sizes, [point[f"predicted_{key}"] * scale for point in points], color=FAINT, label="plan")
                measured = [point[f"measured_{key}"] * scale for point in points]
                axes.plot(sizes, measured, "o", color=PALETTE[0], label="measured")
                axes.set(xscale="log", yscale="log", xlabel=name, title=label)
                axes.set_xticks(sizes, [short(size) for size in sizes])
                axes.set_yticks(measured, [f"{value:.0f}" for value in measured])
                axes.minorticks_off()
                if row == column == 0:
                    axes.legend(frameon=False)
            axes = figure.add_subplot(2, len(found) + 1, (row + 1) * (len(found) + 1))
            sizes = [point["size"] for point in grown]
            axes.plot(sizes, [point[key] * (scale if row else 1) for point in grown], "o", color=PALETTE[0])
            if row:
                axes.plot(
                    sizes, [point["training bytes"] * scale for point in grown], "s", color=PALETTE[1], label="training"
                )
                axes.legend(frameon=False, loc="lower right")
                axes.set_ylim(bottom=0)
            else:
                rate = grown[0]["seconds"] / grown[0]["size"]
                axes.plot(sizes, [rate * size for size in sizes], color=FAINT)
            axes.set(xlabel="MB of corpus", title="MiB at the peak" if row else "seconds to prepare")
        figure.savefig(path, dpi=110)


def main() -> None:
    """Measure and write."""
    began = time.monotonic()
    words: argparse.Namespace = options(__doc__, seconds=0.8, only="", child=0)
    if words.child:
        corpus_child(words.child)
        return
    sheet = Sheet("speed-cpu-growth", "How time and memory grow on a CPU", WHAT)
    found: dict[str, list[dict[str, Any]]] = {}
    for name, (sizes, setting) in DIMENSIONS.items():
        if words.only and words.only != name:
            continue
        points = [run(setting(size), words.seconds, {}) for size in sizes]
        found[name] = [point for point in points if point]
        lines = []
        for size, point in zip(sizes, points, strict=True):
            lines.append(
                [f"{size:,}", number(1e3 * point["measured_seconds"]), number(1e3 * point["predicted_seconds"]),
                 number(point["measured_bytes"] / MIB), number(point["predicted_bytes"] / MIB)]
            )  # fmt: skip
        powers = [
            f"{power(sizes, [point[key] for point in points]):.2f}"
            for key in ("measured_seconds", "predicted_seconds", "measured_bytes", "predicted_bytes")
        ]
        lines.append(["power between the last two", *powers])
        sheet.tables.append((name, [name, "ms a step", "planned", "MiB", "planned"], lines))
        print(name, lines, flush=True)
    grown = corpora()
    lines = [
        [f"{point['size']:,}", f"{point['seconds']:.1f}", number(point["size"] / point["seconds"]),
         number(point["bytes"] / MIB), number(point["training bytes"] / MIB)] for point in grown
    ]  # fmt: skip
    head = ["MB of text", "seconds to prepare", "MB a second", "MiB preparing", "MiB training on it"]
    sheet.tables.append(("corpus", head, lines))
    sheet.rows = {"dimensions": found, "corpus": grown}
    words.out.mkdir(parents=True, exist_ok=True)
    draw(found, grown, words.out / f"{sheet.name}.png")
    sheet.notes.append(f"![Measured points over the plan's lines]({sheet.name}.png)")
    sheet.write(words.out, began)


WHAT = """Training steps of a `tiny` masked language model (2 layers, width 128, 8,000 tokens, AdamW) on 16 rows of 128 random tokens, one size
changed at a time, each in a fresh process: the median step, and the process's peak. Beside them what `headstart plan` says of the same step from its
formulas and this machine's rates. A power of 1 is growth in proportion; fixed costs make it less. The corpus is made up; its seconds are the processor's, of
reading, hashing, splitting and writing shards."""


if __name__ == "__main__":
    main()
