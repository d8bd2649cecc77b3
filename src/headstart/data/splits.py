"""Splits, folds and balanced subsets of labelled texts, by the hash of a text: the same on every machine.

Equal texts share a hash and so a split; the order of rows plays no part.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from headstart.data.dataset import Dataset, Example, text_hash
from headstart.errors import ConfigError, DataError


def split_of(hashed: int) -> str:
    """The split that a `text_hash` falls into: 10 % valid, 10 % test, the rest train."""
    return {0: "valid", 1: "test"}.get(hashed % 10, "train")


def split_by_hash(examples: Sequence[Example], names: Sequence[str]) -> tuple[dict[str, list[Example]], list[str]]:
    """Examples split by hash into `names` ("train" first; what falls elsewhere stays in train), and notes.

    Where the hash leaves a class out of a split, its texts of lowest hash are moved: each class has a text
    in train, and in every other split as far as it has texts enough.
    """
    hashed = [text_hash(example.text) for example in examples]
    split = {key: name if (name := split_of(key)) in names else "train" for key in hashed}
    moved = _spread_classes(examples, hashed, split, names)
    splits: dict[str, list[Example]] = {name: [] for name in names}
    for example, key in zip(examples, hashed, strict=True):
        splits[split[key]].append(example)
    notes = []
    if moved:
        notes.append(f"texts moved between the splits by hash, so that each class is in each where it can be: {moved}")
    for name in names[1:]:
        labels = {example.label for example in splits[name]}
        absent = sorted({str(example.label) for example in examples if example.label not in labels})
        if absent and splits[name]:
            notes.append(f"too few rows for {name} to hold: {', '.join(absent[:10])}")
    return splits, notes


def _spread_classes(examples: Sequence[Example], hashed: list[int], split: dict[int, str], names: Sequence[str]) -> int:
    """Change `split` until no class is missing from a split that it could have; the number of texts moved."""
    labels_of: defaultdict[int, set[str | None]] = defaultdict(set)
    for example, key in zip(examples, hashed, strict=True):
        labels_of[key].add(example.label)
    keys_of: defaultdict[str | None, list[int]] = defaultdict(list)
    counts: Counter[tuple[str, str | None]] = Counter()
    for key in sorted(labels_of):
        for label in labels_of[key]:
            keys_of[label].append(key)
            counts[split[key], label] += 1
    moved = 0
    for name in names:
        for label in sorted(keys_of, key=str):
            movable = (
                key
                for key in keys_of[label]
                if name == "train"
                or (split[key] == "train" and all(counts["train", other] > 1 for other in labels_of[key]))
            )
            moving = None if counts[name, label] else next(movable, None)
            if moving is None:
                continue
            for other in labels_of[moving]:
                counts[split[moving], other] -= 1
                counts[name, other] += 1
            split[moving] = name
            moved += 1
    return moved


def balanced_subset(dataset: Dataset, count: int, seed: int) -> Dataset:
    """The dataset with `count` balanced rows of train chosen by `seed`; the others lose their labels.

    For one seed a smaller subset lies inside every larger one.
    """
    train, classes = dataset.train, dataset.classes
    if count > len(train):
        raise DataError(
            f"{count:,} labels are requested, but train has {len(train):,}", hint=f"request {len(train)} or fewer"
        )
    if count < len(classes):
        raise DataError(f"{count} labels cannot show {len(classes)} classes", hint=f"request {len(classes)} or more")
    chosen = set(_balanced_order(train, seed)[:count])
    labelled = [example for index, example in enumerate(train) if index in chosen]
    rest = [replace(example, label=None) for index, example in enumerate(train) if index not in chosen]
    counts = Counter(example.label for example in labelled)
    notes = list(dataset.notes)
    if max(counts.values()) - min(counts[label] for label in classes) > 1:
        shown = ", ".join(f"{label} {counts[label]}" for label in classes)
        notes.append(f"the {count:,} labels are as even as train allows: {shown}")
    splits = {**dataset.splits, "train": labelled}
    return replace(dataset, splits=splits, notes=notes, unlabelled=[*dataset.unlabelled, *rest])


def _balanced_order(examples: Sequence[Example], seed: int) -> list[int]:
    """Indices in an order of which every beginning is as balanced as can be."""
    times: Counter[int] = Counter()
    by_class: defaultdict[str | None, list[tuple[bytes, int]]] = defaultdict(list)
    for index, example in enumerate(examples):
        hashed = text_hash(example.text)
        key = hashlib.blake2b(f"{seed}:{hashed}:{times[hashed]}".encode(), digest_size=8).digest()
        times[hashed] += 1
        by_class[example.label].append((key, index))
    ranked = [(rank, key, index) for rows in by_class.values() for rank, (key, index) in enumerate(sorted(rows))]
    return [index for _, _, index in sorted(ranked)]


def deduplicate(examples: list[Example]) -> list[Example]:
    """Each text once, in the order of its hash; a text with two labels has no true one and is left out."""
    first: dict[int, Example] = {}
    labels: defaultdict[int, set[str | None]] = defaultdict(set)
    for example in examples:
        hashed = text_hash(example.text)
        first.setdefault(hashed, example)
        labels[hashed].add(example.label)
    return [first[hashed] for hashed in sorted(first) if len(labels[hashed]) == 1]


def stratified_folds(dataset: Dataset, count: int) -> list[Dataset]:
    """The texts of train and valid as `count` datasets, each with another fold as valid and the rest as train.

    Repeats are left out first, so no held-out text is also trained on. Each class is dealt evenly in the order of
    hashes: rows may be in any order.
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
        raise DataError(
            f"{dataset.name} cannot be cut into {count} folds: {found}", hint="give more labelled texts, or fewer folds"
        )
    dealt = [example for label in dataset.classes for example in by_class[label]]
    notes = list(dataset.notes)
    if len(examples) < len(given):
        gone = len(given) - len(examples)
        notes.append(f"{gone:,} rows that repeat a text, or give it another label, are left out of the folds")
    folds = []
    for fold in range(count):
        train = [example for index, example in enumerate(dealt) if index % count != fold]
        folds.append(replace(dataset, splits={"train": train, "valid": dealt[fold::count]}, notes=notes))
    return folds


def merge_folds(folds: list[Dataset]) -> Dataset:
    """The held-out parts of all folds as one train split, in the order of the folds; each text occurs once."""
    return replace(folds[0], splits={"train": [example for fold in folds for example in fold.valid]})
