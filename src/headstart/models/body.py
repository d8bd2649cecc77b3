"""What every body has, and the stack of blocks of which Transformer bodies are made."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from headstart.batch import Batch
from headstart.config import ModelConfig
from headstart.errors import ConfigError
from headstart.models.attention import visible, within
from headstart.models.block import Block, Source, Turns, View
from headstart.models.cache import Cache
from headstart.models.embedding import Embedding
from headstart.models.flat import Flat
from headstart.models.norm import make_norm


class Body(nn.Module):
    """What every body has: a token table, layers one above the other, and perhaps a pooler."""

    sees_ahead: bool
    layer_names: tuple[str, ...] = ("blocks",)  # the module lists whose members are the layers
    is_flat = False  # True = in evaluation padding goes through attention alone

    def __init__(self, config: ModelConfig, vocabulary: int):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config, vocabulary)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if config.pooler else None

    @staticmethod
    def _spread(config: ModelConfig) -> float:
        return math.sqrt(2 / (5 * config.hidden_size))

    def _start(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d):
            nn.init.normal_(module.weight, std=self._spread(self.config))
        if isinstance(module, nn.Linear | nn.Conv1d) and module.bias is not None:
            nn.init.zeros_(module.bias)

    @property
    def table(self) -> Tensor:
        """The token table (V, D), which a tied head reads."""
        return self.embedding.token_embedding.weight

    def pooled(self, hidden: Tensor) -> Tensor:
        """The pooler's summary of each text (B, D)."""
        if self.pooler is None:
            raise ConfigError(
                "this body has no pooler", hint="set objective.pooling=mean, or model.pooler=true"
            )
        return torch.tanh(self.pooler(hidden[:, 0]))

    @property
    def depth(self) -> int:
        """How many layers stand one above the other."""
        return self.config.num_layers

    def layer_of(self, name: str) -> int:
        """How deep the weight called `name` sits: 0 for the embedding, up to `depth` + 1 for what is above them."""
        first, _, rest = name.removeprefix("stack.").partition(".")
        if first in self.layer_names:
            return int(rest.split(".")[0]) + 1
        return 0 if first == "embedding" else self.depth + 1

    def forward(self, batch: Batch, places: Tensor | None = None) -> Tensor:
        """A vector for every token (B, T, D); with `places`, only those there (N, D) of the flattened positions."""
        raise NotImplementedError


class Stack(nn.Module):
    """Blocks one above the other, with a norm at the end if norms come first."""

    def __init__(self, config: ModelConfig, layers: int, crosses: bool = False):
        super().__init__()
        self.blocks = nn.ModuleList(Block(config, crosses) for _ in range(layers))
        self.final_norm = make_norm(config) if config.norm_first else nn.Identity()
        if not config.norm_first_layer:
            next(self.each()).attention_norm = nn.Identity()

    def each(self) -> Iterator[Block]:
        """The blocks with their type."""
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block

    def shrink(self, spread: float) -> None:
        """What is added to the stream starts the smaller the deeper the stack (Radford et al., 2019)."""
        for block in self.each():
            added = [block.attention.out_proj, block.feed_forward.down_proj]
            added += [] if block.cross_attention is None else [block.cross_attention.out_proj]
            for outward in added:
                nn.init.normal_(outward.weight, std=spread / math.sqrt(len(added) * len(self.blocks)))

    def looks(
        self,
        config: ModelConfig,
        far: View,
        shape: torch.Size | tuple[int, int],
        table: Embedding,
        places: Tensor | None = None,
    ) -> list[View]:
        """How each layer reads: all of them alike, but for local ones, which see their window by turns of their own.

        Tokens stand at `places`, or at all of T.
        """
        if config.sliding_window is None:
            return [far] * len(self.blocks)
        mask, causal, _ = far
        device = table.token_embedding.weight.device
        seen = visible(shape[1], causal, mask, device)
        turns = table.near_turns(slice(0, shape[1]) if places is None else places)
        near = (within(shape[1], config.sliding_window, seen, device), False, turns)
        return [near if config.is_local(layer) else far for layer in range(len(self.blocks))]

    def through(
        self,
        hidden: Tensor,
        views: Sequence[View],
        sources: Sequence[Source] | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """Vectors (B, T, D) through all blocks; `sources` holds what each block that crosses reads beside them.

        With `places` the last block finishes those alone (N, D).
        """
        last = len(self.blocks) - 1
        for layer, (block, view) in enumerate(zip(self.blocks, views, strict=True)):
            source = None if sources is None else sources[layer]
            hidden = block(hidden, *view, source, places if layer == last else None)
        return self.final_norm(hidden)

    def through_flat(
        self, hidden: Tensor, flat: Flat, views: Sequence[View], places: Tensor | None = None
    ) -> Tensor:
        """What `through` gives in evaluation at real tokens alone: (N, D) in, (N, D) out, or those at `places`."""
        last = len(self.blocks) - 1
        for layer, (block, view) in enumerate(zip(self.each(), views, strict=True)):
            hidden = block.flat(hidden, flat, *view, places if layer == last else None)
        return self.final_norm(hidden)

    def through_watched(
        self, hidden: Tensor, views: Sequence[View], sources: Sequence[Source] | None = None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """What `through` gives, each layer's weights (B, A, T, T), and those over the source (B, A, T, S)."""
        weights, crossed = [], []
        for layer, (block, view) in enumerate(zip(self.each(), views, strict=True)):
            source = None if sources is None else sources[layer]
            hidden, seen, across = block.watch(hidden, *view, source)
            weights.append(seen)
            crossed += [] if across is None else [across]
        return self.final_norm(hidden), weights, crossed

    def through_read(
        self,
        hidden: Tensor,
        turns: Turns | None,
        cache: Cache,
        places: slice | Tensor,
        config: ModelConfig,
        table: Embedding,
    ) -> Tensor:
        """What `through` gives at the last positions, which stand at `places`; earlier ones are remembered."""
        far = (*cache.mask(hidden.shape[1], hidden.device), turns)
        near = (
            far
            if config.sliding_window is None
            else (cache.near(places, config.sliding_window, hidden.device), False, table.near_turns(places))
        )
        for layer, block in enumerate(self.each()):
            mask, causal, own = near if config.is_local(layer) else far
            source = (*cache.sources[layer], cache.source_mask) if cache.sources else None
            hidden = block.read(hidden, mask, causal, own, cache.pasts[layer], source)
        return self.final_norm(hidden)
