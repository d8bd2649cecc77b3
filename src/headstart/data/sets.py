"""Sets of parallel text that can be built from what is freely given elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headstart.data.libreoffice import libreoffice_help

Stage = Callable[[str], None]
Built = tuple[
    list[tuple[str, str]], dict[str, str], dict[str, int]
]  # pairs, package versions, counts dropped


@dataclass(frozen=True)
class ParallelSet:
    """How a set is built for a pair of languages, and on what terms it may be used."""

    build: Callable[[tuple[str, str], Path | None, Stage], Built]
    about: str
    licence: str


SETS: dict[str, ParallelSet] = {
    "libreoffice-help": ParallelSet(
        libreoffice_help,
        "The help of LibreOffice, aligned by the ids of its paragraphs.",
        "MPL-2.0, by the LibreOffice contributors and Oracle; parts Apache-2.0, by the Apache Software Foundation",
    ),
}
