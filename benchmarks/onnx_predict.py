"""Does ONNX predict faster than torch? One classifier, three engines, the same texts.

    python benchmarks/onnx_predict.py                           # tiny: a few minutes on two cores
    python benchmarks/onnx_predict.py --preset small --texts 500

Fine-tunes a classifier for a few steps, exports it in 32 and in 8 bits, and lets each predict the valid reviews of a
built-in dataset. Each engine reads all texts once to warm up; the time is the fastest of `--repeats` readings after
that, which other work on the machine disturbs least. Writes benchmarks/results/onnx-predict.md.
"""

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from headstart.atomic_io import write_text
from headstart.config import TrainingConfig
from headstart.data.datasets import load_dataset
from headstart.inference.classify import predict
from headstart.inference.loaded_model import load_model
from headstart.results import Provenance
from headstart.training.runtime import start_runtime
from headstart.workflows.convert import export
from headstart.workflows.finetune import finetune
from headstart.workflows.run_dir import collect_provenance

RESULTS = Path(__file__).parent / "results" / "onnx-predict.md"


@dataclass(frozen=True)
class Engine:
    """One engine's time and answers."""

    name: str
    loading: float  # seconds
    seconds: float  # of predicting, once loaded
    spread: float  # slowest reading minus fastest
    labels: list[str]
    megabytes: float


def measure(name: str, folder: Path, engine: str, texts: Path, repeats: int, weights: Path) -> Engine:
    """Predict all texts, once to warm up and `repeats` times by the clock."""
    loading, taken, labels = [], [], []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        answers = predict(str(folder), str(texts), engine=engine)
        loaded = time.perf_counter()
        labels = [label for label, _, _ in answers]
        loading.append(loaded - start)
        taken.append(time.perf_counter() - loaded)
    loading, taken = loading[1:], taken[1:]
    size = sum(file.stat().st_size for file in weights.parent.glob(f"{weights.name}*")) / 2**20
    return Engine(name, min(loading), min(taken), max(taken) - min(taken), labels, size)


def report(
    engines: list[Engine], truth: list[str], words: argparse.Namespace, parameters: int, provenance: Provenance
) -> str:
    """The measurement as a page of Markdown."""
    first, count = engines[0], len(truth)
    rows = []
    for engine in engines:
        right = sum(found == label for found, label in zip(engine.labels, truth, strict=True)) / count
        same = sum(found == label for found, label in zip(engine.labels, first.labels, strict=True)) / count
        rows.append(
            f"| {engine.name} | {engine.loading:.2f} | {engine.seconds:.2f} ({engine.spread:.2f}) | {count / engine.seconds:,.0f} | "
            f"{first.seconds / engine.seconds:.2f} | {right:.4f} | {same:.4f} | {engine.megabytes:.1f} |"
        )
    return "\n".join(
        [
            "# Predicting with torch and with ONNX",
            "",
            f"The preset `{words.preset}` ({parameters:,} weights) after {words.steps} steps on `{words.data}`, on {count:,} "
            f"of its validation texts, {words.length} tokens at most. Seconds are the fastest of {words.repeats} readings "
            "(slowest minus fastest), with splitting the texts into tokens, which all engines share.",
            "",
            "| engine | loading, s | predicting, s | texts a second | times torch | accuracy | as torch | MiB |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            f"`{provenance.command}`, commit {provenance.commit or 'unknown'}, {provenance.machine}, {os.cpu_count()} CPUs, {provenance.started}.",
            "",
        ]
    )


def main() -> None:
    """Train, export, predict, write the result and print it."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--data", default="rotten-tomatoes")
    words.add_argument("--preset", default="tiny")
    words.add_argument("--steps", type=int, default=200)
    words.add_argument("--length", type=int, default=128)
    words.add_argument("--texts", type=int, default=1000)
    words.add_argument("--repeats", type=int, default=7)
    words.add_argument("--out", type=Path, default=RESULTS)
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        settings = {"training": {"max_steps": given.steps, "max_length": given.length, "eval_steps": given.steps}}
        done = finetune("scratch", given.data, folder / "run", preset=given.preset, settings=settings)
        config = load_model(str(folder / "run")).info.config
        examples = load_dataset(given.data, config.data).splits["valid"][: given.texts]
        texts = folder / "texts.txt"
        texts.write_text("".join(" ".join(example.text.split()) + "\n" for example in examples), "utf-8")
        export(str(folder / "run"), "onnx", folder / "float")
        export(str(folder / "run"), "onnx", folder / "int8", int8=True)
        rows = [
            ("torch", folder / "run", "torch", folder / "run" / "model.safetensors"),
            ("onnx", folder / "float", "onnx", folder / "float" / "model.onnx"),
            ("onnx, 8 bits", folder / "int8", "onnx", folder / "int8" / "model.onnx"),
        ]
        engines = []
        for name, run, engine, weights in rows:
            engines.append(measure(name, run, engine, texts, given.repeats, weights))
            print(f"{name}: {engines[-1].seconds:.2f} s", flush=True)
    truth = [str(example.label) for example in examples]
    provenance = collect_provenance(start_runtime(TrainingConfig()), [0])
    text = report(engines, truth, given, done.parameters, provenance)
    write_text(given.out, text)
    print(text)


if __name__ == "__main__":
    main()
