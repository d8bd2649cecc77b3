"""The parallel corpus `libreoffice-help`: LibreOffice's help in two languages, built from Debian packages.

A paragraph has the same id on the same page in every language, so pairs need no alignment model. apt downloads the
packages. They are read in memory: nothing is installed, and no file of a package is written to disk.
"""

import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from headstart.atomic_io import refuse_existing, write_folder
from headstart.data.audit import near_hash
from headstart.data.datasets import SPLITS, split_of
from headstart.data.parallel import language_key, parse_pair
from headstart.data.text_io import one_line, reading, text_hash
from headstart.errors import DataError, nearest, pick

NAME = "libreoffice-help"
LICENCE = "MPL-2.0, by the LibreOffice contributors and Oracle; parts Apache-2.0, by the Apache Software Foundation"
ENGLISH = "en_us"  # the language that the others are translated from
PAGE = re.compile(r"/help/[^/]+/text/(.+\.html)$")
BLOCKS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}
LETTER = re.compile(r"[^\W\d_]")

Position = tuple[str, str, int]  # page, id, which of the paragraphs with that id
Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Fetched:
    """Where the corpus was written, how many pairs each split has, its packages and what was dropped."""

    path: str
    name: str
    pair: tuple[str, str]
    counts: dict[str, int]
    versions: dict[str, str]
    dropped: dict[str, int]
    licence: str

    def readme(self) -> str:
        """The README.md of the corpus."""
        source, target = self.pair
        return f"""# {NAME}, {source} to {target}

The help of LibreOffice, aligned by the ids of its paragraphs. Made by `headstart download {NAME} --pair {source}-{target} --out FOLDER`.

- pairs: {", ".join(f"{count:,} {split}" for split, count in self.counts.items())}
- split by a hash of the {source} text; no text occurs twice in either language
- from: {", ".join(f"{name} {version}" for name, version in self.versions.items())} (Debian packages)
- dropped: {", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items()) or "nothing"}
- licence: {self.licence}
"""


def fetch(
    name: str,
    pair: str | tuple[str, str],
    out: str | Path,
    *,
    packages: str | Path | None = None,
    on_stage: Callable[[str], None] = lambda name: None,
) -> Fetched:
    """Write the corpus as train, valid and test files under `out`, split by a hash of the source.

    `packages` is a folder of downloaded packages; with it, nothing is fetched over the network. From English to a
    language that is well translated there are over 30,000 pairs.
    """
    pick({NAME: None}, name, "set")
    languages = parse_pair(pair) if isinstance(pair, str) else pair
    folder = Path(out)
    refuse_existing(folder)
    packages_of = [_package_name(language) for language in (*languages, ENGLISH)]
    names = sorted(set(packages_of))
    with tempfile.TemporaryDirectory(prefix="headstart-") as temporary:
        if packages is None:
            _refuse_unknown_languages(languages)
            on_stage(f"downloading {', '.join(names)}")
            _download(names, Path(temporary))
        files = find_packages(names, Path(packages or temporary))
        texts = {}
        for package, path in files.items():
            on_stage(f"reading {path.name}")
            texts[package] = paragraphs(path)
    pairs, dropped = align(*(texts[package] for package in packages_of))
    splits: dict[str, Pairs] = {split: [] for split in SPLITS}
    for row in pairs:
        splits[split_of(text_hash(row[0]))].append(row)
    if not all(splits.values()):
        problem = f"{len(pairs):,} pairs are too few for train, valid and test"
        raise DataError(problem, hint="choose another pair of languages")
    counts = {split: len(rows) for split, rows in splits.items()}
    versions = {package: unquote(path.stem.split("_")[1]) for package, path in files.items()}
    found = Fetched(str(folder), name, languages, counts, versions, dropped, LICENCE)

    def fill(beside: Path) -> None:
        for split, rows in splits.items():
            for side, language in enumerate(languages):
                content = "".join(f"{row[side]}\n" for row in rows)
                (beside / f"{split}.{language}").write_bytes(content.encode("utf-8"))
        (beside / "README.md").write_bytes(found.readme().encode("utf-8"))

    write_folder(folder, fill)
    return found


def align(
    source: dict[Position, str], target: dict[Position, str], english: dict[Position, str]
) -> tuple[Pairs, dict[str, int]]:
    """Pairs of paragraphs with the same position, each text once on each side, and counts of what was dropped."""
    pairs: Pairs = []
    seen: set[tuple[int, int | None]] = set()  # (side, hash)
    dropped: Counter[str] = Counter()
    for position in sorted(source.keys() & target.keys()):
        texts = source[position], target[position]
        keys = near_hash(texts[0]), near_hash(texts[1])
        translations = [key for key, side in zip(keys, (source, target), strict=True) if side is not english]
        if not all(texts):
            dropped["empty"] += 1
        elif not all(LETTER.search(text) for text in texts):
            dropped["without letters"] += 1
        elif keys[0] == keys[1] or near_hash(english.get(position, "")) in translations:
            dropped["untranslated"] += 1
        elif seen.intersection(enumerate(keys)):
            dropped["repeats (but for case, space and punctuation)"] += 1
        else:
            seen.update(enumerate(keys))
            pairs.append(texts)
    return pairs, dict(dropped)


def paragraphs(package: Path) -> dict[Position, str]:
    """The texts of all paragraphs of a help package that have an id and are not program code."""
    found: dict[Position, str] = {}
    for name, content in package_files(package):
        if page := PAGE.search(f"/{name}"):
            parser = _Paragraphs()
            parser.feed(content.decode("utf-8", errors="replace"))
            parser.close()
            times: Counter[str] = Counter()
            for key, text in parser.found:
                found[page[1], key, times[key]] = text
                times[key] += 1
    if not found:
        problem = f"{package} holds no help pages with paragraphs"
        raise DataError(problem, hint=f"it should be a {NAME}-LANGUAGE package")
    return found


class _Paragraphs(HTMLParser):
    """The texts of a page's paragraphs by id; of texts that differ by system or program the common one is taken."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, str]] = []
        self._open_block("", "")

    def _open_block(self, tag: str, key: str) -> None:
        self.tag, self.key = tag, key
        self.spans: list[str] = []
        self.texts: list[list[str]] = [[]]  # of the paragraph, and of the open choice inside it
        self.choices: list[dict[str, str]] = []  # of each open switch: name ("" = common) -> text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        kind = values.get("class", "")
        if tag in BLOCKS:
            self._open_block(tag, "" if "code" in kind else values.get("id", ""))
        elif tag == "br":
            self.handle_data(" ")
        elif tag == "span":
            if "switch" in kind:
                self.spans.append("switch")
                self.choices.append({})
            elif "hidden" in values and self.choices:
                self.spans.append(f"choice {kind}")
                self.texts.append([])
            else:
                self.spans.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self.tag:
            if self.key:
                self.found.append((self.key, " ".join("".join(self.texts[0]).split())))
            self._open_block("", "")
        elif tag == "span" and self.spans:
            span = self.spans.pop()
            if span.startswith("choice"):
                self.choices[-1].setdefault(span.removeprefix("choice "), "".join(self.texts.pop()))
            elif span:
                options = self.choices.pop()
                self.handle_data(options.get("", next(iter(options.values()), "")))

    def handle_data(self, data: str) -> None:
        self.texts[-1].append(data)


def _package_name(language: str) -> str:
    key = language_key(language)
    return f"{NAME}-{ENGLISH if key == 'en' else key}".replace("_", "-")


def _refuse_unknown_languages(pair: tuple[str, str]) -> None:
    """Refuse a language for which apt lists no help package."""
    if shutil.which("apt-cache") is None:
        return
    known = set(_apt("apt-cache", "pkgnames", f"{NAME}-").stdout.split()) - {f"{NAME}-common"}
    for language in pair:
        if known and _package_name(language) not in known:
            languages = sorted(name.removeprefix(f"{NAME}-").replace("-", "_") for name in known)
            raise DataError(f"Debian has no LibreOffice help in {language!r}", hint=nearest(language, languages))


def _download(names: Sequence[str], folder: Path) -> None:
    if shutil.which("apt-get") is None:
        problem = "this set is made from Debian packages, and there is no apt-get here"
        hint = "do it on Debian or Ubuntu, or give the folder of the downloaded .deb files with --deb-dir"
        raise DataError(problem, hint=hint)
    done = _apt("apt-get", "-o", "Acquire::Retries=2", "download", *names, folder=folder)
    if done.returncode:
        problem = (re.findall(r"^E: (.+)$", done.stderr, flags=re.MULTILINE) or [done.stderr.strip()])[0]
        hint = "check the network, then try again"
        if problem.startswith("Unable to locate"):
            hint = "if apt does not know it, fetch its lists first: sudo apt-get update"
        raise DataError(f"apt cannot download {' '.join(names)}: {problem}", hint=hint)


def _apt(*command: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}  # messages in English
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", check=False
    )


def find_packages(names: Sequence[str], folder: Path) -> dict[str, Path]:
    """The newest .deb file of each package in a folder."""

    def version(path: Path) -> tuple[list[int], str]:
        return [int(number) for number in re.findall(r"\d+", path.name)], path.name

    with reading(folder):
        files = sorted((path for path in folder.iterdir() if path.suffix == ".deb"), key=version)
    found = {path.name.partition("_")[0]: path for path in files if "_" in path.name}
    for name in names:
        if name not in found:
            raise DataError(f"{folder} holds no file {name}_VERSION.deb", hint=f"get it there: apt-get download {name}")
    return {name: found[name] for name in names}


def package_files(path: Path) -> Iterator[tuple[str, bytes]]:
    """The path and content of each regular file in a .deb, in order; links and devices are skipped."""
    if shutil.which("dpkg-deb") is None:
        raise DataError(f"{path} needs dpkg-deb to be read", hint="do it on Debian or Ubuntu")
    done = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(path)], capture_output=True, check=False)
    try:
        if done.returncode:
            raise tarfile.ReadError(done.stderr.decode("utf-8", "replace"))
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is not None:
                    yield member.name.removeprefix("./"), content.read()
    except tarfile.TarError as error:
        problem = f"{path} is no whole Debian package: {one_line(str(error))}"
        raise DataError(problem, hint="download it again") from None
