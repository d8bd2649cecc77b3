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

from headstart import fast
from headstart.batch import Batch, pad
from headstart.errors import ConfigError, DataError
from headstart.generation.sampling import GREEDY, Sampling, sample, stream_of, uniform
from headstart.models.backbones import CausalBackbone, EncoderDecoderBackbone
from headstart.models.heads import LanguageHead
from headstart.models.model import Model

Computing = Callable[[], AbstractContextManager[object]]
OnToken = Callable[[int, int], None]  # called with a row and its next token
MIN_FINISHED = 8  # finished rows are removed when they are one in so many, because that copies the cache of the others


class Cache(Protocol):
    """What a decoder stores of each row, and of each source if there are any."""

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keep these rows in this order, and these of the sources (by default all)."""
        ...


class Decoder(Protocol):
    """A model that reads token after token and scores what may come next."""

    @property
    def max_positions(self) -> int | None:
        """The number of tokens that it can read; None = no limit."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    def new_cache(self, batch: Batch, capacity: int) -> Any:
        """A cache for the batch's rows, without tokens yet, and with room for `capacity` of each."""
        ...

    def decode(self, tokens: Tensor, cache: Any, attention_mask: Tensor | None = None) -> Tensor:
        """The vectors (R, T, D) of each row's next tokens (R, T), which the cache then contains."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits (..., V) of the token after these vectors, in float32; the caller may change them."""
        ...


class ModelDecoder:
    """A model as a decoder; it keeps the weights that the model has now."""

    def __init__(self, model: Model):
        backbone, head = model.backbone, dict(model.heads.items()).get("lm")
        if not isinstance(backbone, CausalBackbone | EncoderDecoderBackbone) or not isinstance(head, LanguageHead):
            raise ConfigError(
                f"a {backbone.config.architecture} body with heads {', '.join(model.heads) or 'none'} writes no text",
                hint="text comes from a causal or encoder-decoder body under a language-model head",
            )
        model, config = fast.optimize(model, "generate"), backbone.config
        backbone, head = model.backbone, model.heads["lm"]
        assert isinstance(backbone, CausalBackbone | EncoderDecoderBackbone)
        assert isinstance(head, LanguageHead)
        self.backbone, self.head, self.device = backbone, head, backbone.table.device
        self.max_positions = config.max_position_embeddings if config.position_embedding == "learned" else None

    def new_cache(self, batch: Batch, capacity: int) -> Any:
        """A cache for the batch's rows; sources are encoded at once, tokens are not read yet."""
        return self.backbone.new_cache(batch, capacity)

    def decode(self, tokens: Tensor, cache: Any, attention_mask: Tensor | None = None) -> Tensor:
        """The vectors (R, T, D) of each row's next tokens (R, T)."""
        return self.backbone.decode(tokens, cache, attention_mask)

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits (..., V) of the next token."""
        return self.head.logits(hidden, self.backbone.table).float()


def prompt_batch(rows: Sequence[np.ndarray], pad_id: int) -> Batch:
    """Prompts as a batch; each begins with the tokenizer's `bos_id` and has no `eos_id`."""
    tokens, mask = pad([torch.from_numpy(np.asarray(row)).long() for row in rows], pad_id)
    return Batch(tokens, mask, unpadded=bool(mask.all()))


def source_batch(rows: Sequence[np.ndarray], pad_id: int, bos_id: int) -> Batch:
    """Sources with their special tokens as a batch, each with a target of one token, `bos_id`."""
    source, mask = pad([torch.from_numpy(np.asarray(row)).long() for row in rows], pad_id)
    tokens = torch.full((len(rows), 1), bos_id)
    return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), source=source, source_attention_mask=mask)


def read_prompts(decoder: Decoder, batch: Batch, max_new_tokens: int) -> tuple[Any, Tensor]:
    """The cache after the batch's prompts, and the vector of each prompt's last token (R, D)."""
    cache = decoder.new_cache(batch, batch.tokens.shape[1] + max_new_tokens)
    hidden = decoder.decode(batch.tokens, cache, None if batch.tokens.shape[1] == 1 else batch.attention_mask)
    last = batch.attention_mask.sum(dim=1) - 1
    return cache, hidden[torch.arange(len(last), device=last.device), last]


@dataclass(frozen=True)
class Rules:
    """Where a text ends, how long it gets, and which tokens it never contains."""

    last: int  # the token that ends a text
    most: int  # maximum number of tokens with `last`; a text without `last` by then is cut
    least: int = 0  # minimum number of tokens before `last`
    banned: tuple[int, ...] = ()  # tokens that are never generated

    def mask(self, logits: Tensor, step: int) -> Tensor:
        """The logits (R, V) with -inf for tokens that are not allowed at this step."""
        banned = (*self.banned, *((self.last,) if step < self.least else ()))
        if banned:
            logits.index_fill_(1, _index(banned, logits.device), -torch.inf)
        return logits


@lru_cache(maxsize=64)
def _index(tokens: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(tokens, device=device)


@dataclass(frozen=True)
class Text:
    """A generated text, without the token that ends it."""

    tokens: list[int]
    is_cut: bool  # True = the text reached the length limit before its end
    log_probabilities: list[float] | None = None  # of each token, and of the end unless it is cut


def token_limits(decoder: Decoder, batch: Batch, rules: Rules, most: Sequence[int] | None) -> Tensor:
    """The number of new tokens that each row may have (R,): its own limit, that of the rules, and that of positions."""
    lengths = batch.attention_mask.sum(dim=1).to(decoder.device)
    limits = torch.full_like(lengths, rules.most)
    if most is not None:
        limits = torch.minimum(limits, torch.tensor(most, device=limits.device))
    if decoder.max_positions is not None:
        limits = torch.minimum(limits, decoder.max_positions + 1 - lengths)  # the last token is never read
        longest = int(lengths.max())
        if longest > decoder.max_positions:
            problem = f"a prompt of {longest} tokens is longer than the {decoder.max_positions} positions of this model"
            raise DataError(problem, hint="shorten the prompt, or use a model with rotary or sinusoidal positions")
    return limits.clamp(min=0)


@torch.inference_mode()
def decode(
    decoder: Decoder,
    batch: Batch,
    rules: Rules,
    sampling: Sampling = GREEDY,
    *,
    most: Sequence[int] | None = None,
    streams: Sequence[int] | None = None,
    scored: bool = False,
    on_token: OnToken | None = None,
) -> list[Text]:
    """A text for every row of the batch, in order; it does not depend on the other rows.

    `most` limits each row by itself. The random numbers of a row are those of its stream, by default that of its prompt.
    """
    decoding = _Decoding(decoder, batch, rules, sampling, most, streams, scored)
    for rows, tokens in decoding.steps():
        if on_token is not None:
            for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
                on_token(row, token)
    return decoding.texts()


def stream(
    decoder: Decoder, batch: Batch, rules: Rules, sampling: Sampling, computing: Computing = nullcontext
) -> Iterator[int]:
    """The tokens of the batch's only row as they are generated, `rules.last` included if the text ends by itself.

    Each step runs inside `computing()`. Between two steps torch's global state is as before, so that several streams can
    alternate.
    """
    for _, tokens in _Decoding(decoder, batch, rules, sampling).steps(computing):
        yield int(tokens[0])


def unfinished(done: np.ndarray) -> np.ndarray:
    """The rows that are not done, with the last of them in the gaps, so that few change their index."""
    left = np.flatnonzero(~done)
    order = np.arange(len(left))
    order[done[: len(left)]] = left[left >= len(left)]
    return order


def _input_tokens(batch: Batch, row: int) -> np.ndarray:
    """The tokens of a row's source, or of its prompt."""
    tokens, mask = batch.tokens, batch.attention_mask
    if batch.source is not None and batch.source_attention_mask is not None:
        tokens, mask = batch.source, batch.source_attention_mask
    return tokens[row][mask[row]].cpu().numpy()


class _Decoding:
    """The rows that are not finished, and the tokens of all rows so far; bookkeeping is on the CPU."""

    def __init__(
        self,
        decoder: Decoder,
        batch: Batch,
        rules: Rules,
        sampling: Sampling,
        most: Sequence[int] | None = None,
        streams: Sequence[int] | None = None,
        scored: bool = False,
    ):
        batch = batch.to(decoder.device)
        self.decoder, self.batch, self.rules, self.sampling = decoder, batch, rules, sampling
        self.is_scored = scored
        limits = token_limits(decoder, batch, rules, most)
        self.limits = limits.cpu().numpy()  # (R,), of the unfinished rows
        longest = int(self.limits.max())
        self.tokens = np.full((len(limits), longest), rules.last)
        self.log_probs: list[tuple[np.ndarray, Tensor]] = []  # of each step: rows and their log-probabilities (R,)
        self.counts = np.zeros(len(limits), dtype=int)  # tokens of each row, its end included
        self.is_ended = np.zeros(len(limits), dtype=bool)
        self.row_numbers = np.arange(len(limits))  # (R,), of the unfinished rows
        if sampling.is_greedy:
            streams = [0] * len(limits)  # of random numbers that are not used
        elif streams is None:
            streams = [stream_of(_input_tokens(batch, row)) for row in range(len(limits))]
        hashes = np.array([stream % 2**64 for stream in streams], dtype=np.uint64)
        self.draws = uniform(sampling.seed, hashes, 0 if sampling.is_greedy else longest).to(limits.device)
        self.history: Tensor | None = None  # (R, T), tokens with a repetition penalty
        if sampling.repetition_penalty != 1:  # for padding the first token, which is in it anyway
            self.history = torch.where(batch.attention_mask, batch.tokens, batch.tokens[:, :1])

    def steps(self, computing: Computing = nullcontext) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Generate until every row has ended or reached its limit; of each step the unfinished rows and their tokens."""
        if not self.tokens.shape[1]:
            return
        with torch.inference_mode(), computing():
            cache, hidden = read_prompts(self.decoder, self.batch, self.tokens.shape[1])
            tokens = self._next(hidden, 0)
        step, done = 0, self.limits == 0
        while True:
            new = tokens.cpu().numpy()
            self.tokens[self.row_numbers, step] = new  # finished rows have their count already
            yield self.row_numbers[~done], new[~done]
            is_last, step = new == self.rules.last, step + 1
            over = is_last | (self.limits <= step)
            newly, done = over & ~done, done | over
            self.counts[self.row_numbers[newly]] = step
            self.is_ended[self.row_numbers[newly]] = is_last[newly]
            num_done = int(done.sum())
            if num_done == len(done):
                return
            with torch.inference_mode(), computing():
                # Without positions left, a row cannot stay.
                if newly.any() and (num_done * MIN_FINISHED >= len(done) or self.decoder.max_positions is not None):
                    tokens, done = self._remove(cache, tokens, done)
                hidden = self.decoder.decode(tokens[:, None], cache)[:, 0]
                tokens = self._next(hidden, step)

    def _next(self, hidden: Tensor, step: int) -> Tensor:
        """The next token (R,) of each row."""
        logits = self.decoder.logits(hidden)
        log_probs = logits.log_softmax(dim=-1) if self.is_scored else None
        draws = self.draws[:, step] if self.draws.shape[1] else self.draws
        tokens = sample(self.rules.mask(logits, step), self.sampling, self.history, draws)
        if self.history is not None:
            self.history = torch.cat((self.history, tokens[:, None]), dim=1)
        if log_probs is not None:
            self.log_probs.append((self.row_numbers, log_probs.gather(1, tokens[:, None])[:, 0].clamp_(max=0)))
        return tokens

    def _remove(self, cache: Any, tokens: Tensor, done: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """Remove finished rows."""
        left = unfinished(done)
        rows = torch.from_numpy(left).to(tokens.device)
        cache.select(rows, rows)
        self.row_numbers, self.limits, self.draws = self.row_numbers[left], self.limits[left], self.draws[rows]
        self.history = None if self.history is None else self.history[rows]
        return tokens[rows], done[left]

    def texts(self) -> list[Text]:
        """The text of every row."""
        found, scores = [], self._scores()
        for row, (count, is_ended) in enumerate(zip(self.counts.tolist(), self.is_ended.tolist(), strict=True)):
            own = None if scores is None else scores[row, :count].tolist()
            found.append(Text(self.tokens[row, : count - is_ended].tolist(), not is_ended, own))
        return found

    def _scores(self) -> np.ndarray | None:
        """The log-probability of every token (R, longest)."""
        if not self.is_scored:
            return None
        scores = np.zeros(self.tokens.shape, dtype=np.float32)
        every = torch.cat([values for _, values in self.log_probs]).cpu().numpy() if self.log_probs else np.zeros(0)
        start = 0
        for step, (rows, _) in enumerate(self.log_probs):
            scores[rows, step] = every[start : start + len(rows)]
            start += len(rows)
        return scores


@torch.inference_mode()
def log_probabilities(decoder: Decoder, batch: Batch, texts: Sequence[Sequence[int]]) -> list[list[float]]:
    """The log-probability of every token of given texts after the prompts, in one pass.

    To include the end of a text, its last token must be `last`.
    """
    prompts = [tokens[mask] for tokens, mask in zip(batch.tokens.cpu(), batch.attention_mask.cpu(), strict=True)]
    rows = [torch.cat((prompt, torch.tensor(text).long())) for prompt, text in zip(prompts, texts, strict=True)]
    tokens, mask = (each.to(decoder.device)[:, :-1] for each in pad(rows, 0))
    hidden = decoder.decode(tokens, decoder.new_cache(batch.to(decoder.device), tokens.shape[1] + 1), mask)
    found = []
    for vectors, prompt, row in zip(hidden, prompts, rows, strict=True):
        logits = decoder.logits(vectors[len(prompt) - 1 : len(row) - 1])  # (T, V), one text at a time
        chosen = row[len(prompt) :, None].to(decoder.device)
        found.append(logits.log_softmax(dim=-1).clamp_(max=0).gather(1, chosen)[:, 0].tolist())
    return found


BROKEN = "\ufffd"  # how a tokenizer decodes bytes that are not a whole character yet


class Detokenizer(Protocol):
    """Turns tokens into text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the tokens, without special tokens."""
        ...


class Unfolding:
    """The text of one row that grows token by token; what was returned is never taken back.

    The characters of a token depend on the one before it (a space, a byte of the same character), so a few earlier tokens
    are decoded with each new one.
    """

    def __init__(self, decoder: Detokenizer, prompt: Iterable[int] = ()):
        self.decoder, self.tokens = decoder, [int(token) for token in prompt]
        self.start, self.returned = 0, len(self.tokens)  # first token to decode again; tokens with returned text

    def add(self, token: int) -> str:
        """The characters that this token completes; may be empty."""
        self.tokens.append(int(token))
        return self._new(is_last=False)

    def finish(self) -> str:
        """The rest; bytes that never became a character show as such."""
        return self._new(is_last=True)

    def _new(self, is_last: bool) -> str:
        before = self.decoder.decode(self.tokens[self.start : self.returned])
        text = self.decoder.decode(self.tokens[self.start :])
        if text.endswith(BROKEN) and not is_last:
            return ""
        if len(text) > len(before):
            self.start, self.returned = self.returned, len(self.tokens)
        return text[len(before) :]


def continuation(decoder: Detokenizer, prompt: Sequence[int] | NDArray[np.integer], tokens: Sequence[int]) -> str:
    """The text of `tokens` after `prompt`."""
    unfolding = Unfolding(decoder, [*prompt, *tokens])
    unfolding.returned = len(prompt)
    return unfolding.finish()
