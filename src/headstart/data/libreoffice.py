"""The parallel set `libreoffice-help`: LibreOffice's help in two languages, from Debian's packages.

A paragraph has the same id on the same page in every language, so no alignment is guessed. apt downloads the packages.
They are read in memory: nothing is installed, and no file of a package is written to disk.
"""

import bz2
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
from typing import Any
from urllib.parse import unquote

from headstart.atomic_io import write_folder
from headstart.data.audit import near_hash
from headstart.data.dataset import SPLITS, text_hash
from headstart.data.parallel import language_key, parse_pair
from headstart.data.splits import split_of
from headstart.data.text_io import CORRUPT, OPENERS, reading
from headstart.errors import DataError, RunError, nearest, pick

NAME = "libreoffice-help"
LICENCE = (
    "MPL-2.0, by the LibreOffice contributors and Oracle; parts Apache-2.0, by the Apache Software Foundation"
)
ENGLISH = "en_us"  # the language that the others are translated from
UNPACKERS: dict[str, Callable[[io.BytesIO], Any]] = {
    "": lambda stored: stored,
    **OPENERS,
    ".bz2": bz2.BZ2File,
}
MAX_BYTES = 2**28  # of one package, packed or unpacked; the largest help package unpacks to a quarter of that
PAGE = re.compile(r"/help/[^/]+/text/(.+\.html)$")
BLOCKS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}
LETTER = re.compile(r"[^\W\d_]")

Place = tuple[str, str, int]  # page, id, which of those with that id
Pairs = list[tuple[str, str]]


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

    With `packages`, a folder of downloaded packages, nothing is fetched over the network. From English to a language
    that is well translated there are over 30,000 pairs.
    """
    pick({NAME: None}, name, "set")
    languages = parse_pair(pair) if isinstance(pair, str) else pair
    folder = Path(out)
    if os.path.lexists(folder):
        raise RunError(f"{folder} already exists", hint="choose another --out, or remove it first")
    pairs, versions, dropped = _build(languages, None if packages is None else Path(packages), on_stage)
    splits: dict[str, Pairs] = {split: [] for split in SPLITS}
    for row in pairs:
        splits[split_of(text_hash(row[0]))].append(row)
    if not all(splits.values()):
        raise DataError(
            f"{len(pairs):,} pairs are too few for train, valid and test",
            hint="choose another pair of languages",
        )
    counts = {split: len(rows) for split, rows in splits.items()}
    found = Fetched(str(folder), name, languages, counts, versions, dropped, LICENCE)

    def fill(beside: Path) -> None:
        for split, rows in splits.items():
            for language, texts in zip(languages, zip(*rows, strict=True), strict=True):
                content = "".join(f"{text}\n" for text in texts)
                (beside / f"{split}.{language}").write_bytes(content.encode("utf-8"))
        (beside / "README.md").write_bytes(_readme(found).encode("utf-8"))

    write_folder(folder, fill)
    return found


def _readme(found: Fetched) -> str:
    source, target = found.pair
    return f"""# {NAME}, {source} to {target}

The help of LibreOffice, aligned by the ids of its paragraphs. Made by `headstart download {NAME} --pair {source}-{target} --out FOLDER`.

- pairs: {", ".join(f"{count:,} {split}" for split, count in found.counts.items())}
- split by a hash of the {source} text; no text occurs twice in either language
- from: {", ".join(f"{name} {version}" for name, version in found.versions.items())} (Debian packages)
- dropped: {", ".join(f"{count:,} {reason}" for reason, count in found.dropped.items()) or "nothing"}
- licence: {found.licence}
"""


def _build(
    pair: tuple[str, str], packages: Path | None, on_stage: Callable[[str], None]
) -> tuple[Pairs, dict[str, str], dict[str, int]]:
    """The pairs in the order of the pages, each package's version, and counts of what was dropped."""
    names = {language: _package(language) for language in (*pair, ENGLISH)}
    wanted = sorted(set(names.values()))
    with tempfile.TemporaryDirectory(prefix="headstart-") as folder:
        if packages is None:
            _check_known(pair)
            on_stage(f"downloading {', '.join(wanted)}")
            _download(wanted, Path(folder))
        files = find_packages(wanted, packages or Path(folder))
        texts = {}
        for name, path in files.items():
            on_stage(f"reading {path.name}")
            texts[name] = paragraphs(path)
    versions = {name: unquote(path.stem.split("_")[1]) for name, path in files.items()}
    pairs, dropped = align(*(texts[names[language]] for language in (*pair, ENGLISH)))
    return pairs, versions, dropped


def align(
    source: dict[Place, str], target: dict[Place, str], english: dict[Place, str]
) -> tuple[Pairs, dict[str, int]]:
    """Pairs of paragraphs with the same place, each text once on each side, and counts of what was dropped."""
    pairs: Pairs = []
    seen: tuple[set[int | None], set[int | None]] = set(), set()
    dropped: Counter[str] = Counter()
    for place in sorted(source.keys() & target.keys()):
        texts = source[place], target[place]
        keys = near_hash(texts[0]), near_hash(texts[1])
        original = near_hash(english.get(place, ""))
        is_english = source is english, target is english
        if not all(texts):
            dropped["empty"] += 1
        elif not all(LETTER.search(text) for text in texts):
            dropped["without letters"] += 1
        elif keys[0] == keys[1] or original in (
            key for key, own in zip(keys, is_english, strict=True) if not own
        ):
            dropped["untranslated"] += 1
        elif keys[0] in seen[0] or keys[1] in seen[1]:
            dropped["repeats (but for case, space and punctuation)"] += 1
        else:
            seen[0].add(keys[0])
            seen[1].add(keys[1])
            pairs.append(texts)
    return pairs, dict(dropped)


def paragraphs(package: Path) -> dict[Place, str]:
    """The text of every paragraph of a help package that has an id and is not program code."""
    found: dict[Place, str] = {}
    for name, content in package_files(package):
        if page := PAGE.search(f"/{name}"):
            parser = _Paragraphs()
            try:
                parser.feed(content.decode("utf-8"))
            except UnicodeDecodeError as error:
                problem = f"{package}: {name} is not UTF-8: {error}"
                raise DataError(problem, hint="download the package again") from None
            parser.close()
            times: Counter[str] = Counter()
            for key, text in parser.found:
                found[page[1], key, times[key]] = text
                times[key] += 1
    if not found:
        raise DataError(
            f"{package} holds no help pages with paragraphs", hint=f"it should be a {NAME}-LANGUAGE package"
        )
    return found


class _Paragraphs(HTMLParser):
    """The texts of a page's paragraphs by id; of texts that differ by system or program the common one is taken."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, str]] = []
        self._begin("", "")

    def _begin(self, tag: str, key: str) -> None:
        self.tag, self.key = tag, key
        self.spans: list[str] = []
        self.texts: list[list[str]] = [[]]  # of the paragraph, and of the choice inside it that is open
        self.choices: list[dict[str, str]] = []  # of each switch that is open: name ("" = common) -> text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        kind = values.get("class", "")
        if tag in BLOCKS:
            self._begin(tag, "" if "code" in kind else values.get("id", ""))
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
            self._begin("", "")
        elif tag == "span" and self.spans:
            span = self.spans.pop()
            if span.startswith("choice"):
                self.choices[-1].setdefault(span.removeprefix("choice "), "".join(self.texts.pop()))
            elif span:
                options = self.choices.pop()
                self.handle_data(options.get("", next(iter(options.values()), "")))

    def handle_data(self, data: str) -> None:
        self.texts[-1].append(data)


def _package(language: str) -> str:
    key = language_key(language)
    return f"{NAME}-{ENGLISH if key == 'en' else key}".replace("_", "-")


def _check_known(pair: tuple[str, str]) -> None:
    """Refuse a language of which apt says that there is no help in it."""
    if shutil.which("apt-cache") is None:
        return
    known = set(_apt("apt-cache", "pkgnames", f"{NAME}-").stdout.split()) - {f"{NAME}-common"}
    for language in pair:
        if known and _package(language) not in known:
            languages = sorted(name.removeprefix(f"{NAME}-").replace("-", "_") for name in known)
            raise DataError(
                f"Debian has no LibreOffice help in {language!r}", hint=nearest(language, languages)
            )


def _download(names: Sequence[str], folder: Path) -> None:
    if shutil.which("apt-get") is None:
        raise DataError(
            "this set is made from Debian packages, and there is no apt-get here",
            hint="do it on Debian or Ubuntu, or give the folder of the downloaded .deb files with --packages",
        )
    done = _apt("apt-get", "-o", "Acquire::Retries=2", "download", *names, folder=folder)
    if done.returncode:
        problems = re.findall(r"^E: (.+)$", done.stderr, flags=re.MULTILINE) or [done.stderr.strip()]
        is_unknown = problems[0].startswith("Unable to locate")
        raise DataError(
            f"apt cannot download {' '.join(names)}: {problems[0]}",
            hint="if apt does not know it, fetch its lists first: sudo apt-get update"
            if is_unknown
            else "check the network, then try again",
        )


def _apt(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}  # the messages are read
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", check=False
    )


def find_packages(names: Sequence[str], folder: Path) -> dict[str, Path]:
    """The newest .deb file of each package in a folder."""

    def order(path: Path) -> tuple[list[int], str]:
        return [int(number) for number in re.findall(r"\d+", path.name)], path.name

    with reading(folder):
        files = sorted((path for path in folder.iterdir() if path.suffix == ".deb"), key=order)
    found = {path.name.partition("_")[0]: path for path in files if "_" in path.name}
    for name in names:
        if name not in found:
            raise DataError(
                f"{folder} holds no file {name}_VERSION.deb", hint=f"get it there: apt-get download {name}"
            )
    return {name: found[name] for name in names}


def package_files(path: Path) -> Iterator[tuple[str, bytes]]:
    """The path and content of each plain file in a .deb, in the package's order; links and devices are passed over."""
    try:
        with tarfile.open(fileobj=io.BytesIO(_data_tar(path))) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is not None:
                    yield member.name.removeprefix("./"), content.read()
    except (tarfile.TarError, *CORRUPT, OSError) as error:
        raise DataError(
            f"{path} is no whole Debian package: {error or type(error).__name__}", hint="download it again"
        ) from None


def _data_tar(path: Path) -> bytes:
    """The unpacked tar archive with the files of a .deb, which is an ar archive."""
    with reading(path), open(path, "rb") as handle:
        package = handle.read(MAX_BYTES + 1)
    if not package.startswith(b"!<arch>\n"):
        raise tarfile.ReadError("it is no ar archive")
    at = 8
    while header := package[at : at + 60]:
        name, size = header[:16].decode("ascii", "replace").strip().removesuffix("/"), header[48:58].strip()
        if not (header.endswith(b"`\n") and size.isdigit() and at + 60 + int(size) <= len(package)):
            raise tarfile.ReadError("it is cut short or damaged")
        if name.startswith("data.tar"):
            content = package[at + 60 : at + 60 + int(size)]
            return _unpacked(path, name, content)
        at += 60 + int(size) + int(size) % 2  # members begin at even places
    raise tarfile.ReadError("it has no data.tar")


def _unpacked(path: Path, name: str, content: bytes) -> bytes:
    suffix = name.removeprefix("data.tar")
    if suffix in UNPACKERS:
        tar: bytes = UNPACKERS[suffix](io.BytesIO(content)).read(MAX_BYTES + 1)
    elif shutil.which("dpkg-deb") is None:
        raise DataError(
            f"{path} is packed in a way that needs dpkg-deb ({name})", hint="do it on Debian or Ubuntu"
        )
    else:
        command = ["dpkg-deb", "--fsys-tarfile", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            tar = process.stdout.read(MAX_BYTES + 1)
        if process.returncode and len(tar) <= MAX_BYTES:
            raise tarfile.ReadError("dpkg-deb cannot read it")
    if len(tar) > MAX_BYTES:
        raise tarfile.ReadError(f"its files take more than {MAX_BYTES:,} bytes")
    return tar
