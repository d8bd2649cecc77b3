"""The same cross-entropy in the order that suits a CPU: pieces of rows, and in them tiles of the vocabulary.

A processor multiplies at full speed only what its cache holds, and its exponential of base 2 is three times as fast as
the other. So each tile is scored, brought to powers of two above its own largest score and laid aside while it is in
the cache; when the sum over all tiles is known, each is taken up once more to become the slopes of its scores.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.constants import LOGITS_PER_CHUNK, VOCAB_TILE

LOG2_E = 1 / math.log(2)


def tiled_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of scores `hidden @ weight.T + bias` against `labels`, and how many are right."""
    return _TiledLoss.apply(hidden, weight, bias, labels, smoothing, torch.is_grad_enabled())  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Tile:
    """A stretch of the vocabulary under a piece of rows."""

    start: int
    stop: int
    scores: Tensor  # (n, v); then powers of two above `top`, then slopes
    rows: Tensor  # the rows whose label is in the stretch (m,)
    columns: Tensor  # and where it is (m,)


@dataclass(frozen=True)
class _Piece:
    """What some rows of scores come to."""

    log_sum: Tensor  # (n,)
    own: Tensor  # the score of each row's label (n,)
    right: Tensor  # whether it is the first of the highest (n,)
    tops: list[Tensor]  # the highest score in each tile (n,)


def _cut(rows: int, size: int, labels: Tensor, room: Tensor, is_kept: bool) -> list[_Tile]:
    """The tiles of a piece; those that need not be kept share their room."""
    order = labels.argsort()
    starts = list(range(0, size, VOCAB_TILE))
    borders = torch.searchsorted(labels[order], torch.tensor([*starts, size])).tolist()
    tiles = []
    for number, start in enumerate(starts):
        stop = min(start + VOCAB_TILE, size)
        place = rows * start if is_kept else 0
        scores = room[place : place + rows * (stop - start)].view(rows, stop - start)
        own = order[borders[number] : borders[number + 1]]
        tiles.append(_Tile(start, stop, scores, own, labels[own] - start))
    return tiles


def _score(part: Tensor, weight: Tensor, bias: Tensor | None, tile: _Tile) -> None:
    """Fill a tile with its scores."""
    stretch = weight[tile.start : tile.stop].T
    if part.dtype == tile.scores.dtype:
        torch.mm(part, stretch, out=tile.scores)
    else:
        tile.scores.copy_(part @ stretch)
    if bias is not None:
        tile.scores.add_(bias[tile.start : tile.stop])


def _read(part: Tensor, weight: Tensor, bias: Tensor | None, tiles: list[_Tile]) -> _Piece:
    """Score every tile once and leave powers in it."""
    count = part.shape[0]
    best, own = (part.new_full((count,), -torch.inf, dtype=torch.float), part.new_empty(count, dtype=torch.float))
    right = torch.zeros(count, dtype=torch.bool)
    tops, sums = [], []
    for tile in tiles:
        _score(part, weight, bias, tile)
        top = tile.scores.amax(dim=-1)
        if len(tile.rows):
            mine = tile.scores[tile.rows, tile.columns]
            own[tile.rows] = mine
            ahead = (mine == top[tile.rows]) & (mine > best[tile.rows])
            rows, columns = tile.rows[ahead], tile.columns[ahead]
            right[rows] = tile.scores[rows].argmax(dim=-1) == columns  # of equal scores the first counts
        best = torch.maximum(best, top)
        tops.append(top)
        sums.append(tile.scores.sub_(top[:, None]).mul_(LOG2_E).exp2_().sum(dim=-1))
    shares = [total * (top - best).exp_() for total, top in zip(sums, tops, strict=True)]
    log_sum = best + torch.stack(shares).sum(dim=0).log_()
    return _Piece(log_sum, own, right & (own >= best), tops)


class _TiledLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, smoothing, may_learn):  # type: ignore[no-untyped-def]
        count, size = hidden.shape[0], weight.shape[0]
        rows = min(count, max(1, LOGITS_PER_CHUNK["cpu"] // size))
        wants = may_learn and any(ctx.needs_input_grad[:3])
        room = torch.empty(rows * (size if wants else min(size, VOCAB_TILE)), dtype=torch.float)
        total, correct = torch.zeros((), dtype=torch.float), torch.zeros((), dtype=torch.long)
        slopes = _Slopes(hidden, weight, bias) if wants else None
        mean = None
        if smoothing:
            mean = weight.float().mean(dim=0), 0.0 if bias is None else bias.float().mean()
        for start in range(0, count, rows):
            part, wanted = hidden[start : start + rows], labels[start : start + rows]
            tiles = _cut(part.shape[0], size, wanted, room, wants)
            piece = _read(part, weight, bias, tiles)
            correct += piece.right.sum()
            total += (piece.log_sum - (1 - smoothing) * piece.own).sum()
            if mean is not None:
                total -= smoothing * (part.float() @ mean[0] + mean[1]).sum()
            if slopes is not None:
                slopes.add(start, part, tiles, piece, smoothing)
        ctx.slopes = None if slopes is None else slopes.tensors()
        ctx.dtypes = (hidden.dtype, weight.dtype, None if bias is None else bias.dtype)
        ctx.mark_non_differentiable(correct)
        return total, correct

    @staticmethod
    def backward(ctx, grad_total, _):  # type: ignore[no-untyped-def]
        assert ctx.slopes is not None, "the way back is gone once: its slopes were changed in place"
        hidden, weight, *bias = (
            slope.mul_(grad_total).to(kind) for slope, kind in zip(ctx.slopes, ctx.dtypes, strict=False)
        )
        ctx.slopes = None
        return hidden, weight, bias[0] if bias else None, None, None, None


class _Slopes:
    """The slopes of what the scores were made of, added up over pieces and tiles."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None):
        self.table = weight
        self.hidden = torch.zeros_like(hidden, dtype=torch.float)
        self.weight = torch.empty_like(weight, dtype=torch.float)  # written by the first piece
        self.bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float)

    def tensors(self) -> list[Tensor]:
        """All there are, in the order of the arguments."""
        return [self.hidden, self.weight, *([] if self.bias is None else [self.bias])]

    def add(self, start: int, part: Tensor, tiles: list[_Tile], piece: _Piece, smoothing: float) -> None:
        """Take in a piece; its tiles become slopes."""
        into = self.hidden[start : start + part.shape[0]]
        for tile, top in zip(tiles, piece.tops, strict=True):
            slope = tile.scores.mul_((top - piece.log_sum).exp_()[:, None])  # softmax
            if smoothing:
                slope.sub_(smoothing / self.table.shape[0])
            slope[tile.rows, tile.columns] -= 1 - smoothing
            if self.bias is not None:
                self.bias[tile.start : tile.stop] += slope.sum(dim=0)
            table, summed = self.table[tile.start : tile.stop], self.weight[tile.start : tile.stop]
            if part.dtype == slope.dtype:
                into.addmm_(slope, table)
                summed.addmm_(slope.T, part, beta=0 if start == 0 else 1)
            else:
                low = slope.to(part.dtype)
                into += low @ table
                summed.copy_(low.T @ part) if start == 0 else summed.add_(low.T @ part)
