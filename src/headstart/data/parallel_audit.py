"""What is in parallel text before anything learns from it: lengths on both sides, repeats, copies, and texts that leak."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headstart.data.audit import TRUNCATION, Audit, Leak, Spread, audit, spread
from headstart.data.example import Dataset, Example, Skip, text_hash
from headstart.data.parallel import PairExample, ParallelText

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
    skips: list[Skip]
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
    warnings = _warnings(splits, limit, texts.skips, skipped)
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


def _warnings(
    splits: Mapping[str, PairAudit], limit: int | None, skips: Sequence[Skip], skipped: Mapping[str, int]
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
