"""Compute the frozen fixtures: `python tests/frozen/make_fixtures.py` rewrites them all.

Do this only when a change of arithmetic is intended, and say in the commit which one and why. A rename, a merge or a
move of code never needs it: then only `adapter.py` changes. A difference that you did not intend is a bug.
"""

import json
import os
import platform
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

from tests.frozen import adapter

FIXTURES = Path(__file__).parent / "fixtures"
BEAM_SIZES = {"beam_search": 5, "greedy": 1}

LONG_EN = " ".join(
    f"In chapter {number} the {hero} {verb} and nobody in the {place} believes a word of it."
    for number, hero, verb, place in zip(
        range(1, 49),
        ("young captain", "old painter", "quiet widow", "clumsy thief") * 12,
        ("tells the truth", "loses the map", "forgives everyone") * 16,
        ("village", "court", "harbour", "palace", "train", "theatre") * 8,
        strict=True,
    )
)
LONG_FR = " ".join(
    f"Au chapitre {number}, {hero} {verb} et personne {place} n'en croit un mot."
    for number, hero, verb, place in zip(
        range(1, 49),
        ("le jeune capitaine", "le vieux peintre", "la veuve discrète", "le voleur maladroit") * 12,
        ("dit la vérité", "perd la carte", "pardonne à tous") * 16,
        ("au village", "à la cour", "au port", "au palais", "dans le train", "au théâtre") * 8,
        strict=True,
    )
)

TEXTS = {
    "en": [
        "Brilliant",
        "bad",
        "A warm, funny and beautifully acted film that I would happily watch again tomorrow.",
        "The plot makes no sense, the jokes fall flat and the ending is an insult.",
        "I did not hate it, but I cannot say that I liked it either.",
        "WORST MOVIE EVER!!!!!!!!!! DO NOT WATCH........",
        "Loved it 😍😍🔥 — a café scene à la française, naïve yet touching… 10/10 👍🏽",
        "???!!!...---***",
        'He said: "It\'s <br />2001 all over again" (see http://example.com/a?b=1&c=2), at 19:30.',
        "  Two lines,\n\tone tab   and   too many spaces.  ",
        "映画はとても面白かった。 Фильм был скучным.",
        LONG_EN,
    ],
    "fr": [
        "Excellent",
        "nul",
        "Un roman chaleureux, drôle et superbement écrit que je relirai volontiers cet été.",
        "L'intrigue n'a aucun sens, les personnages sont creux et la fin est une insulte au lecteur.",
        "Je n'ai pas détesté, mais je ne peux pas dire que j'ai aimé non plus.",
        "LE PIRE LIVRE DE L'ANNÉE !!!!!!!!!! À ÉVITER........",
        "J'ai adoré 😍😍🔥 — cœur, œuvre, Noël, où ça… « génial » ! 10/10 👍🏽",
        "???!!!...---***",
        "Il dit : « C'est <br />2001 qui recommence » (voir http://exemple.fr/a?b=1&c=2), à 19 h 30.",
        "  Deux lignes,\n\tune tabulation   et   trop d'espaces.  ",
        "映画はとても面白かった。 Фильм был скучным.",
        LONG_FR,
    ],
}

SENTENCES = [
    "A man is riding a bicycle.",
    "Two young girls in red dresses are playing with a dog in the park.",
    "An old woman sells fruit and vegetables at a busy market.",
    "Dog",
    "The children, who had never seen snow before, are building a snowman in front of the house while their "
    "parents watch from the window.",
    "A football player in a white shirt kicks the ball!!!",
    "A man sits in front of a café on 12th Street.",
    # Beam search and greedy decoding differ on the next two.
    "A referee holds up a yellow card while the players protest.",
    "The barista pours steamed milk into a paper cup.",
]

POSITIVE = ("wonderful", "superb", "moving", "brilliant", "charming", "funny")
NEGATIVE = ("dreadful", "boring", "clumsy", "empty", "tedious", "awful")
NEUTRAL = ("long", "French", "recent", "quiet", "famous", "short")
NOUNS = ("film", "book", "story", "actor", "plot", "scene", "ending", "song", "village", "captain")
VERBS = ("was", "felt", "seemed", "remained", "became", "looked")
LEXICON = {
    **{"the": "das", "a": "ein", "small": "kleine", "red": "rote", "old": "alte", "sees": "sieht", "likes": "mag"},
    **{"dog": "Hund", "house": "Haus", "child": "Kind", "tree": "Baum", "bird": "Vogel", "boat": "Boot"},
}


def write_data(folder: Path) -> Path:
    """A corpus, a table of labelled reviews and a parallel corpus, the same on every machine."""
    rng = random.Random(20240229)
    folder.mkdir(parents=True, exist_ok=True)
    documents = [
        " ".join(_sentence(rng, POSITIVE + NEGATIVE + NEUTRAL) for _ in range(rng.randint(3, 6))) for _ in range(1000)
    ]
    (folder / "corpus.txt").write_text("".join(f"{text}\n" for text in documents), "utf-8")
    classes = {"positive": POSITIVE, "negative": NEGATIVE, "neutral": NEUTRAL}
    rows = [
        (" ".join(_sentence(rng, words) for _ in range(rng.randint(1, 3))), label)
        for _ in range(30)
        for label, words in classes.items()
    ]
    (folder / "reviews.tsv").write_text(
        "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows), "utf-8"
    )
    tables = {
        "topics.tsv": lambda number, label: f"{label}|{('odd', 'even')[number % 2]}",
        "scores.tsv": lambda number, label: str(number % 7 + 0.5 * (label == "positive")),
        "stars.tsv": lambda number, label: str(["negative", "neutral", "positive"].index(label) + 1),
    }
    for name, label_of in tables.items():
        lines = [f"{text}\t{label_of(number, label)}\n" for number, (text, label) in enumerate(rows)]
        (folder / name).write_text("text\tlabel\n" + "".join(lines), "utf-8")
    tagged = ("".join(f"{word}\t{'B-verb' if word in VERBS else 'O'}\n" for word in text.split()) for text, _ in rows)
    (folder / "tags.conll").write_text("\n".join(tagged), "utf-8")
    (folder / "pairs").mkdir(exist_ok=True)
    for split, count in {"train": 80, "valid": 8, "test": 4}.items():
        sources = [_clause(rng) for _ in range(count)]
        targets = [" ".join(LEXICON[word] for word in source.split()) for source in sources]
        for language, lines in {"en": sources, "de": targets}.items():
            (folder / "pairs" / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return folder


def _sentence(rng: random.Random, adjectives: tuple[str, ...]) -> str:
    return f"The {rng.choice(NOUNS)} {rng.choice(VERBS)} {rng.choice(adjectives)} and {rng.choice(adjectives)}."


def _clause(rng: random.Random) -> str:
    words = list(LEXICON)
    subject, target = (f"{rng.choice(words[:2])} {rng.choice(words[2:5])} {rng.choice(words[7:])}" for _ in range(2))
    return f"{subject} {rng.choice(words[5:7])} {target}"


class TrainingRuns:
    """The runs of the adapter, each trained once, after the runs that it needs."""

    def __init__(self, folder: Path):
        self.folder, self.data_dir = folder, write_data(folder / "data")
        self.losses: dict[str, adapter.Losses] = {}

    def train(self, name: str) -> adapter.Losses:
        """The losses of a run."""
        if name not in self.losses:
            needed = [each for each in (adapter.RUNS[name].base, adapter.RUNS[name].teacher) if each is not None]
            for each in needed:
                self.train(each)
            run_dirs = {each: self.folder / each for each in needed}
            self.losses[name] = adapter.train(name, self.data_dir, run_dirs, self.folder / name)
        return self.losses[name]


@contextmanager
def single_thread() -> Iterator[None]:
    """Sums of floats depend on how they are split among threads; one thread splits nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def environment() -> dict[str, str]:
    """What the last digits of a float depend on."""
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "cpu_capability": capability, "processor": processor()}


def processor() -> str:
    """The name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def write_json(name: str, content: Any) -> None:
    """Write one fixture; floats keep every digit (json writes their repr)."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    (FIXTURES / name).write_text(text + "\n", "utf-8")


def make_classifiers() -> None:
    """Logits as JSON, and embeddings (N, D) in full float32 as .npz: 60 KiB for all four models."""
    logits = {
        # float32 as the shortest decimal that reads back to the same float32
        name: [[float(str(value)) for value in row] for row in adapter.class_logits(name, TEXTS[language])]
        for name, language in adapter.CLASSIFIERS.items()
    }
    write_json("classifiers.json", {"texts": TEXTS, "logits": logits})
    embeddings = {
        name: adapter.text_embeddings(name, TEXTS[language]) for name, language in adapter.CLASSIFIERS.items()
    }
    np.savez_compressed(FIXTURES / "embeddings.npz", **embeddings)


def make_translators() -> None:
    """Translations with their scores."""
    found = {
        name: {
            method: [list(each) for each in adapter.translations(name, SENTENCES, beam_size)]
            for method, beam_size in BEAM_SIZES.items()
        }
        for name in adapter.TRANSLATORS
    }
    write_json("translators.json", {"sentences": SENTENCES, "translations": found})


def make_losses() -> None:
    """The losses of every training run."""
    with tempfile.TemporaryDirectory() as folder:
        runs = TrainingRuns(Path(folder))
        write_json("losses.json", {name: vars(runs.train(name)) for name in adapter.RUNS})


def make_parameter_counts() -> None:
    """Parameters by block of the two models of the course lab."""
    write_json("parameters.json", {name: adapter.parameter_counts(job) for name, job in adapter.COURSE_LAB.items()})


def main() -> None:
    """Rewrite every fixture."""
    FIXTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as cache, single_thread():
        os.environ[adapter.CACHE_VARIABLE] = cache
        write_json("environment.json", environment())
        make_parameter_counts()
        make_classifiers()
        make_translators()
        make_losses()


if __name__ == "__main__":
    main()
