"""How often each corpus of a mix is read, and how its files are."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headstart.config import DataConfig
from headstart.data.datasets import SOURCES
from headstart.data.documents import Documents, open_documents
from headstart.errors import ConfigError

Corpora = Sequence["str | Portion"] | Mapping[str, float]


@dataclass(frozen=True)
class Portion:
    """A corpus, and how many times its text is read for each pass over one of weight 1."""

    corpus: str
    weight: float = 1.0
    text_column: str = ""  # of a table; empty = as the settings say
    documents: str = ""  # what parts documents in a .txt file; empty = as the settings say

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ConfigError(
                f"the weight of {self.corpus} is {self.weight:g}, and must be above 0",
                hint="2 reads a text twice as often as the others, 0.5 half as often",
            )

    def open(self, config: DataConfig) -> Documents:
        """Its documents."""
        own = {"text_column": self.text_column, "documents": self.documents}
        return open_documents(
            self.corpus, config.model_copy(update={key: value for key, value in own.items() if value})
        )

    def absolute(self) -> "Portion":
        """The same with an absolute path, so that a resume finds it from any folder."""
        is_path = self.corpus not in SOURCES and Path(self.corpus).exists()
        corpus = str(Path(self.corpus).resolve()) if is_path else self.corpus
        return Portion(corpus, self.weight, self.text_column, self.documents)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def portions(corpora: Corpora) -> list[Portion]:
    """A mix as it is written: names, "NAME=WEIGHT", names with their weights, or portions."""
    if isinstance(corpora, Mapping):
        return [Portion(corpus, _number(corpus, weight)) for corpus, weight in corpora.items()]
    if isinstance(corpora, str):
        raise ConfigError("corpora is one string, and should be a list", hint=f"write [{corpora!r}]")
    return [each if isinstance(each, Portion) else _parse(each) for each in corpora]


def _parse(word: str) -> Portion:
    corpus, sign, weight = word.rpartition("=")
    if not sign or _is_there(word) or not (_is_there(corpus) or _is_number(weight)):
        return Portion(word)
    return Portion(corpus, _number(corpus, weight))


def _is_there(corpus: str) -> bool:
    return corpus in SOURCES or Path(corpus).exists()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(corpus: str, weight: Any) -> float:
    try:
        return float(weight)
    except (TypeError, ValueError):
        raise ConfigError(
            f"the weight of {corpus} is {weight!r}, which is no number",
            hint="write CORPUS=WEIGHT, such as reviews.txt=3 or novels.txt=0.5",
        ) from None
