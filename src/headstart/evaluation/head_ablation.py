"""Head ablation: entropy and distance of each attention head, and how much the loss rises without it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor, nn

from headstart.batch import Batch
from headstart.evaluation.attention import attention_mask, entropy, mean_distance, self_attention_body
from headstart.models.model import Model
from headstart.models.transformer import SelfAttention

# Summed loss and number of predictions of each group of texts: two arrays (groups,).
GroupedLoss = Callable[[Model], tuple[np.ndarray, np.ndarray]]
MIN_GROUPS = 5  # for a confidence interval


@dataclass(frozen=True)
class HeadAblation:
    """Statistics of every attention head; arrays are (L, A), layers and heads are counted from 1 when shown."""

    entropy: np.ndarray  # bits, mean over tokens
    distance: np.ndarray  # tokens, mean over tokens
    ablation: np.ndarray  # rise of the loss (nats) when this head's output is set to zero
    low: np.ndarray  # its 95 % interval over groups of texts
    high: np.ndarray
    loss: float  # with all attention heads
    even_entropy: float  # of uniform attention over all tokens that the mask allows
    even_distance: float
    texts: int
    answers: int  # predictions that the loss is a mean over
    title: str = ""

    def is_significant(self) -> np.ndarray:
        """True where the interval of the rise excludes zero (L, A)."""
        return (self.low > 0) | (self.high < 0)

    def rows(self) -> list[dict[str, Any]]:
        """One dict for each attention head."""
        return [
            {
                "layer": layer + 1,
                "attention_head": head + 1,
                "entropy": float(self.entropy[layer, head]),
                "distance": float(self.distance[layer, head]),
                "ablation": float(self.ablation[layer, head]),
                "low": float(self.low[layer, head]),
                "high": float(self.high[layer, head]),
            }
            for layer, head in np.ndindex(self.entropy.shape)
        ]

    def range_words(self, layer: int, attention_head: int) -> str:
        """The interval of an ablation, indices counted from 0, as "+0.1 to +0.3"."""
        low, high = self.low[layer, attention_head], self.high[layer, attention_head]
        return "unknown: too few texts" if np.isnan(low) else f"{low:+.4f} to {high:+.4f}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        names = ("title", "loss", "even_entropy", "even_distance", "texts", "answers")
        return {**{name: getattr(self, name) for name in names}, "attention_heads": self.rows()}


@contextmanager
def ablated(model: Model, layer: int, attention_head: int) -> Iterator[None]:
    """The model with the output of one attention head set to zero; both indices are counted from 0."""
    attention = self_attention_body(model).stack.blocks[layer].attention
    assert isinstance(attention, SelfAttention)
    start = attention_head * attention.head_dim

    def zero_head(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        concatenated = inputs[0].clone()  # (B, T, D), the outputs of all heads
        concatenated[..., start : start + attention.head_dim] = 0
        return (concatenated, *inputs[1:])

    handle = attention.out_proj.register_forward_pre_hook(zero_head)
    try:
        yield
    finally:
        handle.remove()


@torch.inference_mode()
def measure_head_ablation(
    model: Model,
    batches: Sequence[Batch],
    loss: GroupedLoss,
    title: str = "",
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> HeadAblation:
    """Entropy and mean distance of each attention head over `batches`, and the rise of `loss` without it."""
    body = self_attention_body(model)
    model.eval()
    shape = (body.config.num_layers, body.config.num_heads)
    mean_entropy, distance, even_entropy, even_distance = _attention_statistics(model, batches)
    totals, counts = loss(model)
    rise, low, high = np.zeros((3, *shape))
    for done, (layer, head) in enumerate(np.ndindex(shape)):
        on_done(done, int(np.prod(shape)))
        with ablated(model, layer, head):
            without, _ = loss(model)
        rise[layer, head], low[layer, head], high[layer, head] = mean_difference(without - totals, counts)
    return HeadAblation(
        entropy=mean_entropy,
        distance=distance,
        ablation=rise,
        low=low,
        high=high,
        loss=float(totals.sum() / max(1, counts.sum())),
        even_entropy=even_entropy,
        even_distance=even_distance,
        texts=sum(batch.tokens.shape[0] for batch in batches),
        answers=int(counts.sum()),
        title=title,
    )


def _attention_statistics(model: Model, batches: Sequence[Batch]) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Mean entropy and distance (L, A) over all tokens but padding, and those of uniform attention."""
    body = self_attention_body(model)
    sums = np.zeros((2, body.config.num_layers, body.config.num_heads))
    even, count = np.zeros(2), 0
    for batch in batches:
        layers = body(batch, output_attentions=True).attentions
        weights = torch.stack(layers).float().cpu().numpy()  # (L, B, A, T, T)
        real = batch.attention_mask.cpu().numpy()  # (B, T), False = padding
        for index, statistic in enumerate((entropy, mean_distance)):
            sums[index] += (statistic(weights) * real[None, :, None, :]).sum(axis=(1, 3))
        for row in range(len(real)):
            length = int(real[row].sum())
            alone = Batch(batch.tokens[row : row + 1, :length], batch.attention_mask[row : row + 1, :length])
            mask = attention_mask(body, alone).astype(float)
            uniform = mask / mask.sum(axis=-1, keepdims=True)
            even += [entropy(uniform).sum(), mean_distance(uniform).sum()]
        count += int(real.sum())
    sums, even = sums / max(1, count), even / max(1, count)
    return sums[0], sums[1], float(even[0]), float(even[1])


def mean_difference(totals: np.ndarray, counts: np.ndarray) -> tuple[float, float, float]:
    """Mean over all predictions with its 95 % interval over the groups; nan for fewer than five groups."""
    count, groups = max(1, counts.sum()), len(totals)
    mean = float(totals.sum() / count)
    if groups < MIN_GROUPS:
        return mean, float("nan"), float("nan")
    variance = ((totals - mean * counts) ** 2).sum() * groups / (groups - 1)
    half_width = float(stdtrit(groups - 1, 0.975) * np.sqrt(variance)) / float(count)  # Student's t
    return mean, mean - half_width, mean + half_width
