"""What is in a dataset before anything learns from it: balance, lengths, repeats, and texts that leak."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from headstart.data.example import Dataset, Example, Skip, text_hash

IMBALANCE = 3.0  # times as many rows in the largest class as in the smallest
TRUNCATION = 0.10  # share of texts
EXCERPT = 80  # characters

Places = dict[int, dict[str, list[Example]]]  # hash -> split -> its examples with that hash


@dataclass(frozen=True)
class Spread:
    """How a length is spread over texts."""

    mean: float
    p5: float
    p50: float
    p95: float
    p99: float
    max: float  # whole for lengths


@dataclass(frozen=True)
class Leak:
    """One text that stands in more than one split, and where."""

    excerpt: str
    hash: str  # 16 hexadecimal digits
    origins: dict[str, list[str]]  # split -> rows


@dataclass(frozen=True)
class SplitAudit:
    """What is in one split; `duplicates` counts the rows beyond the first of each text."""

    count: int
    classes: dict[str, int]
    characters: Spread
    tokens: Spread | None
    truncated: float | None  # share of texts longer than the limit
    unknown: float | None  # share of tokens outside the vocabulary
    duplicates: int
    conflicts: int  # texts that stand with two labels or more
    in_train: int  # rows whose text also stands in train; 0 for train itself
    near_in_train: int  # rows that differ from one in train by case, space or punctuation alone


@dataclass(frozen=True)
class Audit:
    """What is in a dataset, split by split, and what stands in two of them."""

    name: str
    limit: int | None
    splits: dict[str, SplitAudit]
    leaks: list[Leak]
    near: list[Leak]  # equal but for case, space and punctuation, and not in `leaks`
    skips: list[Skip]
    notes: list[str]
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        """The audit as JSON-able values."""
        return asdict(self)


def audit(
    dataset: Dataset,
    lengths: Mapping[str, Sequence[int]] | None = None,
    unknown: Mapping[str, float] | None = None,
    limit: int | None = None,
) -> Audit:
    """An account of `dataset`; `lengths` in tokens and shares of `unknown` tokens are by split."""
    exact = _places(dataset, text_hash)
    near = _places(dataset, near_hash)
    splits = {}
    for name, examples in dataset.splits.items():
        counts = (lengths or {}).get(name)
        assert counts is None or len(counts) == len(examples), name
        duplicates, conflicts = _repeats(exact, name)
        in_train, near_in_train = _in_train(exact, near, name)
        splits[name] = SplitAudit(
            count=len(examples),
            classes=dataset.balance(name),
            characters=spread([len(example.text) for example in examples]),
            tokens=None if counts is None else spread(counts),
            truncated=None if counts is None or limit is None else _share_over(counts, limit),
            unknown=(unknown or {}).get(name),
            duplicates=duplicates,
            conflicts=conflicts,
            in_train=in_train,
            near_in_train=near_in_train,
        )
    leaks, near_leaks = _leaks(exact), _near_leaks(near)
    warnings = _warnings(dataset, splits, limit)
    return Audit(dataset.name, limit, splits, leaks, near_leaks, dataset.skips, dataset.notes, warnings)


def near_hash(text: str) -> int | None:
    """The hash of a text's letters and digits in lower case; None when it has neither."""
    bare = re.sub(r"[\W_]+", "", text.lower())
    return text_hash(bare) if bare else None


def _places(dataset: Dataset, hash_of: Callable[[str], int | None]) -> Places:
    places: defaultdict[int, dict[str, list[Example]]] = defaultdict(dict)
    for name, examples in dataset.splits.items():
        for example in examples:
            hashed = hash_of(example.text)
            if hashed is not None:
                places[hashed].setdefault(name, []).append(example)
    return dict(places)


def _repeats(places: Places, split: str) -> tuple[int, int]:
    """Rows of a split beyond the first of each text, and texts in it with more than one label."""
    groups = [found[split] for found in places.values() if split in found]
    conflicts = sum(len({example.label for example in group}) > 1 for group in groups)
    return sum(len(group) - 1 for group in groups), conflicts


def _in_train(exact: Places, near: Places, split: str) -> tuple[int, int]:
    """Rows of a split whose text stands in train, and further ones that nearly do."""
    if split == "train":
        return 0, 0
    known = {hashed for hashed, found in exact.items() if "train" in found}
    alike = [example for found in near.values() if "train" in found for example in found.get(split, [])]
    rows = sum(len(exact[hashed].get(split, [])) for hashed in known)
    return rows, sum(text_hash(example.text) not in known for example in alike)


def _leaks(places: Places) -> list[Leak]:
    return [_leak(hashed, found) for hashed, found in places.items() if len(found) > 1]


def _near_leaks(places: Places) -> list[Leak]:
    """Leaks between texts that are not all the same."""
    shared = {hashed: found for hashed, found in places.items() if len(found) > 1}
    return [
        _leak(hashed, found)
        for hashed, found in shared.items()
        if len({text_hash(example.text) for group in found.values() for example in group}) > 1
    ]


def _leak(hashed: int, found: dict[str, list[Example]]) -> Leak:
    text = " ".join(next(iter(found.values()))[0].text.split())
    excerpt = text if len(text) <= EXCERPT else text[:EXCERPT] + "..."
    origins = {name: [example.origin for example in group] for name, group in found.items()}
    return Leak(excerpt, f"{hashed:016x}", origins)


def spread(values: Sequence[float]) -> Spread:
    """The mean, percentiles and largest of `values`; zeros when there are none."""
    if not len(values):
        return Spread(0.0, 0.0, 0.0, 0.0, 0.0, 0)
    p5, p50, p95, p99 = (float(value) for value in np.percentile(values, [5, 50, 95, 99]))
    return Spread(float(np.mean(values)), p5, p50, p95, p99, max(values))


def _share_over(values: Sequence[int], limit: int) -> float:
    return sum(value > limit for value in values) / max(len(values), 1)


def _warnings(dataset: Dataset, splits: dict[str, SplitAudit], limit: int | None) -> list[str]:
    """What deserves a second look, in words."""
    warnings = []
    for name, part in splits.items():
        low, high = min(part.classes.values(), default=0), max(part.classes.values(), default=0)
        if high > IMBALANCE * low:
            least, most = (
                next(label for label, n in part.classes.items() if n == count) for count in (low, high)
            )
            warnings.append(f"{name} is uneven: {high:,} rows of {most!r} and {low:,} of {least!r}")
        if part.in_train:
            warnings.append(f"{part.in_train:,} of the {part.count:,} rows of {name} are also in train")
        if part.near_in_train:
            warnings.append(
                f"{part.near_in_train:,} rows of {name} are in train but for case, space or punctuation"
            )
        if part.conflicts:
            warnings.append(f"{part.conflicts:,} texts of {name} stand with more than one label")
        if part.truncated is not None and part.truncated > TRUNCATION:
            warnings.append(f"{part.truncated:.0%} of the texts of {name} are cut at {limit:,} tokens")
    if dataset.skips:
        (reason, count), *_ = Counter(skip.reason for skip in dataset.skips).most_common(1)
        where = next(skip.origin for skip in dataset.skips if skip.reason == reason)
        warnings.append(
            f"{len(dataset.skips):,} rows were skipped; {count:,} of them as at {where}: {reason}"
        )
    return warnings
