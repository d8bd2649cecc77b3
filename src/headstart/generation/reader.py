"""What generation asks of a model, and the ranking of its answers."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headstart.batch import Batch, pad
from headstart.errors import ConfigError
from headstart.models.backbones import CausalBackbone, EncoderDecoderBackbone
from headstart.models.heads import LanguageHead
from headstart.models.model import Model
from headstart.models.packed import PackedLinear, packed
from headstart.models.step import make_step

GROUP = 64  # scores whose largest is looked at first
WORTH = 2**16  # scores from which that pays


class Memory(Protocol):
    """What a reader remembers of each row, and of each source if it has any."""

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keep these rows in this order, and of the sources those named (all by default)."""
        ...


class Reader(Protocol):
    """A model that reads on where it left off and scores what may come next."""

    @property
    def positions(self) -> int | None:
        """The most tokens it can read; None = no end."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    def begin(self, batch: Batch, room: int) -> Any:
        """A memory for the batch's rows, in which no token has been read; `room` tokens are expected."""
        ...

    def read(self, tokens: Tensor, memory: Any, real: Tensor | None = None) -> Tensor:
        """A vector for each row's next tokens (R, T), which the memory then holds."""
        ...

    def score(self, vectors: Tensor) -> Tensor:
        """The score of every token of the vocabulary (…, V) after these vectors; float32, the caller's to change."""
        ...


class ModelReader:
    """A model of ours behind that protocol; it keeps the weights that the model has now."""

    def __init__(self, model: Model):
        body, head = model.backbone, dict(model.heads.items()).get("lm")
        if not isinstance(body, CausalBackbone | EncoderDecoderBackbone) or not isinstance(head, LanguageHead):
            raise ConfigError(
                f"a {body.config.architecture} body with heads {', '.join(model.heads) or 'none'} writes no text",
                hint="text comes from a causal or encoder-decoder body under a language-model head",
            )
        self.backbone = packed(body)
        self.step = make_step(self.backbone)
        self.can_share = self.step is not None and self.step.can_share
        self.transform = None if head.transform is None else packed(head.transform)
        self.head = PackedLinear(*head.projection(body.table))
        self.positions = body.config.max_position_embeddings if body.config.position_embedding == "learned" else None
        self.device = body.table.device

    def begin(self, batch: Batch, room: int) -> Any:
        """A cache for the batch's rows; sources are read at once, tokens are not."""
        cache = self.backbone.begin(batch, room)
        cache.shares = self.can_share and self._steps()
        return cache

    def read(self, tokens: Tensor, memory: Any, real: Tensor | None = None) -> Tensor:
        """Vectors (R, T, D) of each row's next tokens."""
        if self.step is not None and tokens.shape[1] == 1 and real is None and self._steps():
            return self.step(tokens, memory)[:, None]
        return self.backbone.read(tokens, memory, real)

    @staticmethod
    def _steps() -> bool:
        """Whether single tokens may be read by a step, which knows one precision."""
        return not torch.is_autocast_enabled("cpu")

    def score(self, vectors: Tensor) -> Tensor:
        """Scores (…, V) of the token that comes next."""
        return self.head(vectors if self.transform is None else self.transform(vectors)).float()


def prompts(rows: Sequence[np.ndarray], padding: int) -> Batch:
    """Texts to go on with as a batch; each begins with the tokenizer's `first` and has no `last`."""
    tokens, real = pad([torch.from_numpy(np.asarray(row)).long() for row in rows], padding)
    return Batch(tokens, real, unpadded=bool(real.all()))


def sources(rows: Sequence[np.ndarray], padding: int, first: int) -> Batch:
    """Framed texts for an encoder, and for the decoder the one token with which every answer begins."""
    source, real = pad([torch.from_numpy(np.asarray(row)).long() for row in rows], padding)
    tokens = torch.full((len(rows), 1), first)
    return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), source=source, source_attention_mask=real)


def start(reader: Reader, batch: Batch, room: int) -> tuple[Any, Tensor]:
    """The memory after reading the batch's prompts, and the vector of each prompt's last token (R, D)."""
    memory = reader.begin(batch, batch.tokens.shape[1] + room)
    vectors = reader.read(batch.tokens, memory, None if batch.tokens.shape[1] == 1 else batch.attention_mask)
    places = batch.attention_mask.sum(dim=1) - 1
    return memory, vectors[torch.arange(len(places), device=places.device), places]


def likeliest(scores: Tensor) -> Tensor:
    """The place (R,) of each row's largest score; of equal ones the first."""
    if scores.device.type != "cpu":
        return scores.argmax(dim=-1)
    return torch.from_numpy(scores.numpy().argmax(axis=-1))  # numpy's is ten times as quick as torch's


def ranked(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Each row's `count` largest scores from the top, and their places; of equal scores the first place wins."""
    size = scores.shape[-1]
    if count == size:
        return scores.sort(dim=-1, descending=True, stable=True)
    values, places = _top(scores, count + 1)
    rows = _tied(values)
    values, places = values[..., :count], places[..., :count]
    if rows.any():  # elsewhere there is one order only, and one choice of the last
        order = scores[rows].sort(dim=-1, descending=True, stable=True)
        values[rows], places[rows] = order.values[..., :count], order.indices[..., :count]
    return values, places


def _tied(values: Tensor) -> Tensor:
    """In which rows of sorted values two are equal; what is out of reach does not count."""
    return ((values[..., 1:] == values[..., :-1]) & (values[..., 1:] > -torch.inf)).any(dim=-1)


def _top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """What `topk` gives, looked for on a CPU only in the `count` groups of tokens with the largest scores."""
    size = scores.shape[-1] // GROUP * GROUP
    if scores.device.type != "cpu" or scores.numel() < WORTH or count * GROUP * 2 > size:
        return scores.topk(count, dim=-1)
    groups = scores[..., :size].unflatten(-1, (-1, GROUP))  # (…, V / GROUP, GROUP)
    chosen = groups.amax(dim=-1).topk(count, dim=-1, sorted=False).indices
    inside = groups.gather(-2, chosen[..., None].expand(*chosen.shape, GROUP)).flatten(-2)
    beside = scores[..., size:]  # what is left when groups are full
    values, found = torch.cat((inside, beside), dim=-1).topk(count, dim=-1)
    own = chosen.gather(-1, (found // GROUP).clamp(max=count - 1)) * GROUP + found % GROUP
    return values, torch.where(found < inside.shape[-1], own, found - inside.shape[-1] + size)


Sums = tuple[np.ndarray, np.ndarray, np.ndarray]  # sums (B, count) from the top, each of which row, and which token


def ranked_sums(totals: np.ndarray, gains: Tensor, count: int) -> Sums:
    """The `count` largest sums of a source's totals (B, W) and what each token adds to them (B * W, V).

    Of equal sums that of the first row wins, and in a row the token that adds most, of equal ones the first. A place
    for which there is no sum is -inf, and what is named there counts for nothing.
    """
    gains = gains.view(*totals.shape, -1)
    if gains.device.type != "cpu" or (count + 1) * GROUP * 2 > gains.shape[2]:
        return _plain_sums(totals, gains, count)
    sums, rows, tokens = _quick_sums(totals, gains, count + 1)
    tied = ((sums[:, 1:] == sums[:, :-1]) & (sums[:, 1:] > -np.inf)).any(axis=1)
    sums, rows, tokens = sums[:, :count], rows[:, :count], tokens[:, :count]
    if tied.any():  # elsewhere there is one order only, and one choice of the last
        sums[tied], rows[tied], tokens[tied] = _plain_sums(totals[tied], gains[torch.from_numpy(tied)], count)
    return sums, rows, tokens


def _plain_sums(totals: np.ndarray, gains: Tensor, count: int) -> Sums:
    """What `ranked_sums` gives: every row's best, and the best of these."""
    sources, width, size = gains.shape
    each = min(count, size)
    best, places = ranked(gains.flatten(0, 1), each)  # (B * W, each)
    best = best.clamp(max=0).view(sources, width, each)  # a log-probability is never above 0
    sums = (torch.from_numpy(totals).to(gains.device)[:, :, None] + best).flatten(1)
    places = places.reshape(sources, -1)
    spare = count - sums.shape[1]
    if spare > 0:  # fewer tokens than places: the first is named again
        sums, places = F.pad(sums, (0, spare), value=-torch.inf), F.pad(places, (0, spare))
    order = sums.sort(dim=-1, descending=True, stable=True)
    chosen = order.indices[:, :count]
    rows = (chosen // each).clamp_(max=width - 1)
    found = (order.values[:, :count], rows, places.gather(1, chosen))
    return found[0].cpu().numpy(), found[1].cpu().numpy(), found[2].cpu().numpy()


def _quick_sums(totals: np.ndarray, gains: Tensor, count: int) -> Sums:
    """The largest sums where no two are equal, looked for in the groups of tokens with the largest ones alone."""
    sources, _, vocabulary = gains.shape
    size = vocabulary // GROUP * GROUP
    groups = gains[..., :size].unflatten(2, (-1, GROUP))  # (B, W, V / GROUP, GROUP)
    best = groups.amax(dim=3)
    heights = best.numpy()
    np.minimum(heights, 0, out=heights)
    heights += totals[:, :, None]
    chosen = best.view(sources, -1).topk(count, dim=1, sorted=False).indices.numpy()  # (B, count)
    rows, places = np.divmod(chosen, best.shape[2])
    source = np.arange(sources)[:, None]
    inside = np.minimum(groups.numpy()[source, rows, places], 0)  # (B, count, GROUP)
    inside += totals[source, rows][:, :, None]
    inside = inside.reshape(sources, -1)
    left = vocabulary - size
    if left:  # what remains when groups are full
        beside = np.minimum(gains[..., size:].numpy(), 0) + totals[:, :, None]
        inside = np.concatenate((inside, beside.reshape(sources, -1)), axis=1)
    top = torch.from_numpy(inside).topk(count, dim=1)
    found = top.indices.numpy()
    group = np.minimum(found // GROUP, count - 1)
    own, tokens = rows[source, group], places[source, group] * GROUP + found % GROUP
    if left:
        other = found - count * GROUP
        own = np.where(other < 0, own, other // left)
        tokens = np.where(other < 0, tokens, size + other % left)
    return top.values.numpy(), own, tokens
