"""Texts and their translations as tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np

from headstart.atomic_io import content_hash
from headstart.batch import Row
from headstart.config import RunConfig
from headstart.data.augmentation import check_both
from headstart.data.parallel import PairExample, ParallelText, load_parallel, parse_pair
from headstart.data.samplers import sides
from headstart.data.tokenizer import Tokenizer, resolve_tokenizer
from headstart.data.tokenizer_training import TOKENIZERS
from headstart.errors import ConfigError, DataError
from headstart.inference.loaded_model import LoadedModel
from headstart.training.callbacks import Event, Note, Stage


@dataclass(frozen=True)
class TranslationTask:
    """Pairs of texts as tokens, split by split; what is too long to learn from whole is left out of train."""

    text: ParallelText
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer
    rows: dict[str, list[Row]]

    @property
    def is_shared(self) -> bool:
        """Whether one vocabulary serves both sides."""
        return self.tokenizer is self.source_tokenizer

    def sources(self, split: str) -> list[np.ndarray]:
        """The framed texts of one split to translate, in order."""
        return [row.source for row in self.rows[split] if row.source is not None]

    @property
    def tokens(self) -> int:
        """Tokens that an epoch reads."""
        return sum(sum(sides(row)) for row in self.rows["train"])


def load_pairs(data: str, pair: str, config: RunConfig, on_event: Callable[[Event], None]) -> ParallelText:
    """The pairs to learn from and to tune on, with what was skipped told."""
    text = load_parallel(data, parse_pair(pair), config.data)
    if text.skips:
        first = text.skips[0]
        on_event(Note(f"{len(text.skips)} pairs skipped; the first is {first.origin}: {first.reason}"))
    for note in text.notes:
        on_event(Note(note))
    return text


def pairs_fingerprint(text: ParallelText) -> str:
    """A hash of every pair that a run learns from or is marked on."""
    return content_hash(
        {name: [[row.source, row.target] for row in rows] for name, rows in text.splits.items()}
    )


def choose_tokenizers(
    config: RunConfig, text: ParallelText, trained: LoadedModel | None, on_event: Callable[[Event], None]
) -> tuple[Tokenizer, Tokenizer]:
    """What splits translations, and what splits sources: the base's, or learnt on one side each, or on both at once."""
    if trained is not None:
        return trained.tokenizer, trained.source_tokenizer
    settings = config.tokenizer
    on_event(Stage(f"tokenizer: {settings.type}"))
    sources, targets = text.sources("train"), text.targets("train")
    if settings.shared_vocab:
        both = resolve_tokenizer(settings, lambda: [*sources, *targets])
        return both, both
    if settings.type not in TOKENIZERS:
        raise ConfigError(
            f"{settings.type} is one tokenizer, and tokenizer.shared_vocab=false asks for two",
            hint="leave tokenizer.shared_vocab out, or name a kind to learn: --tokenizer bpe",
        )
    return resolve_tokenizer(settings, lambda: targets), resolve_tokenizer(settings, lambda: sources)


def make_translation_task(
    text: ParallelText,
    tokenizers: tuple[Tokenizer, Tokenizer],
    config: RunConfig,
    on_event: Callable[[Event], None],
) -> TranslationTask:
    """Every split as tokens."""
    on_event(Stage("tokenising the pairs"))
    length, keep = config.training.max_length, config.data.truncation_side
    check_both(text.train, tokenizers, config.training)
    train = encode_pairs(text.train, tokenizers, None)
    fits = [max(sides(row)) <= length for row in train]
    whole = list(compress(train, fits))
    if not whole:
        raise DataError(
            f"no pair to learn from fits into {length} tokens a side", hint="set a larger training.max_length"
        )
    if len(whole) < len(train):
        on_event(
            Note(
                f"{len(train) - len(whole):,} of {len(train):,} pairs to learn from are left out: one side is over "
                f"{length} tokens (training.max_length), and half a text is no translation"
            )
        )
    rows = {
        name: encode_pairs(examples, tokenizers, length, keep)
        for name, examples in text.splits.items()
        if name != "train"
    }
    learnt = replace(text, splits={**text.splits, "train": list(compress(text.train, fits))})
    return TranslationTask(learnt, *tokenizers, {"train": whole, **rows})


def encode_pairs(
    examples: Sequence[PairExample],
    tokenizers: tuple[Tokenizer, Tokenizer],
    length: int | None,
    keep: str = "start",
) -> list[Row]:
    """Pairs as framed tokens on both sides, each cut to `length` where one is given."""
    tokenizer, source_tokenizer = tokenizers
    targets = tokenizer.encode([example.target for example in examples])
    sources = source_tokenizer.encode([example.source for example in examples])

    def framed(splitter: Tokenizer, ids: np.ndarray) -> np.ndarray:
        return splitter.frame(ids, length or len(ids) + 2, keep)

    return [
        Row(framed(tokenizer, target), source=framed(source_tokenizer, source))
        for target, source in zip(targets, sources, strict=True)
    ]
