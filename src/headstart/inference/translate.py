"""Translating with a finished run: lines in, translations out, in order and one for one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headstart.batch import Batch, EncodedExample, TextLoader
from headstart.config import DataConfig
from headstart.data.datasets import load_texts
from headstart.data.text_io import TABLE_KINDS, kind_of, open_text
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, HeadstartError, RunError
from headstart.generation.beam_search import Beam, Hypothesis, beam_search
from headstart.generation.generate import Decoder, ModelDecoder, Rules, Text, source_batch
from headstart.inference.loaded_model import LoadedModel, load_model
from headstart.models.model import Model
from headstart.training.runtime import Runtime, start_runtime

CHUNK_LINES = 2048  # held in memory, and sorted by length
EXTRA_TOKENS = 50  # that a translation may have beyond its source (Vaswani et al., 2017)


@dataclass(frozen=True)
class Candidate:
    """One translation of a line."""

    text: str
    score: float  # log-probability over length penalty; the best first
    log_probability: float
    is_cut: bool  # True = the translation reached the length limit before its end


@dataclass(frozen=True)
class Translation:
    """A line and its translations, the best first."""

    line: int  # counted from 1
    source: str
    candidates: list[Candidate]
    is_source_cut: bool  # True = the line was longer than the model reads and was truncated

    @property
    def text(self) -> str:
        """The best translation."""
        return self.candidates[0].text


@dataclass(frozen=True)
class Translator:
    """A translation model in memory, on its device."""

    decoder: ModelDecoder
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer
    runtime: Runtime
    longest_source: int  # tokens of a line that are read, at most
    data: DataConfig

    def translate(self, lines: Sequence[str], beam: Beam, longest: int | None, first: int) -> list[Translation]:
        """The translations of some lines, numbered from `first`; a blank line stays blank."""
        numbers = [number for number, line in enumerate(lines) if line.strip()]
        encoded = self.source_tokenizer.encode([lines[number] for number in numbers])
        rows = [self.source_tokenizer.add_special_tokens(ids, self.longest_source) for ids in encoded]
        found = search_translations(self.decoder, rows, self.tokenizer, self.runtime, beam, longest)
        cut = {number for number, ids in zip(numbers, encoded, strict=True) if len(ids) + 2 > self.longest_source}
        best = dict(zip(numbers, found, strict=True))
        return [
            Translation(first + number, line, self._candidates(best.get(number)), number in cut)
            for number, line in enumerate(lines)
        ]

    def _candidates(self, best: list[Hypothesis] | None) -> list[Candidate]:
        if best is None:
            return [Candidate("", 0.0, 0.0, False)]
        return [
            Candidate(self.tokenizer.decode(each.tokens), each.score, each.log_probability, each.is_cut)
            for each in best
        ]


def open_translator(run: str | LoadedModel, settings: Mapping[str, Any] | None = None) -> Translator:
    """The translator in a run; a run that does not translate is an error."""
    loaded = load_model(run) if isinstance(run, str) else run
    if loaded.objective.reads != "translations":
        problem = f"{loaded.name} was trained with {loaded.objective.name} and does not translate"
        raise RunError(problem, hint="headstart finetune BASE PAIRS --pair en-fr --out RUN trains a translator")
    config = loaded.info.config.with_(settings or {})
    runtime = start_runtime(config.training)
    decoder = ModelDecoder(loaded.model().to(runtime.device))
    longest = config.model.max_position_embeddings
    return Translator(decoder, loaded.tokenizer, loaded.source_tokenizer, runtime, longest, config.data)


def translate(
    run: str | Translator,
    lines: Iterable[str],
    *,
    beam: int = 5,
    n_best: int = 1,
    length_penalty: float = 0.6,
    max_length: int | None = None,
    settings: Mapping[str, Any] | None = None,
    chunk_lines: int = CHUNK_LINES,
    scored: bool = True,
) -> Iterator[Translation]:
    """Every line's translation, in order, found by beam search of width `beam` (1 = greedy).

    Lines are read as they are needed, `chunk_lines` at a time. A blank line gives a blank translation. By default a
    translation has at most 50 tokens more than its line; `max_length` lowers that. Without `scored`, greedy search is
    faster and its scores are nan.
    """
    if isinstance(lines, str):
        raise TypeError("lines must be a list of strings, not one string; write [text]")
    if max_length is not None and max_length < 1:
        raise ConfigError(f"max_length {max_length} leaves no room for a translation", hint="1 is the least")
    search = Beam(beam, n_best, length_penalty, is_scored=scored)
    translator = open_translator(run, settings) if isinstance(run, str) else run
    return _translate_chunks(translator, iter(lines), search, max_length, chunk_lines)


def _translate_chunks(
    translator: Translator, lines: Iterator[str], search: Beam, max_length: int | None, size: int
) -> Iterator[Translation]:
    number = 1
    for chunk in _chunks(lines, size):
        yield from translator.translate(chunk, search, max_length, number)
        number += len(chunk)


def _chunks(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    """Lines in groups. Lines before an unreadable one are given before its error is raised."""
    chunk: list[str] = []
    try:
        for line in lines:
            chunk.append(line)
            if len(chunk) == size:
                yield chunk
                chunk = []
    except HeadstartError:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def read_sources(path: str, config: DataConfig) -> Iterator[str]:
    """The lines of standard input ("-") or of a text file; of a table, its text column."""
    if path == "-" or kind_of(Path(path)) in TABLE_KINDS:
        return load_texts(path, config)
    return (line for _, line in open_text(Path(path)))


# --- Decoding in batches --------------------------------------------------------------------------------------------


def batch_tokens(runtime: Runtime) -> int:
    """Source tokens in a batch, counted once per hypothesis: the caches of a CPU hold few."""
    return 4096 if runtime.device.type == "cpu" else 16384


def write_translations(
    model: Model, rows: Sequence[np.ndarray], tokenizer: Tokenizer, runtime: Runtime, beam: Beam | None = None
) -> list[Text]:
    """A translation of every encoded source, in order: greedy, or the best of a beam search.

    The end is the only special token that is ever written. Several processes divide greedy decoding among them.
    """
    search = beam or Beam(width=1, is_scored=False)
    found = search_translations(ModelDecoder(model), rows, tokenizer, runtime, search, is_shared=beam is None)
    return [Text(best[0].tokens, best[0].is_cut) for best in found]


def search_translations(
    decoder: Decoder,
    rows: Sequence[np.ndarray],
    tokenizer: Tokenizer,
    runtime: Runtime,
    beam: Beam,
    longest: int | None = None,
    is_shared: bool = False,
) -> list[list[Hypothesis]]:
    """The best translations of every encoded source, in order; `longest` limits all of them, in tokens.

    If the search `is_shared`, several processes divide it among them.
    """
    found: dict[int, list[Hypothesis]] = {}
    batches, processes = _source_batches(rows, tokenizer, runtime, beam.width, longest), runtime.processes
    if is_shared:
        batches = islice(batches, processes.rank, None, processes.count)
    for numbers, batch, rules, limits in batches:
        with runtime.autocast(), torch.inference_mode():
            best = beam_search(decoder, batch, rules, beam, most=limits)
        found.update(zip(numbers, best, strict=True))
    if is_shared and not processes.is_alone:
        found = {number: best for part in processes.all_gather(found) for number, best in part.items()}
    return [found[number] for number in range(len(rows))]


def _source_batches(
    rows: Sequence[np.ndarray], tokenizer: Tokenizer, runtime: Runtime, width: int, longest: int | None
) -> Iterator[tuple[list[int], Batch, Rules, list[int]]]:
    """Batches of sources of similar length: their numbers, the batch, its rules, and each translation's token limit."""
    banned = tuple(sorted(tokenizer.special_ids - {tokenizer.eos_id}))
    loader = TextLoader([EncodedExample(row) for row in rows], max(1, batch_tokens(runtime) // width), shuffled=False)
    for numbers in loader.batches(0):
        chosen = [rows[number] for number in numbers]
        limits = [min(len(row) + EXTRA_TOKENS, longest or len(row) + EXTRA_TOKENS) for row in chosen]
        batch = source_batch(chosen, tokenizer.pad_id, tokenizer.bos_id)
        yield numbers.tolist(), batch, Rules(tokenizer.eos_id, max(limits), banned=banned), limits
