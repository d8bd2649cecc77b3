"""Parallel text: sentences and their translations, from aligned files or from tables with a column for each language.

Every line or row becomes a `PairExample` or a `SkippedRow`, in the order of the files.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path

from headstart.config import DataConfig
from headstart.data.datasets import ALIASES, SPLITS, SkippedRow, Splits, add_file, split_files, split_of
from headstart.data.text_io import (
    OPENERS,
    TABLE_KINDS,
    check_kind,
    column_names,
    fault,
    iterate_rows,
    kind_of,
    missing,
    open_text,
    refuse,
    text_hash,
)
from headstart.errors import ConfigError, DataError


def parse_pair(text: str) -> tuple[str, str]:
    """The source and the target language of "en-de"."""
    found = re.fullmatch(r"([^\W_][^\s-]*)-([^\W_][^\s-]*)", text.strip())
    if not found:
        region = " (a region with an underscore: en-pt_br)" if text.count("-") > 1 else ""
        raise ConfigError(f"{text!r} is no pair of languages", hint=f"write source-target, such as en-de{region}")
    source, target = found.groups()
    if language_key(source) == language_key(target):
        hint = "write source-target, such as en-de; the two must differ"
        raise ConfigError(f"{text!r} names one language twice", hint=hint)
    return source, target


def language_key(name: str) -> str:
    """What spellings of one language share: pt-BR, pt_br and PT_BR are the same."""
    return name.strip().casefold().replace("-", "_")


def find_language(language: str, names: Iterable[str], where: str) -> str | None:
    """The spelling of a language in `names`, or None; two spellings at once are an error."""
    spelled = [name for name in names if language_key(name) == language_key(language)]
    if len(spelled) > 1:
        shown = " and ".join(map(repr, spelled))
        raise DataError(f"{where} has {language} twice: {shown}", hint="keep one of them, or rename the other")
    return spelled[0] if spelled else None


SHORTEST = 5  # characters; a shorter side counts as this long, so that "OK" may be "Einverstanden"

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PairExample:
    """A text, its translation, and where they come from ("train.en:17")."""

    source: str
    target: str
    origin: str = ""


@dataclass(frozen=True)
class ParallelText(Splits[PairExample]):
    """Texts and their translations by split, and an account of what was left out."""

    name: str
    pair: Pair
    splits: dict[str, list[PairExample]]
    skips: list[SkippedRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def sources(self, split: str) -> list[str]:
        """The texts of one split to translate, in order."""
        return [example.source for example in self.splits.get(split, [])]

    def targets(self, split: str) -> list[str]:
        """The translations of one split, in order."""
        return [example.target for example in self.splits.get(split, [])]


Rows = Callable[[], Iterator[PairExample | SkippedRow]]  # reads the lines or rows of one split when called


def load_parallel(data: str, pair: Pair, config: DataConfig, *, with_test: bool = False) -> ParallelText:
    """The pairs of a folder of train.en, train.de, valid.en, …, of a table, or of a folder of tables.

    Without a valid split, train is split by a hash of the source into train, valid and, without a test split, test.
    The test split is loaded only `with_test`, and never part of train.
    """
    sources, notes = _find_rows(data, pair)
    if "train" not in sources:
        languages = ", ".join(available_languages(data)) or "no file called train.LANGUAGE"
        found = f" in train, only in {' and '.join(sources)}" if sources else f"; it has {languages}"
        hint = f"name its files train.{pair[0]} and train.{pair[1]}, or give a --pair that it has"
        raise DataError(f"{data} has no {pair[0]} and {pair[1]} side by side{found}", hint=hint)
    shown, skips = SPLITS if with_test else SPLITS[:2], list[SkippedRow]()
    found_splits = [name for name in shown if name in sources]
    splits = {name: _usable_pairs(sources[name], f"{name} of {data}", config, skips) for name in found_splits}
    if "valid" not in sources:
        names = [name for name in SPLITS if name == "train" or name not in sources]
        splits |= _split_by_source(splits["train"], names, data)
        each = "each " * (len(names) > 2)
        notes.append(f"no {' and '.join(names[1:])} given: a tenth of train {each}is used, by a hash of the source")
    splits["train"] = _within_ratio(splits["train"], config, skips)
    splits = {name: splits[name] for name in shown if name in splits}
    return ParallelText(Path(data).resolve().name.split(".")[0], pair, splits, skips, notes)


def load_pairs_for_scoring(
    data: str, pair: Pair, config: DataConfig
) -> tuple[str, list[PairExample], list[SkippedRow]]:
    """What to evaluate a translator on: the test split if there is one, else valid; a whole table ("all")."""
    sources, skips = _find_rows(data, pair)[0], list[SkippedRow]()
    if not os.path.isdir(data):
        return "all", _usable_pairs(sources["train"], data, config, skips), skips
    for name in ("test", "valid"):
        if name in sources:
            return name, _usable_pairs(sources[name], f"{name} of {data}", config, skips), skips
    held_out = load_parallel(data, pair, config, with_test=True)
    return "test", held_out.test, held_out.skips


def available_languages(data: str) -> list[str]:
    """The languages of a folder's files, or the columns of a table, sorted."""
    if not os.path.isdir(data):
        return sorted(column_names(_existing_table(data)))
    folder = Path(data)
    names = {language for files in language_files(folder).values() for language in files}
    return sorted(names.union(*(column_names(path) for path in split_files(folder).values())))


def language_files(folder: Path) -> dict[str, dict[str, Path]]:
    """The files of a folder called SPLIT.LANGUAGE, also with .txt and with .gz or .xz behind, by split and language."""
    files: defaultdict[str, dict[str, Path]] = defaultdict(dict)
    for path in sorted(folder.iterdir()):
        name = path.name
        for ending in (*OPENERS, ".txt"):
            name = name[: -len(ending)] if name.lower().endswith(ending) else name
        split, _, language = name.partition(".")
        is_text = language and "." not in language and kind_of(path) not in TABLE_KINDS and path.is_file()
        if is_text and split.lower() in ALIASES:
            split = ALIASES[split.lower()]
            add_file(files[split], language, path, f"{language} of {split}")
    return dict(files)


def _find_rows(data: str, pair: Pair) -> tuple[dict[str, Rows], list[str]]:
    """The reader of each split, where a single table is train, and notes on files that are not read."""
    if not os.path.isdir(data):
        return {"train": partial(_table_rows, _existing_table(data), pair)}, []
    folder, notes = Path(data), []
    tables = split_files(folder)
    sources: dict[str, Rows] = {name: partial(_table_rows, path, pair) for name, path in tables.items()}
    for name, files in language_files(folder).items():
        where = f"{name} of {folder}"
        spelled = [spelling for language in pair if (spelling := find_language(language, files, where))]
        if len(spelled) == 1:
            notes.append(f"{files[spelled[0]].name} has no twin in the other language and is not read")
        if len(spelled) < 2:
            continue
        if name in tables:
            problem = f"{folder} has {name} twice: as {files[spelled[0]].name} and as {tables[name].name}"
            raise DataError(problem, hint="keep one of them")
        sources[name] = partial(_aligned_rows, files[spelled[0]], files[spelled[1]])
    return sources, notes


def _existing_table(data: str) -> Path:
    if not os.path.exists(data):
        raise missing(Path(data))
    check_kind(Path(data), hint="for aligned files, such as train.en and train.de, give the folder that holds them")
    return Path(data)


def _aligned_rows(source: Path, target: Path) -> Iterator[PairExample]:
    """Line by line; files of different length are refused, once both are counted."""
    counts, surplus_is_blank = [0, 0], True
    for number, lines in enumerate(zip_longest(open_text(source), open_text(target)), start=1):
        first, second = lines
        counts = [count + (line is not None) for count, line in zip(counts, lines, strict=True)]
        if first and second:
            yield PairExample(first[1], second[1], f"{source.name}:{number}")
        else:
            surplus_is_blank = surplus_is_blank and not any(line and line[1].strip() for line in lines)
    if counts[0] != counts[1]:
        longer = (source if counts[0] > counts[1] else target).name
        hint = f"line n of one must translate line n of the other; look for what {longer} has more"
        if surplus_is_blank:
            hint = f"what {longer} has more are empty lines at its end: take them out"
        problem = f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}, so they are not aligned"
        raise DataError(problem, hint=hint)


def _table_rows(path: Path, pair: Pair) -> Iterator[PairExample | SkippedRow]:
    names = column_names(path)
    columns = [find_language(language, names, str(path)) or language for language in pair]
    for number, values in iterate_rows(path, columns, flags=["--pair SOURCE-TARGET"]):
        faults = [values] if isinstance(values, str) else [fault(values[n], f"{pair[n]} text") for n in (0, 1)]
        reason, origin = faults[0] or faults[-1], f"{path.name}:{number}"
        yield SkippedRow(origin, reason) if reason else PairExample(values[0], values[1], origin)


def _usable_pairs(rows: Rows, where: str, config: DataConfig, skips: list[SkippedRow]) -> list[PairExample]:
    """The pairs of one split that have a text on both sides."""
    pairs, first_skip = list[PairExample](), "it is empty"
    for row in rows():
        reason = row.reason if isinstance(row, SkippedRow) else _empty_sides(row)
        if isinstance(row, PairExample) and not reason:
            pairs.append(row)
        else:
            _skip(SkippedRow(row.origin, reason), config, skips)
            first_skip = f"{row.origin}: {reason}" if first_skip == "it is empty" else first_skip
    if not pairs:
        hint = "a pair has a text in both languages, on the same line or in the same row"
        raise DataError(f"no pair of {where} can be used; {first_skip}", hint=hint)
    return pairs


def _empty_sides(pair: PairExample) -> str:
    sides = {"source": pair.source, "target": pair.target}
    empty = [name for name, text in sides.items() if not text.strip()]
    return f"{' and '.join(empty)} {'is' if len(empty) == 1 else 'are'} empty" if empty else ""


def _skip(skip: SkippedRow, config: DataConfig, skips: list[SkippedRow]) -> None:
    if config.on_bad_row == "error":
        refuse(skip)
    skips.append(skip)


def _within_ratio(pairs: list[PairExample], config: DataConfig, skips: list[SkippedRow]) -> list[PairExample]:
    """The pairs of train whose lengths are within `data.max_length_ratio`."""
    ratio, usable = config.max_length_ratio, list[PairExample]()
    reason = f"one side has over {ratio:g} times the characters of the other (data.max_length_ratio)"
    for pair in pairs:
        if not ratio or length_ratio(pair) <= ratio:
            usable.append(pair)
        else:
            _skip(SkippedRow(pair.origin, reason), config, skips)
    if not usable:
        problem = f"in no pair of train are the sides within {ratio:g} times each other's length"
        hint = "check that the files belong together, or set data.max_length_ratio higher (0 = any)"
        raise DataError(problem, hint=hint)
    return usable


def length_ratio(pair: PairExample) -> float:
    """The characters of the longer side over those of the shorter one, each at least `SHORTEST`."""
    shorter, longer = sorted((len(pair.source.strip()), len(pair.target.strip())))
    return max(longer, SHORTEST) / max(shorter, SHORTEST)


def _split_by_source(pairs: list[PairExample], names: Sequence[str], data: str) -> dict[str, list[PairExample]]:
    """Pairs split by the hash of their source; a split that would be empty gets the source of lowest hash."""
    hashed = [text_hash(pair.source) for pair in pairs]
    split = {key: name if (name := split_of(key)) in names else "train" for key in sorted(hashed)}
    for rank, name in enumerate(names):
        counts = Counter(split.values())
        movable = [key for key, own in split.items() if counts[own] > 1 or names.index(own) > rank]
        if not counts[name] and movable:
            split[movable[0]] = name
    splits: dict[str, list[PairExample]] = {name: [] for name in names}
    for key, pair in zip(hashed, pairs, strict=True):
        splits[split[key]].append(pair)
    if not splits["train"] or not splits["valid"]:
        problem = f"{data} has too few different sources to set any aside for valid"
        raise DataError(problem, hint="give two or more, or files for valid")
    return splits
