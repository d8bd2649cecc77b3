"""A corpus tokenized once into memory-mapped shards, so that the next run starts at once and memory stays small.

A corpus is cut into pieces by its text alone, and each piece becomes shards of its own. Files are renamed into place
whole, and their content follows from the corpus and the tokenizer. So a killed job resumes where it stopped, two jobs
at once write the same bytes, and many jobs may each tokenize their share of the pieces.
"""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.atomic_io import content_hash, write_json, write_with
from headstart.data.dataset import BATCH_CHARACTERS, batched, hashes_and_sizes
from headstart.data.documents import Documents
from headstart.data.token_stream import DOCUMENT, Shard, TokenStream
from headstart.data.tokenizer import Tokenizer
from headstart.errors import DataError, RunError

FORMAT = 2
INDEX = "index.json"
PARTS = ("train", "valid")
PIECE_CHARACTERS = 16_000_000  # a piece is closed by the document that reaches this
HELD_OUT = 200  # one document in this many is held out

OnProgress = Callable[[int, int], None]
TokensAndCounts = tuple[NDArray[np.int32], NDArray[np.int64]]  # of documents in one row, and how many each has


def default_cache() -> Path:
    """Where tokenized corpora are stored: $HEADSTART_CACHE, else the user's cache folder."""
    chosen = os.environ.get("HEADSTART_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(chosen) if chosen else (Path(base) if base else Path.home() / ".cache") / "headstart"


def is_held_out(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which documents are for validation; the last digit of a hash, by which datasets are split, plays no part."""
    return hashes // np.uint64(10) % np.uint64(HELD_OUT) == 0


@dataclass(frozen=True)
class Corpus:
    """A tokenized corpus: tokens to learn from, tokens held out, and an account of what was left out."""

    name: str
    folder: Path
    train: TokenStream
    valid: TokenStream
    notes: list[str] = field(default_factory=list)
    skips: dict[str, int] = field(default_factory=dict)

    @property
    def documents(self) -> dict[str, int]:
        """How many documents each part has."""
        return {"train": self.train.documents, "valid": self.valid.documents}

    def hashes(self) -> NDArray[np.uint64]:
        """The `text_hash` of each document to learn from."""
        return self.train.hashes()


def prepare(
    documents: Documents, tokenizer: Tokenizer, cache: Path, on_progress: OnProgress = lambda done, total: None
) -> Corpus:
    """The corpus tokenized under `cache`, from disk when it has been tokenized before.

    `on_progress` receives the bytes of text done, and those expected.
    """
    corpus = find_prepared(documents, tokenizer, cache)
    if corpus is not None and documents.strict and corpus.skips:
        for _ in documents:  # raises the error about the row that an earlier run, without --strict, skipped
            pass
    if corpus is None:
        _write_missing_pieces(_folder(documents, tokenizer, cache), documents, tokenizer, on_progress)
        corpus = find_prepared(documents, tokenizer, cache)
        assert corpus is not None, cache
    return corpus


def prepare_share(
    documents: Documents,
    tokenizer: Tokenizer,
    cache: Path,
    number: int,
    count: int,
    on_progress: OnProgress = lambda done, total: None,
) -> tuple[int, int]:
    """Tokenize share `number` of `count`, every `count`-th piece; how many pieces it has, and the corpus has.

    The job that finds all pieces written finishes the corpus.
    """
    folder = _folder(documents, tokenizer, cache)
    if find_prepared(documents, tokenizer, cache) is None:
        pieces = _write_missing_pieces(folder, documents, tokenizer, on_progress, number, count)
    else:
        pieces = json.loads((folder / INDEX).read_text("utf-8"))["pieces"]
    return len(range(number, pieces, count)), pieces


def find_prepared(documents: Documents, tokenizer: Tokenizer, cache: Path) -> Corpus | None:
    """The corpus as it was tokenized before; None unless every file in its index has its size."""
    folder = _folder(documents, tokenizer, cache)
    try:
        index = json.loads((folder / INDEX).read_text("utf-8"))
        sizes = {name: size for entry in index["shards"] for name, size in entry["sizes"].items()}
        if any((folder / name).stat().st_size != size for name, size in sizes.items()):
            return None
        train, valid = (
            TokenStream(
                [
                    Shard(folder / entry["name"], entry["tokens"], entry["documents"], entry["text_bytes"])
                    for entry in index["shards"]
                    if entry["part"] == part
                ]
            )
            for part in PARTS
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Corpus(documents.name, folder, train, valid, list(documents.notes), index["skips"])


def _folder(documents: Documents, tokenizer: Tokenizer, cache: Path) -> Path:
    key = content_hash([FORMAT, PIECE_CHARACTERS, HELD_OUT, documents.fingerprint, tokenizer.fingerprint])
    return cache / key[:32]


def _write_missing_pieces(
    folder: Path, documents: Documents, tokenizer: Tokenizer, on_progress: OnProgress, number: int = 0, count: int = 1
) -> int:
    """Write the missing pieces of a share, and the index when all are there; the number of pieces of the corpus.

    One piece is read while another is encoded.
    """
    pieces = 0
    pending: tuple[int, NDArray[Any], Future[TokensAndCounts]] | None = None
    try:
        with ThreadPoolExecutor(max_workers=1) as pool:
            for texts in _pieces(documents, on_progress):
                pieces += 1
                if (pieces - 1) % count != number:
                    continue
                records = _records(texts)
                known = _read_piece(folder, pieces - 1)
                if known is not None and known["documents"] == _digest(records):
                    continue
                encoded = pool.submit(_encode, tokenizer, texts)
                if pending:
                    _write_piece(folder, tokenizer, *pending)
                pending = pieces - 1, records, encoded
            if pending:
                _write_piece(folder, tokenizer, *pending)
        if not pieces:
            raise DataError(f"{documents.name} holds no documents", hint="check that its files are not empty")
        found = [_read_piece(folder, piece) for piece in range(pieces)]
        if all(found):
            entries = [entry for piece in found if piece for entry in piece["shards"]]
            ordered = [entry for part in PARTS for entry in entries if entry["part"] == part]
            content = {"format": FORMAT, "name": documents.name, "pieces": pieces}
            write_json(folder / INDEX, {**content, "skips": dict(documents.skips), "shards": ordered})
    except RunError as error:
        hint = "free some space there, or set HEADSTART_CACHE to another folder"
        raise RunError(str(error), hint=hint) from error
    return pieces


def _pieces(documents: Documents, on_progress: OnProgress) -> Iterator[list[str]]:
    """The corpus in pieces of consecutive documents, the same for every job."""
    done = reported = size = 0
    total, piece = documents.expected_bytes, []
    for text in documents:
        piece.append(text)
        size += len(text)
        done += len(text.encode("utf-8")) + 1
        if done - reported >= BATCH_CHARACTERS:
            reported = done
            on_progress(min(done, total), total)
        if size >= PIECE_CHARACTERS:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
    on_progress(total, total)


def _records(texts: list[str]) -> NDArray[Any]:
    """What is known of documents before they are encoded: their hashes and sizes."""
    found = [hashes_and_sizes(batch) for batch in batched(texts, BATCH_CHARACTERS)]
    records = np.zeros(len(texts), DOCUMENT)
    records["hash"], records["bytes"] = (np.concatenate(part) for part in zip(*found, strict=True))
    return records


def _digest(records: NDArray[Any]) -> str:
    return content_hash(records["hash"].tolist())


def _encode(tokenizer: Tokenizer, texts: list[str]) -> TokensAndCounts:
    """The texts with special tokens, encoded in large batches."""
    found = [
        tokenizer.add_special_tokens_flat(*tokenizer.encode_flat(batch)) for batch in batched(texts, BATCH_CHARACTERS)
    ]
    tokens, counts = zip(*found, strict=True)
    return np.concatenate(tokens), np.concatenate(counts)


def _piece_path(folder: Path, number: int) -> Path:
    return folder / f"piece-{number:05d}.json"


def _read_piece(folder: Path, number: int) -> dict[str, Any] | None:
    """What is known of a piece; None unless all its files are there in their sizes."""
    try:
        piece = json.loads(_piece_path(folder, number).read_text("utf-8"))
        for entry in piece["shards"]:
            shard = Shard.find(folder / entry["name"])
            if shard is None or entry != _entry(shard, entry["part"]):
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return piece


def _write_piece(
    folder: Path, tokenizer: Tokenizer, number: int, records: NDArray[Any], encoding: Future[TokensAndCounts]
) -> None:
    """Write the shards of a piece, then what is known of it."""
    dtype = np.uint16 if tokenizer.size <= 2**16 else np.uint32
    (tokens, counts), entries = encoding.result(), []
    is_valid = is_held_out(records["hash"])
    for part in PARTS:
        is_own = is_valid == (part == "valid")
        if not is_own.any():
            continue
        own_tokens = tokens if is_own.all() else tokens[np.repeat(is_own, counts)]
        own = records[is_own]
        own["end"] = np.cumsum(counts[is_own])
        shard = Shard(folder / f"{part}-{number:05d}", len(own_tokens), len(own), int(own["bytes"].sum()))
        for file, array in zip(shard.files, (own, own_tokens.astype(dtype)), strict=True):
            write_with(file, partial(_save, array))
        entries.append(_entry(shard, part))
    write_json(_piece_path(folder, number), {"documents": _digest(records), "shards": entries})


def _save(array: NDArray[Any], path: Path) -> None:
    with open(path, "wb") as handle:
        np.save(handle, array)


def _entry(shard: Shard, part: str) -> dict[str, Any]:
    return {
        "name": shard.path.name,
        "part": part,
        "tokens": shard.tokens,
        "documents": shard.documents,
        "text_bytes": shard.text_bytes,
        "hashes": _digest(shard.records()),
        "sizes": {path.name: path.stat().st_size for path in shard.files},
    }
