"""Labels that authors wrote into their texts ("8/10"): found by a pattern, and cut out before anything is learnt."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from headstart.data.example import Example, Skip
from headstart.data.lines import TABLE_KINDS, kind_of, open_text
from headstart.data.relabel import class_finder
from headstart.data.tables import Where, iterate_table, refuse
from headstart.errors import DataError


def read_written(
    path: Path,
    text_column: str,
    pattern: str,
    classes: Mapping[str, Sequence[str]],
    strict: bool = False,
    where: Where | None = None,
) -> tuple[list[Example], list[Skip]]:
    """The texts of a table, or the lines of a .txt file, that hold a label; and what was left out, each with why.

    `strict` makes errors of damaged rows, not of texts without a label.
    """
    damaged: list[Skip] = []
    if kind_of(path) in TABLE_KINDS:
        on_skip = refuse if strict else damaged.append
        texts = iterate_table(path, text_column, None, on_skip, where, damaged.append)
    elif where:
        raise DataError(f"{path} has no columns for data.where to ask", hint="leave data.where out")
    else:
        lines = ((f"{path.name}:{number}", line) for number, line in open_text(path))
        texts = (Example(line, None, origin) for origin, line in lines if line.strip())
    found, skips = labelled_by(texts, path, pattern, classes)
    return found, [*damaged, *skips]


def labelled_by(
    texts: Iterable[Example], where: Path | str, pattern: str, classes: Mapping[str, Sequence[str]]
) -> tuple[list[Example], list[Skip]]:
    """The texts that hold a label, whatever label they had; and what was left out, each with why.

    A group of the pattern that is called like a class, and matches something, stands for it; without one the first group
    is looked up in `classes`. A text that names two classes has no true one.
    """
    finder, class_of = re.compile(pattern), class_finder(classes)
    first = 1 if finder.groups else 0
    found: list[Example] = []
    skips: list[Skip] = []
    for example in texts:
        named: set[str | None] = set()
        for match in finder.finditer(example.text):
            said = {name for name, words in match.groupdict().items() if words and name in classes}
            named |= said or {class_of(label.strip()) for label in [match[first]] if label}
        rest = " ".join(finder.sub(" ", example.text).split())
        fault = _fault(named, rest)
        if fault:
            skips.append(Skip(example.origin, fault))
        else:
            found.append(Example(rest, named.pop(), example.origin, example.text))
    if not found:
        one = f"; the first, {skips[0].origin}: {skips[0].reason}" if skips else ""
        raise DataError(
            f"data.label_pattern finds a label to learn in no text of {where}{one}",
            hint="the first group of the pattern is the label, or one called like a class of data.classes, which names "
            "labels as they stand in the texts",
        )
    return found, skips


def _fault(named: set[str | None], rest: str) -> str:
    """Why a text that names these classes, and has this rest, cannot be learnt from, or ""."""
    if not named:
        return "no label is written in it"
    if len(named) > 1:
        return "it names labels of more than one class"
    if None in named:
        return "its label is of no class"
    return "" if rest else "nothing is left beside its label"
