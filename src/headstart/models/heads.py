"""The task heads: what turns a backbone's vectors into predictions."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.batch import Batch, rows_at
from headstart.config import ModelConfig
from headstart.errors import pick
from headstart.models.backbones import Backbone
from headstart.models.dropout import drop
from headstart.models.transformer import ACTIVATIONS, Block, make_norm, rotary_turns


def last_real(hidden: Tensor, real: Tensor) -> Tensor:
    """The vector of each text's last real token."""
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), last_places(real)]


def last_places(real: Tensor) -> Tensor:
    """Where each text's last real token stands (B,)."""
    return real.shape[1] - 1 - real.flip(1).to(torch.int8).argmax(dim=1)


def mean_real(hidden: Tensor, real: Tensor) -> Tensor:
    """The mean over each text's real tokens."""
    weight = real.to(hidden.dtype)[..., None]  # (B, T, 1)
    return (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)


def max_real(hidden: Tensor, real: Tensor) -> Tensor:
    """The largest value over each text's real tokens, number by number."""
    return hidden.masked_fill(~real[..., None], float("-inf")).amax(dim=1)


def mean_and_max(hidden: Tensor, real: Tensor) -> Tensor:
    """Mean and largest value side by side (B, 2D), as in ULMFiT."""
    return torch.cat((mean_real(hidden, real), max_real(hidden, real)), dim=-1)


def first_token(hidden: Tensor, real: Tensor) -> Tensor:
    """The vector of the first token."""
    return hidden[:, 0]


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "last": last_real,
    "mean": mean_real,
    "max": max_real,
    "mean+max": mean_and_max,
    "first": first_token,
}


class HeadTransform(nn.Module):
    """A dense layer, the body's activation and a norm between body and token scores (Devlin et al., 2018)."""

    def __init__(self, body: ModelConfig):
        super().__init__()
        self.dense = nn.Linear(body.hidden_size, body.hidden_size, bias=body.bias)
        self.activation = pick(ACTIVATIONS, body.activation, "activation")
        self.norm = make_norm(body)
        nn.init.normal_(self.dense.weight, std=math.sqrt(2 / (5 * body.hidden_size)))
        if self.dense.bias is not None:
            nn.init.zeros_(self.dense.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, D) in, (…, D) out."""
        return self.norm(self.activation(self.dense(hidden)))


class LanguageHead(nn.Module):
    """A score for every token of the vocabulary; when tied it reads the body's table and owns no matrix.

    Without `bias` it has none even on a body with biases, as in Vaswani et al. (2017).
    """

    def __init__(self, body: ModelConfig, size: int, bias: bool = True):
        super().__init__()
        self.weight = None if body.tie_embeddings else nn.Parameter(torch.empty(size, body.hidden_size))
        self.bias = nn.Parameter(torch.zeros(size)) if body.has_head_bias and bias else None
        self.transform = HeadTransform(body) if body.mlm_head_transform else None
        if self.weight is not None:
            nn.init.normal_(self.weight, std=math.sqrt(2 / (5 * body.hidden_size)))

    def transformed(self, hidden: Tensor) -> Tensor:
        """The vectors that are scored: the body's own, or what the transform makes of them."""
        return hidden if self.transform is None else self.transform(hidden)

    def projection(self, table: Tensor) -> tuple[Tensor, Tensor | None]:
        """The matrix (V, D) and the bias (V,) with which vectors become scores."""
        return table if self.weight is None else self.weight, self.bias

    def forward(self, hidden: Tensor, batch: Batch, body: Backbone) -> Tensor:
        """Scores (B, T, V), or (N, V) at the asked positions alone."""
        weight, bias = self.projection(body.table)
        return F.linear(self.transformed(at_label_positions(hidden, batch)), weight, bias)


def language_head(heads: nn.ModuleDict) -> LanguageHead:
    """The language-model head among a model's heads."""
    head = heads["lm"]
    assert isinstance(head, LanguageHead)
    return head


def at_label_positions(hidden: Tensor, batch: Batch) -> Tensor:
    """The vectors at the positions that the batch asks for: (N, D), or all of them (B, T, D)."""
    return hidden if batch.label_positions is None else rows_at(hidden.flatten(0, 1), batch.label_positions)


class ClassHead(nn.Module):
    """A score for every class, from one vector a text.

    Its two forms are those of stock twins: `linear` is Llama's (no bias in a body without), and
    `dense` is EuroBERT's (a linear map and GELU in between).
    """

    def __init__(self, body: ModelConfig, size: int, pooling: str, projection: str, dropout: float = 0.0):
        super().__init__()
        self.pool = None if pooling == "pooler" else pick(POOLINGS, pooling, "pooling")
        width = body.hidden_size * (2 if pooling == "mean+max" else 1)
        self.dense = nn.Linear(width, width) if projection == "dense" else None
        self.dropout = dropout
        self.classifier = nn.Linear(width, size, bias=body.has_head_bias or projection == "dense")
        for layer in (self.dense, self.classifier):
            if layer is not None:
                nn.init.normal_(layer.weight, std=math.sqrt(2 / (5 * width)))
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def places(self, real: Tensor) -> Tensor | None:
        """The one position of each text that is read, in the flattened batch (B,); None when all are."""
        if self.pool is last_real:
            return last_places(real) + torch.arange(len(real), device=real.device) * real.shape[1]
        return torch.arange(len(real), device=real.device) * real.shape[1] if self.pool is first_token else None

    def forward(self, hidden: Tensor, batch: Batch, body: Backbone) -> Tensor:
        """Scores (B, C) of vectors (B, T, D), or of those at `places` alone (B, D)."""
        return self.classify(self.pooled(hidden, batch, body))

    def pooled(self, hidden: Tensor, batch: Batch, body: Backbone) -> Tensor:
        """One vector for each text (B, D)."""
        if hidden.ndim == 2:
            return hidden
        return body.pooled(hidden) if self.pool is None else self.pool(hidden, batch.attention_mask)

    def classify(self, pooled: Tensor) -> Tensor:
        """Scores (B, C) of pooled vectors (B, D)."""
        pooled = drop(pooled, self.dropout, self.training)
        if self.dense is not None:
            pooled = drop(F.gelu(self.dense(pooled)), self.dropout, self.training)
        return self.classifier(pooled)


class PairHead(nn.Module):
    """Whether the second text of a pair follows the first, from the body's pooler or the first token."""

    def __init__(self, body: ModelConfig, size: int = 2):
        super().__init__()
        self.has_pooler = body.pooler
        self.classifier = nn.Linear(body.hidden_size, size)
        nn.init.normal_(self.classifier.weight, std=math.sqrt(2 / (5 * body.hidden_size)))
        nn.init.zeros_(self.classifier.bias)

    def forward(self, hidden: Tensor, batch: Batch, body: Backbone) -> Tensor:
        """Scores (B, 2)."""
        return self.classifier(body.pooled(hidden) if self.has_pooler else hidden[:, 0])


class ReplacedHead(nn.Module):
    """A score for every token: was it replaced?"""

    def __init__(self, body: ModelConfig, size: int = 1):
        super().__init__()
        self.dense = nn.Linear(body.hidden_size, body.hidden_size)
        self.classifier = nn.Linear(body.hidden_size, size)
        for layer in (self.dense, self.classifier):
            nn.init.normal_(layer.weight, std=math.sqrt(2 / (5 * body.hidden_size)))
            nn.init.zeros_(layer.bias)

    def forward(self, hidden: Tensor, batch: Batch, body: Backbone) -> Tensor:
        """Scores (B, T); above zero means replaced."""
        return self.classifier(F.gelu(self.dense(hidden))).squeeze(-1)


class GeneratorHead(nn.Module):
    """A stack of narrow blocks between two maps to the body's own token table, which both share (Clark et al., 2020)."""

    def __init__(self, body: ModelConfig, size: int, share: float = 0.5):
        super().__init__()
        wide = body.hidden_size // body.num_heads
        attention_heads = max(1, round(body.num_heads * share))
        narrow = {"hidden_size": wide * attention_heads, "num_heads": attention_heads, "position_embedding": "rotary"}
        narrow |= {"intermediate_size": max(1, round(body.intermediate_size * share)), "num_kv_heads": None}
        self.config = body.model_copy(update={**narrow, "num_layers": max(1, body.num_layers // 2), "norm_first": True})
        self.in_proj = nn.Linear(body.hidden_size, self.config.hidden_size, bias=False)
        self.blocks = nn.ModuleList(Block(self.config) for _ in range(self.config.num_layers))
        self.out_proj = nn.Linear(self.config.hidden_size, body.hidden_size, bias=False)
        self.bias = nn.Parameter(Tensor(size).zero_())
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=math.sqrt(2 / (5 * self.config.hidden_size)))

    def forward(self, hidden: Tensor, batch: Batch, body: Backbone) -> Tensor:
        """Scores for every token (N, V) at the asked positions, or everywhere (B, T, V); `hidden` is not read."""
        read = self.in_proj(F.embedding(batch.tokens, body.table))  # (B, T, d)
        cos, sin = rotary_turns(batch.tokens.shape[1], self.config.hidden_size // self.config.num_heads, 10000.0)
        turns = (cos.to(read.device), sin.to(read.device))
        mask = None if batch.unpadded else batch.attention_mask[:, None, None, :]
        for block in self.blocks:
            read = block(read, mask, False, turns)
        chosen = read if batch.label_positions is None else read.flatten(0, 1)[batch.label_positions]
        return F.linear(self.out_proj(chosen), body.table, self.bias)
