"""A small masked language model that makes plausible replacements for another body to find."""

import math
from typing import Protocol

from torch import Tensor, nn
from torch.nn import functional as F

from headstart.batch import Batch
from headstart.config import ModelConfig
from headstart.models.block import Block
from headstart.models.embedding import rotary_turns


class Shared(Protocol):
    """A body whose token table is read."""

    @property
    def table(self) -> Tensor:
        """The token table (V, D)."""
        ...


class GeneratorHead(nn.Module):
    """A stack of narrow blocks between two maps to the body's own token table, which both share (Clark et al., 2020)."""

    def __init__(self, body: ModelConfig, size: int, share: float = 0.5):
        super().__init__()
        wide = body.hidden_size // body.num_heads
        attention_heads = max(1, round(body.num_heads * share))
        narrow = {
            "hidden_size": wide * attention_heads,
            "num_heads": attention_heads,
            "position_embedding": "rotary",
        }
        narrow |= {"intermediate_size": max(1, round(body.intermediate_size * share)), "num_kv_heads": None}
        self.config = body.model_copy(
            update={**narrow, "num_layers": max(1, body.num_layers // 2), "norm_first": True}
        )
        self.in_proj = nn.Linear(body.hidden_size, self.config.hidden_size, bias=False)
        self.blocks = nn.ModuleList(Block(self.config) for _ in range(self.config.num_layers))
        self.out_proj = nn.Linear(self.config.hidden_size, body.hidden_size, bias=False)
        self.bias = nn.Parameter(Tensor(size).zero_())
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=math.sqrt(2 / (5 * self.config.hidden_size)))

    def forward(self, hidden: Tensor, batch: Batch, body: Shared) -> Tensor:
        """Scores for every token (N, V) at the asked positions, or everywhere (B, T, V); `hidden` is not read."""
        read = self.in_proj(F.embedding(batch.tokens, body.table))  # (B, T, d)
        cos, sin = rotary_turns(
            batch.tokens.shape[1], self.config.hidden_size // self.config.num_heads, 10000.0
        )
        turns = (cos.to(read.device), sin.to(read.device))
        mask = None if batch.is_full else batch.real[:, None, None, :]
        for block in self.blocks:
            read = block(read, mask, False, turns)
        chosen = read if batch.asked is None else read.flatten(0, 1)[batch.asked]
        return F.linear(self.out_proj(chosen), body.table, self.bias)
