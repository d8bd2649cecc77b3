"""Parallel text built from what is freely given elsewhere, as a folder that the other jobs read."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headstart.data.example import SPLITS, text_hash
from headstart.data.languages import parse_pair
from headstart.data.sets import SETS
from headstart.data.splits import split_of
from headstart.errors import DataError, RunError, pick
from headstart.files import write_folder


@dataclass(frozen=True)
class Fetched:
    """A set that was built: where it is, how many pairs each split has, what it is made of and what was left out."""

    path: str
    name: str
    pair: tuple[str, str]
    counts: dict[str, int]
    versions: dict[str, str]
    dropped: dict[str, int]
    licence: str


def fetch(
    name: str,
    pair: str | tuple[str, str],
    out: str | Path,
    *,
    packages: str | Path | None = None,
    on_stage: Callable[[str], None] = lambda name: None,
) -> Fetched:
    """The set called `name` as train, valid and test files under `out`, split by a hash of the source.

    With `packages`, a folder of downloaded packages, nothing is fetched over the network.
    """
    kind, languages = pick(SETS, name, "set"), parse_pair(pair) if isinstance(pair, str) else pair
    folder = Path(out)
    if os.path.lexists(folder):
        raise RunError(f"{folder} already exists", hint="choose another --out, or remove it first")
    pairs, versions, dropped = kind.build(languages, None if packages is None else Path(packages), on_stage)
    splits: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    for row in pairs:
        splits[split_of(text_hash(row[0]))].append(row)
    if not all(splits.values()):
        raise DataError(
            f"{len(pairs):,} pairs are too few for train, valid and test",
            hint="choose another pair of languages",
        )
    counts = {split: len(rows) for split, rows in splits.items()}
    found = Fetched(str(folder), name, languages, counts, versions, dropped, kind.licence)

    def fill(beside: Path) -> None:
        for split, rows in splits.items():
            for language, texts in zip(languages, zip(*rows, strict=True), strict=True):
                content = "".join(f"{text}\n" for text in texts)
                (beside / f"{split}.{language}").write_bytes(content.encode("utf-8"))
        (beside / "README.md").write_bytes(_readme(found, kind.about).encode("utf-8"))

    write_folder(folder, fill)
    return found


def _readme(found: Fetched, about: str) -> str:
    source, target = found.pair
    command = shlex.join(
        ["headstart", "fetch", found.name, "--pair", "-".join(found.pair), "--out", "FOLDER"]
    )
    lines = [
        f"# {found.name}, {source} to {target}",
        "",
        f"{about} Made by `{command}`.",
        "",
        f"- pairs: {', '.join(f'{count:,} {split}' for split, count in found.counts.items())}",
        f"- split by a hash of the {source} text; no text stands twice in either language",
        f"- from: {', '.join(f'{name} {version}' for name, version in found.versions.items())} (Debian packages)",
        f"- dropped: {', '.join(f'{count:,} {reason}' for reason, count in found.dropped.items()) or 'nothing'}",
        f"- licence: {found.licence}",
    ]
    return "\n".join(lines) + "\n"
