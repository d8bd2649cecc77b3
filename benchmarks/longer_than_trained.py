"""Do positions carry further than they were trained? Perplexity at 1, 2 and 4 times the trained length.

Pretrains a tiny causal body on the embedded IMDB train reviews with each kind of positions, then evaluates it on valid
reviews in blocks of 1, 2 and 4 times the trained length. Writes benchmarks/results/longer-than-trained.{md,json,png}.
    python benchmarks/longer_than_trained.py [--steps N] [--seeds N]
"""

import argparse
import json
import math
import tempfile
from pathlib import Path

import headstart as hs

RESULTS = Path(__file__).parent / "results"
KINDS = ("sinusoidal", "learned", "rotary", "none")
TRAINED = 64
TIMES = (1, 2, 4)


def perplexities(base: Path) -> list[float]:
    """Perplexity on valid reviews at each multiple of the trained length; every block is read from its first token."""
    import numpy as np

    from headstart.data.corpus_loaders import BlockLoader
    from headstart.training.runtime import start_runtime
    from headstart.training.trainer import loss_sums

    trained = hs.load_model(str(base))
    dataset = hs.load_dataset("imdb", trained.info.config.data)
    encoded = trained.tokenizer.encode(dataset.texts("valid")[:600])
    tokens = np.concatenate([trained.tokenizer.add_special_tokens(ids, 10**6) for ids in encoded])

    class Stream:
        def __len__(self) -> int:
            return len(tokens)

        def slice(self, start: int, stop: int) -> np.ndarray:
            return tokens[start:stop]

    runtime = start_runtime(trained.info.config.training)
    model = trained.model().to(runtime.device)
    found = []
    for times in TIMES:
        loader = BlockLoader(Stream(), TRAINED * times, 8192, 0, lookahead=1, shuffled=False)
        total, count, _ = loss_sums(model, trained.objective, loader, trained.tokenizer, runtime)["lm"]
        found.append(math.exp(total / count))
    return found


def measure(steps: int, seeds: int) -> dict[str, list[list[float]]]:
    """Perplexities by kind of positions, seed and length."""
    found: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for seed in range(seeds):
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as folder:
                settings = {
                    "objective": {"name": "causal-lm"},
                    "model": {"position_embedding": kind, "max_position_embeddings": TRAINED * TIMES[-1]},
                    "training": {"max_length": TRAINED, "max_steps": steps, "seed": seed},
                }
                hs.pretrain(["imdb"], Path(folder) / "base", preset="tiny", settings=settings)
                found[kind].append(perplexities(Path(folder) / "base"))
            print(kind, seed, [round(value, 1) for value in found[kind][-1]], flush=True)
    return found


def write(found: dict[str, list[list[float]]], steps: int, seeds: int) -> None:
    """The table, the numbers and the picture."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    from headstart.workflows.run_dir import commit

    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.add_subplot()
    rows = []
    for kind, runs in found.items():
        means = [sum(run[place] for run in runs) / len(runs) for place in range(len(TIMES))]
        axes.plot([TRAINED * times for times in TIMES], means, marker="o", label=kind)
        each = " | ".join(
            f"{mean:.1f} ({', '.join(f'{run[place]:.1f}' for run in runs)})" for place, mean in enumerate(means)
        )
        rows.append(f"| {kind} | {each} | {means[-1] / means[0]:.2f} |")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([TRAINED * times for times in TIMES], [f"{times}×" for times in TIMES])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"length read, in trained lengths of {TRAINED} tokens")
    axes.set_ylabel("perplexity on held-out reviews")
    axes.legend(frameon=False)
    figure.savefig(RESULTS / "longer-than-trained.png", dpi=150)
    heading = " | ".join(f"{times}× ({TRAINED * times} tokens)" for times in TIMES)
    text = f"""# Longer than trained

| | |
|---|---|
| command | `python benchmarks/longer_than_trained.py --steps {steps} --seeds {seeds}` |
| commit | {commit()} |
| data | embedded IMDB: trained on the train split, evaluated on 600 valid reviews |
| seeds | {", ".join(str(seed) for seed in range(seeds))} |

A `tiny` causal body trained on blocks of {TRAINED} tokens for {steps} steps, then read in longer blocks: perplexity, mean
over seeds and each seed.

| positions | {heading} | 4× over 1× |
|---|{"---|" * (len(TIMES) + 1)}
{chr(10).join(rows)}

![Perplexity by length](longer-than-trained.png)
"""
    (RESULTS / "longer-than-trained.md").write_text(text, "utf-8")
    (RESULTS / "longer-than-trained.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=2)
    words = parser.parse_args()
    write(measure(words.steps, words.seeds), words.steps, words.seeds)


if __name__ == "__main__":
    main()
