"""Tokens to vectors, and the three ways to tell their order."""

import math

import torch
from torch import Tensor, nn

from headstart.batch import Batch
from headstart.config import ModelConfig
from headstart.errors import ConfigError
from headstart.models.dropout import drop
from headstart.models.norm import make_norm


def sinusoids(length: int, width: int) -> Tensor:
    """The (T, D) sine and cosine waves of Vaswani et al. (2017)."""
    position = torch.arange(length, dtype=torch.float)[:, None]  # (T, 1)
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float) * (-math.log(10000.0) / width))
    waves = torch.zeros(length, width)
    waves[:, 0::2] = torch.sin(position * rate)
    waves[:, 1::2] = torch.cos(position * rate[: width // 2])
    return waves


def rotary_turns(length: int, width: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines (T, D/A) of each position's rotation, the two halves alike."""
    # the quotient is taken as `transformers` takes it: far out, the last bit of a rate turns into an angle
    rate = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float) / width)
    angle = torch.outer(torch.arange(length, dtype=torch.float), rate).repeat(1, 2)
    return angle.cos(), angle.sin()


class Embedding(nn.Module):
    """The token table with sinusoidal, learned or no positions added; rotary ones are handed to attention."""

    waves: Tensor  # (T, D), sinusoidal positions
    cos: Tensor  # (T, D/A), rotary positions
    sin: Tensor
    near_cos: Tensor  # the same in layers that see a window
    near_sin: Tensor

    def __init__(self, config: ModelConfig, vocabulary: int):
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(vocabulary, config.hidden_size)
        self.position_embedding = (
            nn.Embedding(config.max_position_embeddings, config.hidden_size)
            if config.position_embedding == "learned"
            else None
        )
        self.token_type_embedding = (
            nn.Embedding(2, config.hidden_size) if config.token_type_embeddings else None
        )
        self.norm = make_norm(config) if config.embedding_norm else nn.Identity()
        self.scale = math.sqrt(config.hidden_size) if config.scale_embedding else 1.0
        self._fill(config.max_position_embeddings)

    def _fill(self, length: int) -> None:
        config = self.config
        if config.position_embedding == "sinusoidal":
            self.register_buffer("waves", sinusoids(length, config.hidden_size), persistent=False)
        elif config.position_embedding == "rotary":
            cos, sin = rotary_turns(length, config.hidden_size // config.num_heads, config.rope_theta)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)
            if config.sliding_window is not None:
                width = config.hidden_size // config.num_heads
                cos, sin = rotary_turns(length, width, config.local_rope_theta)
                self.register_buffer("near_cos", cos, persistent=False)
                self.register_buffer("near_sin", sin, persistent=False)

    def _reach(self, length: int) -> None:
        if length <= self.config.max_position_embeddings:
            return
        if self.position_embedding is not None:
            raise ConfigError(
                f"a text of {length} tokens is longer than the {self.config.max_position_embeddings} learned positions",
                hint="cut the text with --set training.max_length, or use rotary or sinusoidal positions",
            )
        if self.config.position_embedding == "none":
            return
        known = self.waves if self.config.position_embedding == "sinusoidal" else self.cos
        if length > known.shape[0]:
            self._fill(max(length, 2 * known.shape[0]))  # a text that grows token by token fills it seldom
            self.to(known.device)

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Vectors (B, T, D), and the rotary turns (T, D/A) if positions are rotary."""
        length = batch.tokens.shape[1]
        self._reach(length)
        return self._place(batch.tokens, slice(0, length), batch.segments)

    def at(
        self, tokens: Tensor, places: slice | Tensor, reach: int
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Vectors and turns of tokens that stand at `places`, a range or (B, T), all of them below `reach`."""
        self.reach(places, reach)
        return self._place(tokens, places, None)

    def reach(self, places: slice | Tensor, reach: int) -> None:
        """Be ready for tokens at `places`, all of them below `reach`."""
        if reach > self.config.max_position_embeddings and isinstance(places, Tensor):
            reach = int(places.max()) + 1  # padding between prompt and answer takes up no position
        self._reach(reach)

    def _place(
        self, tokens: Tensor, places: slice | Tensor, segments: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        hidden = (
            self.token_embedding(tokens) * self.scale if self.scale != 1.0 else self.token_embedding(tokens)
        )  # (B, T, D)
        turns = None
        if self.config.position_embedding == "sinusoidal":
            hidden = hidden + self.waves[places].to(hidden.dtype)
        elif self.position_embedding is not None:
            hidden = hidden + self.position_embedding.weight[places]
        elif self.config.position_embedding == "rotary":
            turns = (self.cos[places], self.sin[places])
        if self.token_type_embedding is not None:
            hidden = hidden + (
                self.token_type_embedding.weight[0]
                if segments is None
                else self.token_type_embedding(segments)
            )
        return drop(self.norm(hidden), self.config.dropout, self.training), turns

    def near_turns(self, places: slice | Tensor) -> tuple[Tensor, Tensor] | None:
        """The rotary turns of layers that see a window; known for every length that was read."""
        return (
            (self.near_cos[places], self.near_sin[places])
            if self.config.position_embedding == "rotary"
            else None
        )
