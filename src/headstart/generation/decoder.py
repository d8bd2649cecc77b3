"""What text generation needs of a model: it reads tokens into a cache, and scores the next token."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from headstart import fast
from headstart.batch import Batch, pad
from headstart.errors import ConfigError
from headstart.models.backbones import CausalBackbone, EncoderDecoderBackbone
from headstart.models.heads import LanguageHead
from headstart.models.model import Model


class Cache(Protocol):
    """What a decoder stores of each row, and of each source if there are any."""

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keep these rows in this order, and these of the sources (by default all)."""
        ...


class Decoder(Protocol):
    """A model that reads token after token and scores what may come next."""

    @property
    def max_positions(self) -> int | None:
        """The number of tokens that it can read; None = no limit."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    def new_cache(self, batch: Batch, capacity: int) -> Any:
        """A cache for the batch's rows, without tokens yet, and with room for `capacity` of each."""
        ...

    def decode(self, tokens: Tensor, cache: Any, attention_mask: Tensor | None = None) -> Tensor:
        """The vectors (R, T, D) of each row's next tokens (R, T), which the cache then contains."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits (..., V) of the token after these vectors, in float32; the caller may change them."""
        ...


class ModelDecoder:
    """A model as a decoder; it keeps the weights that the model has now."""

    def __init__(self, model: Model):
        backbone, head = model.backbone, dict(model.heads.items()).get("lm")
        if not isinstance(backbone, CausalBackbone | EncoderDecoderBackbone) or not isinstance(head, LanguageHead):
            raise ConfigError(
                f"a {backbone.config.architecture} body with heads {', '.join(model.heads) or 'none'} writes no text",
                hint="text comes from a causal or encoder-decoder body under a language-model head",
            )
        model, config = fast.optimize(model, "generate"), backbone.config
        backbone, head = model.backbone, model.heads["lm"]
        assert isinstance(backbone, CausalBackbone | EncoderDecoderBackbone)
        assert isinstance(head, LanguageHead)
        self.backbone, self.head, self.device = backbone, head, backbone.table.device
        self.max_positions = config.max_position_embeddings if config.position_embedding == "learned" else None

    def new_cache(self, batch: Batch, capacity: int) -> Any:
        """A cache for the batch's rows; sources are encoded at once, tokens are not read yet."""
        return self.backbone.new_cache(batch, capacity)

    def decode(self, tokens: Tensor, cache: Any, attention_mask: Tensor | None = None) -> Tensor:
        """The vectors (R, T, D) of each row's next tokens (R, T)."""
        return self.backbone.decode(tokens, cache, attention_mask)

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits (..., V) of the next token."""
        return self.head.logits(hidden, self.backbone.table).float()


def prompt_batch(rows: Sequence[np.ndarray], pad_id: int) -> Batch:
    """Prompts as a batch; each begins with the tokenizer's `bos_id` and has no `eos_id`."""
    tokens, mask = pad([torch.from_numpy(np.asarray(row)).long() for row in rows], pad_id)
    return Batch(tokens, mask, unpadded=bool(mask.all()))


def source_batch(rows: Sequence[np.ndarray], pad_id: int, bos_id: int) -> Batch:
    """Sources with their special tokens as a batch, each with a target of one token, `bos_id`."""
    source, mask = pad([torch.from_numpy(np.asarray(row)).long() for row in rows], pad_id)
    tokens = torch.full((len(rows), 1), bos_id)
    return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), source=source, source_attention_mask=mask)


def read_prompts(decoder: Decoder, batch: Batch, max_new_tokens: int) -> tuple[Any, Tensor]:
    """The cache after the batch's prompts, and the vector of each prompt's last token (R, D)."""
    cache = decoder.new_cache(batch, batch.tokens.shape[1] + max_new_tokens)
    hidden = decoder.decode(batch.tokens, cache, None if batch.tokens.shape[1] == 1 else batch.attention_mask)
    last = batch.attention_mask.sum(dim=1) - 1
    return cache, hidden[torch.arange(len(last), device=last.device), last]
