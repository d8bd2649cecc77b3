"""A corpus tokenized once into memory-mapped shards, and read from them as one long sequence of tokens.

A corpus is cut into pieces by its text alone, and each piece becomes shards of its own. Files are written atomically,
and their content follows from the corpus and the tokenizer. So a killed job resumes where it stopped, two jobs
at once write the same bytes, and many jobs may each tokenize their share of the pieces.
"""

import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.atomic_io import content_hash, write_json, write_with
from headstart.data.documents import Documents
from headstart.data.text_io import Hashes, hashes
from headstart.data.tokenizer import Tokenizer
from headstart.errors import DataError, RunError

FORMAT = 3
INDEX = "index.json"
PARTS = ("train", "valid")
PIECE_CHARACTERS = 16_000_000  # a piece is closed by the document that reaches this
BATCH_CHARACTERS = 2_000_000  # text that is encoded together
HELD_OUT = 200  # one document in this many is held out
DOCUMENT = np.dtype([("end", np.int64), ("hash", np.uint64), ("bytes", np.int64)])  # a record of a shard
NO_RECORDS = np.zeros(0, DOCUMENT)

MOST_OPEN = 4096  # shards of a stream that are mapped at once: the system limits the maps of a process

OnProgress = Callable[[int, int], None]  # bytes of text done, and in all
IGNORE: OnProgress = lambda done, total: None  # noqa: E731


@dataclass(frozen=True)
class Shard:
    """Tokens on disk: `<path>.documents.npy` and `<path>.tokens.npy`."""

    path: Path  # without its endings
    tokens: int
    documents: int
    text_bytes: int

    @property
    def files(self) -> tuple[Path, Path]:
        """Its documents and its tokens."""
        name = self.path.name
        return self.path.with_name(f"{name}.documents.npy"), self.path.with_name(f"{name}.tokens.npy")

    def records(self) -> NDArray[Any]:
        """The end, hash and size of each document."""
        found: NDArray[Any] = np.load(self.files[0], mmap_mode="r")
        return found


class TokenStream:
    """The tokens of many documents as one long sequence, read from disk by position.

    `excluded` are the numbers of the documents that are left out.
    """

    def __init__(self, shards: Sequence[Shard], excluded: Iterable[int] = ()):
        self.shards = tuple(shards)
        self.excluded = np.unique(np.fromiter(excluded, np.int64))
        self.ranges = _ranges(self.shards, self.excluded)  # (N, 3) shard, start, stop
        lengths = self.ranges[:, 2] - self.ranges[:, 1]
        self._ends = [0, *np.cumsum(lengths).tolist()]  # of each range in the stream, after a 0
        self.documents = sum(shard.documents for shard in self.shards) - len(self.excluded)
        self.text_bytes = sum(shard.text_bytes for shard in self.shards)
        if len(self.excluded):
            self.text_bytes -= int(self._records()["bytes"][self.excluded].sum())
        self._tokens = lru_cache(maxsize=MOST_OPEN)(lambda number: np.load(self.shards[number].files[1], mmap_mode="r"))

    def __len__(self) -> int:
        found: int = self._ends[-1]
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenStream, (self.shards, self.excluded.tolist())

    def slice(self, start: int, stop: int) -> NDArray[np.int32]:
        """A copy of the tokens from `start` up to `stop`, as far as there are any."""
        start, stop = max(start, 0), min(stop, self._ends[-1])
        at = bisect_right(self._ends, start) - 1
        found: list[NDArray[Any]] = [np.zeros(0, np.int32)]
        while start < stop:
            shard, first, _ = self.ranges[at].tolist()
            skip = first - self._ends[at]
            found.append(self._tokens(shard)[start + skip : min(stop, self._ends[at + 1]) + skip])
            start, at = self._ends[at + 1], at + 1
        return np.concatenate(found, dtype=np.int32)

    def document_ends(self) -> NDArray[np.int64]:
        """Where each document ends in the stream."""
        lengths = [np.diff(shard.records()["end"], prepend=0) for shard in self.shards]
        return np.cumsum(np.delete(np.concatenate([np.zeros(0, np.int64), *lengths]), self.excluded))

    def hashes(self) -> Hashes:
        """The `text_hash` of each document, in order."""
        return np.delete(self._records()["hash"], self.excluded)

    def _records(self) -> NDArray[Any]:
        """The records of all documents, the excluded ones too."""
        return np.concatenate([NO_RECORDS, *(shard.records() for shard in self.shards)])


def _ranges(shards: Sequence[Shard], excluded: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ranges of the shards that are read: shard, first token, the one after the last."""
    if not len(excluded):
        return np.array([(at, 0, shard.tokens) for at, shard in enumerate(shards)], np.int64).reshape(-1, 3)
    found, first = [np.zeros((0, 3), np.int64)], 0
    for at, shard in enumerate(shards):
        borders = np.concatenate([[0], shard.records()["end"]])
        is_read = np.ones(shard.documents + 2, bool)
        is_read[[0, -1]] = False  # so that the shard's ends are changes too
        own = excluded[(excluded >= first) & (excluded < first + shard.documents)] - first
        is_read[own + 1] = False
        changes = borders[np.flatnonzero(np.diff(is_read))].reshape(-1, 2)  # (N, 2) start, stop
        found.append(np.insert(changes, 0, at, axis=1))
        first += shard.documents
    return np.concatenate(found)


def join(streams: Iterable[TokenStream]) -> TokenStream:
    """Several streams of one tokenizer as one, in the order given."""
    shards: list[Shard] = []
    excluded: list[int] = []
    for stream in streams:
        first = sum(shard.documents for shard in shards)
        excluded += (first + stream.excluded).tolist()
        shards += stream.shards
    return TokenStream(shards, excluded)


def exclude_documents(streams: Sequence[TokenStream], excluded: Hashes, deduplicate: bool) -> list[TokenStream]:
    """The streams without documents that have an `excluded` hash; `deduplicate` also drops all but the first of each."""
    assert not any(len(stream.excluded) for stream in streams)
    own = np.concatenate([np.zeros(0, np.uint64), *(stream.hashes() for stream in streams)])
    is_read = ~np.isin(own, excluded)
    if deduplicate:
        is_first = np.zeros(len(own), bool)
        is_first[np.unique(own, return_index=True)[1]] = True
        is_read &= is_first
    parts = np.split(is_read, np.cumsum([stream.documents for stream in streams])[:-1])
    return [
        stream if part.all() else TokenStream(stream.shards, np.flatnonzero(~part).tolist())
        for stream, part in zip(streams, parts, strict=True)
    ]


def default_cache() -> Path:
    """Where tokenized corpora are stored: $HEADSTART_CACHE, else the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("HEADSTART_CACHE") or Path(base, "headstart"))


def is_held_out(hashes: Hashes) -> NDArray[np.bool_]:
    """Which documents are for validation; the last digit of a hash, by which datasets are split, plays no part."""
    found: NDArray[np.bool_] = hashes // np.uint64(10) % np.uint64(HELD_OUT) == 0
    return found


@dataclass(frozen=True)
class Corpus:
    """A tokenized corpus: tokens to learn from, tokens held out, notes, and how many rows were skipped for a reason."""

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

    def hashes(self) -> Hashes:
        """The `text_hash` of each document to learn from."""
        return self.train.hashes()


def prepare(documents: Documents, tokenizer: Tokenizer, cache: Path, on_progress: OnProgress = IGNORE) -> Corpus:
    """The corpus tokenized under `cache`, from disk if it was tokenized before."""
    corpus = find_prepared(documents, tokenizer, cache)
    if corpus is None:
        _write_missing_pieces(_folder(documents, tokenizer, cache), documents, tokenizer, on_progress)
        corpus = find_prepared(documents, tokenizer, cache)
        assert corpus is not None, cache
    elif documents.strict and corpus.skips:
        for _ in documents:  # raises the error about the row that an earlier run, without --strict, skipped
            pass
    return corpus


def prepare_share(
    documents: Documents, tokenizer: Tokenizer, cache: Path, number: int, count: int, on_progress: OnProgress = IGNORE
) -> tuple[int, int]:
    """Tokenize share `number` of `count`, every `count`-th piece; how many pieces the share and the corpus have.

    The job that finds all pieces written finishes the corpus.
    """
    folder = _folder(documents, tokenizer, cache)
    index = _read_complete(folder / INDEX)
    pieces = _write_missing_pieces(folder, documents, tokenizer, on_progress, number, count) if index is None else 0
    pieces = pieces or (index or {})["pieces"]
    return len(range(number, pieces, count)), pieces


def find_prepared(documents: Documents, tokenizer: Tokenizer, cache: Path) -> Corpus | None:
    """The corpus as it was tokenized before; None unless every file in its index exists and has its size."""
    folder = _folder(documents, tokenizer, cache)
    index = _read_complete(folder / INDEX)
    if index is None:
        return None
    shards: dict[str, list[Shard]] = {part: [] for part in PARTS}
    for entry in index["shards"]:
        shard = Shard(folder / entry["name"], entry["tokens"], entry["documents"], entry["text_bytes"])
        shards[entry["part"]].append(shard)
    train, valid = (TokenStream(shards[part]) for part in PARTS)
    return Corpus(documents.name, folder, train, valid, list(documents.notes), index["skips"])


def _folder(documents: Documents, tokenizer: Tokenizer, cache: Path) -> Path:
    key = content_hash([FORMAT, PIECE_CHARACTERS, HELD_OUT, documents.fingerprint, tokenizer.fingerprint])
    return cache / key[:32]


def _read_complete(path: Path) -> dict[str, Any] | None:
    """The description of a piece or of the corpus at `path`; None unless the files of all its shards are complete."""
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        sizes = [item for entry in content["shards"] for item in entry["sizes"].items()]
        is_complete = all((path.parent / name).stat().st_size == size for name, size in sizes)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return content if is_complete else None


def _write_missing_pieces(
    folder: Path, documents: Documents, tokenizer: Tokenizer, on_progress: OnProgress, number: int = 0, count: int = 1
) -> int:
    """Write the missing pieces of a share, and the index when all are there; the number of pieces of the corpus.

    One piece is read while another is encoded.
    """
    pieces, writing = 0, Future[None]()
    writing.set_result(None)
    try:
        with ThreadPoolExecutor(max_workers=1) as pool:
            for piece, texts in enumerate(_pieces(documents, on_progress)):
                pieces = piece + 1
                if piece % count == number and not _read_complete(_piece_path(folder, piece)):
                    records = _records(texts)
                    writing.result()
                    writing = pool.submit(_write_piece, folder, tokenizer, piece, texts, records)
            writing.result()
        if not pieces:
            raise DataError(f"{documents.name} holds no documents", hint="check that its files are not empty")
        found = [_read_complete(_piece_path(folder, piece)) for piece in range(pieces)]
        if all(found):
            entries = [entry for piece in found if piece for entry in piece["shards"]]
            content = {"format": FORMAT, "name": documents.name, "pieces": pieces}
            write_json(folder / INDEX, {**content, "skips": dict(documents.skips), "shards": entries})
    except RunError as error:
        hint = "free some space there, or set HEADSTART_CACHE to another folder"
        raise RunError(error.problem, hint=hint) from error
    return pieces


def _pieces(documents: Documents, on_progress: OnProgress) -> Iterator[list[str]]:
    """The corpus in pieces of consecutive documents, the same for every job."""
    total = documents.expected_bytes

    def texts() -> Iterator[str]:
        done = reported = 0
        for text in documents:
            yield text
            done += len(text.encode("utf-8")) + 1
            if done - reported >= BATCH_CHARACTERS:
                reported = done
                on_progress(min(done, total), total)
        on_progress(total, total)

    return _batches(texts(), PIECE_CHARACTERS)


def _batches(texts: Iterable[str], characters: int) -> Iterator[list[str]]:
    """The texts in lists, each closed by the text with which it has so many characters."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _records(texts: list[str]) -> NDArray[Any]:
    """The hashes and sizes of documents; where they end is not known before they are encoded."""
    records = np.zeros(len(texts), DOCUMENT)
    records["hash"] = hashes(texts)
    records["bytes"] = [len(text.encode("utf-8", "surrogatepass")) for text in texts]
    return records


def _piece_path(folder: Path, number: int) -> Path:
    return folder / f"piece-{number:05d}.json"


def _write_piece(folder: Path, tokenizer: Tokenizer, number: int, texts: list[str], records: NDArray[Any]) -> None:
    """Encode a piece with special tokens, in large batches, and write its shards, then its description."""
    batches = map(tokenizer.encode_flat, _batches(texts, BATCH_CHARACTERS))
    encoded = [tokenizer.add_special_tokens_flat(*batch) for batch in batches]
    tokens, counts = (np.concatenate(parts) for parts in zip(*encoded, strict=True))
    tokens = tokens.astype(np.uint16 if tokenizer.size <= 2**16 else np.uint32)
    is_valid, entries = is_held_out(records["hash"]), []
    for part in PARTS:
        is_own = is_valid == (part == "valid")
        if not is_own.any():
            continue
        own_tokens, own = tokens[np.repeat(is_own, counts)], records[is_own]
        own["end"] = np.cumsum(counts[is_own])
        shard = Shard(folder / f"{part}-{number:05d}", len(own_tokens), len(own), int(own["bytes"].sum()))
        for file, array in zip(shard.files, (own, own_tokens), strict=True):
            write_with(file, partial(_save, array))
        about = {"tokens": shard.tokens, "documents": shard.documents, "text_bytes": shard.text_bytes}
        sizes = {path.name: path.stat().st_size for path in shard.files}
        entries.append({"name": shard.path.name, "part": part, **about, "sizes": sizes})
    write_json(_piece_path(folder, number), {"shards": entries})


def _save(array: NDArray[Any], path: Path) -> None:
    with open(path, "wb") as handle:
        np.save(handle, array)
