"""Each way to get more from few labels against plain fine-tuning of the same base, on the same texts and seeds.

    python benchmarks/few_labels.py --base-fr RUN --base-en RUN --processes 2

Two tasks: the folds of a folder of French book reviews ($DATA/cls-books-fr: train.tsv and valid.tsv with the columns
text and label), and 1,600 labels of the embedded IMDB reviews scored on their test part, with several seeds. A base that
is not given leaves its task out. Finished fits are stored in --work, so the same command continues after a stop; each
process computes with one thread. Writes benchmarks/results/few-labels.md and few-labels.json.
"""

import argparse
import multiprocessing
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from headstart.atomic_io import content_hash, write_json, write_text
from headstart.config import TrainingConfig, merge, parse_assignments
from headstart.data.augmentation import BPEDropout
from headstart.data.subsets import balanced_subset
from headstart.errors import ConfigError
from headstart.evaluation.statistics import adjust, interval, paired_test
from headstart.inference.loaded_model import SCRATCH, load_model
from headstart.reports.formatting import format_interval, format_p_value, format_points, format_points_interval
from headstart.results import Interval, Provenance, SeedResult, plain
from headstart.training.runtime import start_runtime
from headstart.workflows.compare_cells import CellResult, Fold, Variant, combine_folds, ensemble, make_folds, train_cell
from headstart.workflows.finetune import choose_tokenizer, data_fingerprint, load_labelled
from headstart.workflows.finetune_defaults import finetune_config
from headstart.workflows.run_dir import collect_provenance

METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bpe-dropout": {"training": {"bpe_dropout": 0.1}},
    "cut-off": {"training": {"token_cutoff": 0.15}},
    "r-drop": {"objective": {"r_drop_alpha": 1.0}},
    "reset": {"training": {"reinit_top_layers": 1}},
    "ema": {"training": {"weight_averaging": "ema", "averaging_epochs": 1.0}},
    "last": {"training": {"weight_averaging": "last_epochs", "averaging_epochs": 5.0}},
    "smoothing": {"objective": {"label_smoothing": 0.1}},
    "layer decay": {"optimizer": {"layerwise_lr_decay": 0.8}},
    "together": {
        "training": {"bpe_dropout": 0.1, "token_cutoff": 0.15, "weight_averaging": "ema", "averaging_epochs": 1.0}
    },
    "ensemble": {},  # of plain models
    "classical": {},  # no network, for reference
}
MACHINE = ("device", "precision")  # settings that say where and how exactly is computed
MEMBER = 1000  # what parts the seeds of an ensemble's members
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Task:
    """One set of labelled texts, the base that is fine-tuned on it, and how it is cut."""

    name: str
    data: str
    base: str
    seeds: int
    folds: int | None
    labels: int | None
    length: int
    epochs: float | None
    settings: tuple[tuple[str, str, Any], ...]  # section, key, value


@dataclass(frozen=True)
class Job:
    """One fit: a method, the seed of its labels, the part it holds out, and the seed of its training."""

    task: Task
    method: str
    label_seed: int
    part: int
    seed: int


def settings_of(task: Task, method: str) -> dict[str, Any]:
    """Nothing is selected on validation texts: the last epoch counts, and only it is evaluated."""
    shared: dict[str, Any] = {
        "training": {
            "max_length": task.length,
            "checkpoint_selection": "last",
            "eval_steps": 10**9,
            "eval_subset_size": 100,
        }
    }
    if task.epochs is not None:
        shared["training"]["max_epochs"] = task.epochs
    for section, key, value in task.settings:
        shared.setdefault(section, {})[key] = value
    return merge(shared, METHODS[method])


@lru_cache(maxsize=4)
def base_of(task: Task) -> Any:
    return None if task.base == SCRATCH else load_model(task.base)


@lru_cache(maxsize=4)
def parts_of(task: Task) -> list[Fold]:
    config, _ = finetune_config(base_of(task), None, settings_of(task, "plain"))
    dataset = load_labelled(task.data, config, with_test=task.folds is None)
    return make_folds(dataset, task.folds)[0]


@lru_cache(maxsize=32)
def variant_of(task: Task, method: str) -> Variant:
    config, _ = finetune_config(base_of(task), None, settings_of(task, method))
    tokenizer = choose_tokenizer(config, parts_of(task)[0].dataset, base_of(task), lambda event: None)
    kind = "classical" if method == "classical" else "fine-tuned"
    return Variant(method, kind, base_of(task), tokenizer, config, lambda facts: config)  # type: ignore[arg-type]


@lru_cache(maxsize=4)
def print_of(task: Task) -> str:
    """What a stored fit must agree with, besides its settings: the data, how it is split, and the base."""
    parts, base = parts_of(task), base_of(task)
    cut = [task.folds, task.labels, base and content_hash(base.info.to_dict())]
    return content_hash([*cut, *(data_fingerprint(part.dataset) for part in parts)])


def path_of(job: Job, work: Path) -> Path:
    variant = variant_of(job.task, job.method)
    config = "" if variant.kind == "classical" else variant.config.model_dump()
    key = content_hash([print_of(job.task), config])[:10]
    name = f"{job.method.replace(' ', '-')}-{job.label_seed}-{job.part}-{job.seed}-{key}.json"
    return work / job.task.name / name


def run(job: Job, work: Path) -> str:
    """Train one model unless it was trained before."""
    path = path_of(job, work)
    if CellResult.load(path) is None:
        part = parts_of(job.task)[job.part]
        if job.task.labels is not None:
            part = replace(part, dataset=balanced_subset(part.dataset, job.task.labels, job.label_seed))
        variant = variant_of(job.task, job.method)
        checkpoints = path.with_suffix(".checkpoints")
        train_cell(variant, part, None, job.seed, checkpoints).save(path)
        shutil.rmtree(checkpoints, ignore_errors=True)
    return path.name


def usable(task: Task, methods: list[str]) -> tuple[list[str], dict[str, str]]:
    """The methods that this base can take, and why it cannot take the others."""
    methods_used, left_out = [], {}
    for name in methods:
        try:
            variant = variant_of(task, name)
            if variant.config.training.bpe_dropout:
                BPEDropout(variant.tokenizer)
            methods_used.append(name)
        except ConfigError as error:
            left_out[name] = str(error)
    return methods_used, left_out


def jobs_of(task: Task, methods: list[str], members: int) -> Iterator[Job]:
    """Every fit that the methods need, plain ones first."""
    for method in ["plain", *(name for name in methods if name not in ("plain", "ensemble"))]:
        for seed in range(task.seeds):
            for part in range(len(parts_of(task))):
                yield Job(task, method, seed, part, seed)
    if "ensemble" in methods:
        for seed in range(task.seeds):
            for part in range(len(parts_of(task))):
                yield from (Job(task, "plain", seed, part, seed + MEMBER * n) for n in range(1, members))


def results_of(task: Task, method: str, members: int, work: Path) -> list[SeedResult]:
    """One result a seed, over all scored texts."""
    parts, found = parts_of(task), []
    own, count = ("plain", members) if method == "ensemble" else (method, 1)
    for seed in range(task.seeds):
        fits = []
        for part in range(len(parts)):
            models = [
                CellResult.load(path_of(Job(task, own, seed, part, seed + MEMBER * n), work)) for n in range(count)
            ]
            results: list[CellResult] = [fit for fit in models if fit is not None]
            assert len(results) == count, f"{task.name}, {method}: a fit is missing"
            fits.append(results[0] if count == 1 else ensemble(results))
        found.append(combine_folds(fits, parts, seed))
    return found


def measure(task: Task, methods: list[str], members: int, work: Path) -> dict[str, Any]:
    """Every method's accuracy, and its difference to plain fine-tuning, adjusted for the number of methods."""
    names = ["plain", *(name for name in methods if name != "plain")]
    results = {name: results_of(task, name, members, work) for name in names}
    parts = parts_of(task)
    truth = np.concatenate([part.dataset.targets(part.split) for part in parts])
    right = {name: np.array([np.array(r.predictions) == truth for r in own]) for name, own in results.items()}
    labels = task.labels or min(len(part.dataset.train) for part in parts)
    tests = adjust([paired_test(name, "plain", labels, right[name], right["plain"]) for name in names[1:]])
    by_name = {test.arm: test for test in tests}
    return {
        "task": {
            **asdict(task),
            "settings": {f"{s}.{k}": v for s, k, v in task.settings},
            "base": Path(task.base).name,
            "data": Path(task.data).name,
        },
        "scored": len(truth),
        "labels": labels,
        "base_fingerprint": base_of(task) and content_hash(base_of(task).info.to_dict()),
        "data_fingerprint": content_hash([data_fingerprint(part.dataset) for part in parts]),
        "methods": {
            name: {
                "settings": METHODS[name],
                "accuracy": plain(interval([result.accuracy for result in own], right[name])),
                "by_seed": [result.accuracy for result in own],
                "loss": float(np.mean([result.loss for result in own])),
                "calibration_error": float(np.mean([result.calibration_error for result in own])),
                "seconds": float(np.mean([result.seconds for result in own])),
                "against_plain": plain(by_name[name]) if name in by_name else None,
            }
            for name, own in results.items()
        },
    }


def page(found: list[dict[str, Any]], provenance: Provenance, members: int) -> str:
    """The measurement as Markdown."""
    lines = [
        "# More from few labels",
        "",
        f"Each method against plain fine-tuning of the same base. `{provenance.command}`, commit {provenance.commit or 'unknown'}, "
        f"{provenance.machine}, {provenance.started}.",
        "",
        "The last epoch is scored; nothing is selected on validation texts. Differences are paired by seed and text; the",
        "95 % interval resamples both (texts alone when there is one seed), and p is adjusted (Holm) over a task's methods.",
        "",
    ]
    for one in found:
        task = one["task"]
        cut = f"{task['folds']} folds, each text held out once" if task["folds"] else "its test part"
        seeds = ", ".join(str(seed) for seed in range(task["seeds"]))
        lines += [
            f"## {task['name']}",
            "",
            f"{one['labels']:,} labels; seeds {seeds}; base `{task['base']}`; {task['length']} tokens a text; scored on "
            f"{one['scored']:,} texts ({cut}).",
            "",
            "| method | settings | accuracy | 95 % interval | against plain, points | p | verdict | loss | seconds |",
            "|---|---|---|---|---|---|---|---|---|",
            *(table_row(name, row, members) for name, row in one["methods"].items()),
            "",
            *(f"Left out: {name} ({reason})." for name, reason in one["left_out"].items()),
            "",
        ]
    return "\n".join(lines)


def table_row(name: str, row: dict[str, Any], members: int) -> str:
    """One method as a row of the table."""
    settings = ", ".join(f"`{s}.{k}={v}`" for s, part in row["settings"].items() for k, v in part.items())
    if name == "ensemble":
        settings = f"the mean of {members} plain models"
    accuracy, test = Interval(**row["accuracy"]), row["against_plain"]
    comparison = ["", "", ""]
    if test is not None:
        difference = Interval(**test["difference"])
        comparison = [
            f"{format_points(difference.mean)} ({format_points_interval(difference)})",
            format_p_value(test["p_value"]),
            test["verdict"],
        ]
    score = [f"{accuracy.mean:.4f} ± {accuracy.spread:.4f}", format_interval(accuracy)]
    return f"| {' | '.join([name, settings, *score, *comparison])} | {row['loss']:.4f} | {row['seconds']:.0f} |"


def start_worker() -> None:
    """One thread each, so that processes do not wait for one another."""
    import torch

    torch.set_num_threads(1)


def main() -> None:
    """Train what is missing, compare, write the result and print it."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--base-fr", help="the base for the French book reviews, or scratch")
    words.add_argument("--base-en", help="the base for the IMDB reviews, or scratch")
    words.add_argument("--cls", default=os.path.expandvars("$DATA/cls-books-fr"))
    words.add_argument("--folds", type=int, default=5)
    words.add_argument("--cls-seeds", type=int, default=1)
    words.add_argument("--labels", type=int, default=1600)
    words.add_argument("--seeds", type=int, default=3, help="of the IMDB task, each with its own labels")
    words.add_argument("--length", type=int, default=256)
    words.add_argument("--epochs", type=float, help="those of the base's preset unless given")
    words.add_argument("--members", type=int, default=3, help="models in an ensemble")
    words.add_argument("--methods", default=",".join(METHODS), help="with commas between; plain is always there")
    words.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="for every method")
    words.add_argument("--processes", type=int, default=1, help="each with one thread")
    words.add_argument("--work", type=Path, default=Path("runs/few-labels"), help="where finished fits are stored")
    words.add_argument("--out", type=Path, default=RESULTS)
    given = words.parse_args()
    methods = [name.strip() for name in given.methods.split(",")]
    strange = [name for name in methods if name not in METHODS]
    if strange:
        words.error(f"no method is called {strange[0]!r}: choose from {', '.join(METHODS)}")
    own = tuple((s, k, v) for s, content in parse_assignments(given.set).items() for k, v in content.items())
    tasks = []
    if given.base_fr:
        tasks.append(
            Task(
                "cls-books-fr",
                given.cls,
                given.base_fr,
                given.cls_seeds,
                given.folds,
                None,
                given.length,
                given.epochs,
                own,
            )
        )
    if given.base_en:
        tasks.append(
            Task("imdb", "imdb", given.base_en, given.seeds, None, given.labels, given.length, given.epochs, own)
        )
    if not tasks:
        print("nothing to measure: give --base-fr RUN, --base-en RUN or both")
        return
    machine = {key: value for section, key, value in own if section == "training" and key in MACHINE}
    provenance = collect_provenance(
        start_runtime(TrainingConfig(**machine)), list(range(max(task.seeds for task in tasks)))
    )
    chosen = {task.name: usable(task, methods) for task in tasks}
    for task in tasks:
        for name, reason in chosen[task.name][1].items():
            print(f"{task.name}: {name} is left out: {reason}")
    jobs = [job for task in tasks for job in jobs_of(task, chosen[task.name][0], given.members)]
    missing = [job for job in jobs if CellResult.load(path_of(job, given.work)) is None]
    print(f"{len(jobs)} fits, {len(jobs) - len(missing)} of them from earlier runs", flush=True)
    with multiprocessing.get_context("spawn").Pool(given.processes, start_worker) as pool:
        done = [pool.apply_async(run, (job, given.work)) for job in missing]
        for number, fit in enumerate(done, start=1):
            print(f"{number}/{len(missing)} {fit.get()}", flush=True)
    found = [
        {**measure(task, methods_used, given.members, given.work), "left_out": left_out}
        for task in tasks
        for methods_used, left_out in [chosen[task.name]]
    ]
    write_json(
        given.out / "few-labels.json", {"provenance": plain(provenance), "members": given.members, "tasks": found}
    )
    text = page(found, provenance, given.members)
    write_text(given.out / "few-labels.md", text)
    print(text)


if __name__ == "__main__":
    main()
