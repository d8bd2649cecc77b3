"""How many of the rows that `headstart audit --label-errors` lists first are true errors: labels are flipped, then looked for.

    python benchmarks/label_errors.py [FOLDER ...]

Reads 500 rows of the built-in imdb and rotten-tomatoes, and every FOLDER with a train.tsv (columns text and label). A share
of labels is replaced by another class, chosen at random by the seed. Writes benchmarks/results/label-errors.{md,json}.
"""

import sys
import time
from pathlib import Path

import numpy as np
from bench import RESULTS

from headstart.atomic_io import write_json, write_text
from headstart.config import DataConfig
from headstart.data.datasets import Example, load_dataset
from headstart.data.text_io import text_hash
from headstart.inference.embed import open_encoder
from headstart.workflows.label_errors import out_of_fold_probabilities
from headstart.workflows.run_dir import commit

ROWS = 500
SHARES = (0.1,)
SEEDS = (0, 1, 2)
ARMS = {"TF-IDF": False, "TF-IDF + en-tiny": True}


def flipped(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The labels with a share of them replaced by another class, and which."""
    random = np.random.default_rng(seed)
    is_wrong = np.zeros(len(labels), bool)
    is_wrong[random.choice(len(labels), round(share * len(labels)), replace=False)] = True
    moved = (labels + random.integers(1, labels.max() + 1, len(labels))) % (labels.max() + 1)
    return np.where(is_wrong, moved, labels), is_wrong


def precision(
    texts: list[str], labels: np.ndarray, is_wrong: np.ndarray, vectors: np.ndarray | None, seed: int
) -> list[float]:
    """The share of injected errors among the first 10, 50 and as many rows as there are errors."""
    probabilities = out_of_fold_probabilities(texts, labels, vectors, seed=seed)
    order = np.argsort(probabilities[np.arange(len(texts)), labels], kind="stable")
    return [float(is_wrong[order[:count]].mean()) for count in (10, 50, int(is_wrong.sum()))]


def main(names: list[str]) -> None:
    found = []
    for name in ["imdb", "rotten-tomatoes", *names]:
        dataset = load_dataset(name, DataConfig())
        rows = sorted(dataset.train, key=lambda row: hash_of(row))[:ROWS]
        labels = np.array([dataset.class_index[str(row.label)] for row in rows])
        counts = np.bincount(labels, minlength=len(dataset.classes))
        is_common = counts[labels] >= 20  # rare classes cannot be cut into folds once labels are flipped
        texts = [row.text for row, common in zip(rows, is_common, strict=True) if common]
        labels = labels[is_common]
        labels = np.unique(labels, return_inverse=True)[1]
        vectors = open_encoder("en-tiny").encode(texts)
        for share in SHARES:
            for arm, has_vectors in ARMS.items():
                started = time.time()
                results = []
                for seed in SEEDS:
                    wrong, is_wrong = flipped(labels, share, seed)
                    results.append(precision(texts, wrong, is_wrong, vectors if has_vectors else None, seed))
                first, fifty, all_of_them = np.mean(results, axis=0)
                row = {
                    "data": Path(name).name, "rows": len(texts), "classes": int(labels.max()) + 1, "share": share, "arm": arm,
                    "precision@10": first, "precision@50": fifty, "precision@errors": all_of_them,
                    "seconds": (time.time() - started) / len(SEEDS),
                }  # fmt: skip
                print(row, flush=True)
                found.append(row)
    write_json(RESULTS / "label-errors.json", {"command": command(), "commit": commit(), "rows": found})
    write_text(RESULTS / "label-errors.md", page(found))


def hash_of(row: Example) -> int:
    return text_hash(row.text)


def command() -> str:
    """The command, without the path of the data."""
    return " ".join(["python benchmarks/label_errors.py", *(f"$DATA/{Path(name).name}" for name in sys.argv[1:])])


def page(found: list[dict]) -> str:
    lines = [
        "# Labels that look wrong",
        "",
        "Share of injected errors among the rows that `headstart audit DATA --label-errors` lists first; mean of three seeds.",
        "A set's own errors, which it surely has, count as false alarms here. `en-tiny` has read films only, imdb among them.",
        "",
        "| data | rows | classes | flipped | predicted by | first 10 | first 50 | as many as errors | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        lines.append(
            f"| {row['data']} | {row['rows']:,} | {row['classes']} | {row['share']:.0%} | {row['arm']} "
            f"| {row['precision@10']:.2f} | {row['precision@50']:.2f} | {row['precision@errors']:.2f} | {row['seconds']:.0f} |"
        )
    return "\n".join([*lines, "", f"`{command()}`, commit {commit()}, seeds 0 to 2.", ""])


if __name__ == "__main__":
    main(sys.argv[1:])
