"""Training and opening of tokenizers. The same texts give the same vocabulary on every machine."""

import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as RustTokenizer

from headstart.atomic_io import content_hash
from headstart.config import TokenizerConfig
from headstart.data.text_io import text_hash
from headstart.data.tokenizer import DICTIONARY, FILE, MODEL, Tokenizer, make_tokenizer, read_file, read_json
from headstart.errors import ConfigError, DataError, nearest, pick

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4
SAMPLE = 64_000_000  # characters to learn from at most
COVERAGE = 0.9995  # share of the text that the alphabet covers; rarer characters are unknown
LONGEST_PIECE = 16  # characters in a piece of the unigram kind
SEEDS = 8  # unigram: pieces to start from, as a multiple of the pieces wanted
SHRINKING_FACTOR = 0.7  # unigram: share of the pieces that remain after one round of pruning
WORDS = 2_000_000  # unigram: characters in the different words looked at
SPACE = "▁"  # how the unigram kind writes a space
ISOLATED = r"[\[\n]"  # always pieces of their own in the unigram kind, so that no text spells a special token


def sample(texts: Iterable[str], limit: int = SAMPLE) -> list[str]:
    """All of the texts, or when they hold over `limit` characters, a part of them chosen by their content."""
    chosen: list[str] = []
    characters, halvings = 0, 0
    for text in texts:
        if halvings and text_hash(text) >> (64 - halvings):
            continue
        chosen.append(text)
        characters += len(text)
        while characters > limit and len(chosen) > 1:
            halvings += 1
            chosen = [text for text in chosen if not text_hash(text) >> (64 - halvings)] or chosen[:1]
            characters = sum(map(len, chosen))
    if not any(text.strip() for text in chosen):
        raise DataError("there is no text to learn a vocabulary from", hint="check the corpus and its text column")
    return chosen


def _ranked(counts: Counter[str]) -> list[str]:
    """Pieces from the most frequent to the least, equals in the order of the alphabet."""
    return sorted(counts, key=lambda piece: (-counts[piece], piece))


def _alphabet(counts: Counter[str], room: int) -> list[str]:
    """The most frequent characters, as many as cover the text well and fit."""
    wanted, covered = counts.total() * COVERAGE, 0
    for rank, character in enumerate(_ranked(counts)):
        if covered >= wanted or rank >= room:
            return _ranked(counts)[:rank]
        covered += counts[character]
    return _ranked(counts)


def _normalized(texts: Iterable[str], normalizer: Any) -> Iterator[str]:
    return (normalizer.normalize_str(text) if normalizer else text for text in texts)


def _lowercase(config: TokenizerConfig) -> Any:
    return normalizers.Lowercase() if config.lowercase else None


def _assemble(model: Any, normalizer: Any, pre_tokenizer: Any, decoder: Any) -> RustTokenizer:
    """A tokenizer around a model that knows the special tokens."""
    tokenizer = RustTokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoder
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def train_bpe(texts: list[str], config: TokenizerConfig) -> RustTokenizer:
    """Byte-level byte-pair encoding (Sennrich et al., 2016; Radford et al., 2019): no text is unknown, none is lost."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(alphabet) + len(SPECIALS)
    if config.vocab_size < smallest:
        problem = f"tokenizer.vocab_size {config.vocab_size} is too small for bpe, which holds every byte"
        raise ConfigError(problem, hint=f"use {smallest} or more, or --tokenizer characters")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = _assemble(models.BPE(), _lowercase(config), byte_level, decoders.ByteLevel())
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size, special_tokens=list(SPECIALS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_wordpiece(texts: list[str], config: TokenizerConfig) -> RustTokenizer:
    """Word pieces as BERT has them (Schuster and Nakajima, 2012)."""
    normalizer = normalizers.BertNormalizer(lowercase=config.lowercase, strip_accents=False)
    counts = Counter[str]()
    for text in _normalized(texts, normalizer):
        counts.update(text)
    alphabet = _alphabet(
        Counter({c: n for c, n in counts.items() if not c.isspace()}), (config.vocab_size - len(SPECIALS)) // 2
    )

    def trained(size: int, known: list[str]) -> dict[str, int]:
        tokenizer = RustTokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            special_tokens=known,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return tokenizer.get_vocab()

    # the trainer numbers inner characters in no fixed order and breaks ties by number, so it gets them in order
    inner = sorted(piece for piece in trained(0, list(SPECIALS)) if len(piece) == 3 and piece.startswith("##"))
    vocabulary = trained(config.vocab_size, [*SPECIALS, *inner])
    model = models.WordPiece(vocab=vocabulary, unk_token="[UNK]")
    return _assemble(model, normalizer, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece())


def train_characters(texts: list[str], config: TokenizerConfig) -> RustTokenizer:
    """Every character a token, the most frequent ones when they do not all fit."""
    counts = Counter[str]()
    for text in _normalized(texts, _lowercase(config)):
        counts.update(text)
    characters = _ranked(counts)[: config.vocab_size - len(SPECIALS)]
    vocabulary = {piece: number for number, piece in enumerate([*SPECIALS, *characters])}
    model = models.WordLevel(vocab=vocabulary, unk_token="[UNK]")
    return _assemble(model, _lowercase(config), pre_tokenizers.Split("", "isolated"), decoders.Fuse())


def train_unigram(texts: list[str], config: TokenizerConfig) -> RustTokenizer:
    """Likely pieces under a unigram language model (Kudo, 2018), learned from the best split of each word.

    Our own learner, since the package's gives another vocabulary each time; splitting is the package's.
    """
    words = Counter[str]()
    for text in _normalized(texts, _lowercase(config)):
        for word in text.split(" "):
            words.update(part for part in re.split(f"({ISOLATED})", SPACE + word) if part)
    room = config.vocab_size - len(SPECIALS)
    letters = Counter[str]()
    for word, count in words.items():
        letters.update({letter: word.count(letter) * count for letter in set(word)})
    alphabet = _alphabet(letters, room)
    words = _frequent(words)
    counts = Counter({letter: letters[letter] for letter in alphabet})
    counts.update(_seeds(words, set(alphabet), SEEDS * room))
    scores = _pruned(words, counts, room)
    model = models.Unigram([*((name, 0.0) for name in SPECIALS), *scores.items()], SPECIALS.index("[UNK]"))
    split = [pre_tokenizers.Metaspace(), pre_tokenizers.Split(Regex(ISOLATED), "isolated")]
    return _assemble(model, _lowercase(config), pre_tokenizers.Sequence(split), decoders.Metaspace())


def _frequent(words: Counter[str]) -> Counter[str]:
    """The most frequent words, as many as can be looked at; equals in the order of their hash."""
    if sum(map(len, words)) <= WORDS:
        return words
    frequent, characters = Counter[str](), 0
    for word in sorted(words, key=lambda word: (-words[word], text_hash(word))):
        frequent[word], characters = words[word], characters + len(word)
        if characters >= WORDS:
            break
    return frequent


def _seeds(words: Counter[str], alphabet: set[str], most: int) -> dict[str, int]:
    """Parts of words that come at least twice, those that cover most text first."""
    found: dict[str, int] = {}
    frequent = alphabet
    for length in range(2, LONGEST_PIECE + 1):  # a part is frequent only if its beginning is
        counts = Counter[str]()
        for word, count in words.items():
            for start in range(len(word) - length + 1):
                if word[start : start + length - 1] in frequent and word[start + length - 1] in alphabet:
                    counts[word[start : start + length]] += count
        counts = Counter({part: count for part, count in counts.items() if count > 1})
        frequent = set(counts)
        found.update(counts)
        if not frequent:
            break
    chosen = sorted(found, key=lambda part: (-found[part] * len(part), part))[:most]
    return {part: found[part] for part in chosen}


def _pruned(words: Counter[str], counts: Counter[str], room: int) -> dict[str, float]:
    """Pieces with their log probabilities, pruned by the loss of likelihood until `room` of them are left."""
    unique = sorted(words)
    scores = _log_shares(counts)
    while True:
        pieces = list(scores)
        used = Counter(dict.fromkeys(pieces, 0))
        tokenizer = RustTokenizer(models.Unigram([*scores.items(), ("[UNK]", 0.0)], len(pieces)))
        for word, split in zip(unique, tokenizer.encode_batch_fast(unique), strict=True):
            for number in split.ids:
                if number < len(pieces):
                    used[pieces[number]] += words[word]
        scores = _log_shares(Counter({piece: n for piece, n in used.items() if n or len(piece) == 1}))
        if len(scores) <= room:
            return scores
        letters = sum(len(piece) == 1 for piece in scores)
        missed = {
            piece: used[piece] * (score - _score_of_parts(piece, scores))
            for piece, score in scores.items()
            if len(piece) > 1
        }
        left = max(room, int(len(scores) * SHRINKING_FACTOR)) - letters
        needed = set(sorted(missed, key=lambda piece: (-missed[piece], piece))[:left])
        scores = {piece: score for piece, score in scores.items() if piece in needed or len(piece) == 1}


def _log_shares(counts: Counter[str]) -> dict[str, float]:
    """Each piece's log share of all uses, the most likely first; a piece never used counts as half a use."""
    total = sum(max(count, 0.5) for count in counts.values())
    return {piece: math.log(max(counts[piece], 0.5) / total) for piece in _ranked(counts)}


def _score_of_parts(piece: str, scores: dict[str, float]) -> float:
    """The log probability of the best split of `piece` into smaller ones."""
    best = [0.0] + [-math.inf] * len(piece)
    for end in range(1, len(piece) + 1):
        for start in range(end):
            if end - start < len(piece):
                score = scores.get(piece[start:end])
                if score is not None and best[start] + score > best[end]:
                    best[end] = best[start] + score
    return best[-1]


TOKENIZERS: dict[str, Callable[[list[str], TokenizerConfig], RustTokenizer]] = {
    "bpe": train_bpe,
    "unigram": train_unigram,
    "wordpiece": train_wordpiece,
    "characters": train_characters,
}


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """A tokenizer of `config.type` trained on the texts, the same each time; little text gives a small one."""
    train = pick(TOKENIZERS, config.type, "kind of tokenizer")
    layout = json.loads(train(sample(texts), config).to_str())
    return make_tokenizer(json.dumps(layout, ensure_ascii=False, indent=1) + "\n")


def open_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer at a path: its file, the course lab's `.model` or its folder, or a run that holds one."""
    path = Path(path)
    if path.is_file():
        return _read_lab(path) if path.suffix == ".model" else read_json(path)
    for folder in (path, *sorted(part.parent for part in path.glob(f"*/{FILE}"))):
        if (folder / FILE).is_file():
            return read_json(folder / FILE)
    models = sorted(path.glob("*.model"))
    if len(models) == 1:
        return _read_lab(models[0])
    found = f"{len(models)} .model files" if models else "none"
    hint = f"name a {FILE}, a run, or a folder with one .model file and its {DICTIONARY}"
    raise ConfigError(f"no tokenizer in {path}: it holds {found}", hint=hint)


def resolve_tokenizer(config: TokenizerConfig, texts: Callable[[], Iterable[str]]) -> Tokenizer:
    """The tokenizer of `--tokenizer KIND|PATH`: trained on the texts, or opened."""
    if config.type in TOKENIZERS:
        return train_tokenizer(texts(), config)
    if Path(config.type).exists():
        return open_tokenizer(config.type)
    problem = f"{config.type!r} is neither a kind of tokenizer nor an existing path"
    raise ConfigError(problem, hint=nearest(config.type, TOKENIZERS))


# --- The tokenizer of the course lab ----------------------------------------------------------------------------------


class _LabEngine:
    """The course lab's tokenizer: sentencepiece's pieces, numbered from 4 in the order of a dictionary."""

    kind = "lab"
    specials: dict[str, int | None] = {"first": 0, "padding": 1, "last": 2, "unknown": 3, "mask": None}  # noqa: RUF012
    unused: frozenset[int] = frozenset()

    def __init__(self, model: bytes, dictionary: bytes):
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError:
            hint = "pip install 'headstart[spm]'"
            raise ConfigError("this tokenizer needs the sentencepiece package", hint=hint) from None
        self.model, self.dictionary = model, dictionary
        self.processor = SentencePieceProcessor(model_proto=model)
        words = [line.split()[0] for line in dictionary.decode("utf-8").split("\n") if line.strip()]
        self.tokens = ["<sos>", "<pad>", "<eos>", "<oov>", *words]
        self.ids = {token: number for number, token in enumerate(self.tokens) if number >= 4}
        self.size = len(self.tokens)

    def encode(self, texts: list[str]) -> list[list[int]]:
        split = self.processor.encode(texts, out_type=str, num_threads=os.cpu_count() or 1)
        return [[self.ids.get(piece, 3) for piece in pieces] for pieces in split]

    def decode(self, ids: list[int]) -> str:
        found: str = self.processor.decode_pieces([self.tokens[number] for number in ids])
        return found

    def id_to_token(self, number: int) -> str:
        return self.tokens[number]

    def files(self) -> dict[str, bytes]:
        note = json.dumps({"kind": "lab", "model": MODEL, "dictionary": DICTIONARY}) + "\n"
        return {MODEL: self.model, DICTIONARY: self.dictionary, FILE: note.encode()}

    def fingerprint(self) -> str:
        hashes = [hashlib.sha256(part).hexdigest() for part in (self.model, self.dictionary)]
        return content_hash(["lab", *hashes])

    def __reduce__(self) -> tuple[Any, ...]:
        return _LabEngine, (self.model, self.dictionary)


def _read_lab(path: Path) -> Tokenizer:
    model, dictionary = read_file(path), read_file(path.with_name(DICTIONARY))
    try:
        return Tokenizer(_LabEngine(model, dictionary))
    except (RuntimeError, UnicodeDecodeError) as error:
        problem = f"{path} and its {DICTIONARY} are no readable tokenizer: {error}"
        raise DataError(problem, hint="copy both files again") from None
