"""Text generation token by token: greedy or sampled, as a batch or as a stream; and the log-probability of a given text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.batch import Batch
from headstart.errors import DataError
from headstart.generation.reader import Reader, start
from headstart.generation.sampling import GREEDY, Sampling, choose, stream_of, uniform

OnToken = Callable[[int, int], None]  # told the row and its next token, as soon as it is there
LEAVING = 8  # finished rows leave when they are one in so many: leaving copies what the others remember


@dataclass(frozen=True)
class Rules:
    """What a text may be: where it ends, how long it gets, and which tokens it never holds."""

    last: int  # the token that ends a text
    most: int  # tokens at most, `last` included; a text without `last` by then is cut
    least: int = 0  # tokens before `last` may come
    banned: tuple[int, ...] = ()  # tokens that never come

    def bar(self, scores: Tensor, step: int) -> Tensor:
        """The scores (R, V), with those of tokens that may not come at this step put out of reach."""
        barred = (*self.banned, *((self.last,) if step < self.least else ()))
        if barred:
            scores.index_fill_(1, _numbers(barred, scores.device), -torch.inf)
        return scores


@lru_cache(maxsize=64)
def _numbers(tokens: tuple[int, ...], device: torch.device) -> Tensor:
    """These tokens as an index, made once and not at every step."""
    return torch.tensor(tokens, device=device)


@dataclass(frozen=True)
class Text:
    """What was written after a prompt or for a source, without the token that ends it."""

    tokens: list[int]
    is_cut: bool  # True = the length ran out before the text ended
    log_probabilities: list[float] | None = None  # the model's, of each token, and of the end unless it is cut


def rooms(reader: Reader, batch: Batch, rules: Rules, most: Sequence[int] | None) -> Tensor:
    """How many tokens each row may still get (R,): its own limit, the rules', and what positions there are."""
    lengths = batch.attention_mask.sum(dim=1).to(reader.device)
    room = torch.full_like(lengths, rules.most)
    if most is not None:
        room = torch.minimum(room, torch.tensor(most, device=room.device))
    if reader.positions is not None:
        room = torch.minimum(room, reader.positions + 1 - lengths)  # the last one is written, never read
        full = int(lengths.max())
        if full > reader.positions:
            raise DataError(
                f"a prompt of {full} tokens is longer than the {reader.positions} positions of this model",
                hint="shorten the prompt, or use a model with rotary or sinusoidal positions",
            )
    return room.clamp(min=0)


@torch.inference_mode()
def decode(
    reader: Reader,
    batch: Batch,
    rules: Rules,
    sampling: Sampling = GREEDY,
    *,
    most: Sequence[int] | None = None,
    streams: Sequence[int] | None = None,
    scored: bool = False,
    on_token: OnToken | None = None,
) -> list[Text]:
    """A text for every row of the batch, in its order; what a row gets does not depend on the others.

    `most` limits rows one by one; `streams` are what their chance depends on beside the seed: the prompt unless told.
    """
    batch = batch.to(reader.device)
    room = rooms(reader, batch, rules, most)
    if sampling.is_greedy:
        streams = [0] * len(room)  # nothing is left to chance
    elif streams is None:
        streams = [stream_of(*_own(batch, row)) for row in range(len(room))]
    work = _Decoding(reader, batch, rules, sampling, room, streams, scored, on_token)
    work.run()
    return work.texts()


def staying(done: np.ndarray) -> np.ndarray:
    """The rows that are not done; the last of them stand in the gaps, so that few change their place."""
    left = np.flatnonzero(~done)
    order = np.arange(len(left))
    order[done[: len(left)]] = left[left >= len(left)]
    return order


def _own(batch: Batch, row: int) -> tuple[np.ndarray, int]:
    """What a row has of its own: its source or its prompt."""
    tokens, real = (
        (batch.tokens, batch.attention_mask) if batch.source is None else (batch.source, batch.source_attention_mask)
    )
    assert real is not None
    return tokens[row][real[row]].cpu().numpy(), 0


class _Decoding:
    """The rows that are still being written, and what all have got so far."""

    def __init__(
        self,
        reader: Reader,
        batch: Batch,
        rules: Rules,
        sampling: Sampling,
        room: Tensor,
        streams: Sequence[int],
        scored: bool,
        on_token: OnToken | None,
    ):
        self.reader, self.batch, self.rules, self.sampling = reader, batch, rules, sampling
        self.on_token, self.is_scored = on_token, scored
        self.limits = room.cpu().numpy()  # (R,), of the rows still written
        longest = int(self.limits.max())
        self.written = np.full((len(room), longest), rules.last)  # what is counted is kept off the device
        self.marks: list[tuple[np.ndarray, Tensor]] = []  # at each step, whose log-probabilities (R,), and these
        self.counts = np.zeros(len(room), dtype=int)  # tokens of each row, its end included
        self.is_ended = np.zeros(len(room), dtype=bool)
        self.owners = np.arange(len(room))  # (R,), numbers of the rows still written
        is_random = not sampling.is_greedy
        own = np.array([stream % 2**64 for stream in streams], dtype=np.uint64)
        self.draws = uniform(sampling.seed, own, longest if is_random else 0).to(room.device)
        self.history: Tensor | None = None  # (R, T), what is not to be repeated
        if sampling.repetition_penalty != 1:  # padding counts as the first token, which is in it anyhow
            self.history = torch.where(batch.attention_mask, batch.tokens, batch.tokens[:, :1])

    def run(self) -> None:
        """Write until every row has ended or has no room left."""
        if not self.written.shape[1]:
            return
        memory, vectors = start(self.reader, self.batch, self.written.shape[1])
        step, done = 0, self.limits == 0
        while True:
            tokens = self._next(vectors, step)
            new = tokens.cpu().numpy()
            self.written[self.owners, step] = new  # also for rows that are done: their counts stand
            if self.on_token is not None:
                self._tell(new, ~done)
            ended, step = new == self.rules.last, step + 1
            over = ended | (self.limits <= step)
            if over.any():
                before, done = done, done | over
                self._record(done & ~before, ended, step)
                gone = int(done.sum())
                if gone == len(done):
                    return
                if self._leave_now(gone, len(done)):
                    tokens, done = self._leave(memory, tokens, done)
            vectors = self.reader.read(tokens[:, None], memory)[:, 0]

    def _next(self, vectors: Tensor, step: int) -> Tensor:
        """The next token (R,) of each row."""
        scores = self.reader.score(vectors)
        known = scores.log_softmax(dim=-1) if self.is_scored else None
        draws = self.draws[:, step] if self.draws.shape[1] else self.draws
        tokens = choose(self.rules.bar(scores, step), self.sampling, self.history, draws)
        if self.history is not None:
            self.history = torch.cat((self.history, tokens[:, None]), dim=1)
        if known is not None:
            self.marks.append((self.owners, known.gather(1, tokens[:, None])[:, 0].clamp_(max=0)))
        return tokens

    def _tell(self, tokens: np.ndarray, live: np.ndarray) -> None:
        assert self.on_token is not None
        for row, token in zip(self.owners[live].tolist(), tokens[live].tolist(), strict=True):
            self.on_token(row, token)

    def _record(self, now: np.ndarray, ended: np.ndarray, count: int) -> None:
        """Note the rows that are done now (R,), with so many tokens."""
        owners = self.owners[now]
        self.counts[owners] = count
        self.is_ended[owners] = ended[now]

    def _leave_now(self, gone: int, rows: int) -> bool:
        """Whether it pays to let the rows that are done leave; those without positions must."""
        return gone * LEAVING >= rows or (gone > 0 and self.reader.positions is not None)

    def _leave(self, memory: Any, tokens: Tensor, done: np.ndarray) -> tuple[Tensor, np.ndarray]:
        left = staying(done)
        kept = torch.from_numpy(left).to(tokens.device)
        memory.select(kept, kept)
        self.owners, self.limits, self.draws = self.owners[left], self.limits[left], self.draws[kept]
        self.history = None if self.history is None else self.history[kept]
        return tokens[kept], done[left]

    def texts(self) -> list[Text]:
        """What every row got."""
        found, scores = [], self._scores()
        for row, (count, is_ended) in enumerate(zip(self.counts.tolist(), self.is_ended.tolist(), strict=True)):
            own = None if scores is None else scores[row, :count].tolist()
            found.append(Text(self.written[row, : count - is_ended].tolist(), not is_ended, own))
        return found

    def _scores(self) -> np.ndarray | None:
        """The log-probability of every token written (R, longest)."""
        if not self.is_scored:
            return None
        scores = np.zeros(self.written.shape, dtype=np.float32)
        every = torch.cat([marks for _, marks in self.marks]).cpu().numpy() if self.marks else np.zeros(0)
        start = 0
        for step, (owners, _) in enumerate(self.marks):
            scores[owners, step] = every[start : start + len(owners)]
            start += len(owners)
        return scores


@torch.inference_mode()
def log_probabilities(reader: Reader, batch: Batch, texts: Sequence[Sequence[int]]) -> list[list[float]]:
    """The log-probability of every token of a text given after each row's prompt; all in one pass.

    A text that should be marked on where it ends has `last` as its last token.
    """
    batch = batch.to(reader.device)
    lengths = batch.attention_mask.sum(dim=1).tolist()
    rows = [
        torch.cat((batch.tokens[row, :length], torch.tensor(text, dtype=torch.long, device=reader.device)))
        for row, (length, text) in enumerate(zip(lengths, texts, strict=True))
    ]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    sizes = torch.tensor([len(row) for row in rows], device=reader.device)
    real = torch.arange(tokens.shape[1], device=reader.device)[None, :] < sizes[:, None]
    memory = reader.begin(batch, tokens.shape[1])
    vectors = reader.read(tokens[:, :-1], memory, real[:, :-1])
    found = []
    for row, (length, text) in enumerate(zip(lengths, texts, strict=True)):
        asked = vectors[row, length - 1 : length - 1 + len(text)]
        scores = reader.score(asked).log_softmax(dim=-1).clamp_(max=0)  # (T, V), one text at a time
        found.append(scores.gather(1, rows[row][length:, None])[:, 0].tolist())
    return found


def stream(
    reader: Reader,
    batch: Batch,
    rules: Rules,
    sampling: Sampling,
    computing: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Iterator[int]:
    """The tokens after a batch's only row as they come, `rules.last` included when the text ends by itself.

    Each step runs inside `computing()`; between two steps nothing of how torch computes is left changed, so that
    several streams can take turns.
    """
    batch = batch.to(reader.device)
    room = int(rooms(reader, batch, rules, None)[0])
    if not room:
        return
    own = np.array([stream_of(batch.tokens[0].cpu().numpy())], dtype=np.uint64)
    draws = uniform(sampling.seed, own, 0 if sampling.is_greedy else room).to(reader.device)
    history = batch.tokens if sampling.repetition_penalty != 1 else None
    with torch.inference_mode(), computing():
        memory, vectors = start(reader, batch, room)
    for step in range(room):
        with torch.inference_mode(), computing():
            tokens = _next(reader, vectors, rules, sampling, history, draws, step)
        yield int(tokens)
        if int(tokens) == rules.last or step + 1 == room:
            return
        with torch.inference_mode(), computing():
            history = None if history is None else torch.cat((history, tokens[:, None]), dim=1)
            vectors = reader.read(tokens[:, None], memory)[:, 0]


def _next(
    reader: Reader, vectors: Tensor, rules: Rules, sampling: Sampling, history: Tensor | None, draws: Tensor, step: int
) -> Tensor:
    scores = rules.bar(reader.score(vectors), step)
    return choose(scores, sampling, history, draws[:, step] if draws.shape[1] else draws)


BROKEN = "\ufffd"  # what a decoder gives for bytes that are not yet a character


class Decoder(Protocol):
    """What turns tokens back into text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the tokens, specials dropped."""
        ...


class Unfolding:
    """One text that grows token by token after a prompt; what it has given is never taken back.

    A token's characters depend on the one before it (a space, a byte of the same character), so a little of the past
    is always decoded with the new.
    """

    def __init__(self, decoder: Decoder, prompt: Iterable[int] = ()):
        self.decoder, self.tokens = decoder, [int(token) for token in prompt]
        self.start, self.given = 0, len(self.tokens)  # tokens decoded again, and tokens whose text was given

    def add(self, token: int) -> str:
        """The characters that are whole now that this token has come; perhaps none."""
        self.tokens.append(int(token))
        return self._new(is_last=False)

    def finish(self) -> str:
        """What is left; bytes that never became a character show as such."""
        return self._new(is_last=True)

    def _new(self, is_last: bool) -> str:
        before = self.decoder.decode(self.tokens[self.start : self.given])
        text = self.decoder.decode(self.tokens[self.start :])
        if text.endswith(BROKEN) and not is_last:
            return ""
        if len(text) > len(before):
            self.start, self.given = self.given, len(self.tokens)
        return text[len(before) :]


def continuation(decoder: Decoder, prompt: Sequence[int] | NDArray[np.integer], tokens: Sequence[int]) -> str:
    """The text of `tokens` where they stand after `prompt`."""
    unfolding = Unfolding(decoder, [*prompt, *tokens])
    unfolding.given = len(prompt)
    return unfolding.finish()
