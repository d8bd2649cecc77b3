"""Synthetic texts, and settings with which whole jobs take seconds."""

import random
from pathlib import Path

GOOD = ["wonderful", "superb", "moving", "brilliant", "charming", "delightful", "masterly", "funny"]
BAD = ["dreadful", "boring", "clumsy", "empty", "tedious", "awful", "lifeless", "silly"]
PLAIN = [
    "the",
    "a",
    "this",
    "film",
    "book",
    "story",
    "actor",
    "plot",
    "scene",
    "ending",
    "music",
    "was",
    "felt",
    "seemed",
    "remained",
    "really",
    "quite",
    "very",
]

BODY = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64}
QUICK = {
    "model": BODY,
    "tokenizer": {"type": "bpe", "vocab_size": 400},
    "training": {"max_length": 32, "tokens_per_batch": 256},
}


def review(rng: random.Random, words: list[str], length: int = 12) -> str:
    text = [rng.choice(words) if rng.random() < 0.3 else rng.choice(PLAIN) for _ in range(length)]
    return " ".join(text)


def write_labelled(path: Path, count: int = 60, seed: int = 0) -> Path:
    """Write a table of short reviews, half good and half bad."""
    rng = random.Random(seed)
    rows = [(review(rng, words), label) for _ in range(count // 2) for words, label in ((GOOD, "good"), (BAD, "bad"))]
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows), "utf-8")
    return path


def write_corpus(path: Path, count: int = 300, seed: int = 1) -> Path:
    """Write a text file with one document per line."""
    rng = random.Random(seed)
    path.write_text("".join(review(rng, GOOD + BAD, 14) + "\n" for _ in range(count)), "utf-8")
    return path


def flags(settings: dict) -> list[str]:
    """Return settings as `--set` arguments."""
    return [
        word
        for section, content in settings.items()
        for key, value in content.items()
        for word in ("--set", f"{section}.{key}={value}")
    ]
