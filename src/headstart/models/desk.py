"""Where a step's vectors lie while it computes, so that no token makes them anew, and attention over them.

On one query a row, two products of matrices are quicker than torch's attention.
"""

import torch
from torch import Tensor

from headstart.config import ModelConfig
from headstart.models.transformer import GATED


class Desk:
    """Where vectors lie while a step computes, laid out once for R rows; layers take turns.

    `sources` says how many pasts the rows have, and how many sources they read.
    """

    def __init__(self, rows: int, sources: tuple[int, int], config: ModelConfig):
        self.rows, self.sources = rows, sources
        heads, shared = config.num_heads, config.num_kv_heads or config.num_heads
        head_width = config.hidden_size // heads
        self.merged = torch.empty(rows, (heads + 2 * shared) * head_width)  # queries, keys and values
        parts = self.merged.view(rows, -1, head_width)
        self.turning = parts[:, : heads + shared]
        self.queries, self.keys = self.turning.split((heads, shared), dim=1)
        self.few, self.spread = parts, None if shared == heads else _spread(heads, shared)
        if shared != heads:  # keys and values are repeated for the queries that share them
            parts = torch.empty(rows, 3 * heads, head_width)
        self.parts = parts
        three = parts.view(sources[0], -1, 3, heads, head_width).permute(2, 0, 3, 1, 4)
        self.new = three[1:]  # (2, B, A, W, D/A)
        self.own = _Mixing(three[0])
        self.crossed = torch.empty(rows, config.hidden_size)
        if sources[1]:
            self.across = _Mixing(self.crossed.view(sources[1], -1, heads, head_width).transpose(1, 2))
        self.wide = torch.empty(rows, config.intermediate_size * (2 if config.activation in GATED else 1))


def _spread(heads: int, shared: int) -> Tensor:
    """The number of the query, key or value (A + 2K) that each of A queries, keys and values (3A) is."""
    each = torch.arange(heads)
    both = heads + shared * torch.arange(2)[:, None] + each // (heads // shared)
    return torch.cat((each, both.flatten()))


class _Mixing:
    """Attention over one set of keys and values for rows that stand by B sources, W rows each."""

    def __init__(self, asked: Tensor):
        sources, heads, each, width = self.shape = asked.shape  # (B, A, W, D/A), filled before each mixing
        batch = (sources * heads, each, width)
        self.asked, self.copied = asked, None if asked.is_contiguous() else torch.empty(asked.shape)
        self.query = (asked if self.copied is None else self.copied).view(batch)
        self.mixed = torch.empty(batch)
        self.flat, self.turned = self.mixed.view(sources * each, heads * width), None
        if each > 1:
            self.turned = self.mixed.view(asked.shape).transpose(1, 2)  # (B, W, A, D/A)
            self.flat = torch.empty(sources * each, heads * width)
        self.rows = self.flat.view(sources, each, heads, width)
        self.places = 0
        self._make_room(0)

    def _make_room(self, places: int) -> None:
        sources, heads, each, _ = self.shape
        self.places, self.scores = places, torch.empty(sources * heads, each, places)
        self.weights, self.by_source = (torch.empty_like(self.scores), self.scores.view(sources, heads, each, -1))

    def __call__(self, keys: Tensor, values: Tensor, veil: Tensor | None) -> Tensor:
        """Each row's mixture (R, D) of the values, what the veil hides left out."""
        if self.copied is not None:
            self.copied.copy_(self.asked)
        if keys.shape[2] != self.places:
            self._make_room(keys.shape[2])
        scores, query = self.scores, self.query
        if veil is None:
            torch.bmm(query, keys, out=scores)
        elif veil.ndim == 3:
            torch.baddbmm(veil, query, keys, out=scores)
        else:
            torch.bmm(query, keys, out=scores)
            self.by_source.add_(veil)
        torch.softmax(scores, -1, out=self.weights)
        torch.bmm(self.weights, values, out=self.mixed)
        if self.turned is not None:
            self.rows.copy_(self.turned)
        return self.flat
