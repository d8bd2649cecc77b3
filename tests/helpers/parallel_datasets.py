"""Synthetic translation tasks with known answers: copy, reverse, numbers in words."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

LETTERS = "abcdefghij"
ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
TENS = ["", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
SHARES = {"train": 0.8, "valid": 0.1, "test": 0.1}


@dataclass(frozen=True)
class Task:
    """A generator of source texts, and the one right translation of each."""

    source: Callable[[random.Random], str]
    target: Callable[[str], str]


def some_letters(rng: random.Random) -> str:
    return " ".join(rng.choices(LETTERS, k=rng.randint(4, 8)))


def in_words(digits: str) -> str:
    """A number below a million in English words, "42" as "forty two"."""
    number = int(digits)
    assert 0 <= number < 1_000_000, number
    if number < 20:
        return ONES[number]
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = f" {in_words(str(number % size))}" if number % size else ""
            return f"{in_words(str(number // size))} {name}{rest}"
    return TENS[number // 10] + (f" {ONES[number % 10]}" if number % 10 else "")


TASKS = {
    "copy": Task(some_letters, lambda text: text),
    "reverse": Task(some_letters, lambda text: " ".join(reversed(text.split()))),
    "number-words": Task(lambda rng: str(rng.randrange(10 ** rng.randint(2, 4))), in_words),
}


def pairs_of(task: Task, count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return distinct (source, target) pairs, the same for the same seed."""
    rng = random.Random(seed)
    sources: dict[str, None] = {}
    while len(sources) < count:
        sources.setdefault(task.source(rng))
    return [(source, task.target(source)) for source in sources]


def write_aligned(
    folder: Path, task: Task, pair: tuple[str, str] = ("src", "trg"), count: int = 500, seed: int = 0
) -> Path:
    """Write train, valid and test with one file per language; no source text is in two splits."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, start = pairs_of(task, count, seed), 0
    for split, share in SHARES.items():
        part = rows[start : start + round(share * count)]
        start += len(part)
        for language, side in zip(pair, zip(*part, strict=True), strict=True):
            (folder / f"{split}.{language}").write_text("".join(f"{text}\n" for text in side), "utf-8")
    return folder


def write_parallel_table(path: Path, pair: tuple[str, str], rows: Sequence[tuple[str, str]]) -> Path:
    """Write a .tsv with one column per language."""
    path.write_text("".join("\t".join(row) + "\n" for row in [pair, *rows]), "utf-8")
    return path
