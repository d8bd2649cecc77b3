"""A corpus tokenised once into memory-mapped shards, so that the next run starts at once and memory stays small.

A corpus is cut into pieces by its text alone, and each piece becomes shards of its own. Files are renamed into place
whole, and their content follows from the corpus and the tokenizer: a killed preparation goes on where it stopped, two
at once write the same bytes, and many may each prepare their share of the pieces.
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
from headstart.data.dataset import batched, hashes_and_sizes
from headstart.data.documents import Documents
from headstart.data.token_stream import DOCUMENT, Shard, TokenStream
from headstart.data.tokenizer import Tokenizer
from headstart.errors import DataError, RunError

FORMAT = 2
INDEX = "index.json"
PARTS = ("train", "valid")
PIECE_CHARACTERS = 16_000_000  # a piece is closed by the document that reaches this
BATCH_CHARACTERS = 2_000_000  # text encoded at a time
HELD_OUT = 200  # one document in this many is held out

OnProgress = Callable[[int, int], None]


def default_cache() -> Path:
    """Where prepared corpora are kept: $HEADSTART_CACHE, else the user's cache folder."""
    chosen = os.environ.get("HEADSTART_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(chosen) if chosen else (Path(base) if base else Path.home() / ".cache") / "headstart"


def part_of(hashed: int) -> str:
    """The part that a document's hash puts it in for ever; blind to the last digit, by which datasets are split."""
    return "valid" if hashed // 10 % HELD_OUT == 0 else "train"


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus: tokens to learn from, tokens held out, and an account of what was left out."""

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
    documents: Documents,
    tokenizer: Tokenizer,
    cache: Path,
    on_progress: OnProgress = lambda done, total: None,
) -> Corpus:
    """The corpus tokenised under `cache`, from disk when it has been prepared before.

    `on_progress` hears of bytes of text done, and expected.
    """
    folder = _folder(documents, tokenizer, cache)
    corpus = _opened(folder, documents)
    if corpus is not None and documents.strict and corpus.skips:
        for _ in documents:  # finds the row that was skipped when strictness was not asked for, and names it
            pass
    if corpus is None:
        _build(folder, documents, tokenizer, on_progress)
        corpus = _opened(folder, documents)
        assert corpus is not None, folder
    return corpus


def prepare_share(
    documents: Documents,
    tokenizer: Tokenizer,
    cache: Path,
    number: int,
    count: int,
    on_progress: OnProgress = lambda done, total: None,
) -> tuple[int, int]:
    """Tokenise the share called `number` of `count`: every `count`-th piece; how many pieces those are, and of how many.

    Whoever finds all pieces there finishes the corpus.
    """
    folder = _folder(documents, tokenizer, cache)
    if _opened(folder, documents) is None:
        pieces = _build(folder, documents, tokenizer, on_progress, number, count)
    else:
        pieces = json.loads((folder / INDEX).read_text("utf-8"))["pieces"]
    return len(range(number, pieces, count)), pieces


def find_prepared(documents: Documents, tokenizer: Tokenizer, cache: Path) -> Corpus | None:
    """The corpus as it was prepared before; None unless all of it is there."""
    return _opened(_folder(documents, tokenizer, cache), documents)


def _folder(documents: Documents, tokenizer: Tokenizer, cache: Path) -> Path:
    key = content_hash([FORMAT, PIECE_CHARACTERS, HELD_OUT, documents.fingerprint, tokenizer.fingerprint])
    return cache / key[:32]


def _opened(folder: Path, documents: Documents) -> Corpus | None:
    """The finished corpus in `folder`, or None unless every file in its index has its size."""
    try:
        index = json.loads((folder / INDEX).read_text("utf-8"))
        sizes = {name: size for entry in index["shards"] for name, size in entry["sizes"].items()}
        if any((folder / name).stat().st_size != size for name, size in sizes.items()):
            return None
        train, valid = (
            TokenStream([_shard(folder, entry) for entry in index["shards"] if entry["part"] == part])
            for part in PARTS
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Corpus(documents.name, folder, train, valid, list(documents.notes), index["skips"])


def _shard(folder: Path, entry: dict[str, Any]) -> Shard:
    return Shard(folder / entry["name"], entry["tokens"], entry["documents"], entry["text_bytes"])


@dataclass(frozen=True)
class _Documents:
    """Some documents of a corpus, in order."""

    hashed: NDArray[np.uint64]
    text_bytes: NDArray[np.int64]
    is_valid: NDArray[np.bool_]  # held out

    @property
    def digest(self) -> str:
        """What tells them from any others."""
        return content_hash(self.hashed.tolist())


@dataclass(frozen=True)
class _Encoded:
    """The tokens of some documents in one row, and how many each has."""

    tokens: NDArray[np.int32]
    counts: NDArray[np.int64]


def _build(
    folder: Path,
    documents: Documents,
    tokenizer: Tokenizer,
    on_progress: OnProgress,
    number: int = 0,
    count: int = 1,
) -> int:
    """Write the pieces of a share that are missing, and the index when all are there; how many pieces there are."""
    try:
        pieces = _fill(folder, documents, tokenizer, on_progress, number, count)
        found = [_read_piece(folder, piece) for piece in range(pieces)]
        entries = [entry for piece in found if piece for entry in piece["shards"]]
        if not pieces:
            raise DataError(f"{documents.name} holds no documents", hint="check that its files are not empty")
        if all(found):
            ordered = [entry for part in PARTS for entry in entries if entry["part"] == part]
            content = {"format": FORMAT, "name": documents.name, "pieces": pieces}
            write_json(folder / INDEX, {**content, "skips": dict(documents.skips), "shards": ordered})
    except RunError as error:
        raise RunError(
            str(error), hint="free some space there, or set HEADSTART_CACHE to another folder"
        ) from error
    return pieces


def _fill(
    folder: Path,
    documents: Documents,
    tokenizer: Tokenizer,
    on_progress: OnProgress,
    number: int,
    count: int,
) -> int:
    """Write the share's missing pieces, one being read while another is encoded; how many pieces the corpus has."""
    pieces = 0
    pending: tuple[int, _Documents, Future[_Encoded]] | None = None
    with ThreadPoolExecutor(max_workers=1) as pool:
        for texts in _pieces(documents, on_progress):
            pieces += 1
            if (pieces - 1) % count != number:
                continue
            held = _gathered(texts)
            known = _read_piece(folder, pieces - 1)
            if known is not None and known["documents"] == held.digest:
                continue
            encoded = pool.submit(_encoded, tokenizer, texts)
            if pending:
                _write_piece(folder, tokenizer, *pending)
            pending = pieces - 1, held, encoded
        if pending:
            _write_piece(folder, tokenizer, *pending)
    return pieces


def _pieces(documents: Documents, on_progress: OnProgress) -> Iterator[list[str]]:
    """The corpus in pieces of consecutive documents, the same whoever reads it."""
    done = told = size = 0
    total, held = documents.expected_bytes, []
    for text in documents:
        held.append(text)
        size += len(text)
        done += len(text.encode("utf-8")) + 1
        if done - told >= BATCH_CHARACTERS:
            told = done
            on_progress(min(done, total), total)
        if size >= PIECE_CHARACTERS:
            yield held
            held, size = [], 0
    if held:
        yield held
    on_progress(total, total)


def _gathered(texts: list[str]) -> _Documents:
    found = [hashes_and_sizes(batch) for batch in batched(texts, BATCH_CHARACTERS)]
    hashed, sizes = (np.concatenate(part) for part in zip(*found, strict=True))
    return _Documents(hashed, sizes, hashed // np.uint64(10) % np.uint64(HELD_OUT) == 0)


def _encoded(tokenizer: Tokenizer, texts: list[str]) -> _Encoded:
    """The texts as the tokenizer frames them, encoded as many at a time as is worth while."""
    found = [
        tokenizer.frame_joined(*tokenizer.encode_joined(batch)) for batch in batched(texts, BATCH_CHARACTERS)
    ]
    return _Encoded(*(np.concatenate(part) for part in zip(*found, strict=True)))


def _piece_path(folder: Path, number: int) -> Path:
    return folder / f"piece-{number:05d}.json"


def _read_piece(folder: Path, number: int) -> dict[str, Any] | None:
    """What is known of a piece; None unless all its files are there in their sizes."""
    try:
        piece = json.loads(_piece_path(folder, number).read_text("utf-8"))
        for entry in piece["shards"]:
            shard = Shard.found(folder / entry["name"])
            sizes = {} if shard is None else {path.name: path.stat().st_size for path in shard.files}
            if sizes != entry["sizes"] or _shard_digest(shard) != entry["hashes"]:
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return piece


def _shard_digest(shard: Shard | None) -> str:
    return "" if shard is None else content_hash(TokenStream([shard]).hashes().tolist())


def _write_piece(
    folder: Path, tokenizer: Tokenizer, number: int, held: _Documents, encoding: "Future[_Encoded]"
) -> None:
    """Write the shards of a piece, then what is known of it."""
    dtype = np.uint16 if tokenizer.size <= 2**16 else np.uint32
    encoded, entries = encoding.result(), []
    for part in PARTS:
        own = held.is_valid == (part == "valid")
        if not own.any():
            continue
        tokens = encoded.tokens if own.all() else encoded.tokens[np.repeat(own, encoded.counts)]
        records = np.empty(int(own.sum()), DOCUMENT)
        records["end"], records["hash"] = np.cumsum(encoded.counts[own]), held.hashed[own]
        records["bytes"] = held.text_bytes[own]
        path = folder / f"{part}-{number:05d}"
        shard = Shard(path, len(tokens), len(records), int(records["bytes"].sum()))
        for file, array in zip(shard.files, (records, tokens.astype(dtype)), strict=True):
            write_with(file, partial(_save, array))
        entries.append(_entry(shard, part))
    write_json(_piece_path(folder, number), {"documents": held.digest, "shards": entries})


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
        "hashes": _shard_digest(shard),
        "sizes": {path.name: path.stat().st_size for path in shard.files},
    }
