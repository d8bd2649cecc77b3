"""One labelled text, a whole dataset, and the hash by which a text is known."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from unicodedata import is_normalized, normalize

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

SPLITS = ("train", "valid", "test")
ALIASES = {"val": "valid", "dev": "valid", "validation": "valid", **{name: name for name in SPLITS}}  # in file names

# Every character at which `str.split` parts words.
WHITE_SPACE = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
CONTROL = "".join(filter(str.isascii, WHITE_SPACE)).replace(" ", "").encode()  # one byte, as a space has
CONTROL_TO_SPACE = bytes.maketrans(CONTROL, b" " * len(CONTROL))
LONG_SPACES = [
    int.from_bytes(each.encode().ljust(3, b"\0"), "big") for each in WHITE_SPACE if not each.isascii()
]  # white space of two or three bytes
BATCH_CHARACTERS = 2_000_000  # text that is hashed together


@dataclass(frozen=True, slots=True)
class Example:
    """A text, its label where it has one, and where it comes from ("reviews.tsv:17")."""

    text: str
    label: str | None = None
    origin: str = ""


@dataclass(frozen=True)
class SkippedRow:
    """A row that cannot be used, and why."""

    origin: str
    reason: str


class Splits(Generic[T]):
    """Rows by the name of their split, one of `SPLITS`."""

    splits: dict[str, list[T]]

    @property
    def train(self) -> list[T]:
        """The rows to learn from."""
        return self.splits["train"]

    @property
    def valid(self) -> list[T]:
        """The rows to tune on."""
        return self.splits.get("valid", [])

    @property
    def test(self) -> list[T]:
        """The rows to evaluate on; empty if the test split was not loaded."""
        return self.splits.get("test", [])


@dataclass(frozen=True)
class Dataset(Splits[Example]):
    """Labelled texts by split, the classes of train in order, and an account of what was left out."""

    name: str
    splits: dict[str, list[Example]]
    classes: list[str]
    skips: list[SkippedRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unlabelled: Sequence[Example] = ()

    @property
    def class_index(self) -> dict[str, int]:
        """Each label's index in `classes`."""
        return {label: index for index, label in enumerate(self.classes)}

    def texts(self, split: str) -> list[str]:
        """The texts of one split, in order."""
        return [example.text for example in self.splits.get(split, [])]

    def hashes(self, split: str) -> NDArray[np.uint64]:
        """The hash of each text of one split, in order."""
        return hashes(self.texts(split))

    def targets(self, split: str) -> list[int]:
        """The class index of each example of one split, in order."""
        index = self.class_index
        return [index[example.label] for example in self.splits.get(split, []) if example.label is not None]

    def balance(self, split: str) -> dict[str, int]:
        """How many examples of one split each class has, in the order of `classes`."""
        counts = Counter(example.label for example in self.splits.get(split, []))
        return {label: counts[label] for label in self.classes}


def text_hash(text: str) -> int:
    """An unsigned 64-bit hash that stays the same for ever and ignores white space and Unicode composition."""
    return int.from_bytes(_digest(_normal(text)), "big")


def _normal(text: str) -> bytes:
    return " ".join(normalize("NFC", text).split()).encode("utf-8", "surrogatepass")


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=8).digest()


def hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """The `text_hash` of each text."""
    found = [hashes_and_sizes(batch)[0] for batch in batched(texts, BATCH_CHARACTERS)]
    return np.concatenate([np.zeros(0, np.uint64), *found])


def batched(texts: Iterable[str], characters: int) -> Iterator[list[str]]:
    """The texts in lists, each closed by the text with which it holds so many characters."""
    held: list[str] = []
    size = 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size >= characters:
            yield held
            held, size = [], 0
    if held:
        yield held


def hashes_and_sizes(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The `text_hash` of each text, and its bytes; one numpy pass over all texts finds those that need normalizing."""
    raw = [text.encode("utf-8", "surrogatepass") for text in texts]
    sizes = np.fromiter(map(len, raw), np.int64, len(raw))
    joint = b" ".join([b"", *raw, b""])  # a space before and after each text
    ends = np.cumsum(sizes + 1)  # of each text in `joint`
    if (np.frombuffer(joint, np.uint8) < ord(" ")).any():
        joint = joint.translate(CONTROL_TO_SPACE)
        starts = (ends - sizes).tolist()
        raw = [joint[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]
    for at in np.unique(np.searchsorted(ends, _odd_spaces(joint))).tolist():
        raw[at] = _normal(texts[at])
    for at, text in enumerate(texts):
        if not is_normalized("NFC", text):
            raw[at] = _normal(text)
    return np.frombuffer(b"".join(map(_digest, raw)), ">u8").astype(np.uint64), sizes


def _odd_spaces(joint: bytes) -> NDArray[np.int64]:
    """Where white space comes after a space, or is another character than a space."""
    data = np.frombuffer(joint, np.uint8)
    is_space = data == ord(" ")
    leads = np.flatnonzero((data == 0xC2) | (data >= 0xE1) & (data <= 0xE3))
    codes = data[leads].astype(np.int32) << 16 | data[leads + 1].astype(np.int32) << 8
    codes |= np.where(data[leads] == 0xC2, 0, data[leads + 2])
    return np.concatenate([1 + np.flatnonzero(is_space[1:] & is_space[:-1]), leads[np.isin(codes, LONG_SPACES)]])
