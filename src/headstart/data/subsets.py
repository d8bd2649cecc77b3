"""Parts of a dataset: balanced subsets, cross-validation folds, and datasets without evaluation texts."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headstart.config import DataConfig
from headstart.data.datasets import Dataset, load_dataset
from headstart.data.labels import deduplicate
from headstart.data.text_io import Example, Hashes, text_hash
from headstart.errors import ConfigError, DataError


def balanced_subset(dataset: Dataset, count: int, seed: int) -> Dataset:
    """The dataset with `count` balanced rows of train chosen by `seed`; the others lose their labels.

    For one seed, a smaller subset is part of every larger one.
    """
    train, classes = dataset.train, dataset.classes
    if count > len(train):
        problem = f"{count:,} labels are requested, but train has {len(train):,}"
        raise DataError(problem, hint=f"request {len(train)} or fewer")
    has_classes = dataset.task in ("single-label", "ordinal")
    if count < len(classes) and has_classes:
        raise DataError(f"{count} labels cannot show {len(classes)} classes", hint=f"request {len(classes)} or more")
    chosen = set(_balanced_order(train, [each.label if has_classes else "" for each in train], seed)[:count])
    labelled = [example for index, example in enumerate(train) if index in chosen]
    rest = [replace(example, label=None) for index, example in enumerate(train) if index not in chosen]
    counts = Counter(example.label for example in labelled)
    notes = list(dataset.notes)
    if has_classes and max(counts.values()) - min(counts[label] for label in classes) > 1:
        shown = ", ".join(f"{label} {counts[label]}" for label in classes)
        notes.append(f"the {count:,} labels are as even as train allows: {shown}")
    splits = {**dataset.splits, "train": labelled}
    return replace(dataset, splits=splits, notes=notes, unlabelled=[*dataset.unlabelled, *rest])


def _balanced_order(examples: Sequence[Example], labels: Sequence[str | None], seed: int) -> list[int]:
    """Indices in an order in which the first n rows are as balanced as possible, for every n."""
    times: Counter[int] = Counter()
    by_class: defaultdict[str | None, list[tuple[bytes, int]]] = defaultdict(list)
    for index, (example, label) in enumerate(zip(examples, labels, strict=True)):
        hashed = text_hash(example.content)
        key = hashlib.blake2b(f"{seed}:{hashed}:{times[hashed]}".encode(), digest_size=8).digest()
        times[hashed] += 1
        by_class[label].append((key, index))
    ranked = [(rank, key, index) for rows in by_class.values() for rank, (key, index) in enumerate(sorted(rows))]
    return [index for _, _, index in sorted(ranked)]


def stratified_folds(dataset: Dataset, count: int) -> list[Dataset]:
    """The texts of train and valid as `count` datasets, each with another fold as valid and the rest as train.

    Repeats are left out, so no held-out text is also trained on. The order of rows plays no part.
    """
    if count < 2:
        raise ConfigError(f"{count} folds hold nothing out", hint="use --folds 5 or 10")
    given = [*dataset.train, *dataset.valid]
    examples = deduplicate(given)
    by_class: defaultdict[str, list[Example]] = defaultdict(list)
    for example in examples:
        by_class[str(example.label)].append(example)
    rare = next((label for label in dataset.classes if len(by_class[label]) < 2), None)
    if rare is not None or len(examples) < count:
        found = f"{len(examples)} texts" if rare is None else f"the class {rare!r} has fewer than two texts"
        problem = f"{dataset.name} cannot be cut into {count} folds: {found}"
        raise DataError(problem, hint="give more labelled texts, or fewer folds")
    grouped = [example for label in dataset.classes for example in by_class[label]]
    notes, gone = list(dataset.notes), len(given) - len(examples)
    if gone:
        notes.append(f"{gone:,} rows that repeat a text, or give it another label, are left out of the folds")
    folds = []
    for fold in range(count):
        train = [example for index, example in enumerate(grouped) if index % count != fold]
        folds.append(replace(dataset, splits={"train": train, "valid": grouped[fold::count]}, notes=notes))
    return folds


def merge_folds(folds: list[Dataset]) -> Dataset:
    """The held-out parts of all folds as one train split, in the order of the folds; each text occurs once."""
    return replace(folds[0], splits={"train": [example for fold in folds for example in fold.valid]})


def evaluation_hashes(names: Sequence[str]) -> Hashes:
    """The hashes of the validation and test texts of labelled sets (columns `text` and `label`)."""
    datasets = [load_dataset(name, DataConfig(), with_test=True) for name in names]
    found = [dataset.hashes(split) for dataset in datasets for split in ("valid", "test")]
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *found]))


def exclude_evaluation_texts(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """The dataset without the validation and test texts of the named sets."""
    excluded = frozenset(evaluation_hashes(names).tolist())
    splits = {
        name: [row for row in rows if text_hash(row.content) not in excluded] for name, rows in dataset.splits.items()
    }
    if not all(splits.values()):
        problem = f"data.exclude_eval_texts_of leaves {dataset.name} no text to learn from, or none to validate on"
        raise DataError(problem, hint="its texts are evaluation texts of the sets named there: train on others")
    count = sum(map(len, dataset.splits.values())) - sum(map(len, splits.values()))
    notes = [f"{count:,} rows left out by data.exclude_eval_texts_of"] * bool(count)
    return replace(dataset, splits=splits, notes=[*dataset.notes, *notes])
