"""Using a translator: lines in, lines out, in order and one for one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.config import DataConfig
from headstart.data.datasets import load_texts
from headstart.data.text_io import TABLE_KINDS, kind_of, open_text
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, HeadstartError, RunError
from headstart.generation.beam import Beam, Hypothesis
from headstart.generation.reader import ModelReader
from headstart.inference.loaded_model import LoadedModel, load_model
from headstart.training.runtime import Runtime, start_runtime
from headstart.workflows.decoding import search_translations

AT_ONCE = 2048  # lines held in memory, and sorted by length


@dataclass(frozen=True)
class Candidate:
    """One translation of a line."""

    text: str
    score: float  # log-probability over length penalty; the best first
    log_probability: float
    is_cut: bool  # True = the length ran out before the translation ended


@dataclass(frozen=True)
class Translation:
    """A line and its translations, the best first."""

    line: int  # counted from 1
    source: str
    candidates: list[Candidate]
    is_source_cut: bool  # True = the line was longer than the model reads, and the rest was left out

    @property
    def text(self) -> str:
        """The best translation."""
        return self.candidates[0].text


@dataclass(frozen=True)
class Translator:
    """A run that translates, in memory."""

    reader: ModelReader
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer
    runtime: Runtime
    longest_source: int  # tokens read of a line at most
    data: DataConfig

    def translate(
        self, lines: Sequence[str], beam: Beam, longest: int | None, first: int
    ) -> list[Translation]:
        """The translations of some lines, whose numbers begin with `first`; a blank line is not asked about."""
        asked = [place for place, line in enumerate(lines) if line.strip()]
        encoded = self.source_tokenizer.encode([lines[place] for place in asked])
        rows = [self.source_tokenizer.frame(ids, self.longest_source) for ids in encoded]
        found = search_translations(self.reader, rows, self.tokenizer, self.runtime, beam, longest)
        cut = {place for place, ids in zip(asked, encoded, strict=True) if len(ids) + 2 > self.longest_source}
        best = dict(zip(asked, found, strict=True))
        return [
            Translation(first + place, line, self._candidates(best.get(place)), place in cut)
            for place, line in enumerate(lines)
        ]

    def _candidates(self, best: list[Hypothesis] | None) -> list[Candidate]:
        if best is None:
            return [Candidate("", 0.0, 0.0, False)]
        return [
            Candidate(self.tokenizer.decode(each.tokens), each.score, each.log_probability, each.is_cut)
            for each in best
        ]


def open_translator(run: str | LoadedModel, settings: Mapping[str, Any] | None = None) -> Translator:
    """A run that translates, ready for lines; an error that says why for one that does not."""
    trained = load_model(run) if isinstance(run, str) else run
    if trained.objective.reads != "translations":
        raise RunError(
            f"{trained.name} was trained with {trained.objective.name} and does not translate",
            hint="headstart finetune BASE PAIRS --pair en-fr --out RUN trains a translator",
        )
    config = trained.info.config.with_(settings or {})
    runtime = start_runtime(config.training)
    reader = ModelReader(trained.model().to(runtime.device))
    longest = config.body.max_length
    return Translator(reader, trained.tokenizer, trained.source_tokenizer, runtime, longest, config.data)


def translate(
    run: str | Translator,
    lines: Iterable[str],
    *,
    beam: int = 5,
    n_best: int = 1,
    length_penalty: float = 0.6,
    max_length: int | None = None,
    settings: Mapping[str, Any] | None = None,
    at_once: int = AT_ONCE,
    scored: bool = True,
) -> Iterator[Translation]:
    """Every line's translation, in order: found by a search of width `beam` (1 = the likeliest token each time).

    Lines are read as they are needed, `at_once` of them at a time. A blank line gives a blank one. Unless
    `max_length` says otherwise, a translation has at most 50 tokens more than its line. With `scored` false, a search of
    width 1 is quicker and its scores are nan.
    """
    if max_length is not None and max_length < 1:
        raise ConfigError(f"a translation of {max_length} tokens is nothing", hint="1 is the least")
    search = Beam(beam, n_best, length_penalty, is_scored=scored)
    translator = open_translator(run, settings) if isinstance(run, str) else run
    return _translate(translator, iter(lines), search, max_length, at_once)


def _translate(
    translator: Translator, lines: Iterator[str], search: Beam, max_length: int | None, at_once: int
) -> Iterator[Translation]:
    number = 1
    for chunk in _chunks(lines, at_once):
        yield from translator.translate(chunk, search, max_length, number)
        number += len(chunk)


def _chunks(lines: Iterator[str], at_once: int) -> Iterator[list[str]]:
    """Lines in groups; those before one that cannot be read come before the error that says so."""
    chunk: list[str] = []
    try:
        for line in lines:
            chunk.append(line)
            if len(chunk) == at_once:
                yield chunk
                chunk = []
    except HeadstartError:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def read_sources(path: str, config: DataConfig) -> Iterator[str]:
    """The lines of standard input ("-") or of a file, whatever its ending; of a table, its text column."""
    if path == "-" or kind_of(Path(path)) in TABLE_KINDS:
        return load_texts(path, config)
    return (line for _, line in open_text(Path(path)))
