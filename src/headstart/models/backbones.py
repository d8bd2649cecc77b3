"""The backbones: what reads a batch and gives a vector for every token."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headstart.batch import Batch
from headstart.config import ModelConfig
from headstart.errors import ConfigError
from headstart.models.flat import flat_of, is_short
from headstart.models.kv_cache import Cache, laid_out, new_cache
from headstart.models.transformer import CrossAttention, Embedding, Source, Stack, Turns, View, at


class Backbone(nn.Module):
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
            raise ConfigError("this body has no pooler", hint="set objective.pooling=mean, or model.pooler=true")
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


class TransformerBackbone(Backbone):
    """A stack of blocks; whether a token sees those after it is the only difference between the two kinds."""

    def __init__(self, config: ModelConfig, vocabulary: int):
        super().__init__(config, vocabulary)
        self.stack = Stack(config, config.num_layers)
        self.apply(self._start)
        self.stack.shrink(self._spread(config))

    def is_causal(self, batch: Batch) -> bool:
        """Whether tokens are kept from seeing those after them."""
        return batch.is_causal or not self.sees_ahead

    def mask(self, batch: Batch) -> Tensor | None:
        """True where a key may be read (B, 1, 1, T); None when nothing needs hiding.

        A causal body needs none: padding stands at the end, after every real token.
        """
        if self.is_causal(batch) or batch.unpadded:
            return None
        return batch.attention_mask[:, None, None, :]

    def views(self, batch: Batch, turns: Turns | None, places: Tensor | None = None) -> list[View]:
        """How each layer reads tokens that stand at `places`, or at all of T."""
        far = (self.mask(batch), self.is_causal(batch), turns)
        return self.stack.looks(self.config, far, batch.tokens.shape, self.embedding, places)

    def forward(self, batch: Batch, places: Tensor | None = None) -> Tensor:
        """A vector for every token (B, T, D); with `places`, only those there (N, D) of the flattened positions."""
        if self.is_flat and not self.training and batch.segments is None and not is_short(batch):
            return self._flat(batch, places)
        hidden, turns = self.embedding(batch)
        return self.stack.through(hidden, self.views(batch, turns), places=places)

    def _flat(self, batch: Batch, places: Tensor | None) -> Tensor:
        """What `forward` gives, but at padding, where nobody looks."""
        flat = flat_of(batch.attention_mask)
        tokens = batch.tokens.flatten().index_select(0, flat.places)[None]  # (1, N)
        columns = flat.columns[None]
        hidden, turns = self.embedding.at(tokens, columns, batch.tokens.shape[1])
        hidden = self.stack.through_flat(hidden[0], flat, self.views(batch, turns, columns), places)
        return hidden if places is not None else flat.padded(hidden)

    def watch(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """What `forward` gives, and each layer's attention weights (B, A, T, T)."""
        hidden, turns = self.embedding(batch)
        hidden, weights, _ = self.stack.through_watched(hidden, self.views(batch, turns))
        return hidden, weights


class CausalBackbone(TransformerBackbone):
    """Each token sees itself and those before it."""

    sees_ahead = False

    def begin(self, batch: Batch, room: int) -> Cache:
        """A cache for the batch's rows, in which nothing has been read."""
        return new_cache(len(self.stack.blocks), room)

    def read(self, tokens: Tensor, cache: Cache, real: Tensor | None = None) -> Tensor:
        """The vectors (R, T, D) of each row's next tokens (R, T), which the cache then remembers."""
        places = cache.advance(tokens, real)
        hidden, turns = self.embedding.at(tokens, places, cache.length)
        return self.stack.through_read(hidden, turns, cache, places, self.config, self.embedding)


class BidirectionalBackbone(TransformerBackbone):
    """Each token sees all tokens of its text."""

    sees_ahead = True


class EncoderDecoderBackbone(Backbone):
    """An encoder reads the source; a decoder reads the target so far and, by cross-attention, the source.

    As in Vaswani et al. (2017). Its vectors are those of the decoder, which never sees ahead. Both sides share one
    token table, unless the source has a vocabulary of its own.
    """

    sees_ahead = False

    def __init__(self, config: ModelConfig, vocabulary: int):
        super().__init__(config, vocabulary)
        own = config.source_vocab_size
        self.source_embedding = None if own is None else Embedding(config, own)
        self.encoder = Stack(config, config.num_layers)
        self.decoder = Stack(config, config.num_decoder_layers or config.num_layers, crosses=True)
        self.apply(self._start)
        for stack in (self.encoder, self.decoder):
            stack.shrink(self._spread(config))

    def layer_of(self, name: str) -> int:
        """Tables are at the bottom, then the encoder's layers, then the decoder's."""
        first, _, rest = name.partition(".")
        if first in ("embedding", "source_embedding"):
            return 0
        below = len(self.encoder.blocks) if first == "decoder" else 0
        part, _, rest = rest.partition(".")
        if part == "blocks":
            return below + int(rest.split(".")[0]) + 1
        return len(self.encoder.blocks) + (len(self.decoder.blocks) + 1 if first == "decoder" else 0)

    @property
    def depth(self) -> int:
        """Layers of both stacks."""
        return len(self.encoder.blocks) + len(self.decoder.blocks)

    def _source(self, batch: Batch) -> Batch:
        if batch.source is None or batch.source_attention_mask is None:
            raise ConfigError("an encoder-decoder reads two texts, and one was given", hint="it translates: see --pair")
        return Batch(batch.source, batch.source_attention_mask)

    def encode(self, batch: Batch) -> list[Source]:
        """What each decoder layer reads of the source: keys, values (B, A, S, D/A) and mask (B, 1, 1, S)."""
        source = self._source(batch)
        mask = source.attention_mask[:, None, None, :]
        hidden, turns = (self.source_embedding or self.embedding)(source)
        memory = self.encoder.through(hidden, self._looks(source, mask, turns))  # (B, S, D)
        return self._crossing(memory, mask)

    def _looks(self, read: Batch, mask: Tensor | None, turns: Turns | None) -> list[View]:
        """How each layer reads: of the encoder where a padding mask is given, else of the decoder."""
        stack = self.decoder if mask is None else self.encoder
        table = self.embedding if mask is None else (self.source_embedding or self.embedding)
        return stack.looks(self.config, (mask, mask is None, turns), read.tokens.shape, table)

    def _crossing(self, memory: Tensor, mask: Tensor | None) -> list[Source]:
        return [(*cross.remember(memory), mask) for cross in self._crosses()]

    def _crosses(self) -> Iterator[CrossAttention]:
        for block in self.decoder.each():
            assert block.cross_attention is not None
            yield block.cross_attention

    def forward(self, batch: Batch, places: Tensor | None = None) -> Tensor:
        """A vector for every target token (B, T, D), all in one pass: each is kept from seeing those after it."""
        sources = self.encode(batch)
        hidden, turns = self.embedding(batch)
        return at(self.decoder.through(hidden, self._looks(batch, None, turns), sources), places)

    def watch(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """What `forward` gives, and the decoder's self-attention weights (B, A, T, T)."""
        watched = self.watch_all(batch)
        return watched.hidden, watched.target

    def watch_all(self, batch: Batch) -> "Watched":
        """What `forward` gives, with the weights of all three kinds of attention."""
        source = self._source(batch)
        mask = source.attention_mask[:, None, None, :]
        hidden, turns = (self.source_embedding or self.embedding)(source)
        memory, inside, _ = self.encoder.through_watched(hidden, self._looks(source, mask, turns))
        hidden, turns = self.embedding(batch)
        hidden, own, across = self.decoder.through_watched(
            hidden, self._looks(batch, None, turns), self._crossing(memory, mask)
        )
        return Watched(hidden, inside, own, across)

    def begin(self, batch: Batch, room: int) -> Cache:
        """A cache for the batch's sources, read once; of the targets nothing has been read."""
        sources = self.encode(batch)
        cache = new_cache(len(self.decoder.blocks), room)
        cache.sources = [laid_out(key, value) for key, value, _ in sources]
        cache.source_mask = sources[0][2]
        return cache

    def read(self, tokens: Tensor, cache: Cache, real: Tensor | None = None) -> Tensor:
        """The vectors (R, T, D) of each row's next tokens (R, T), which the cache then remembers."""
        places = cache.advance(tokens, real)
        hidden, turns = self.embedding.at(tokens, places, cache.length)
        return self.decoder.through_read(hidden, turns, cache, places, self.config, self.embedding)


@dataclass(frozen=True)
class Watched:
    """A decoder's vectors, and the attention weights behind them, a tensor a layer."""

    hidden: Tensor  # (B, T, D)
    source: list[Tensor]  # (B, A, S, S), the encoder's
    target: list[Tensor]  # (B, A, T, T), the decoder's own
    cross: list[Tensor]  # (B, A, T, S), the decoder's over the source
