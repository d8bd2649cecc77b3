"""The bodies: what reads a batch and gives a vector for every token."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from headstart.batch import Batch
from headstart.config import BodyConfig
from headstart.errors import ConfigError
from headstart.models.attention import visible, within
from headstart.models.block import Block
from headstart.models.dropout import drop
from headstart.models.embedding import Embedding
from headstart.models.norm import make_norm

View = tuple[
    Tensor | None, bool, tuple[Tensor, Tensor] | None
]  # what a layer may read, causal or not, its turns


class Body(nn.Module):
    """What every body has: a token table, layers one above the other, and perhaps a pooler."""

    sees_ahead: bool
    layer_names: tuple[str, ...] = ("blocks",)  # the module lists whose members are the layers

    def __init__(self, config: BodyConfig, vocabulary: int):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config, vocabulary)
        self.pooler = nn.Linear(config.width, config.width) if config.pooler else None

    @staticmethod
    def _spread(config: BodyConfig) -> float:
        return math.sqrt(2 / (5 * config.width))

    def _start(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d):
            nn.init.normal_(module.weight, std=self._spread(self.config))
        if isinstance(module, nn.Linear | nn.Conv1d) and module.bias is not None:
            nn.init.zeros_(module.bias)

    @property
    def table(self) -> Tensor:
        """The token table (V, D), which a tied head reads."""
        return self.embedding.tokens.weight

    def pooled(self, hidden: Tensor) -> Tensor:
        """The pooler's summary of each text (B, D)."""
        if self.pooler is None:
            raise ConfigError(
                "this body has no pooler", hint="set objective.pooling=mean, or body.pooler=true"
            )
        return torch.tanh(self.pooler(hidden[:, 0]))

    def layer_of(self, name: str) -> int:
        """How deep the weight called `name` sits: 0 for the embedding, up to `layers` + 1 for what is above them."""
        first, _, rest = name.partition(".")
        if first in self.layer_names:
            return int(rest.split(".")[0]) + 1
        return 0 if first == "embedding" else self.config.layers + 1

    def forward(self, batch: Batch) -> Tensor:
        """A vector for every token (B, T, D)."""
        raise NotImplementedError


class TransformerBody(Body):
    """A stack of blocks; whether a token sees those after it is the only difference between the two kinds."""

    def __init__(self, config: BodyConfig, vocabulary: int):
        super().__init__(config, vocabulary)
        blocks = [Block(config) for _ in range(config.layers)]
        if not config.first_norm:
            blocks[0].attention_norm = nn.Identity()
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = make_norm(config) if config.norm_first else nn.Identity()
        self.apply(self._start)
        for block in blocks:  # what is added to the stream shrinks with depth (Radford et al., 2019)
            for outward in (block.attention.outward, block.feed_forward.narrow):
                nn.init.normal_(outward.weight, std=self._spread(config) / math.sqrt(2 * config.layers))

    def is_causal(self, batch: Batch) -> bool:
        """Whether tokens are kept from seeing those after them."""
        return batch.is_causal or not self.sees_ahead

    def mask(self, batch: Batch) -> Tensor | None:
        """True where a key may be read (B, 1, 1, T); None when nothing needs hiding.

        A causal body needs none: padding stands at the end, after every real token.
        """
        if self.is_causal(batch) or batch.is_full:
            return None
        return batch.real[:, None, None, :]

    def views(self, batch: Batch, turns: tuple[Tensor, Tensor] | None) -> list[View]:
        """How each layer reads: all of them alike, but for local ones, which see their window by turns of their own."""
        mask, causal = self.mask(batch), self.is_causal(batch)
        far: View = (mask, causal, turns)
        if self.config.window is None:
            return [far] * self.config.layers
        length, device = batch.tokens.shape[1], batch.tokens.device
        near: View = (
            within(length, self.config.window, visible(length, causal, mask, device), device),
            False,
            self.embedding.near_turns(length),
        )
        return [near if self.config.is_local(layer) else far for layer in range(self.config.layers)]

    def forward(self, batch: Batch) -> Tensor:
        """A vector for every token (B, T, D)."""
        hidden, turns = self.embedding(batch)
        for block, view in zip(self.blocks, self.views(batch, turns), strict=True):
            hidden = block(hidden, *view)
        return self.final_norm(hidden)

    def watch(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """What `forward` gives, and each layer's attention weights (B, A, T, T)."""
        hidden, turns = self.embedding(batch)
        weights = []
        for block, view in zip(self.blocks, self.views(batch, turns), strict=True):
            assert isinstance(block, Block)
            hidden, seen = block.watch(hidden, *view)
            weights.append(seen)
        return self.final_norm(hidden), weights


class CausalBody(TransformerBody):
    """Each token sees itself and those before it."""

    sees_ahead = False


class BidirectionalBody(TransformerBody):
    """Each token sees all tokens of its text."""

    sees_ahead = True


class RecurrentBody(Body):
    """Layers of LSTM read from both ends, half the width each way (Hochreiter and Schmidhuber, 1997)."""

    sees_ahead = True
    layer_names = ("recurrences", "norms")

    def __init__(self, config: BodyConfig, vocabulary: int):
        if config.width % 2:
            raise ConfigError(
                f"a bi-lstm needs an even body.width, not {config.width}", hint=f"try {config.width + 1}"
            )
        super().__init__(config, vocabulary)
        self.recurrences = nn.ModuleList(
            nn.LSTM(config.width, config.width // 2, batch_first=True, bidirectional=True)
            for _ in range(config.layers)
        )
        self.norms = nn.ModuleList(make_norm(config) for _ in range(config.layers))
        self.final_norm = make_norm(config)
        self.apply(self._start)

    def forward(self, batch: Batch) -> Tensor:
        """A vector for every token (B, T, D); padding is never stepped over."""
        hidden, _ = self.embedding(batch)
        lengths = batch.real.sum(dim=1).clamp(min=1).cpu()
        for recurrence, norm in zip(self.recurrences, self.norms, strict=True):
            packed = pack_padded_sequence(norm(hidden), lengths, batch_first=True, enforce_sorted=False)
            read, _ = pad_packed_sequence(
                recurrence(packed)[0], batch_first=True, total_length=hidden.shape[1]
            )
            hidden = hidden + drop(read, self.config.dropout, self.training)
        return self.final_norm(hidden)


class ConvolutionBody(Body):
    """Layers of convolution of `kernel` tokens; dilated, each looks twice as far as the one below (Oord et al., 2016)."""

    sees_ahead = True
    layer_names = ("convolutions", "norms")

    def __init__(self, config: BodyConfig, vocabulary: int):
        if config.kernel % 2 == 0:
            raise ConfigError(
                f"a cnn needs an odd body.kernel, not {config.kernel}", hint=f"try {config.kernel + 1}"
            )
        super().__init__(config, vocabulary)
        steps = [2**layer if config.dilated else 1 for layer in range(config.layers)]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.width, 2 * config.width, config.kernel, padding="same", dilation=step)
            for step in steps
        )
        self.norms = nn.ModuleList(make_norm(config) for _ in range(config.layers))
        self.final_norm = make_norm(config)
        self.apply(self._start)

    def forward(self, batch: Batch) -> Tensor:
        """A vector for every token (B, T, D); padding counts as nothing at every layer."""
        hidden, _ = self.embedding(batch)
        real = batch.real[..., None]
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            read = convolution((norm(hidden) * real).transpose(1, 2)).transpose(1, 2)
            hidden = hidden + drop(F.glu(read, dim=-1), self.config.dropout, self.training)
        return self.final_norm(hidden)


BODIES: dict[str, type[Body]] = {
    "causal": CausalBody,
    "bidirectional": BidirectionalBody,
    "bi-lstm": RecurrentBody,
    "cnn": ConvolutionBody,
}
