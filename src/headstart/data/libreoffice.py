"""The help of LibreOffice in two languages, paragraph by paragraph, from Debian's packages.

A paragraph has the same id on the same page in every language, so nothing has to be guessed. A text that was left
untranslated is the same as in English and is dropped.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

from headstart.data.audit import near_hash
from headstart.data.debian import (
    download_packages,
    find_packages,
    known_packages,
    package_files,
    package_version,
)
from headstart.data.languages import language_key
from headstart.errors import DataError, nearest

PREFIX = "libreoffice-help-"
ENGLISH = "en_us"  # the language that the others are translated from
PAGE = re.compile(r"/help/[^/]+/text/(.+\.html)$")
BLOCKS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}
LETTER = re.compile(r"[^\W\d_]")

Place = tuple[str, str, int]  # page, id, which of those with that id
Pairs = list[tuple[str, str]]


def libreoffice_help(
    pair: tuple[str, str], packages: Path | None, on_stage: Callable[[str], None]
) -> tuple[Pairs, dict[str, str], dict[str, int]]:
    """The help of LibreOffice, a paragraph a line; over 30,000 pairs from English to a language that is well translated.

    Gives the pairs in the order of the pages, each package's version, and counts of what was dropped.
    """
    names = {language: _package(language) for language in (*pair, ENGLISH)}
    with tempfile.TemporaryDirectory(prefix="headstart-") as folder:
        wanted = sorted(set(names.values()))
        if packages is None:
            _check_known(pair)
            on_stage(f"downloading {', '.join(wanted)}")
        files = find_packages(wanted, packages) if packages else download_packages(wanted, Path(folder))
        versions = {name: package_version(path) for name, path in files.items()}
        texts = {}
        for name, path in files.items():
            on_stage(f"reading {path.name}")
            texts[name] = paragraphs(path)
    pairs, dropped = align(*(texts[names[language]] for language in (*pair, ENGLISH)))
    return pairs, versions, dropped


def paragraphs(package: Path) -> dict[Place, str]:
    """The text of every paragraph of a help package that has an id and is no program code."""
    found: dict[Place, str] = {}
    for name, content in package_files(package):
        page = PAGE.search(f"/{name}")
        if page:
            parser = _Paragraphs()
            try:
                parser.feed(content.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{package}: {name} is not UTF-8: {error}", hint="download the package again"
                ) from None
            parser.close()
            times: Counter[str] = Counter()
            for key, text in parser.found:
                found[page[1], key, times[key]] = text
                times[key] += 1
    if not found:
        raise DataError(
            f"{package} holds no help pages with paragraphs", hint=f"it should be a {PREFIX}LANGUAGE package"
        )
    return found


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
        if not all(texts):
            dropped["empty"] += 1
        elif not all(LETTER.search(text) for text in texts):
            dropped["without letters"] += 1
        elif _is_copied(keys, (source is english, target is english), english.get(place, "")):
            dropped["untranslated"] += 1
        elif any(key in known for key, known in zip(keys, seen, strict=True)):
            dropped["repeats (but for case, space and punctuation)"] += 1
        else:
            for key, known in zip(keys, seen, strict=True):
                known.add(key)
            pairs.append(texts)
    return pairs, dict(dropped)


def _is_copied(keys: tuple[int | None, int | None], are_english: tuple[bool, bool], english: str) -> bool:
    """Whether a side repeats the other, or the English text although it is in another language."""
    original = near_hash(english)
    copied = [
        key for key, is_english in zip(keys, are_english, strict=True) if not is_english and key == original
    ]
    return keys[0] == keys[1] or bool(copied)


def _package(language: str) -> str:
    key = language_key(language)
    return PREFIX + (ENGLISH if key == "en" else key).replace("_", "-")


def _check_known(pair: tuple[str, str]) -> None:
    """Refuse a language of which apt says that there is no help in it."""
    known = set(known_packages(PREFIX)) - {f"{PREFIX}common"}
    languages = [name.removeprefix(PREFIX).replace("-", "_") for name in known]
    for language in pair:
        if known and _package(language) not in known:
            raise DataError(
                f"Debian has no LibreOffice help in {language!r}", hint=nearest(language, languages)
            )


class _Paragraphs(HTMLParser):
    """The texts of a page's paragraphs by id; of texts that differ by system or program the common one is taken."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, str]] = []
        self.key = self.tag = ""
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

    def _begin(self, tag: str, key: str) -> None:
        self.tag, self.key = tag, key
        self.spans, self.texts, self.choices = [], [[]], []
