"""One labelled text, a whole dataset, and the hash by which a text is known."""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SPLITS = ("train", "valid", "test")
ALIASES = {
    "val": "valid",
    "dev": "valid",
    "validation": "valid",
    **{name: name for name in SPLITS},
}  # in file names


@dataclass(frozen=True, slots=True)
class Example:
    """A text, its label where it has one, and where it stands ("reviews.tsv:17")."""

    text: str
    label: str | None = None
    origin: str = ""


@dataclass(frozen=True)
class Skip:
    """A row that cannot be used, and why."""

    origin: str
    reason: str


@dataclass(frozen=True)
class Dataset:
    """Labelled texts by split, the classes of train in order, and an account of what was left out."""

    name: str
    splits: dict[str, list[Example]]  # keys among SPLITS
    classes: list[str]
    skips: list[Skip] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unlabelled: Sequence[Example] = ()

    @property
    def train(self) -> list[Example]:
        """The examples to learn from."""
        return self.splits["train"]

    @property
    def valid(self) -> list[Example]:
        """The examples to tune on."""
        return self.splits.get("valid", [])

    @property
    def test(self) -> list[Example]:
        """The examples to judge on; empty unless the dataset was loaded with its test split."""
        return self.splits.get("test", [])

    @property
    def class_index(self) -> dict[str, int]:
        """Each label's place in `classes`."""
        return {label: index for index, label in enumerate(self.classes)}

    def texts(self, split: str) -> list[str]:
        """The texts of one split, in order."""
        return [example.text for example in self.splits.get(split, [])]

    def targets(self, split: str) -> list[int]:
        """The class index of each example of one split, in order."""
        index = self.class_index
        return [index[example.label] for example in self.splits.get(split, []) if example.label is not None]

    def balance(self, split: str) -> dict[str, int]:
        """How many examples of one split each class has, in the order of `classes`."""
        counts = Counter(example.label for example in self.splits.get(split, []))
        return {label: counts[label] for label in self.classes}


def text_hash(text: str) -> int:
    """An unsigned 64-bit hash that stays the same for ever, blind to white space and Unicode composition."""
    normal = " ".join(unicodedata.normalize("NFC", text).split())
    digest = hashlib.blake2b(normal.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """The `text_hash` of each text."""
    return np.fromiter((text_hash(text) for text in texts), dtype=np.uint64)
