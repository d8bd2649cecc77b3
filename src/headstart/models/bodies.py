"""The bodies: what reads a batch and gives a vector for every token."""

import math

from torch import Tensor, nn

from headstart.batch import Batch
from headstart.config import BodyConfig
from headstart.models.block import Block
from headstart.models.embedding import Embedding
from headstart.models.norm import make_norm


class TransformerBody(nn.Module):
    """A stack of blocks; whether a token sees those after it is the only difference between the two kinds."""

    sees_ahead: bool

    def __init__(self, config: BodyConfig, vocabulary: int):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config, vocabulary)
        blocks = [Block(config) for _ in range(config.layers)]
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = make_norm(config) if config.norm_first else nn.Identity()
        self.apply(self._start)
        for block in blocks:  # what is added to the stream shrinks with depth (Radford et al., 2019)
            for outward in (block.attention.outward, block.feed_forward.narrow):
                nn.init.normal_(outward.weight, std=self._spread(config) / math.sqrt(2 * config.layers))

    @staticmethod
    def _spread(config: BodyConfig) -> float:
        return math.sqrt(2 / (5 * config.width))

    def _start(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=self._spread(self.config))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self._spread(self.config))

    @property
    def table(self) -> Tensor:
        """The token table (V, D), which a tied head reads."""
        return self.embedding.tokens.weight

    def layer_of(self, name: str) -> int:
        """How deep the weight called `name` sits: 0 for the embedding, up to `layers` + 1 for the final norm."""
        if name.startswith("blocks."):
            return int(name.split(".")[1]) + 1
        return 0 if name.startswith("embedding.") else self.config.layers + 1

    def mask(self, batch: Batch) -> Tensor | None:
        """True where a key may be read (B, 1, 1, T); None when nothing needs hiding.

        A causal body needs none: padding stands at the end, after every real token.
        """
        if not self.sees_ahead or batch.is_full:
            return None
        return batch.real[:, None, None, :]

    def forward(self, batch: Batch) -> Tensor:
        """A vector for every token (B, T, D)."""
        hidden, turns = self.embedding(batch.tokens)
        mask = self.mask(batch)
        for block in self.blocks:
            hidden = block(hidden, mask, not self.sees_ahead, turns)
        return self.final_norm(hidden)

    def watch(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """What `forward` gives, and each layer's attention weights (B, A, T, T)."""
        hidden, turns = self.embedding(batch.tokens)
        mask, weights = self.mask(batch), []
        for block in self.blocks:
            assert isinstance(block, Block)
            hidden, seen = block.watch(hidden, mask, not self.sees_ahead, turns)
            weights.append(seen)
        return self.final_norm(hidden), weights


class CausalBody(TransformerBody):
    """Each token sees itself and those before it."""

    sees_ahead = False


class BidirectionalBody(TransformerBody):
    """Each token sees all tokens of its text."""

    sees_ahead = True


BODIES: dict[str, type[TransformerBody]] = {"causal": CausalBody, "bidirectional": BidirectionalBody}
