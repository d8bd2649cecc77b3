"""Audits of datasets and parallel text before training: class balance, lengths, duplicates, leaks between splits."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from headstart.config import DataConfig, TokenizerConfig, parse
from headstart.data.datasets import Dataset, Example, SkippedRow, load_dataset
from headstart.data.parallel import ParallelText, load_parallel, parse_pair
from headstart.data.subsets import balanced_subset
from headstart.data.text_io import text_hash
from headstart.data.tokenizer import Tokenizer
from headstart.data.tokenizer_training import resolve_tokenizer
from headstart.errors import ConfigError

IMBALANCE = 3.0  # times as many rows in the largest class as in the smallest
TRUNCATION = 0.10  # share of texts
COPIES = 0.05  # share of pairs
EXCERPT = 80  # characters

Index = Mapping[int, Mapping[str, list[Example]]]  # hash -> split -> its examples with that hash


@dataclass(frozen=True)
class Spread:
    """The distribution of a length over texts."""

    mean: float
    p5: float
    p50: float
    p95: float
    p99: float
    max: float  # whole for lengths


@dataclass(frozen=True)
class TokenCounts:
    """Each text's length in tokens with both special tokens, and the share of unknown tokens among all."""

    lengths: Sequence[int]
    unknown: float

    def share_over(self, limit: int) -> float:
        """The share of the texts that are longer than `limit`."""
        return sum(length > limit for length in self.lengths) / max(len(self.lengths), 1)


@dataclass(frozen=True)
class Leak:
    """A text that is in more than one split, and its rows there."""

    excerpt: str
    hash: str  # 16 hexadecimal digits
    origins: dict[str, list[str]]  # split -> rows
    side: str | None = None  # of parallel text, the language


@dataclass(frozen=True)
class SplitAudit:
    """The content of one split, or of one language of it; `duplicates` counts the rows beyond the first of each text."""

    count: int
    classes: dict[str, int]
    characters: Spread
    words: Spread | None  # between white space, for parallel text
    tokens: Spread | None
    truncated: float | None  # share of texts longer than the limit
    unknown: float | None  # share of tokens outside the vocabulary
    duplicates: int
    conflicts: int  # texts with two labels or translations, or more
    in_train: int  # rows whose text is also in train; 0 for train itself
    near_in_train: int  # rows that differ from one in train by case, space or punctuation alone


@dataclass(frozen=True)
class PairAudit:
    """The content of one split of parallel text; `duplicates` counts the rows beyond the first of each pair."""

    count: int
    duplicates: int
    copies: int  # pairs of which both sides are the same text
    in_train: int  # rows whose whole pair is also in train; 0 for train itself
    ratio: Spread  # characters of the target for one of the source
    sides: dict[str, SplitAudit]  # by language, the source first


@dataclass(frozen=True)
class Audit:
    """The content of a dataset or of parallel text by split, and the texts that are in two splits."""

    name: str
    limit: int | None
    splits: Mapping[str, SplitAudit | PairAudit]
    leaks: list[Leak]
    near: list[Leak]  # equal but for case, space and punctuation, and not in `leaks`
    skips: list[SkippedRow]
    notes: list[str]
    warnings: list[str]
    pair: tuple[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The audit as JSON-able values."""
        return asdict(self)


def inspect_data(
    data: str,
    *,
    pair: str | tuple[str, str] | None = None,
    tokenizer: str | None = None,
    length: int = 256,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> Audit:
    """The audit of every split of labelled data, or of parallel text with a `pair` of languages.

    Lengths are in tokens of `tokenizer`, a kind or a path. Without one, labelled data gets a BPE tokenizer trained on
    its train split, and parallel text is not tokenized.
    """
    sections = settings or {}
    for name in sections.keys() - {"data", "tokenizer"}:
        raise ConfigError(f"an audit has no setting {name!r}", hint="only data.* and tokenizer.* count here")
    config = parse(DataConfig, sections.get("data", {}), "data")
    kind = {"kind": tokenizer} if tokenizer else {}
    tokenizer_config = parse(TokenizerConfig, {**sections.get("tokenizer", {}), **kind}, "tokenizer")
    if pair is None:
        dataset = load_dataset(data, config, with_test=True)
        if config.train_size is not None:
            dataset = balanced_subset(dataset, config.train_size, seed)
        found = resolve_tokenizer(tokenizer_config, lambda: dataset.texts("train"))
        return audit(dataset, {split: token_counts(found, dataset.texts(split)) for split in dataset.splits}, length)
    texts = load_parallel(data, parse_pair(pair) if isinstance(pair, str) else pair, config, with_test=True)
    if not (tokenizer or sections.get("tokenizer")):
        return audit_parallel(texts)
    found = resolve_tokenizer(tokenizer_config, lambda: chain(texts.sources("train"), texts.targets("train")))
    sides = zip(texts.pair, (texts.sources, texts.targets), strict=True)
    counts = {name: {split: token_counts(found, side(split)) for split in texts.splits} for name, side in sides}
    return audit_parallel(texts, counts, length)


def token_counts(tokenizer: Tokenizer, texts: Sequence[str]) -> TokenCounts:
    """How many tokens each text has, and how many of them are unknown."""
    ids, counts = tokenizer.encode_flat(texts)
    return TokenCounts((counts + 2).tolist(), int((ids == tokenizer.unk_id).sum()) / max(1, len(ids)))


def audit(dataset: Dataset, tokens: Mapping[str, TokenCounts] | None = None, limit: int | None = None) -> Audit:
    """The audit of `dataset`, with its lengths in `tokens` by split."""
    splits, leaks, near = _audit_splits(dataset, tokens or {}, limit)
    warnings = []
    for name, part in splits.items():
        rare, common = (choose(part.classes, key=part.classes.__getitem__, default="") for choose in (min, max))
        low, high = (part.classes.get(label, 0) for label in (rare, common))
        if high > IMBALANCE * low:
            warnings.append(f"{name} is uneven: {high:,} rows of {common!r} and {low:,} of {rare!r}")
        warnings += _text_warnings(part, f"rows of {name}", f"texts of {name}", limit)
        if part.conflicts:
            warnings.append(f"{part.conflicts:,} texts of {name} have more than one label")
    warnings += _skip_warnings(dataset.skips)
    return Audit(dataset.name, limit, splits, leaks, near, dataset.skips, dataset.notes, warnings)


def audit_parallel(
    texts: ParallelText, tokens: Mapping[str, Mapping[str, TokenCounts]] | None = None, limit: int | None = None
) -> Audit:
    """The audit of `texts`, with its lengths in `tokens` by language, then by split."""
    parts: dict[str, dict[str, SplitAudit]] = {name: {} for name in texts.splits}
    leaks, near = list[Leak](), list[Leak]()
    for side, language in enumerate(texts.pair):
        # One language as a dataset in which the label of a text is its translation.
        rows = {
            name: [(pair.source, pair.target, pair.origin) for pair in pairs] for name, pairs in texts.splits.items()
        }
        examples = {name: [Example(row[side], row[1 - side], row[2]) for row in own] for name, own in rows.items()}
        found, *own_leaks = _audit_splits(Dataset(texts.name, examples, []), (tokens or {}).get(language, {}), limit)
        for name, part in found.items():
            words = spread([len(row[side].split()) for row in rows[name]])
            parts[name][language] = replace(part, words=words)
        for known, own in zip((leaks, near), own_leaks, strict=True):
            known += [replace(leak, side=language) for leak in own]
    keys = {
        name: [(text_hash(pair.source), text_hash(pair.target)) for pair in pairs]
        for name, pairs in texts.splits.items()
    }
    warnings, audits = [], {}
    for name, pairs in texts.splits.items():
        audits[name] = PairAudit(
            count=len(pairs),
            duplicates=len(pairs) - len(set(keys[name])),
            copies=sum(source == target for source, target in keys[name]),
            in_train=0 if name == "train" else sum(map(set(keys["train"]).__contains__, keys[name])),
            ratio=spread([len(pair.target) / len(pair.source) for pair in pairs]),
            sides=parts[name],
        )
        if audits[name].copies > COPIES * len(pairs):
            shown = f"{audits[name].copies:,} of the {len(pairs):,} pairs of {name}"
            warnings.append(f"{shown} have the same text on both sides")
        for language, part in parts[name].items():
            rows_of = f"{language} texts of {name}"
            warnings += _text_warnings(part, rows_of, rows_of, limit)
    warnings += _skip_warnings(texts.skips)
    return Audit(texts.name, limit, audits, leaks, near, texts.skips, texts.notes, warnings, texts.pair)


def _audit_splits(
    dataset: Dataset, tokens: Mapping[str, TokenCounts], limit: int | None
) -> tuple[dict[str, SplitAudit], list[Leak], list[Leak]]:
    """The audit of each split, the texts in two splits, and those that are nearly the same in two."""
    exact, near = _index(dataset, text_hash), _index(dataset, near_hash)
    splits = {}
    for name, examples in dataset.splits.items():
        counts = tokens.get(name)
        assert counts is None or len(counts.lengths) == len(examples), name
        groups = [found[name] for found in exact.values() if name in found]
        leaked = [found[name] for found in exact.values() if name in found and "train" in found and name != "train"]
        alike = [found[name] for found in near.values() if name in found and "train" in found and name != "train"]
        splits[name] = SplitAudit(
            count=len(examples),
            classes=dataset.balance(name),
            characters=spread([len(example.text) for example in examples]),
            words=None,
            tokens=spread(counts.lengths) if counts else None,
            truncated=counts.share_over(limit) if counts and limit is not None else None,
            unknown=counts.unknown if counts else None,
            duplicates=sum(len(group) - 1 for group in groups),
            conflicts=sum(len({example.label for example in group}) > 1 for group in groups),
            in_train=sum(map(len, leaked)),
            near_in_train=sum("train" not in exact[text_hash(example.text)] for example in chain(*alike)),
        )
    leaks = [_leak(hashed, found) for hashed, found in exact.items() if len(found) > 1]
    near_leaks = [
        _leak(hashed, found)
        for hashed, found in near.items()
        if len(found) > 1 and len({text_hash(example.text) for example in chain(*found.values())}) > 1
    ]
    return splits, leaks, near_leaks


def near_hash(text: str) -> int | None:
    """The hash of a text's letters and digits in lower case; None when it has neither."""
    bare = re.sub(r"[\W_]+", "", text.lower())
    return text_hash(bare) if bare else None


def _index(dataset: Dataset, hash_of: Callable[[str], int | None]) -> Index:
    index: defaultdict[int, dict[str, list[Example]]] = defaultdict(dict)
    for name, examples in dataset.splits.items():
        for example in examples:
            if (hashed := hash_of(example.text)) is not None:
                index[hashed].setdefault(name, []).append(example)
    return index


def _leak(hashed: int, found: Mapping[str, list[Example]]) -> Leak:
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


def _text_warnings(part: SplitAudit, rows: str, texts: str, limit: int | None) -> list[str]:
    """Warnings of leaks and truncation; `rows` and `texts` name what is counted."""
    warnings = []
    if part.in_train:
        warnings.append(f"{part.in_train:,} of the {part.count:,} {rows} are also in train")
    if part.near_in_train:
        warnings.append(f"{part.near_in_train:,} {rows} are in train but for case, space or punctuation")
    if part.truncated is not None and part.truncated > TRUNCATION:
        warnings.append(f"{part.truncated:.0%} of the {texts} are cut at {limit:,} tokens")
    return warnings


def _skip_warnings(skips: Sequence[SkippedRow]) -> list[str]:
    """The number of skipped rows for each reason, and the first of them."""
    first: dict[str, str] = {}
    for skip in skips:
        first.setdefault(skip.reason, skip.origin)
    counts = Counter(skip.reason for skip in skips).most_common()
    return [f"{n:,} rows were skipped, the first at {first[reason]}: {reason}" for reason, n in counts]
