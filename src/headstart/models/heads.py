"""The task heads: predictions from a backbone's vectors."""

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.batch import Batch, rows_at
from headstart.config import ModelConfig
from headstart.errors import ConfigError, pick
from headstart.models.backbones import Backbone
from headstart.models.transformer import ACTIVATIONS, Block, LayerInputs, make_norm, rotary_angles


def last_positions(mask: Tensor) -> Tensor:
    """The position of each text's last token (B,)."""
    return mask.shape[1] - 1 - mask.flip(1).to(torch.int8).argmax(dim=1)


def last_token(hidden: Tensor, mask: Tensor) -> Tensor:
    """The vector of each text's last token."""
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), last_positions(mask)]


def first_token(hidden: Tensor, mask: Tensor) -> Tensor:
    """The vector of each text's first token."""
    return hidden[:, 0]


def mean_pooling(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean over each text's tokens."""
    weight = mask.to(hidden.dtype)[..., None]  # (B, T, 1)
    return (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)


def max_pooling(hidden: Tensor, mask: Tensor) -> Tensor:
    """The maximum over each text's tokens."""
    return hidden.masked_fill(~mask[..., None], float("-inf")).amax(dim=1)


def mean_max_pooling(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean and maximum side by side (B, 2D), as in ULMFiT."""
    return torch.cat((mean_pooling(hidden, mask), max_pooling(hidden, mask)), dim=-1)


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "last": last_token,
    "mean": mean_pooling,
    "max": max_pooling,
    "mean+max": mean_max_pooling,
    "first": first_token,
}


def pair_pooling(hidden: Tensor, mask: Tensor, segments: Tensor | None) -> Tensor:
    """The means u and v of the two texts of a pair, |u - v| and u * v (B, 4D), as in InferSent (Conneau et al., 2017)."""
    sides = (mask, mask) if segments is None else (mask & (segments == 0), mask & (segments == 1))
    first, second = (mean_pooling(hidden, side) for side in sides)
    return torch.cat((first, second, (first - second).abs(), first * second), dim=-1)


POOLED_WIDTHS = {"mean+max": 2, "pair": 4}  # in hidden sizes; others have one


class HeadTransform(nn.Module):
    """A dense layer, an activation and a norm before the logits of the vocabulary (Devlin et al., 2018)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)
        self.activation = pick(ACTIVATIONS, config.activation, "activation")
        self.norm = make_norm(config)
        nn.init.normal_(self.dense.weight, std=math.sqrt(2 / (5 * config.hidden_size)))
        if self.dense.bias is not None:
            nn.init.zeros_(self.dense.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., D) in and out."""
        output: Tensor = self.norm(self.activation(self.dense(hidden)))
        return output


class LanguageHead(nn.Module):
    """Logits of the vocabulary; a tied head uses the token embeddings as its weights.

    `bias=False` removes the bias even if the backbone has biases, as in Vaswani et al. (2017).
    """

    def __init__(self, config: ModelConfig, size: int, bias: bool = True):
        super().__init__()
        self.weight = None if config.tie_embeddings else nn.Parameter(torch.empty(size, config.hidden_size))
        self.bias = nn.Parameter(torch.zeros(size)) if config.has_head_bias and bias else None
        self.transform = HeadTransform(config) if config.mlm_head_transform else None
        if self.weight is not None:
            nn.init.normal_(self.weight, std=math.sqrt(2 / (5 * config.hidden_size)))

    def transformed(self, hidden: Tensor) -> Tensor:
        """The vectors after the transform, if there is one."""
        return hidden if self.transform is None else self.transform(hidden)

    def projection(self, table: Tensor) -> tuple[Tensor, Tensor | None]:
        """Weights (V, D) and bias (V,) of the last layer."""
        return table if self.weight is None else self.weight, self.bias

    def logits(self, hidden: Tensor, table: Tensor) -> Tensor:
        """(..., D) to (..., V); `table` are the token embeddings, which a tied head uses."""
        return F.linear(self.transformed(hidden), *self.projection(table))

    def forward(self, hidden: Tensor, batch: Batch, backbone: Backbone) -> Tensor:
        """Logits (B, T, V), or (N, V) at the label positions."""
        return self.logits(at_label_positions(hidden, batch), backbone.table)


def language_head(heads: nn.ModuleDict) -> LanguageHead:
    """The language-model head among a model's heads."""
    head = heads["lm"]
    assert isinstance(head, LanguageHead)
    return head


def at_label_positions(hidden: Tensor, batch: Batch) -> Tensor:
    """The vectors (N, D) at the batch's label positions, or all of them (B, T, D)."""
    return hidden if batch.label_positions is None else rows_at(hidden.flatten(0, 1), batch.label_positions)


class ClassHead(nn.Module):
    """Logits of the classes, from one vector of each text.

    The projection `linear` is Llama's (with a bias if the backbone has biases), `dense` is EuroBERT's (with a linear
    layer and GELU before it).
    """

    def __init__(self, config: ModelConfig, size: int, pooling: str, projection: str, dropout: float = 0.0):
        super().__init__()
        self.is_pair = pooling == "pair"
        self.pool = None if pooling in ("pooler", "pair") else pick(POOLINGS, pooling, "pooling")
        width = config.hidden_size * POOLED_WIDTHS.get(pooling, 1)
        inner = config.hidden_size if self.is_pair else width
        self.dense = nn.Linear(width, inner) if projection == "dense" else None
        width = inner if projection == "dense" else width
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(width, size, bias=config.has_head_bias or projection == "dense")
        for layer in (self.dense, self.classifier):
            if layer is not None:
                nn.init.normal_(layer.weight, std=math.sqrt(2 / (5 * layer.in_features)))
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def positions(self, mask: Tensor) -> Tensor | None:
        """The one position of each text that pooling reads, in the flattened batch (B,); None if it reads all."""
        start = torch.arange(len(mask), device=mask.device) * mask.shape[1]
        if self.pool is last_token:
            return last_positions(mask) + start
        return start if self.pool is first_token else None

    def forward(self, hidden: Tensor, batch: Batch, backbone: Backbone) -> Tensor:
        """Logits (B, C) from vectors (B, T, D), or from those at `positions` (B, D)."""
        return self.classify(self.pooled(hidden, batch, backbone))

    def pooled(self, hidden: Tensor, batch: Batch, backbone: Backbone) -> Tensor:
        """One vector for each text (B, D)."""
        if hidden.ndim == 2:
            return hidden
        if self.is_pair:
            return pair_pooling(hidden, batch.attention_mask, batch.segments)
        return backbone.pooled(hidden) if self.pool is None else self.pool(hidden, batch.attention_mask)

    def classify(self, pooled: Tensor) -> Tensor:
        """Logits (B, C) from pooled vectors (B, D)."""
        pooled = self.dropout(pooled)
        if self.dense is not None:
            pooled = self.dropout(F.gelu(self.dense(pooled)))
        output: Tensor = self.classifier(pooled)
        return output


class RegressionHead(ClassHead):
    """A number for each text, in the units of the labels: its buffers hold their mean and standard deviation."""

    mean: Tensor
    scale: Tensor

    def __init__(self, config: ModelConfig, size: int, pooling: str, projection: str, dropout: float = 0.0):
        super().__init__(config, size, pooling, projection, dropout)
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def classify(self, pooled: Tensor) -> Tensor:
        """Predictions (B, 1) from pooled vectors (B, D)."""
        return super().classify(pooled).float() * self.scale + self.mean

    def folded(self) -> ClassHead:
        """A plain head with the same predictions."""
        if self.classifier.bias is None:
            raise ConfigError(
                "a head without a bias cannot hold the mean of the labels", hint="set model.head_bias=true"
            )
        plain = ClassHead.__new__(ClassHead)
        nn.Module.__init__(plain)
        plain.is_pair, plain.pool, plain.dense, plain.dropout = self.is_pair, self.pool, self.dense, self.dropout
        plain.classifier = copy.deepcopy(self.classifier)
        with torch.no_grad():
            plain.classifier.weight *= self.scale[:, None]
            plain.classifier.bias.mul_(self.scale).add_(self.mean)
        return plain

    def standardized(self, values: Tensor) -> Tensor:
        """Values (B, 1) in standard deviations from the mean."""
        return (values - self.mean) / self.scale


class OrdinalHead(ClassHead):
    """Log-probabilities of ordered classes from one score of each text: the cumulative link model (McCullagh, 1980).

    P(class <= k) = sigmoid(cutpoint k - score), with cutpoints in increasing order.
    """

    def __init__(self, config: ModelConfig, size: int, pooling: str, projection: str, dropout: float = 0.0):
        super().__init__(config, 1, pooling, projection, dropout)
        self.first = nn.Parameter(torch.full((1,), -0.5 * (size - 2)))
        self.gaps = nn.Parameter(torch.full((size - 2,), math.log(math.e - 1)))  # before softplus: 1 each

    @property
    def cutpoints(self) -> Tensor:
        """The borders between the classes (C - 1,)."""
        return torch.cat((self.first, self.first + F.softplus(self.gaps).cumsum(0)))

    def classify(self, pooled: Tensor) -> Tensor:
        """Log-probabilities (B, C) from pooled vectors (B, D)."""
        score = super().classify(pooled).float()  # (B, 1)
        cut = self.cutpoints
        lower, upper = F.pad(cut, (1, 0), value=-torch.inf), F.pad(cut, (0, 1), value=torch.inf)  # (C,)
        # sigmoid(b) - sigmoid(a) = sigmoid(b) sigmoid(-a) (1 - exp(a - b))
        return F.logsigmoid(upper - score) + F.logsigmoid(score - lower) + torch.log1p(-torch.exp(lower - upper))


class TokenHead(nn.Module):
    """Logits of the tags at every label, or of every token."""

    def __init__(self, config: ModelConfig, size: int, dropout: float = 0.0):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(config.hidden_size, size)
        nn.init.normal_(self.classifier.weight, std=math.sqrt(2 / (5 * config.hidden_size)))
        nn.init.zeros_(self.classifier.bias)

    def forward(self, hidden: Tensor, batch: Batch, backbone: Backbone) -> Tensor:
        """Logits (N, C) at the label positions, or (B, T, C)."""
        output: Tensor = self.classifier(self.dropout(at_label_positions(hidden, batch)))
        return output


class PairHead(nn.Module):
    """Whether the second text of a pair follows the first, from the pooler or the first token."""

    def __init__(self, config: ModelConfig, size: int = 2):
        super().__init__()
        self.has_pooler = config.pooler
        self.classifier = nn.Linear(config.hidden_size, size)
        nn.init.normal_(self.classifier.weight, std=math.sqrt(2 / (5 * config.hidden_size)))
        nn.init.zeros_(self.classifier.bias)

    def forward(self, hidden: Tensor, batch: Batch, backbone: Backbone) -> Tensor:
        """Logits (B, 2)."""
        output: Tensor = self.classifier(backbone.pooled(hidden) if self.has_pooler else hidden[:, 0])
        return output


class ReplacedHead(nn.Module):
    """One logit for each token: was it replaced?"""

    def __init__(self, config: ModelConfig, size: int = 1):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, size)
        for layer in (self.dense, self.classifier):
            nn.init.normal_(layer.weight, std=math.sqrt(2 / (5 * config.hidden_size)))
            nn.init.zeros_(layer.bias)

    def forward(self, hidden: Tensor, batch: Batch, backbone: Backbone) -> Tensor:
        """Logits (B, T); above zero means replaced."""
        output: Tensor = self.classifier(F.gelu(self.dense(hidden))).squeeze(-1)
        return output


class GeneratorHead(nn.Module):
    """ELECTRA's generator: small blocks between two projections of the shared token embeddings (Clark et al., 2020)."""

    def __init__(self, config: ModelConfig, size: int, share: float = 0.5):
        super().__init__()
        num_heads = max(1, round(config.num_heads * share))
        small = {
            "hidden_size": config.hidden_size // config.num_heads * num_heads,
            "num_heads": num_heads,
            "num_kv_heads": None,
            "intermediate_size": max(1, round(config.intermediate_size * share)),
            "num_layers": max(1, config.num_layers // 2),
            "position_embedding": "rotary",
            "norm_first": True,
        }
        self.config = config.model_copy(update=small)
        self.in_proj = nn.Linear(config.hidden_size, self.config.hidden_size, bias=False)
        self.blocks = nn.ModuleList(Block(self.config) for _ in range(self.config.num_layers))
        self.out_proj = nn.Linear(self.config.hidden_size, config.hidden_size, bias=False)
        self.bias = nn.Parameter(Tensor(size).zero_())
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=math.sqrt(2 / (5 * self.config.hidden_size)))

    def forward(self, hidden: Tensor, batch: Batch, backbone: Backbone) -> Tensor:
        """Logits (N, V) at the label positions, or (B, T, V); `hidden` is not used."""
        small = self.in_proj(F.embedding(batch.tokens, backbone.table))  # (B, T, d)
        head_dim = self.config.hidden_size // self.config.num_heads
        rope = rotary_angles(batch.tokens.shape[1], head_dim, 10000.0).to(small.device)
        mask = None if batch.unpadded else batch.attention_mask[:, None, None, :]
        for block in self.blocks:
            small, _, _ = block(small, LayerInputs(mask, rope=rope))
        chosen = small if batch.label_positions is None else small.flatten(0, 1)[batch.label_positions]
        return F.linear(self.out_proj(chosen), backbone.table, self.bias)
