"""Names and prose use the words of papers, PyTorch, transformers and scikit-learn, never private ones for the same things.

Each private word has the number of times it may still occur; that number may fall but never rise.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "docs", "tests", "benchmarks", "recipes", "examples")
SUFFIXES = {".py", ".js", ".css", ".html", ".md", ".toml", ".sh"}

# word -> (what to write instead, how often the word may still occur)
WORDS = {
    "arrival": ("from_transformers", 0),
    "asked": ("label_positions, or another verb", 4),
    "asking": ("q_proj, or another verb", 0),
    "begun": ("started", 0),
    "bend": ("activation", 0),
    "bends": ("activations", 0),
    "desk": ("workspace", 0),
    "followed": ("applied, or 'with ... after it'", 0),
    "goes on": ("continues, or 'is put on'", 14),
    "halved": ("bfloat16", 1),
    "heard": ("received", 2),
    "inward": ("qkv_proj", 0),
    "joined": ("joined processes: initialized; joined texts: concatenated", 1),
    "kept": ("saved, reused, retained", 11),
    "lesson": ("distillation", 0),
    "lessons": ("distillation", 0),
    "marked": ("evaluated, highlighted", 1),
    "marking": ("evaluating", 0),
    "marks": ("metrics", 6),
    "meeting": ("rendezvous", 0),
    "narrow": ("down_proj", 13),
    "opinions": ("teacher log-probabilities", 0),
    "outward": ("out_proj", 0),
    "parcel": ("export bundle", 0),
    "placed": ("put, located", 0),
    "places": ("positions, indices", 7),
    "push": ("perturbation, add", 0),
    "pushed": ("perturbed, added", 0),
    "pushes": ("perturbations", 0),
    "rivals": ("baselines, alternatives", 1),
    "slope": ("gradient, exponent", 0),
    "slopes": ("gradients, exponents", 0),
    "stands": ("is", 7),
    "story": ("provenance", 4),
    "tally": ("meters, counts", 0),
    "taught": ("distilled", 4),
    "told": ("a verb that says what is passed or printed", 26),
    "turns": ("rotary angles, or another verb", 2),
    "unless told": ("by default", 0),
    "veil": ("mask_bias", 0),
    "widen": ("up_proj", 0),
}

# Part of a name -> what to write instead. These may not occur in any identifier of the package.
IDENTIFIERS: dict[str, str] = {}


def files():
    own = Path(__file__)
    found = [*ROOT.glob("*.md")]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES and path != own]
    return [path for path in found if "__pycache__" not in path.parts]


@pytest.fixture(scope="module")
def occurrences():
    """For each private word, the lines that hold it."""
    pattern = re.compile(rf"(?<![a-z])({'|'.join(sorted(WORDS, key=len, reverse=True))})(?![a-z])", re.IGNORECASE)
    found: dict[str, list[str]] = {word: [] for word in WORDS}
    for path in files():
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            # marked_places -> marked places, MarkedPlaces -> Marked Places
            plain = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", line)
            for match in pattern.findall(plain):
                found[match.lower()].append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    return found


@pytest.mark.parametrize("word", WORDS)
def test_private_words_do_not_come_back(word, occurrences):
    instead, allowed = WORDS[word]
    found = occurrences[word]
    files = Counter(each.split(":")[0] for each in found)
    assert len(found) <= allowed, f"{word!r} occurs {len(found)} times, write {instead}: {dict(files)}\n" + "\n".join(
        found[:20]
    )
