"""Names of languages, pairs of them, and the files that carry them in their names (train.en, valid.fr.gz)."""

import re
from collections.abc import Iterable
from pathlib import Path

from headstart.data.example import ALIASES
from headstart.data.lines import OPENERS, TABLE_KINDS, kind_of, reading
from headstart.errors import ConfigError, DataError

LanguageFiles = dict[str, dict[str, Path]]  # split -> language, as the file's name spells it -> file


def parse_pair(text: str) -> tuple[str, str]:
    """The source and the target language of "en-de"."""
    found = re.fullmatch(r"([^\W_][^\s-]*)-([^\W_][^\s-]*)", text.strip())
    if not found:
        region = " (a region with an underscore: en-pt_br)" if text.count("-") > 1 else ""
        raise ConfigError(
            f"{text!r} is no pair of languages", hint=f"write source-target, such as en-de{region}"
        )
    source, target = found.groups()
    if language_key(source) == language_key(target):
        raise ConfigError(
            f"{text!r} names one language twice",
            hint="write source-target, such as en-de; the two must differ",
        )
    return source, target


def language_key(name: str) -> str:
    """What spellings of one language share: pt-BR, pt_br and PT_BR are the same."""
    return name.strip().casefold().replace("-", "_")


def find_language(language: str, names: Iterable[str], where: str) -> str | None:
    """How `names` spell a language, or None when they lack it; two spellings at once are refused."""
    spelled = [name for name in names if language_key(name) == language_key(language)]
    if len(spelled) > 1:
        shown = " and ".join(map(repr, spelled))
        raise DataError(
            f"{where} has {language} twice: {shown}", hint="keep one of them, or rename the other"
        )
    return spelled[0] if spelled else None


def language_files(folder: Path) -> LanguageFiles:
    """The files of a folder called SPLIT.LANGUAGE, also with .txt and with .gz or .xz behind."""
    files: LanguageFiles = {}
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
