"""Generating text with a causal language model: continuations of prompts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from headstart.batch import EncodedExample, TextLoader
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, DataError, RunError
from headstart.generation.beam_search import Beam, Hypothesis, beam_search
from headstart.generation.generate import ModelDecoder, Rules, Unfolding, continuation, decode, prompt_batch
from headstart.generation.sampling import Sampling, stream_of
from headstart.inference.loaded_model import LoadedModel, load_model
from headstart.objectives.masked_lm import CausalAndMasked
from headstart.training.runtime import Runtime, start_runtime

CHUNK_PROMPTS = 256  # held in memory
BATCH_TOKENS = 8192  # of prompts and their continuations, in one batch
TEMPERATURE, TOP_P = 0.8, 0.95  # defaults: the most readable texts of small models

OnText = Callable[[int, str], None]  # called with the index of a text in the answer and its next characters


@dataclass(frozen=True)
class Request:
    """How to generate; None = the default."""

    tokens: int = 100  # maximum per text
    count: int = 1  # texts per prompt
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int = 0
    greedy: bool = False  # always the most probable token
    beam: int | None = None  # width of a beam search
    length_penalty: float = 0.6  # of the beam search

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.count < 1:
            raise ConfigError(f"{self.count} texts of {self.tokens} tokens cannot be generated", hint="1 is the least")
        sampled = [name for name in ("temperature", "top_k", "top_p", "min_p") if getattr(self, name) is not None]
        ways = [name for name, is_on in (("greedy", self.greedy), ("beam", self.beam is not None)) if is_on]
        for name in [*ways[1:], *(sampled if ways else [])]:
            problem = f"{ways[0]} and {name} exclude each other"
            raise ConfigError(problem, hint=f"leave {ways[0]} out, or leave {name} out")
        if self.beam is not None and self.repetition_penalty != 1:
            raise ConfigError("beam search has no repetition penalty", hint="leave one of the two out")
        if self.count > 1 and self.beam is None and self.sampling.is_greedy:
            problem = f"greedy search finds one text, not {self.count}"
            raise ConfigError(problem, hint="sample them, or search for the best: --num-beams")
        assert self.sampling
        assert self.search or self.beam is None

    @property
    def sampling(self) -> Sampling:
        """How tokens are sampled."""
        if self.greedy:
            return Sampling(temperature=0.0, repetition_penalty=self.repetition_penalty)
        return Sampling(
            repetition_penalty=self.repetition_penalty,
            temperature=TEMPERATURE if self.temperature is None else self.temperature,
            top_k=self.top_k,
            top_p=TOP_P if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            seed=self.seed,
        )

    @property
    def search(self) -> Beam | None:
        """The beam search, if there is one."""
        return None if self.beam is None else Beam(self.beam, self.count, self.length_penalty)


@dataclass(frozen=True)
class Completion:
    """The continuation of a prompt."""

    prompt: str
    text: str
    tokens: int  # of the text, without its end
    is_cut: bool  # True = the text reached the length limit before its end
    log_probability: float  # of the text, and of its end unless it is cut
    score: float  # that a beam search sorts by; without one, the log-probability


@dataclass(frozen=True)
class Writer:
    """A causal language model in memory that generates text."""

    decoder: ModelDecoder
    tokenizer: Tokenizer
    runtime: Runtime
    name: str = ""

    def rules(self, most: int, least: int = 0) -> Rules:
        """Rules for texts of at most `most` tokens, without special tokens but the end."""
        return Rules(self.tokenizer.eos_id, most, least, self.banned)

    @property
    def banned(self) -> tuple[int, ...]:
        """Special tokens that are never generated."""
        return tuple(sorted(self.tokenizer.special_ids - {self.tokenizer.eos_id}))

    def encode(self, texts: Sequence[str], first_number: int = 1) -> list[np.ndarray]:
        """Prompts as token ids after the start token; one that leaves no position for a new token is an error."""
        for number, text in enumerate(texts, start=first_number):
            if not _is_whole(text):
                raise DataError(f"prompt {number} is not UTF-8", hint="correct its encoding")
        encoded = [np.concatenate([[self.tokenizer.bos_id], ids]) for ids in self.tokenizer.encode(texts)]
        most = self.decoder.max_positions
        for number, ids in enumerate(encoded, start=first_number):
            if most is not None and len(ids) > most:
                problem = f"prompt {number} has {len(ids)} tokens, and {self.name} has positions for {most}"
                raise DataError(problem, hint="shorten the prompt")
        return encoded


def _is_whole(text: str) -> bool:
    """Whether a text has no surrogates, which a command line in another encoding contains."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def open_writer(run: str | LoadedModel, settings: Mapping[str, Any] | None = None) -> Writer:
    """The causal language model in a run; a run that cannot generate text is an error."""
    loaded = load_model(run) if isinstance(run, str) else run
    config = loaded.info.config.with_(settings or {})
    if isinstance(loaded.objective, CausalAndMasked):  # trained both ways: it generates as a causal model
        config = config.with_({"model": {"architecture": "causal"}})
    if loaded.objective.reads == "translations":
        problem = f"{loaded.name} is a translator: it writes for a source, not after a prompt"
        raise RunError(problem, hint=f"headstart translate {loaded.name} FILE")
    if config.model.architecture != "causal" or loaded.objective.reads == "texts":
        problem = f"{loaded.name} was trained with {loaded.objective.name} and cannot write text"
        hint = "a causal language model can: headstart pretrain CORPUS --objective causal-lm --out RUN"
        raise RunError(problem, hint=hint)
    runtime = start_runtime(config.training)
    model = replace(loaded, info=replace(loaded.info, config=config)).model().to(runtime.device)
    return Writer(ModelDecoder(model), loaded.tokenizer, runtime, loaded.name)


def generate(
    run: str | Writer,
    prompts: str | Sequence[str],
    *,
    settings: Mapping[str, Any] | None = None,
    on_text: OnText | None = None,
    **how: Any,
) -> list[Completion]:
    """Continuations of each prompt, those of one prompt together; `how` are the fields of a `Request`.

    A prompt's texts depend on the prompt, the seed and the request, never on other prompts. `on_text` gets the index
    of a text in the answer and its next characters as soon as they are generated.
    """
    writer = open_writer(run, settings) if isinstance(run, str) else run
    given = [prompts] if isinstance(prompts, str) else list(prompts)
    return _complete(writer, given, 1, Request(**how), on_text)


def generate_lines(writer: Writer, lines: Iterable[str], request: Request) -> Iterator[Completion]:
    """The same as `generate` for any number of prompts, which are processed in chunks."""
    lines, number = iter(lines), 1
    while chunk := list(islice(lines, CHUNK_PROMPTS)):
        yield from _complete(writer, chunk, number, request)
        number += len(chunk)


def _complete(
    writer: Writer, texts: list[str], first_number: int, request: Request, on_text: OnText | None = None
) -> list[Completion]:
    encoded = writer.encode(texts, first_number)
    if request.search is None:
        found = _sample(writer, encoded, request, on_text)
    elif on_text is None:
        found = _search(writer, encoded, request, request.search)
    else:
        raise ConfigError("a beam search has its texts only at the end", hint="leave on_text out")
    return [
        Completion(
            prompt=texts[number],
            text=continuation(writer.tokenizer, encoded[number], each.tokens),
            tokens=len(each.tokens),
            is_cut=each.is_cut,
            log_probability=each.log_probability,
            score=each.score,
        )
        for number, own in enumerate(found)
        for each in own
    ]


def _batches(rows: list[np.ndarray], request: Request, width: int) -> list[list[int]]:
    """Batches of row numbers: rows of similar length together."""
    lengths = [EncodedExample(np.zeros(len(row) + request.tokens, np.int8)) for row in rows]
    loader = TextLoader(lengths, max(1, BATCH_TOKENS // width), shuffled=False)
    return [numbers.tolist() for numbers in loader.batches(0)]


def _search(writer: Writer, encoded: list[np.ndarray], request: Request, beam: Beam) -> list[list[Hypothesis]]:
    found: list[list[Hypothesis]] = [[] for _ in encoded]
    for numbers in _batches(encoded, request, beam.width):
        batch = prompt_batch([encoded[number] for number in numbers], writer.tokenizer.pad_id)
        with writer.runtime.autocast():
            best = beam_search(writer.decoder, batch, writer.rules(request.tokens), beam)
        for number, own in zip(numbers, best, strict=True):
            found[number] = own
    return found


def _sample(
    writer: Writer, encoded: list[np.ndarray], request: Request, on_text: OnText | None
) -> list[list[Hypothesis]]:
    """`request.count` texts per prompt, each from a random stream of its own."""
    rows = [ids for ids in encoded for _ in range(request.count)]
    streams = [stream_of(ids, number) for ids in encoded for number in range(request.count)]
    unfolding = [Unfolding(writer.tokenizer, row) for row in rows]
    found: dict[int, Hypothesis] = {}
    for numbers in _batches(rows, request, 1):

        def stream(row: int, token: int, numbers: list[int] = numbers) -> None:
            new = "" if token == writer.tokenizer.eos_id else unfolding[numbers[row]].add(token)
            if new and on_text is not None:
                on_text(numbers[row], new)

        with writer.runtime.autocast():
            texts = decode(
                writer.decoder,
                prompt_batch([rows[number] for number in numbers], writer.tokenizer.pad_id),
                writer.rules(request.tokens),
                request.sampling,
                streams=[streams[number] for number in numbers],
                scored=True,
                on_token=None if on_text is None else stream,
            )
        for number, text in zip(numbers, texts, strict=True):
            total = sum(text.log_probabilities or [])
            found[number] = Hypothesis(text.tokens, total, total, text.is_cut)
            rest = "" if on_text is None else unfolding[number].finish()
            if rest and on_text is not None:
                on_text(number, rest)
    starts = range(0, len(rows), request.count)
    return [[found[number] for number in range(start, start + request.count)] for start in starts]
