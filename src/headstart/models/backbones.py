"""The backbones: a batch in, a vector for every token out."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from headstart.batch import Batch
from headstart.config import ModelConfig
from headstart.errors import ConfigError
from headstart.models.kv_cache import KVCache, LayerKVCache
from headstart.models.transformer import CrossAttention, CrossKV, Embedding, Stack


@dataclass(frozen=True)
class BackboneOutput:
    """The vectors of the tokens, and the attention weights of every layer."""

    hidden: Tensor  # (B, T, D)
    attentions: list[Tensor]  # self-attention (B, H, T, T), of the decoder if there are two stacks
    cross_attentions: list[Tensor] = field(default_factory=list)  # (B, H, T, S)
    encoder_attentions: list[Tensor] = field(default_factory=list)  # (B, H, S, S)


class Backbone(nn.Module):
    """A token embedding, layers, and on request a pooler."""

    sees_ahead: bool
    skips_padding = False  # True = padding costs little, so that texts of any length share a batch
    layer_names: tuple[str, ...] = ("blocks",)  # the module lists whose members are the layers

    def __init__(self, config: ModelConfig, vocab_size: int):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config, vocab_size)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if config.pooler else None

    @property
    def init_std(self) -> float:
        """Standard deviation of new weights."""
        return math.sqrt(2 / (5 * self.config.hidden_size))

    def init_weights(self, module: nn.Module) -> None:
        """New weights for one module."""
        if isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d):
            nn.init.normal_(module.weight, std=self.init_std)
        if isinstance(module, nn.Linear | nn.Conv1d) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def scale_residual_init(self, stack: Stack) -> None:
        """The deeper a stack, the smaller the initial output of each sublayer (Radford et al., 2019)."""
        names = ("attention.out_proj", "feed_forward.down_proj", "cross_attention.out_proj")
        outputs = [part for block in stack.blocks for name, part in block.named_modules() if name in names]
        for linear in outputs:
            nn.init.normal_(linear.weight, std=self.init_std / math.sqrt(len(outputs)))

    @property
    def table(self) -> Tensor:
        """The token embeddings (V, D), which a tied head shares."""
        return self.embedding.token_embedding.weight

    def pooled(self, hidden: Tensor) -> Tensor:
        """The pooler's output for each text (B, D)."""
        if self.pooler is None:
            raise ConfigError("this body has no pooler", hint="set objective.pooling=mean, or model.pooler=true")
        return torch.tanh(self.pooler(hidden[:, 0]))

    @property
    def depth(self) -> int:
        """Number of layers."""
        return self.config.num_layers

    def layer_of(self, name: str) -> int:
        """The layer of the weight called `name`: 0 for the embedding, 1 to `depth`, `depth` + 1 for what follows."""
        first, _, rest = name.removeprefix("stack.").partition(".")
        if first in self.layer_names:
            return int(rest.split(".")[0]) + 1
        return 0 if first == "embedding" else self.depth + 1

    def forward(self, batch: Batch, output_positions: Tensor | None = None) -> Tensor:
        """A vector for every token (B, T, D), or for those at `output_positions` of the flattened batch (N, D)."""
        raise NotImplementedError


class TransformerBackbone(Backbone):
    """One stack; an encoder and a decoder differ only in whether a token attends to later ones."""

    def __init__(self, config: ModelConfig, vocab_size: int):
        super().__init__(config, vocab_size)
        self.stack = Stack(config, config.num_layers)
        self.apply(self.init_weights)
        self.scale_residual_init(self.stack)

    def is_causal(self, batch: Batch) -> bool:
        """Whether tokens do not attend to later ones."""
        return batch.is_causal or not self.sees_ahead

    def mask(self, batch: Batch) -> Tensor | None:
        """True where a key may be attended to (B, 1, 1, T); None if a causal mask is enough, or none is needed.

        Padding is at the end, so a causal mask hides it from all tokens.
        """
        return None if self.is_causal(batch) or batch.unpadded else batch.attention_mask[:, None, None, :]

    def forward(  # type: ignore[override]
        self, batch: Batch, output_positions: Tensor | None = None, output_attentions: bool = False
    ) -> Tensor | BackboneOutput:
        """A vector for every token (B, T, D), or for those at `output_positions` of the flattened batch (N, D)."""
        hidden, attentions, _ = self.stack(
            self.embedding(batch.tokens, token_types=batch.segments),
            self.mask(batch),
            self.is_causal(batch),
            output_positions=output_positions,
            output_attentions=output_attentions,
        )
        return BackboneOutput(hidden, attentions) if output_attentions else hidden


class CausalBackbone(TransformerBackbone):
    """Each token attends to itself and to earlier ones."""

    sees_ahead = False

    def new_cache(self, batch: Batch, capacity: int) -> KVCache:
        """An empty cache with room for `capacity` tokens of each text."""
        return KVCache([LayerKVCache(capacity) for _ in self.stack.blocks])

    def decode(self, tokens: Tensor, cache: KVCache, attention_mask: Tensor | None = None) -> Tensor:
        """The vectors (R, T, D) of each text's next tokens (R, T), which the cache then contains."""
        return decode(self.stack, self.embedding, tokens, cache, attention_mask)


class BidirectionalBackbone(TransformerBackbone):
    """Each token attends to all tokens of its text."""

    sees_ahead = True


class EncoderDecoderBackbone(Backbone):
    """An encoder for the source, and a causal decoder with cross-attention for the target (Vaswani et al., 2017).

    Its vectors are those of the decoder. Both share one token embedding, unless the source has its own vocabulary.
    """

    sees_ahead = False

    def __init__(self, config: ModelConfig, vocab_size: int):
        super().__init__(config, vocab_size)
        own = config.source_vocab_size
        self.source_embedding = None if own is None else Embedding(config, own)
        self.encoder = Stack(config, config.num_layers)
        self.decoder = Stack(config, config.num_decoder_layers or config.num_layers, has_cross_attention=True)
        self.apply(self.init_weights)
        self.scale_residual_init(self.encoder)
        self.scale_residual_init(self.decoder)

    def layer_of(self, name: str) -> int:
        """Embeddings first, then the encoder's layers, then the decoder's."""
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
        """Number of layers of both stacks."""
        return len(self.encoder.blocks) + len(self.decoder.blocks)

    def encode(self, batch: Batch, output_attentions: bool = False) -> tuple[list[CrossKV], list[Tensor]]:
        """Keys and values of the source for each decoder layer, and the encoder's attention weights on request."""
        if batch.source is None or batch.source_attention_mask is None:
            raise ConfigError("an encoder-decoder reads two texts, and one was given", hint="it translates: see --pair")
        mask = batch.source_attention_mask[:, None, None, :]
        hidden = (self.source_embedding or self.embedding)(batch.source)
        source, attentions, _ = self.encoder(hidden, mask, output_attentions=output_attentions)  # (B, S, D)
        cross_kv: list[CrossKV] = []
        for block in self.decoder.blocks:
            assert isinstance(block.cross_attention, CrossAttention)
            cross_kv.append((*block.cross_attention.project_source(source), mask))
        return cross_kv, attentions

    def forward(  # type: ignore[override]
        self, batch: Batch, output_positions: Tensor | None = None, output_attentions: bool = False
    ) -> Tensor | BackboneOutput:
        """A vector for every target token (B, T, D), or for those at `output_positions` of the flattened batch."""
        cross_kv, encoder_attentions = self.encode(batch, output_attentions)
        hidden, attentions, cross_attentions = self.decoder(
            self.embedding(batch.tokens),
            is_causal=True,
            cross_kv=cross_kv,
            output_positions=output_positions,
            output_attentions=output_attentions,
        )
        if not output_attentions:
            output: Tensor | BackboneOutput = hidden
            return output
        return BackboneOutput(hidden, attentions, cross_attentions, encoder_attentions)

    def new_cache(self, batch: Batch, capacity: int) -> KVCache:
        """A cache with the encoded sources, and room for `capacity` target tokens of each."""
        cross_kv, _ = self.encode(batch)
        layers = [LayerKVCache(capacity) for _ in self.decoder.blocks]
        return KVCache(layers, cross_kv=[(key, value) for key, value, _ in cross_kv], source_mask=cross_kv[0][2])

    def decode(self, tokens: Tensor, cache: KVCache, attention_mask: Tensor | None = None) -> Tensor:
        """The vectors (R, T, D) of each text's next tokens (R, T), which the cache then contains."""
        return decode(self.decoder, self.embedding, tokens, cache, attention_mask)


def decode(stack: Stack, embedding: Embedding, tokens: Tensor, cache: KVCache, attention_mask: Tensor | None) -> Tensor:
    """The vectors (R, T, D) of each text's next tokens (R, T), which the cache then contains."""
    positions = cache.extend(tokens, attention_mask)
    mask, is_causal = cache.attention_mask(tokens.shape[1], tokens.device)
    cross_kv = [(key, value, cache.source_mask) for key, value in cache.cross_kv] or None
    hidden: Tensor = stack(embedding(tokens, positions), mask, is_causal, positions, cross_kv, cache)[0]
    return hidden
