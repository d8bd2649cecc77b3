"""What choosing the texts to label buys: accuracy by number of labels, chosen by `suggest`, by margin alone, or at random.

    python benchmarks/active_learning.py [FOLDER ...]

Data: built-in rotten-tomatoes and imdb (4,000 texts to choose from, 1,000 to test), and every FOLDER with train.tsv and
valid.tsv. The model is logistic regression on the frozen vectors of en-tiny, so that a curve costs seconds. Each seed starts from
the same 20 random texts in all arms. Writes benchmarks/results/active-learning.{md,json,png}.
"""

import sys
import warnings
from pathlib import Path

import matplotlib
import numpy as np
from bench import RESULTS
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from headstart.atomic_io import write_json, write_text
from headstart.config import DataConfig
from headstart.data.datasets import load_dataset
from headstart.data.text_io import text_hash
from headstart.evaluation.statistics import interval
from headstart.inference.embed import open_encoder
from headstart.workflows.active_learning import choose_texts, margin
from headstart.workflows.run_dir import commit

POOL, TEST = 4000, 1000
START, STEP, END = 20, 20, 200
SEEDS = range(5)


def fit(vectors: np.ndarray, labels: np.ndarray):
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000)).fit(vectors, labels)


def choose(arm: str, probabilities: np.ndarray, vectors: np.ndarray, seed: int) -> list[int]:
    if arm == "random":
        return np.random.default_rng(seed).choice(len(vectors), STEP, replace=False).tolist()
    if arm == "margin":
        return np.argsort(margin(probabilities), kind="stable")[:STEP].tolist()
    return choose_texts(probabilities, vectors, STEP, seed)


def curve(
    arm: str, vectors: np.ndarray, labels: np.ndarray, test: np.ndarray, truth: np.ndarray, seed: int
) -> list[float]:
    """The accuracy with START, START + STEP, … labels."""
    known = np.random.default_rng(seed).choice(len(vectors), START, replace=False).tolist()
    found = []
    while True:
        model = fit(vectors[known], labels[known])
        found.append(float(model.score(test, truth)))
        if len(known) >= END:
            return found
        rest = np.setdiff1d(np.arange(len(vectors)), known)
        chosen = choose(arm, model.predict_proba(vectors[rest]), vectors[rest], 1000 * seed + len(known))
        known += rest[chosen].tolist()


def main(names: list[str]) -> None:
    warnings.filterwarnings("ignore", "The number of unique classes")  # few labels of 77 classes
    encoder = open_encoder("en-tiny")
    results: dict[str, dict[str, list[list[float]]]] = {}
    for name in ["rotten-tomatoes", "imdb", *names]:
        dataset = load_dataset(name, DataConfig())
        train = sorted(dataset.train, key=lambda row: text_hash(row.text))[:POOL]
        valid = sorted(dataset.valid, key=lambda row: text_hash(row.text))[:TEST]
        vectors, test = (encoder.encode([row.text for row in rows]) for rows in (train, valid))
        labels, truth = (np.array([dataset.class_index[str(row.label)] for row in rows]) for rows in (train, valid))
        results[Path(name).name] = {
            arm: [curve(arm, vectors, labels, test, truth, seed) for seed in SEEDS]
            for arm in ("suggest", "margin", "random")
        }
        print(
            name, {arm: np.mean(curves, axis=0).round(3).tolist() for arm, curves in results[Path(name).name].items()}
        )
    write_json(RESULTS / "active-learning.json", {"command": command(), "commit": commit(), "curves": results})
    write_text(RESULTS / "active-learning.md", page(results))
    draw(results)


def command() -> str:
    """The command, without the path of the data."""
    return " ".join(["python benchmarks/active_learning.py", *(f"$DATA/{Path(name).name}" for name in sys.argv[1:])])


def page(results: dict[str, dict[str, list[list[float]]]]) -> str:
    counts = list(range(START, END + 1, STEP))
    shown = [counts.index(count) for count in (60, 100, 200)]
    lines = [
        "# Active learning",
        "",
        "Accuracy of logistic regression on frozen `en-tiny` vectors, mean of five seeds with 95 % intervals, after labels that",
        "`headstart suggest` chooses, the smallest margins alone, or random texts. All start from the same 20 random texts.",
        "",
        "![curves](active-learning.png)",
        "",
        "| data | chosen by | "
        + " | ".join(f"{counts[at]} labels" for at in shown)
        + " | mean difference to random over the curve |",
        "|---|---|" + "---|" * (len(shown) + 1),
    ]
    for data, arms in results.items():
        random = np.array(arms["random"])
        for arm, curves in arms.items():
            cells = [interval([each[at] for each in curves]) for at in shown]
            gain = interval((np.array(curves) - random)[:, 1:].mean(axis=1).tolist())
            lines.append(
                f"| {data} | {arm} | "
                + " | ".join(f"{cell.mean:.3f} ({cell.low:.3f} to {cell.high:.3f})" for cell in cells)
                + (
                    " | |"
                    if arm == "random"
                    else f" | {100 * gain.mean:+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f}) points |"
                )
            )
    gains = {
        (data, arm): np.array(curves)[:, 1:].mean(axis=1) - np.array(arms["random"])[:, 1:].mean(axis=1)
        for data, arms in results.items()
        for arm, curves in arms.items()
        if arm != "random"
    }
    clear = [f"{arm} on {data}" for (data, arm), gain in gains.items() if interval(gain.tolist()).low > 0]
    lines += ["", f"Better than random choice beyond the noise of five seeds: {', '.join(clear) or 'nowhere'}."]
    return "\n".join([*lines, "", f"`{command()}`, commit {commit()}, seeds 0 to 4.", ""])


def draw(results: dict[str, dict[str, list[list[float]]]]) -> None:
    from matplotlib.figure import Figure

    from headstart.plots.style import PALETTE, STYLE

    counts = list(range(START, END + 1, STEP))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.1 * len(results), 3.2), layout="constrained")
        for number, (data, arms) in enumerate(results.items(), start=1):
            axes = figure.add_subplot(1, len(results), number)
            for colour, (arm, curves) in zip(PALETTE, arms.items(), strict=False):
                axes.plot(counts, np.mean(curves, axis=0), color=colour, label=arm, marker="o", markersize=3)
            axes.set_title(data, fontsize=10)
            axes.set_xlabel("labels")
            axes.set_ylabel("accuracy")
            axes.legend(frameon=False, fontsize=8)
        figure.savefig(RESULTS / "active-learning.png", dpi=150)


if __name__ == "__main__":
    main(sys.argv[1:])
