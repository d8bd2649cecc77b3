"""CoNLL files: a token with its tag on each line, a blank line after each text."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from headstart.atomic_io import write_text
from headstart.data.text_io import Example, SkippedRow, open_text
from headstart.errors import DataError

DOCUMENT = "-DOCSTART-"  # a line of CoNLL-2003 between documents


def read_conll(path: Path, has_tags: bool = True) -> tuple[list[Example], list[SkippedRow]]:
    """The texts of a file, their tokens with one space between and their tags likewise, and the texts left out.

    The first column of a line is the token, the last one its tag; a tab separates columns, or else white space does.
    """
    examples, skips = [], []
    for number, lines in _texts(path):
        origin, columns = (
            f"{path.name}:{number}",
            [line.split("\t") if "\t" in line else line.split() for line in lines],
        )
        tokens, tags = [row[0] for row in columns], [row[-1].strip() for row in columns]
        if has_tags and (single := next((row[0] for row in columns if len(row) == 1), None)) is not None:
            raise DataError(
                f"{origin}: the token {single!r} has no tag",
                hint="a line holds a token and its tag, with a tab between",
            )
        if bad := next((token for token in tokens if not token.strip() or " " in token), None):
            skips.append(SkippedRow(origin, f"the token {bad!r} holds a space"))
        elif not all(tokens) or not all(tags):
            skips.append(SkippedRow(origin, "a token or its tag is empty"))
        else:
            examples.append(Example(" ".join(tokens), " ".join(tags) if has_tags else None, origin))
    if not examples:
        problem = f"no text of {path} can be used; the first, {skips[0].origin}: {skips[0].reason}" if skips else ""
        raise DataError(
            problem or f"{path} holds no tokens", hint="one token and its tag a line, a blank line after a text"
        )
    return examples, skips


def write_conll(path: Path, examples: Iterable[Example]) -> None:
    """Write texts with their tags, as `read_conll` reads them."""
    texts = [zip(row.text.split(" "), str(row.label).split(" "), strict=True) for row in examples]
    write_text(path, "\n".join("".join(f"{token}\t{tag}\n" for token, tag in text) for text in texts))


def _texts(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number of the first line of each text, and its lines."""
    start, lines = 0, list[str]()
    for number, line in open_text(path):
        is_comment = line.startswith("# ") and "\t" not in line and (" = " in line or len(line.split()) != 2)
        if not line.strip() or line.startswith(DOCUMENT):
            if lines:
                yield start, lines
            lines = []
        elif not is_comment:
            start = start if lines else number
            lines.append(line)
    if lines:
        yield start, lines
