"""What is in a dataset before anything learns from it: balance, lengths, repeats, and texts that leak."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np

from headstart.config import DataConfig, TokenizerConfig, parse
from headstart.data.dataset import Dataset, Example, SkippedRow, text_hash
from headstart.data.datasets import load_dataset
from headstart.data.parallel import PairExample, ParallelText, load_parallel, parse_pair
from headstart.data.splits import balanced_subset
from headstart.data.tokenizer import Tokenizer, resolve_tokenizer
from headstart.errors import ConfigError

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
    skips: list[SkippedRow]
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


COPIES = 0.05  # share of pairs

Lengths = Mapping[str, Sequence[int]]  # split -> tokens of each text
Shares = Mapping[str, float]  # split -> share of tokens


@dataclass(frozen=True)
class SideAudit:
    """What is in one language of one split; `duplicates` counts the rows beyond the first of each text."""

    characters: Spread
    words: Spread  # between white space
    tokens: Spread | None
    truncated: float | None  # share of texts longer than the limit
    unknown: float | None  # share of tokens outside the vocabulary
    duplicates: int
    several: int  # texts that stand with two translations or more
    in_train: int  # rows whose text also stands in train; 0 for train itself
    near_in_train: int  # rows that differ from one in train by case, space or punctuation alone


@dataclass(frozen=True)
class PairAudit:
    """What is in one split; `duplicates` counts the rows beyond the first of each pair."""

    count: int
    duplicates: int
    copies: int  # pairs of which both sides are the same text
    in_train: int  # rows whose whole pair also stands in train; 0 for train itself
    ratio: Spread  # characters of the target for one of the source
    sides: dict[str, SideAudit]  # by language, the source first


@dataclass(frozen=True)
class SideLeak(Leak):
    """One text that stands in more than one split, and in which language."""

    side: str


@dataclass(frozen=True)
class ParallelAudit:
    """What is in parallel text, split by split, and what stands in two of them."""

    name: str
    pair: tuple[str, str]
    limit: int | None
    splits: dict[str, PairAudit]
    leaks: list[SideLeak]
    near: list[SideLeak]  # equal but for case, space and punctuation, and not in `leaks`
    skipped: dict[str, int]  # reason -> rows left out for it
    skips: list[SkippedRow]
    notes: list[str]
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        """The audit as JSON-able values."""
        return asdict(self)


def audit_parallel(
    texts: ParallelText,
    lengths: Mapping[str, Lengths] | None = None,
    unknown: Mapping[str, Shares] | None = None,
    limit: int | None = None,
) -> ParallelAudit:
    """An account of `texts`; `lengths` in tokens and shares of `unknown` tokens are by language, then by split."""
    sides = {
        language: audit(
            _one_side(texts, side), (lengths or {}).get(language), (unknown or {}).get(language), limit
        )
        for side, language in enumerate(texts.pair)
    }
    known = {_key(pair) for pair in texts.train}
    splits = {name: _pair_audit(name, texts.splits[name], known, sides, texts.pair) for name in texts.splits}
    leaks, near = _with_side(sides, "leaks"), _with_side(sides, "near")
    skipped = dict(Counter(skip.reason for skip in texts.skips).most_common())
    warnings = _parallel_warnings(splits, limit, texts.skips, skipped)
    return ParallelAudit(
        texts.name, texts.pair, limit, splits, leaks, near, skipped, texts.skips, texts.notes, warnings
    )


def _one_side(texts: ParallelText, side: int) -> Dataset:
    """One language as a dataset in which the label of a text is its translation."""
    splits = {}
    for name, pairs in texts.splits.items():
        both = [(pair.source, pair.target) for pair in pairs]
        splits[name] = [
            Example(row[side], row[1 - side], pair.origin) for row, pair in zip(both, pairs, strict=True)
        ]
    return Dataset(texts.name, splits, [])


def _key(pair: PairExample) -> tuple[int, int]:
    return text_hash(pair.source), text_hash(pair.target)


def _pair_audit(
    name: str,
    pairs: Sequence[PairExample],
    known: set[tuple[int, int]],
    sides: Mapping[str, Audit],
    languages: tuple[str, str],
) -> PairAudit:
    keys = [_key(pair) for pair in pairs]
    return PairAudit(
        count=len(pairs),
        duplicates=len(keys) - len(set(keys)),
        copies=sum(source == target for source, target in keys),
        in_train=0 if name == "train" else sum(key in known for key in keys),
        ratio=spread([len(pair.target) / len(pair.source) for pair in pairs]),
        sides={
            language: _side_audit(sides[language], name, [(pair.source, pair.target)[side] for pair in pairs])
            for side, language in enumerate(languages)
        },
    )


def _side_audit(found: Audit, name: str, texts: Sequence[str]) -> SideAudit:
    part = found.splits[name]
    return SideAudit(
        characters=part.characters,
        words=spread([len(text.split()) for text in texts]),
        tokens=part.tokens,
        truncated=part.truncated,
        unknown=part.unknown,
        duplicates=part.duplicates,
        several=part.conflicts,
        in_train=part.in_train,
        near_in_train=part.near_in_train,
    )


def _with_side(sides: Mapping[str, Audit], kind: str) -> list[SideLeak]:
    return [
        SideLeak(leak.excerpt, leak.hash, leak.origins, language)
        for language, found in sides.items()
        for leak in getattr(found, kind)
    ]


def _parallel_warnings(
    splits: Mapping[str, PairAudit],
    limit: int | None,
    skips: Sequence[SkippedRow],
    skipped: Mapping[str, int],
) -> list[str]:
    """What deserves a second look, in words."""
    warnings = []
    for name, part in splits.items():
        if part.copies > COPIES * part.count:
            warnings.append(
                f"{part.copies:,} of the {part.count:,} pairs of {name} have the same text on both sides"
            )
        for language, side in part.sides.items():
            if side.in_train:
                warnings.append(
                    f"{side.in_train:,} of the {part.count:,} {language} texts of {name} are also in train"
                )
            if side.near_in_train:
                warnings.append(
                    f"{side.near_in_train:,} {language} texts of {name} are in train but for case, space or punctuation"
                )
            if side.truncated is not None and side.truncated > TRUNCATION:
                warnings.append(
                    f"{side.truncated:.0%} of the {language} texts of {name} are cut at {limit:,} tokens"
                )
    for reason, count in skipped.items():
        first = next(skip.origin for skip in skips if skip.reason == reason)
        warnings.append(f"{count:,} rows were skipped, the first at {first}: {reason}")
    return warnings


def inspect_data(
    data: str,
    *,
    tokenizer: str | None = None,
    length: int = 256,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    on_stage: Callable[[str], None] = lambda name: None,
) -> Audit:
    """The audit of every split, lengths in tokens of `tokenizer` (a kind or a path; bpe learnt from train unless told)."""
    config, words = _settings(settings or {}, tokenizer)
    dataset = load_dataset(data, config, with_test=True)
    if config.train_size is not None:
        dataset = balanced_subset(dataset, config.train_size, seed)
    on_stage(f"tokenizer: {words.type}")
    found: Tokenizer = resolve_tokenizer(words, lambda: dataset.texts("train"))
    on_stage("tokenising")
    lengths, unknown = {}, {}
    for split in dataset.splits:
        lengths[split], unknown[split] = token_counts(found, dataset.texts(split))
    return audit(dataset, lengths, unknown, length)


def inspect_parallel(
    data: str,
    pair: str | tuple[str, str],
    *,
    tokenizer: str | None = None,
    length: int = 256,
    settings: Mapping[str, Any] | None = None,
    on_stage: Callable[[str], None] = lambda name: None,
) -> ParallelAudit:
    """The audit of every split of parallel text, with lengths in tokens where a `tokenizer` is given (a kind or a path)."""
    config, words = _settings(settings or {}, tokenizer)
    languages = parse_pair(pair) if isinstance(pair, str) else pair
    texts = load_parallel(data, languages, config, with_test=True)
    if tokenizer is None and not (settings or {}).get("tokenizer"):
        return audit_parallel(texts)
    on_stage(f"tokenizer: {words.type}")
    found = resolve_tokenizer(words, lambda: chain(texts.sources("train"), texts.targets("train")))
    on_stage("tokenising")
    lengths: dict[str, dict[str, list[int]]] = {language: {} for language in languages}
    unknown: dict[str, dict[str, float]] = {language: {} for language in languages}
    for split in texts.splits:
        for language, side in zip(languages, (texts.sources(split), texts.targets(split)), strict=True):
            lengths[language][split], unknown[language][split] = token_counts(found, side)
    return audit_parallel(texts, lengths, unknown, length)


def _settings(sections: Mapping[str, Any], tokenizer: str | None) -> tuple[DataConfig, TokenizerConfig]:
    """The settings that count for an audit; any other is an error."""
    config = parse(DataConfig, sections.get("data", {}), "data")
    wanted = {**dict(sections.get("tokenizer", {})), **({"type": tokenizer} if tokenizer else {})}
    words = parse(TokenizerConfig, wanted, "tokenizer")
    for name in sections:
        if name not in ("data", "tokenizer"):
            raise ConfigError(
                f"an audit has no setting {name!r}", hint="only data.* and tokenizer.* count here"
            )
    return config, words


def token_counts(tokenizer: Tokenizer, texts: list[str]) -> tuple[list[int], float]:
    """Each text's length in tokens with both ends marked, and the share of unknown tokens among all."""
    encoded = tokenizer.encode(texts)
    total = sum(len(ids) for ids in encoded)
    strange = sum(int((ids == tokenizer.unknown).sum()) for ids in encoded)
    return [len(ids) + 2 for ids in encoded], strange / max(1, total)
