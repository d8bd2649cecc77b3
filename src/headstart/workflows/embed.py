"""Texts as vectors: written in order to a file of any size, compared, and looked at word by word."""

import heapq
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from headstart.atomic_io import write_with
from headstart.batch import Batch, Row, pad
from headstart.config import RunConfig
from headstart.data.datasets import load_texts
from headstart.data.samplers import TextLoader
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, DataError, pick
from headstart.inference.loaded_model import LoadedModel, load_model
from headstart.models.heads import POOLINGS
from headstart.models.model import Model
from headstart.training.runtime import Runtime, start_runtime

AT_ONCE = 256  # texts held in memory
TOKEN = "token"
# How the vectors of a text's tokens become one; `token` keeps them all.
POOLS: dict[str, str] = {"cls": "first", "mean": "mean", "last": "last", TOKEN: ""}


@dataclass(frozen=True)
class Embedded:
    """Vectors on disk, one a text in the order of the file; with `token`, one a token."""

    path: Path
    pool: str
    texts: int
    vectors: int
    width: int
    length: int  # tokens read of a text at most
    cut: int  # texts that were longer
    seconds: float
    beside: list[Path] = field(default_factory=list)  # of `token`: where each text starts, and its tokens


@dataclass(frozen=True)
class Neighbour:
    """A text of a file that is near the query."""

    cosine: float
    line: int  # which text of the file it is, counted from 1
    text: str


@dataclass(frozen=True)
class Encoder:
    """A run that reads texts, in memory."""

    model: Model
    tokenizer: Tokenizer
    config: RunConfig
    runtime: Runtime
    pool: str
    batch_tokens: int = 0  # read together, padding included; 0 = as many as suit the device

    def rows(self, texts: list[str]) -> tuple[list[Row], int]:
        """The texts as framed tokens, and how many of them were cut."""
        length, encoded = self.config.training.length, self.tokenizer.encode(texts)
        rows = [Row(self.tokenizer.frame(ids, length, self.config.data.keep)) for ids in encoded]
        return rows, sum(len(ids) + 2 > length for ids in encoded)

    @torch.inference_mode()
    def vectors(self, rows: list[Row]) -> list[np.ndarray]:
        """Each row's vectors in float32, in the order given: (D,) pooled, or (T, D) for `token`."""
        found: list[np.ndarray] = [np.zeros(0)] * len(rows)
        budget = self.batch_tokens or self.runtime.eval_batch_tokens
        padding = None if self.model.backbone.is_flat else self.runtime.eval_max_padding
        loader = TextLoader(rows, budget, shuffled=False, padding=padding)
        for numbers in loader.batches(0):
            hidden, real = self._read([rows[number] for number in numbers])
            if self.pool != TOKEN:
                hidden = POOLINGS[POOLS[self.pool]](hidden, real)  # (B, D)
            for number, vectors in zip(numbers, hidden.cpu().numpy(), strict=True):
                found[number] = vectors[: len(rows[number].tokens)] if self.pool == TOKEN else vectors
        return found

    def _read(self, rows: list[Row]) -> tuple[Tensor, Tensor]:
        batch = plain_batch(rows, self.tokenizer.padding).to(self.runtime.device)
        with self.runtime.autocast():
            hidden = self.model.backbone(batch)  # (B, T, D)
        return hidden.float(), batch.real


def plain_batch(rows: list[Row], padding: int) -> Batch:
    """Rows as a batch that is read and not asked about."""
    tokens, real = pad([torch.from_numpy(row.tokens).long() for row in rows], padding)
    return Batch(tokens, real, is_full=bool(real.all()))


def open_encoder(run: str, pool: str = "mean", settings: Mapping[str, Any] | None = None) -> Encoder:
    """A base or a fine-tuned run, ready to read texts; `training.length` in `settings` is the most it reads of one."""
    pick(POOLS, pool, "pool")
    trained = load_model(run)
    given = settings or {}
    config = trained.info.config.with_({"training": {"length": usual_length(trained)}}).with_(given)
    _check(trained, config, pool)
    runtime = start_runtime(config.training)
    return Encoder(trained.model().to(runtime.device), trained.tokenizer, config, runtime, pool)


def usual_length(trained: LoadedModel) -> int:
    """Tokens read of a text unless told: a classifier's own length, all that a base's positions can tell apart.

    Turned positions carry a base past the blocks it was trained on; learned and added ones were not seen there.
    """
    config = trained.info.config
    goes_on = config.body.positions in ("rotary", "none") and trained.objective.reads == "blocks"
    return config.body.max_length if goes_on else config.training.length


def _check(trained: LoadedModel, config: RunConfig, pool: str) -> None:
    if config.training.length > config.body.max_length:
        raise ConfigError(
            f"{trained.name} reads {config.body.max_length} tokens at most, not {config.training.length}",
            hint=f"choose a --length of at most {config.body.max_length}",
        )
    if pool == "cls" and config.body.kind == "causal":
        raise ConfigError(
            f"the first token of {trained.name} sees only itself, so --pool cls is the same for every text",
            hint="use --pool mean, or --pool last: the last token of a causal model has seen the whole text",
        )


def embed(
    run: str,
    file: str,
    out: str | Path,
    *,
    pool: str = "mean",
    settings: Mapping[str, Any] | None = None,
    on_done: Callable[[int], None] = lambda texts: None,
) -> Embedded:
    """Write the vectors of every text of a file (or `-`, standard input) to `out`, a .npy, in order."""
    path, started = Path(out), time.time()
    if path.suffix != ".npy":
        raise ConfigError(
            f"vectors are written as .npy, not as {path.name!r}", hint=f"use --out {path.name}.npy"
        )
    encoder = open_encoder(run, pool, settings)
    texts = load_texts(file, encoder.config.data)
    beside = [path.with_suffix(".offsets.npy"), path.with_suffix(".pieces.jsonl")] if pool == TOKEN else []
    sums: dict[str, int] = {}

    def write(parts: list[Path]) -> None:
        sums.update(_write(encoder, texts, parts, on_done))
        if not sums["texts"]:
            raise DataError(f"{file} is empty", hint="give a file with one text a line, or a table of texts")

    write_together([path, *beside], write)
    width, length = encoder.config.body.width, encoder.config.training.length
    seconds = round(time.time() - started, 3)
    return Embedded(path, pool, **sums, width=width, length=length, seconds=seconds, beside=beside)


def _write(
    encoder: Encoder, texts: Iterator[str], parts: list[Path], on_done: Callable[[int], None]
) -> dict[str, int]:
    """Fill the vectors file and, for `token`, the offsets and the pieces; give the counts."""
    count = cut = 0
    with ExitStack() as stack:
        vectors = stack.enter_context(GrowingArray(parts[0], (encoder.config.body.width,), np.float32))
        offsets = stack.enter_context(GrowingArray(parts[1], (), np.int64)) if parts[1:] else None
        pieces = stack.enter_context(open(parts[2], "w", encoding="utf-8")) if parts[1:] else None
        if offsets is not None:
            offsets.append(np.zeros(1, np.int64))
        while chunk := list(islice(texts, AT_ONCE)):
            rows, were_cut = encoder.rows(chunk)
            found = encoder.vectors(rows)
            start = vectors.count
            vectors.append(np.concatenate(found) if encoder.pool == TOKEN else np.stack(found))
            if offsets is not None and pieces is not None:
                offsets.append(start + np.cumsum([len(row.tokens) for row in rows]))
                for row in rows:
                    pieces.write(json.dumps(encoder.tokenizer.pieces(row.tokens), ensure_ascii=False) + "\n")
            count, cut = count + len(chunk), cut + were_cut
            on_done(count)
        return {"texts": count, "vectors": vectors.count, "cut": cut}


def text_vectors(
    run: str, texts: Iterable[str], *, pool: str = "mean", settings: Mapping[str, Any] | None = None
) -> np.ndarray:
    """The vectors (N, D) of texts in memory; for `token`, use `embed`."""
    if pool == TOKEN:
        raise ConfigError("token vectors of texts differ in number", hint="write them with `embed`")
    encoder = open_encoder(run, pool, settings)
    rows, _ = encoder.rows(list(texts))
    return np.stack(encoder.vectors(rows)) if rows else np.zeros((0, encoder.config.body.width), np.float32)


def nearest_texts(
    run: str,
    file: str,
    query: str,
    *,
    top: int = 5,
    pool: str = "mean",
    settings: Mapping[str, Any] | None = None,
) -> list[Neighbour]:
    """The `top` texts of a file whose vectors point most nearly where the query's does, nearest first."""
    if not query.strip():
        raise DataError("the query is empty", hint="give a text in quotes")
    if pool == TOKEN:
        raise ConfigError("texts are compared by one vector each", hint="use --pool mean, cls or last")
    encoder = open_encoder(run, pool, settings)
    texts = load_texts(file, encoder.config.data)
    aim = _directions(encoder, [query])[0]  # (D,)
    best: list[tuple[float, int, str]] = []
    count = 0
    while chunk := list(islice(texts, AT_ONCE)):
        for cosine, text in zip(_directions(encoder, chunk) @ aim, chunk, strict=True):
            count += 1
            if text.strip():
                best.append((float(cosine), -count, text))
        best = heapq.nlargest(top, best)
    if not best:
        raise DataError(f"{file} is empty", hint="give a file with one text a line, or a table of texts")
    return [Neighbour(min(1.0, cosine), -line, text) for cosine, line, text in best]


def _directions(encoder: Encoder, texts: list[str]) -> np.ndarray:
    vectors = np.stack(encoder.vectors(encoder.rows(texts)[0]))  # (N, D)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def contextual_vectors(
    run: str, texts: Iterable[str], word: str, *, settings: Mapping[str, Any] | None = None
) -> np.ndarray:
    """The vector (N, D) of `word` where it first stands in each text: the mean over its tokens."""
    encoder = open_encoder(run, TOKEN, settings)
    kept = list(texts)
    rows, _ = encoder.rows(kept)
    spans = [word_span(encoder.tokenizer, row, word, text) for row, text in zip(rows, kept, strict=True)]
    found = [
        vectors[start:end].mean(axis=0)
        for vectors, (start, end) in zip(encoder.vectors(rows), spans, strict=True)
    ]
    return np.stack(found) if found else np.zeros((0, encoder.config.body.width), np.float32)


def word_span(tokenizer: Tokenizer, row: Row, word: str, text: str) -> tuple[int, int]:
    """The first and one past the last token of a framed row that `word` is made of, whatever its case."""
    ids = row.tokens[1:-1]
    whole = tokenizer.decode(ids)
    place = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", whole, re.IGNORECASE) if word.strip() else None
    if place is None:
        excerpt = text if len(text) <= 60 else f"{text[:59]}…"
        raise DataError(
            f"{word!r} does not stand in {excerpt!r} as the model reads it",
            hint="give a whole word that stands in every text, near enough to its start",
        )
    ends = [len(tokenizer.decode(ids[: count + 1])) for count in range(len(ids))]
    first = next(at for at, end in enumerate(ends) if end > place.start())
    last = next(at for at, end in enumerate(ends) if end >= place.end())
    return first + 1, last + 2  # one more for the token in front of the text


class GrowingArray:
    """A .npy file that rows are added to; its header is put right when it is closed."""

    def __init__(self, path: Path, row: tuple[int, ...], kind: type[np.generic]):
        self.row, self.kind, self.count = row, np.dtype(kind), 0
        self._handle: IO[bytes] = open(path, "wb")  # noqa: SIM115
        self._header()
        self._start = self._handle.tell()

    def _header(self) -> None:
        layout = {"descr": self.kind.str, "fortran_order": False, "shape": (self.count, *self.row)}
        np.lib.format.write_array_header_1_0(self._handle, layout)  # leaves room for a growing count

    def append(self, rows: np.ndarray) -> None:
        """Add rows at the end."""
        assert rows.shape[1:] == self.row, (rows.shape, self.row)
        self._handle.write(np.ascontiguousarray(rows, dtype=self.kind).tobytes())
        self.count += len(rows)

    def __enter__(self) -> "GrowingArray":
        return self

    def __exit__(self, *problem: object) -> None:
        try:
            self._handle.seek(0)
            self._header()
            assert self._handle.tell() == self._start, "the header grew over the rows"
        finally:
            self._handle.close()


def write_together(paths: list[Path], write: Callable[[list[Path]], None]) -> None:
    """Let `write` fill a file beside each path, then sync and rename them all, the first of them last."""

    def inner(left: list[Path], parts: list[Path]) -> None:
        if left:
            write_with(left[0], lambda beside: inner(left[1:], [*parts, beside]))
        else:
            write(parts)

    inner(paths, [])
