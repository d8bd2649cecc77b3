"""Learning a vocabulary from text: the same texts give the same vocabulary, whatever the machine or its threads."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from headstart.config import TokenizerConfig
from headstart.data.dataset import text_hash
from headstart.errors import ConfigError, DataError

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4
SAMPLE = 64_000_000  # characters to learn from at most
COVERAGE = 0.9995  # share of the text that the alphabet covers; rarer characters are unknown
LONGEST_PIECE = 16  # characters in a piece of the unigram kind
SEEDS = 8  # unigram: pieces to start from, as a multiple of the pieces wanted
KEPT = 0.7  # unigram: share of the pieces that outlives one round of pruning
WORDS = 2_000_000  # unigram: characters in the different words looked at
SPACE = "▁"  # how the unigram kind writes a space
APART = r"[\[\n]"  # always pieces of their own in the unigram kind, so that no text spells a special token


def sample(texts: Iterable[str], limit: int = SAMPLE) -> list[str]:
    """All of the texts, or when they hold over `limit` characters, a part of them chosen by their content."""
    kept: list[str] = []
    characters, halvings = 0, 0
    for text in texts:
        if halvings and text_hash(text) >> (64 - halvings):
            continue
        kept.append(text)
        characters += len(text)
        while characters > limit and len(kept) > 1:
            halvings += 1
            kept = [text for text in kept if not text_hash(text) >> (64 - halvings)] or kept[:1]
            characters = sum(map(len, kept))
    if not any(text.strip() for text in kept):
        raise DataError(
            "there is no text to learn a vocabulary from", hint="check the corpus and its text column"
        )
    return kept


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


def _normalizer(config: TokenizerConfig) -> Any:
    return normalizers.Lowercase() if config.lowercase else None


def _normalised(texts: Iterable[str], normalizer: Any) -> Iterator[str]:
    return (normalizer.normalize_str(text) if normalizer else text for text in texts)


def learn_bpe(texts: list[str], config: TokenizerConfig) -> Tokenizer:
    """Byte-level byte-pair encoding (Sennrich et al., 2016; Radford et al., 2019): no text is unknown, none is lost."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(alphabet) + len(SPECIALS)
    if config.vocab_size < smallest:
        raise ConfigError(
            f"tokenizer.vocab_size {config.vocab_size} is too small for bpe, which holds every byte",
            hint=f"use {smallest} or more, or --tokenizer characters",
        )
    tokenizer = Tokenizer(models.BPE())
    if config.lowercase:
        tokenizer.normalizer = _normalizer(config)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def learn_wordpiece(texts: list[str], config: TokenizerConfig) -> Tokenizer:
    """Word pieces as BERT has them (Schuster and Nakajima, 2012)."""
    normalizer = normalizers.BertNormalizer(lowercase=config.lowercase, strip_accents=False)
    counts = Counter[str]()
    for text in _normalised(texts, normalizer):
        counts.update(text)
    alphabet = _alphabet(
        Counter({c: n for c, n in counts.items() if not c.isspace()}),
        (config.vocab_size - len(SPECIALS)) // 2,
    )

    def trained(size: int, known: list[str]) -> dict[str, int]:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
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

    # the trainer numbers inner characters by chance and breaks ties by number: so they are told to it in order
    inner = sorted(
        piece for piece in trained(0, list(SPECIALS)) if len(piece) == 3 and piece.startswith("##")
    )
    vocabulary = trained(config.vocab_size, [*SPECIALS, *inner])
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def learn_characters(texts: list[str], config: TokenizerConfig) -> Tokenizer:
    """Every character a token, the most frequent ones when they do not all fit."""
    counts = Counter[str]()
    for text in _normalised(texts, _normalizer(config)):
        counts.update(text)
    characters = _ranked(counts)[: config.vocab_size - len(SPECIALS)]
    vocabulary = {piece: number for number, piece in enumerate([*SPECIALS, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="[UNK]"))
    if config.lowercase:
        tokenizer.normalizer = _normalizer(config)
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def learn_unigram(texts: list[str], config: TokenizerConfig) -> Tokenizer:
    """Likely pieces under a unigram language model (Kudo, 2018), learned from the best split of each word.

    Our own learner, since the package's gives another vocabulary each time; splitting is the package's.
    """
    words = Counter[str]()
    for text in _normalised(texts, _normalizer(config)):
        for word in text.split(" "):
            words.update(part for part in re.split(f"({APART})", SPACE + word) if part)
    room = config.vocab_size - len(SPECIALS)
    letters = Counter[str]()
    for word, count in words.items():
        for letter in word:
            letters[letter] += count
    alphabet = _alphabet(letters, room)
    words = _frequent(words)
    counts = Counter({letter: letters[letter] for letter in alphabet})
    counts.update(_seeds(words, set(alphabet), SEEDS * room))
    scores = _pruned(words, counts, room)
    tokenizer = Tokenizer(
        models.Unigram([*((name, 0.0) for name in SPECIALS), *scores.items()], SPECIALS.index("[UNK]"))
    )
    if config.lowercase:
        tokenizer.normalizer = _normalizer(config)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Split(Regex(APART), "isolated")]
    )
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def _frequent(words: Counter[str]) -> Counter[str]:
    """The most frequent words, as many as can be looked at; equals in the order of their hash."""
    if sum(map(len, words)) <= WORDS:
        return words
    kept, characters = Counter[str](), 0
    for word in sorted(words, key=lambda word: (-words[word], text_hash(word))):
        kept[word], characters = words[word], characters + len(word)
        if characters >= WORDS:
            break
    return kept


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
    """Pieces with their log probabilities, the ones least missed left out until `room` of them are left."""
    unique = sorted(words)
    scores = _log_shares(counts)
    while True:
        pieces = list(scores)
        used = Counter(dict.fromkeys(pieces, 0))
        tokenizer = Tokenizer(models.Unigram([*scores.items(), ("[UNK]", 0.0)], len(pieces)))
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
        left = max(room, int(len(scores) * KEPT)) - letters
        kept = set(sorted(missed, key=lambda piece: (-missed[piece], piece))[:left])
        scores = {piece: score for piece, score in scores.items() if piece in kept or len(piece) == 1}


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


TOKENIZERS: dict[str, Callable[[list[str], TokenizerConfig], Tokenizer]] = {
    "bpe": learn_bpe,
    "unigram": learn_unigram,
    "wordpiece": learn_wordpiece,
    "characters": learn_characters,
}
