"""Embeddings of texts and words, written to a file of any size or compared for semantic search."""

import heapq
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from headstart.atomic_io import write_with
from headstart.batch import Batch, EncodedExample, TextLoader, pad
from headstart.config import RunConfig
from headstart.data.datasets import load_texts
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, DataError, pick
from headstart.inference.loaded_model import LoadedModel, load_model
from headstart.models.heads import POOLINGS
from headstart.models.model import Model
from headstart.training.runtime import Runtime, start_runtime

CHUNK_TEXTS = 256  # held in memory
TOKEN = "token"
# How the vectors of a text's tokens are pooled into one; `token` writes them all.
POOLS: dict[str, str] = {"cls": "first", "mean": "mean", "last": "last", TOKEN: ""}


@dataclass(frozen=True)
class Embedded:
    """Vectors on disk in the order of the texts: one per text, or one per token with the pool `token`."""

    path: Path
    pool: str
    texts: int
    vectors: int
    width: int
    length: int  # maximum number of tokens read of a text
    cut: int  # texts that were longer
    seconds: float
    extra_files: list[Path] = field(default_factory=list)  # of `token`: where each text starts, and its tokens


@dataclass(frozen=True)
class Neighbour:
    """A text of a file that is similar to the query."""

    cosine: float
    line: int  # number of the text in the file, counted from 1
    text: str


@dataclass(frozen=True)
class Encoder:
    """A model in memory that embeds texts."""

    model: Model
    tokenizer: Tokenizer
    config: RunConfig
    runtime: Runtime
    pool: str
    batch_tokens: int = 0  # in one forward pass, padding included; 0 = as many as suit the device

    def encode(self, texts: list[str]) -> np.ndarray:
        """The pooled vectors (N, D) of texts in memory."""
        rows, _ = self.rows(texts)
        return np.stack(self.vectors(rows)) if rows else np.zeros((0, self.config.model.hidden_size), np.float32)

    def rows(self, texts: list[str]) -> tuple[list[EncodedExample], int]:
        """The texts as token ids with special tokens, and how many of them were truncated."""
        length, encoded = self.config.training.max_length, self.tokenizer.encode(texts)
        rows = [
            EncodedExample(self.tokenizer.add_special_tokens(ids, length, self.config.data.truncation_side))
            for ids in encoded
        ]
        return rows, sum(len(ids) + 2 > length for ids in encoded)

    @torch.inference_mode()
    def vectors(self, rows: list[EncodedExample]) -> list[np.ndarray]:
        """Each row's vectors in float32, in order: (D,) pooled, or (T, D) for `token`."""
        found: list[np.ndarray] = [np.zeros(0)] * len(rows)
        budget = self.batch_tokens or self.runtime.eval_batch_tokens
        padding = None if self.model.backbone.skips_padding else self.runtime.eval_max_padding
        loader = TextLoader(rows, budget, shuffled=False, padding=padding)
        for numbers in loader.batches(0):
            batch = plain_batch([rows[number] for number in numbers], self.tokenizer.pad_id)
            batch = batch.to(self.runtime.device)
            with self.runtime.autocast():
                hidden = self.model.backbone(batch)  # (B, T, D)
            hidden = hidden.float()
            if self.pool != TOKEN:
                hidden = POOLINGS[POOLS[self.pool]](hidden, batch.attention_mask)  # (B, D)
            for number, vectors in zip(numbers, hidden.cpu().numpy(), strict=True):
                found[number] = vectors[: len(rows[number].tokens)] if self.pool == TOKEN else vectors
        return found


def plain_batch(rows: list[EncodedExample], padding: int) -> Batch:
    """Rows as a batch without labels."""
    tokens, real = pad([torch.from_numpy(row.tokens).long() for row in rows], padding)
    return Batch(tokens, real, unpadded=bool(real.all()))


def open_encoder(run: str | LoadedModel, pool: str = "mean", settings: Mapping[str, Any] | None = None) -> Encoder:
    """The encoder of a base or a fine-tuned run; `training.max_length` in `settings` limits the tokens read of a text."""
    pick(POOLS, pool, "pool")
    loaded = load_model(run) if isinstance(run, str) else run
    config = loaded.info.config.with_({"training": {"max_length": usual_length(loaded)}}).with_(settings or {})
    longest = config.model.max_position_embeddings
    if config.training.max_length > longest:
        problem = f"{loaded.name} reads {longest} tokens at most, not {config.training.max_length}"
        raise ConfigError(problem, hint=f"choose a --max-length of at most {longest}")
    if pool == "cls" and config.model.architecture == "causal":
        problem = f"the first token of {loaded.name} sees only itself, so --pooling cls is the same for every text"
        hint = "use --pooling mean, or --pooling last: the last token of a causal model has seen the whole text"
        raise ConfigError(problem, hint=hint)
    runtime = start_runtime(config.training)
    return Encoder(loaded.model().to(runtime.device), loaded.tokenizer, config, runtime, pool)


def usual_length(loaded: LoadedModel) -> int:
    """The default maximum length of a text: a classifier's training length, or all positions of a base.

    Rotary positions extrapolate past the blocks that a base was trained on; learned and sinusoidal ones do not.
    """
    config = loaded.info.config
    extrapolates = config.model.position_embedding in ("rotary", "none") and loaded.objective.reads == "blocks"
    return config.model.max_position_embeddings if extrapolates else config.training.max_length


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
        raise ConfigError(f"vectors are written as .npy, not as {path.name!r}", hint=f"use --out {path.name}.npy")
    encoder = open_encoder(run, pool, settings)
    texts = load_texts(file, encoder.config.data)
    extra = [path.with_suffix(".offsets.npy"), path.with_suffix(".pieces.jsonl")] if pool == TOKEN else []
    ends, cut = [0], 0  # how many vectors there are after each text

    def write(parts: list[Path]) -> None:
        nonlocal cut
        with ExitStack() as stack:
            vectors = stack.enter_context(GrowingArray(parts[0], (encoder.config.model.hidden_size,), np.float32))
            pieces = stack.enter_context(open(parts[2], "w", encoding="utf-8")) if extra else None
            while chunk := list(islice(texts, CHUNK_TEXTS)):
                rows, were_cut = encoder.rows(chunk)
                vectors.append(np.concatenate([np.atleast_2d(found) for found in encoder.vectors(rows)]))
                for row in rows:
                    ends.append(ends[-1] + (len(row.tokens) if extra else 1))
                    if pieces:
                        tokens = encoder.tokenizer.convert_ids_to_tokens(row.tokens)
                        pieces.write(json.dumps(tokens, ensure_ascii=False) + "\n")
                cut += were_cut
                on_done(len(ends) - 1)
        if extra:
            with open(parts[1], "wb") as handle:
                np.save(handle, np.array(ends))
        if len(ends) == 1:
            raise DataError(f"{file} is empty", hint="give a file with one text a line, or a table of texts")

    write_together([path, *extra], write)
    width, length = encoder.config.model.hidden_size, encoder.config.training.max_length
    seconds = round(time.time() - started, 3)
    return Embedded(path, pool, len(ends) - 1, ends[-1], width, length, cut, seconds, extra)


def text_vectors(
    run: str, texts: Iterable[str], *, pool: str = "mean", settings: Mapping[str, Any] | None = None
) -> np.ndarray:
    """The vectors (N, D) of texts in memory; for `token`, use `embed`."""
    if isinstance(texts, str):
        raise TypeError("texts must be a list of strings, not one string; write [text]")
    if pool == TOKEN:
        raise ConfigError("texts differ in their number of token vectors", hint="write them with `embed`")
    return open_encoder(run, pool, settings).encode(list(texts))


def nearest_texts(
    run: str, file: str, query: str, *, top: int = 5, pool: str = "mean", settings: Mapping[str, Any] | None = None
) -> list[Neighbour]:
    """The `top` texts of a file with the highest cosine similarity to the query, best first."""
    if not query.strip():
        raise DataError("the query is empty", hint="give a text in quotes")
    if pool == TOKEN:
        raise ConfigError("a search compares one vector per text", hint="use --pooling mean, cls or last")
    encoder = open_encoder(run, pool, settings)
    texts = load_texts(file, encoder.config.data)
    direction = _directions(encoder, [query])[0]  # (D,)
    best: list[tuple[float, int, str]] = []
    count = 0
    while chunk := list(islice(texts, CHUNK_TEXTS)):
        for cosine, text in zip(_directions(encoder, chunk) @ direction, chunk, strict=True):
            count += 1
            if text.strip():
                best.append((float(cosine), -count, text))
        best = heapq.nlargest(top, best)
    if not best:
        raise DataError(f"{file} is empty", hint="give a file with one text a line, or a table of texts")
    return [Neighbour(min(1.0, cosine), -line, text) for cosine, line, text in best]


def _directions(encoder: Encoder, texts: list[str]) -> np.ndarray:
    """Unit vectors (N, D)."""
    vectors = np.stack(encoder.vectors(encoder.rows(texts)[0]))  # (N, D)
    found: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return found


def contextual_vectors(
    run: str, texts: Iterable[str], word: str, *, settings: Mapping[str, Any] | None = None
) -> np.ndarray:
    """The vector (N, D) of the first occurrence of `word` in each text: the mean over its tokens."""
    encoder = open_encoder(run, TOKEN, settings)
    given = list(texts)
    rows, _ = encoder.rows(given)
    spans = [word_span(encoder.tokenizer, row, word, text) for row, text in zip(rows, given, strict=True)]
    found = [
        vectors[start:end].mean(axis=0) for vectors, (start, end) in zip(encoder.vectors(rows), spans, strict=True)
    ]
    return np.stack(found) if found else np.zeros((0, encoder.config.model.hidden_size), np.float32)


def word_span(tokenizer: Tokenizer, row: EncodedExample, word: str, text: str) -> tuple[int, int]:
    """The token range of the first `word` in a row with special tokens; case is ignored."""
    ids = row.tokens[1:-1]
    whole = tokenizer.decode(ids)
    match = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", whole, re.IGNORECASE) if word.strip() else None
    if match is None:
        excerpt = text if len(text) <= 60 else f"{text[:59]}…"
        problem = f"{word!r} does not occur in {excerpt!r} as the model reads it"
        raise DataError(problem, hint="give a whole word that occurs in every text, near its start")
    ends = [len(tokenizer.decode(ids[: count + 1])) for count in range(len(ids))]
    first = next(at for at, end in enumerate(ends) if end > match.start())
    last = next(at for at, end in enumerate(ends) if end >= match.end())
    return first + 1, last + 2  # one more for the token in front of the text


class GrowingArray:
    """A .npy file that grows by rows; its header is corrected when it is closed."""

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
    """Let `write` fill a temporary file for each path, then sync and rename them all, the first path last."""

    def inner(left: list[Path], parts: list[Path]) -> None:
        if left:
            write_with(left[0], lambda beside: inner(left[1:], [*parts, beside]))
        else:
            write(parts)

    inner(paths, [])
