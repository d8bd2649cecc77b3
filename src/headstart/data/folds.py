"""Folds: every labelled text is held out once; which with which depends on the texts alone."""

from collections import defaultdict

from headstart.data.example import Dataset, Example
from headstart.data.sources import without_repeats
from headstart.errors import ConfigError, DataError


def cut_folds(dataset: Dataset, count: int) -> list[Dataset]:
    """The texts of train and valid as `count` datasets, each with another fold as valid and the rest as train.

    A text that stands twice is read once, and one that stands with two labels is left out, so nothing that is held
    out is also learnt from. Each class is dealt evenly in the order of hashes: rows may stand in any order.
    """
    if count < 2:
        raise ConfigError(f"{count} folds hold nothing out", hint="use --folds 5 or 10")
    given = [*dataset.train, *dataset.valid]
    examples = without_repeats(given)
    by_class: defaultdict[str, list[Example]] = defaultdict(list)
    for example in examples:
        by_class[str(example.label)].append(example)
    rare = next((label for label in dataset.classes if len(by_class[label]) < 2), None)
    if rare is not None or len(examples) < count:
        what = (
            f"the class {rare!r} has fewer than two texts" if rare is not None else f"{len(examples)} texts"
        )
        raise DataError(
            f"{dataset.name} cannot be cut into {count} folds: {what}",
            hint="give more labelled texts, or fewer folds",
        )
    dealt = [example for label in dataset.classes for example in by_class[label]]
    notes = list(dataset.notes)
    if len(examples) < len(given):
        gone = len(given) - len(examples)
        notes.append(f"{gone:,} rows that repeat a text, or give it another label, are left out of the folds")
    return [
        Dataset(
            dataset.name,
            {
                "train": [example for place, example in enumerate(dealt) if place % count != fold],
                "valid": dealt[fold::count],
            },
            dataset.classes,
            dataset.skips,
            notes,
            dataset.unlabelled,
        )
        for fold in range(count)
    ]


def all_folds(folds: list[Dataset]) -> Dataset:
    """The folds put together again as one split, in the order of the folds; each text stands there once."""
    first = folds[0]
    held_out = [example for fold in folds for example in fold.valid]
    return Dataset(first.name, {"train": held_out}, first.classes, first.skips, first.notes, first.unlabelled)
