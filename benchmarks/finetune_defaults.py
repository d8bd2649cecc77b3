"""The evidence for the fine-tuning rule: the defaults beside variants that change one setting each.

    python benchmarks/finetune_defaults.py $DATA --cells trec:1600,banking77:1600,fr-review-topics:200 --seeds 2

$DATA is a folder of sets as in transfer_suite.py, with the same split of validation and scored texts. Finished runs are
cached in --work, so the same command resumes after an interruption. Writes benchmarks/results/finetune-defaults.md and
.json.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from bench import RESULTS, provenance
from transfer_suite import TextSet, find_sets

import headstart as hs
from headstart.atomic_io import content_hash, write_json, write_text
from headstart.config import merge
from headstart.data.datasets import load_dataset
from headstart.data.subsets import balanced_subset
from headstart.data.text_io import read_table
from headstart.inference.loaded_model import load_model
from headstart.workflows.finetune_defaults import DatasetFacts, finetune_config

BASES = {"en": "en-tiny", "fr": "fr-tiny"}
VARIANTS = (
    "rule", "former", "no linear probe", "learning rate / 3", "learning rate x 3", "epochs / 2", "epochs x 2",
    "batches of 64",
)  # fmt: skip
FORMER: dict[str, Any] = {  # what the bases recommend for reviews, which was the default for every set
    "en": {"optimizer": {"learning_rate": 5e-5}, "training": {"max_epochs": 3, "max_length": 384}},
    "fr": {"optimizer": {"learning_rate": 1e-4}, "training": {"max_epochs": 5, "max_length": 256}},
}


def settings_of(variant: str, language: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a variant adds to the rule's choice."""
    rate, epochs = chosen["optimizer"]["learning_rate"], chosen["training"]["max_epochs"]
    former = {"training": {"linear_probe": False, "batch_size": 32}}
    return {
        "rule": {},
        "former": merge(former, FORMER[language]),
        "no linear probe": {"training": {"linear_probe": False}},
        "learning rate / 3": {"optimizer": {"learning_rate": rate / 3}},
        "learning rate x 3": {"optimizer": {"learning_rate": rate * 3}},
        "epochs / 2": {"training": {"max_epochs": epochs / 2}},
        "epochs x 2": {"training": {"max_epochs": epochs * 2}},
        "batches of 64": {"training": {"batch_size": 64}},
    }[variant]


def run_cell(given: tuple[TextSet, int, str, int, Path]) -> dict[str, Any]:
    """One fine-tuning run, scored on texts that played no part in it; read from the cache where it is there."""
    text_set, labels, variant, seed, work = given
    base, part = BASES[text_set.language], text_set.part(seed)
    common = {
        "training": {"seed": seed, "precision": "bf16"},
        "data": {"train_size": labels if labels < text_set.train else None},
    }
    draft, _ = finetune_config(None, None, common)
    trained = load_model(base)
    dataset = load_dataset(str(part), draft.data)
    if labels < text_set.train:
        dataset = balanced_subset(dataset, labels, seed)
    chosen, _ = finetune_config(trained, None, common, data=DatasetFacts.of(dataset, trained.tokenizer))
    settings = merge(common, settings_of(variant, text_set.language, chosen.model_dump()))
    name = content_hash([text_set.fingerprint, labels, variant, seed, chosen.model_dump(), settings])[:16]
    cached = work / "variants" / f"{text_set.name}.{labels}.{seed}.{name}.json"
    if not cached.exists():
        out = work / "variants" / name
        shutil.rmtree(out, ignore_errors=True)
        found = hs.finetune(base, str(part), out, settings=settings)
        rows, _ = read_table(part / "scored.jsonl", "text", "label")
        answers = [label for label, _, _ in hs.predict(str(out), str(part / "scored.jsonl"))]
        right = np.array([row.label == label for row, label in zip(rows, answers, strict=True)])
        shutil.rmtree(out)
        write_json(
            cached,
            {
                "set": text_set.name, "labels": labels, "variant": variant, "seed": seed, "count": len(right),
                "accuracy": float(right.mean()), "seconds": found.seconds, "warnings": found.warnings,
                "epochs": chosen.training.max_epochs, "learning_rate": chosen.optimizer.learning_rate,
                "last_accuracy_on_valid": found.curve[-1]["accuracy"], "baseline": found.baseline.accuracy,
            },
        )  # fmt: skip
    return json.loads(cached.read_text("utf-8"))


def render(cells: list[dict[str, Any]], origin: dict[str, Any]) -> str:
    """The page."""
    tasks = list(dict.fromkeys((cell["set"], cell["labels"]) for cell in cells))
    lines = [
        "# Fine-tuning defaults: the evidence",
        "",
        "Each row changes one setting of the rule in [finetuning.md](../../docs/finetuning.md). Accuracy on texts that",
        "played no part in training or selection, mean over seeds, and the difference from the rule in points; bfloat16",
        "products. With one seed and about 200 scored texts, a difference under five points is noise: the table shows that",
        "the former default collapses and that the rule sits on a plateau, not that its values are the best.",
        "",
        "| variant | " + " | ".join(f"{name}, {labels:,} labels" for name, labels in tasks) + " |",
        "|---|" + "---|" * len(tasks),
    ]
    means: dict[tuple[str, str, int], float] = {}
    for variant in VARIANTS:
        for name, labels in tasks:
            found = [
                cell["accuracy"]
                for cell in cells
                if (cell["variant"], cell["set"], cell["labels"]) == (variant, name, labels)
            ]
            if found:
                means[variant, name, labels] = fmean(found)
        values = []
        for name, labels in tasks:
            own, rule = means.get((variant, name, labels)), means.get(("rule", name, labels))
            if own is None or rule is None:
                values.append("–")
            elif variant == "rule":
                values.append(f"**{own:.3f}**")
            else:
                values.append(f"{own:.3f} ({100 * (own - rule):+.1f})")
        lines.append(f"| {variant} | " + " | ".join(values) + " |")
    lines += ["", "What the rule chose:", "", "| set | labels | epochs | learning rate | seconds | scored texts |"]
    lines.append("|---|---|---|---|---|---|")
    for name, labels in tasks:
        own_cells = [cell for cell in cells if (cell["variant"], cell["set"], cell["labels"]) == ("rule", name, labels)]
        if own_cells:
            first = own_cells[0]
            lines.append(
                f"| {name} | {labels:,} | {first['epochs']:g} | {first['learning_rate']:g} | "
                f"{fmean(cell['seconds'] for cell in own_cells):.0f} | {first['count']} |"
            )
    seeds = sorted({cell["seed"] for cell in cells})
    lines += [
        "",
        f"Seeds {', '.join(map(str, seeds))}; bases en-tiny and fr-tiny; {origin['command']} on commit "
        f"`{origin['commit'][:7]}`, {origin['machine']}. Seconds were measured with other work on the machine.",
    ]
    return "\n".join(lines) + "\n" + NOTES


NOTES = """
## Also measured

Single runs on whole validation parts (400 texts for TREC and banking77), while the rule was made: `headstart finetune BASE DATA
--labels N --set training.precision=bf16` with the settings of the row, seed 0, on the way to commit a30a0ad. French topics
(sources of French reviews) and the news clusters (k-means of news paragraphs) were cut by hand and are not published. Each row
says what the rule avoids or does without; none is precise to more than two or three points.

| question | measured | consequence |
|---|---|---|
| How hard may a reused head be trained? | `en-tiny` on rotten-tomatoes, 1,600 labels: 0.822 before training; 0.769 after 15 epochs at 2e-4; 0.816 after 3 at 1e-4; 0.826 after 3 at 5e-5 | 3 epochs, an eighth of the learning rate |
| How strongly is the linear probe regularised? | penalty 1e-4, 0.5/n, 2/n, 5/n on squared weights beside the mean loss of n texts: French topics with 200 labels 0.806, 0.836, 0.836, 0.838; TREC with 200 labels 0.513, 0.543, 0.550, 0.565; banking77 0.568, 0.583, 0.593, 0.595 | 3/n |
| How long is the warm-up? | French topics, 200 labels: 10 % 0.868, 20 % 0.892, 30 % 0.882 | 20 % for a new head |
| Does a lower learning rate help long texts? | news in 6 clusters, 200 labels, 478 tokens: 4e-4 0.910 and 0.923, 2e-4 0.903; TF-IDF 0.977 | no; the network warns there |
| Does layer-wise decay help? | the same news, decay 0.7, 12 epochs: 0.900 | not used |
| Does an average of weights help? | French topics, EMA over 3 epochs: 0.892 with and without | not used |
| Does the rule hold for a larger encoder? | MiniLM (22 M): banking77 0.883 (frozen + logistic regression 0.863 to 0.878), TREC 0.933 (0.813) | learning rate falls with width and depth |
"""


def main() -> None:
    """Run every variant and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cells", default="trec:1600,banking77:1600,fr-review-topics:200")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("runs/transfer-suite"))
    given, began = parser.parse_args(), time.monotonic()
    tasks = [(name, int(labels)) for name, labels in (each.split(":") for each in given.cells.split(","))]
    sets = {each.name: each for each in find_sets(given.data, [name for name, _ in tasks], given.work)}
    jobs = [
        (sets[name], labels, variant, seed, given.work)
        for seed in range(given.seeds)
        for variant in given.variants.split(",")
        for name, labels in tasks
    ]
    with Pool(given.processes, _one_thread if given.processes > 1 else None) as pool:
        cells = []
        for cell in pool.imap(run_cell, jobs, chunksize=1):
            print(cell["set"], cell["labels"], cell["variant"], cell["seed"], f"{cell['accuracy']:.4f}", flush=True)
            cells.append(cell)
    origin = provenance(began)
    origin["command"] = origin["command"].replace(sys.argv[1], "$DATA")
    write_json(RESULTS / "finetune-defaults.json", {"cells": cells, "provenance": origin})
    write_text(RESULTS / "finetune-defaults.md", render(cells, origin))


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


if __name__ == "__main__":
    main()
