"""The largest logits of a large vocabulary on a CPU.

Replaces: generation/sampling.py, `top_k`, `argmax`; generation/beam_search.py, `top_sums`.
Equal by: tests/fast/test_topk.py
Pays: benchmarks/results/speed-translate.md
"""

import numpy as np
import torch
from torch import Tensor

GROUP_SIZE = 64  # logits whose maximum is looked at first
MIN_NUMEL = 2**16  # logits from which groups are faster


def argmax(logits: Tensor) -> Tensor:
    """The first index (R,) of each row's maximum."""
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    return torch.from_numpy(logits.numpy().argmax(axis=-1))  # numpy is ten times as fast as torch


def top_k(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Each row's `count` largest logits in descending order, and their indices; of equal ones the first wins."""
    if count == logits.shape[-1]:
        return logits.sort(dim=-1, descending=True, stable=True)
    values, indices = _grouped_top_k(logits, count + 1)
    rows = ((values[..., 1:] == values[..., :-1]) & (values[..., 1:] > -torch.inf)).any(dim=-1)
    values, indices = values[..., :count], indices[..., :count]
    if rows.any():  # `topk` guarantees no order of equal values
        order = logits[rows].sort(dim=-1, descending=True, stable=True)
        values[rows], indices[rows] = order.values[..., :count], order.indices[..., :count]
    return values, indices


def _grouped_top_k(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`Tensor.topk`, on a CPU only over the `count` groups with the largest maxima."""
    size = logits.shape[-1] // GROUP_SIZE * GROUP_SIZE
    if logits.device.type != "cpu" or logits.numel() < MIN_NUMEL or count * GROUP_SIZE * 2 > size:
        return logits.topk(count, dim=-1)
    groups = logits[..., :size].unflatten(-1, (-1, GROUP_SIZE))  # (..., V / GROUP_SIZE, GROUP_SIZE)
    chosen = groups.amax(dim=-1).topk(count, dim=-1, sorted=False).indices
    inside = groups.gather(-2, chosen[..., None].expand(*chosen.shape, GROUP_SIZE)).flatten(-2)
    values, found = torch.cat((inside, logits[..., size:]), dim=-1).topk(count, dim=-1)
    own = chosen.gather(-1, (found // GROUP_SIZE).clamp(max=count - 1)) * GROUP_SIZE + found % GROUP_SIZE
    return values, torch.where(found < inside.shape[-1], own, found - inside.shape[-1] + size)


def can_group_sums(log_probs: Tensor, count: int) -> bool:
    """Whether `top_sums` can do what is asked."""
    return log_probs.device.type == "cpu" and (count + 1) * GROUP_SIZE * 2 <= log_probs.shape[2]


def top_sums(
    totals: np.ndarray, log_probs: Tensor, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The `count` largest sums of `totals` (B, W) and `log_probs` (B, W, V): sums, rows and tokens (B, count).

    The last array (B,) is True for sources with equal sums, whose order is arbitrary.
    """
    sums, rows, tokens = _grouped_top_sums(totals, log_probs, count + 1)
    is_tied = ((sums[:, 1:] == sums[:, :-1]) & (sums[:, 1:] > -np.inf)).any(axis=1)
    return sums[:, :count], rows[:, :count], tokens[:, :count], is_tied


def _grouped_top_sums(totals: np.ndarray, log_probs: Tensor, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The largest sums, from the groups with the largest maxima."""
    sources, _, vocab_size = log_probs.shape
    size = vocab_size // GROUP_SIZE * GROUP_SIZE
    groups = log_probs[..., :size].unflatten(2, (-1, GROUP_SIZE))  # (B, W, V / GROUP_SIZE, GROUP_SIZE)
    maxima = groups.amax(dim=3)
    heights = maxima.numpy()
    np.minimum(heights, 0, out=heights)
    heights += totals[:, :, None]
    chosen = maxima.view(sources, -1).topk(count, dim=1, sorted=False).indices.numpy()  # (B, count)
    rows, numbers = np.divmod(chosen, maxima.shape[2])
    source = np.arange(sources)[:, None]
    inside = np.minimum(groups.numpy()[source, rows, numbers], 0)  # (B, count, GROUP_SIZE)
    inside += totals[source, rows][:, :, None]
    inside = inside.reshape(sources, -1)
    left = vocab_size - size
    if left:  # tokens after the last full group
        beside = np.minimum(log_probs[..., size:].numpy(), 0) + totals[:, :, None]
        inside = np.concatenate((inside, beside.reshape(sources, -1)), axis=1)
    top = torch.from_numpy(inside).topk(count, dim=1)
    found = top.indices.numpy()
    group = np.minimum(found // GROUP_SIZE, count - 1)
    own, tokens = rows[source, group], numbers[source, group] * GROUP_SIZE + found % GROUP_SIZE
    if left:
        other = found - count * GROUP_SIZE
        own = np.where(other < 0, own, other // left)
        tokens = np.where(other < 0, tokens, size + other % left)
    return top.values.numpy(), own, tokens
