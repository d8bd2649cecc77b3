"""Tokenising corpora ahead of training: whole, or a share of each so that many jobs do it side by side."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.atomic_io import content_hash, write_folder_once
from headstart.config import TokenizerConfig, resolve
from headstart.data.decontamination import apart_hashes, spared
from headstart.data.documents import Documents, open_documents
from headstart.data.token_cache import Corpus, default_cache, find_prepared, prepare, prepare_share
from headstart.data.tokenizer import Tokenizer, resolve_tokenizer
from headstart.data.tokenizer_training import TOKENIZERS
from headstart.errors import ConfigError
from headstart.training.callbacks import Event, Note, Stage

OnEvent = Callable[[Event], None]
Hashes = NDArray[np.uint64]
NONE: Hashes = np.zeros(0, np.uint64)


@dataclass(frozen=True)
class Prepared:
    """What is ready of one corpus; tokens are known when all of it is."""

    name: str
    pieces: int  # of the whole corpus
    own_pieces: int  # that were this job's
    tokens: int | None
    documents: int | None
    tokenizer: str  # a path that `--tokenizer` takes


def prepare_corpora(
    corpora: Sequence[str],
    *,
    share: tuple[int, int] = (0, 1),
    preset: str = "tiny",
    settings: Mapping[str, Any] | None = None,
    on_event: OnEvent = lambda event: None,
) -> list[Prepared]:
    """Tokenise CORPORA for `pretrain` with the same preset and settings: all of them, or share (i, n) of each."""
    number, count = share
    if not 0 <= number < count:
        raise ConfigError(
            f"there is no share {number} of {count}",
            hint=f"shares are 0/{count} to {count - 1}/{count}" if count else "for example --shard 0/4",
        )
    config = resolve("pretrain", preset, settings or {})
    documents = [open_documents(corpus, config.data) for corpus in corpora]
    for note in (note for each in documents for note in each.notes):
        on_event(Note(note))
    never = apart_hashes(config.data.exclude_eval_texts_of)
    tokenizer = learn_tokenizer(config.tokenizer, documents, on_event, never)
    place = str(_tokenizer_place(config.tokenizer, documents, never))
    return [_prepared(each, tokenizer, place, number, count, on_event) for each in documents]


def _prepared(
    documents: Documents, tokenizer: Tokenizer, place: str, number: int, count: int, on_event: OnEvent
) -> Prepared:
    own, pieces = prepare_documents_share(documents, tokenizer, number, count, on_event)
    ready = find_prepared(documents, tokenizer, default_cache())
    if ready is None:
        return Prepared(documents.name, pieces, own, None, None, place)
    tokens = len(ready.train) + len(ready.valid)
    return Prepared(documents.name, pieces, own, tokens, sum(ready.documents.values()), place)


def learn_tokenizer(
    config: TokenizerConfig, documents: list[Documents], on_event: OnEvent, never: Hashes = NONE
) -> Tokenizer:
    """The tokenizer that the settings name: opened, or learnt once for the same text from the documents but `never`."""

    def texts() -> Iterator[str]:
        on_event(Stage(f"learning a {config.type} tokenizer"))
        for each in documents:
            yield from spared(each, never)

    if config.type not in TOKENIZERS:
        return resolve_tokenizer(config, texts)
    place = _tokenizer_place(config, documents, never)
    if place.is_dir():
        on_event(Stage(f"taking the {config.type} tokenizer that was learnt from this text before"))
    else:
        write_folder_once(place, resolve_tokenizer(config, texts).save)
    return Tokenizer.load(place)  # of several jobs that learn at once, all take the first one's


def _tokenizer_place(config: TokenizerConfig, documents: list[Documents], never: Hashes) -> Path:
    """Where the tokenizer of the settings is, or will be once it has been learnt from the documents."""
    if config.type not in TOKENIZERS:
        return Path(config.type)
    words = [version("tokenizers"), config.model_dump(), [each.fingerprint for each in documents]]
    words += [never.tolist()] if len(never) else []
    return default_cache() / "tokenizers" / content_hash(words)[:32]


def prepare_documents(documents: Documents, tokenizer: Tokenizer, on_event: OnEvent) -> Corpus:
    """The documents as cached shards, with what was skipped told."""
    corpus = prepare(documents, tokenizer, default_cache(), _telling(documents, on_event))
    for reason, count in corpus.skips.items():
        on_event(Note(f"{documents.name}: {count:,} rows skipped: {reason}"))
    return corpus


def prepare_documents_share(
    documents: Documents, tokenizer: Tokenizer, number: int, count: int, on_event: OnEvent
) -> tuple[int, int]:
    """One share of the documents as cached shards; how many pieces it has, and of how many."""
    return prepare_share(documents, tokenizer, default_cache(), number, count, _telling(documents, on_event))


def _telling(documents: Documents, on_event: OnEvent) -> Callable[[int, int], None]:
    return lambda done, total: on_event(Stage(f"tokenising {documents.name}", done, total))
