"""Tokenizing corpora ahead of training: whole, or a share of each in one of several parallel jobs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.atomic_io import content_hash, write_folder_once
from headstart.config import TokenizerConfig, resolve
from headstart.data.datasets import evaluation_hashes
from headstart.data.documents import Documents, open_documents
from headstart.data.hashing import text_hash
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
    """The progress of one corpus; its tokens are known when all pieces are there."""

    name: str
    pieces: int  # of the whole corpus
    own_pieces: int  # of this job
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
    """Tokenize CORPORA for `pretrain` with the same preset and settings: all of them, or share (i, n) of each."""
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
    excluded = evaluation_hashes(config.data.exclude_eval_texts_of)
    tokenizer = learn_tokenizer(config.tokenizer, documents, on_event, excluded)
    path = str(_tokenizer_path(config.tokenizer, documents, excluded))
    found = []
    for each in documents:
        own, pieces = prepare_documents_share(each, tokenizer, number, count, on_event)
        ready = find_prepared(each, tokenizer, default_cache())
        tokens = None if ready is None else len(ready.train) + len(ready.valid)
        total = None if ready is None else sum(ready.documents.values())
        found.append(Prepared(each.name, pieces, own, tokens, total, path))
    return found


def learn_tokenizer(
    config: TokenizerConfig, documents: list[Documents], on_event: OnEvent, excluded: Hashes = NONE
) -> Tokenizer:
    """The tokenizer that the settings name: opened, or trained on the documents without the `excluded` hashes.

    Trained tokenizers are cached: the same text and settings train only once.
    """

    never = frozenset(excluded.tolist())

    def texts() -> Iterator[str]:
        on_event(Stage(f"training a {config.type} tokenizer"))
        for each in documents:
            yield from (text for text in each if not never or text_hash(text) not in never)

    if config.type not in TOKENIZERS:
        return resolve_tokenizer(config, texts)
    path = _tokenizer_path(config, documents, excluded)
    if path.is_dir():
        on_event(Stage(f"using the cached {config.type} tokenizer of this text"))
    else:
        write_folder_once(path, resolve_tokenizer(config, texts).save)
    return Tokenizer.load(path)  # parallel jobs all use the first one's


def _tokenizer_path(config: TokenizerConfig, documents: list[Documents], excluded: Hashes) -> Path:
    """Where the tokenizer of the settings is, or will be once it has been trained on the documents."""
    if config.type not in TOKENIZERS:
        return Path(config.type)
    words = [version("tokenizers"), config.model_dump(), [each.fingerprint for each in documents]]
    words += [excluded.tolist()] if len(excluded) else []
    return default_cache() / "tokenizers" / content_hash(words)[:32]


def prepare_documents(documents: Documents, tokenizer: Tokenizer, on_event: OnEvent) -> Corpus:
    """The documents as cached shards; skipped rows are reported."""
    corpus = prepare(documents, tokenizer, default_cache(), _report_progress(documents, on_event))
    for reason, count in corpus.skips.items():
        on_event(Note(f"{documents.name}: {count:,} rows skipped: {reason}"))
    return corpus


def prepare_documents_share(
    documents: Documents, tokenizer: Tokenizer, number: int, count: int, on_event: OnEvent
) -> tuple[int, int]:
    """Tokenize one share of the documents into the cache; its number of pieces, and that of all shares."""
    return prepare_share(documents, tokenizer, default_cache(), number, count, _report_progress(documents, on_event))


def _report_progress(documents: Documents, on_event: OnEvent) -> Callable[[int, int], None]:
    return lambda done, total: on_event(Stage(f"tokenising {documents.name}", done, total))
