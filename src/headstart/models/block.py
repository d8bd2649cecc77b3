"""One block, of which every Transformer body is made: attention, then a feed-forward part."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from headstart.config import ModelConfig
from headstart.errors import pick
from headstart.models.attention import Attention, CrossAttention, at
from headstart.models.cache import Past
from headstart.models.dropout import drop
from headstart.models.flat import Flat
from headstart.models.norm import make_norm

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu2": lambda x: F.relu(x).square(),
    "swiglu": F.silu,
    "geglu": F.gelu,
}
GATED = ("swiglu", "geglu")
Turns = tuple[Tensor, Tensor]  # cosines and sines of rotary positions
View = tuple[Tensor | None, bool, Turns | None]  # what a layer may read, causal or not, its turns
Source = tuple[Tensor, Tensor, Tensor | None]  # keys, values and mask of another text


class FeedForward(nn.Module):
    """Widen, bend, narrow; gated activations widen twice and multiply (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.is_gated = config.activation in GATED
        self.activation = pick(ACTIVATIONS, config.activation, "activation")
        inner = config.intermediate_size * (2 if self.is_gated else 1)
        self.up_proj = nn.Linear(config.hidden_size, inner, bias=config.bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.bias)
        self.dropout = config.dropout

    def forward(self, hidden: Tensor) -> Tensor:
        """The same map at every position."""
        wide = self.up_proj(hidden)
        if self.is_gated:
            gate, value = wide.chunk(2, dim=-1)
            wide = self.activation(gate) * value
        else:
            wide = self.activation(wide)
        return self.down_proj(drop(wide, self.dropout, self.training))


class Block(nn.Module):
    """Attention and feed-forward, each added to what came in, with the norm before or after.

    A block that `crosses` also reads another text, between the two.
    """

    def __init__(self, config: ModelConfig, crosses: bool = False):
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = make_norm(config)
        self.feed_forward_norm = make_norm(config)
        self.cross_attention = CrossAttention(config) if crosses else None
        self.cross_attention_norm = make_norm(config) if crosses else None
        self.norm_first = config.norm_first
        self.dropout = config.dropout

    def _drop(self, hidden: Tensor) -> Tensor:
        return drop(hidden, self.dropout, self.training)

    def _read(self, hidden: Tensor) -> Tensor:
        return self.attention_norm(hidden) if self.norm_first else hidden

    def _add(self, hidden: Tensor, mixed: Tensor, norm: nn.Module) -> Tensor:
        hidden = hidden + self._drop(mixed)
        return hidden if self.norm_first else norm(hidden)

    def _finish(self, hidden: Tensor) -> Tensor:
        read = self.feed_forward_norm(hidden) if self.norm_first else hidden
        return self._add(hidden, self.feed_forward(read), self.feed_forward_norm)

    def _cross(self, hidden: Tensor, source: Source | None) -> Tensor:
        """What the source says to each position, added."""
        if self.cross_attention is None or self.cross_attention_norm is None:
            return hidden
        assert source is not None
        read = self.cross_attention_norm(hidden) if self.norm_first else hidden
        return self._add(hidden, self.cross_attention(read, *source), self.cross_attention_norm)

    def forward(
        self,
        hidden: Tensor,
        mask: Tensor | None,
        causal: bool,
        turns: Turns | None,
        source: Source | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """(B, T, D) in, (B, T, D) out; `source` is what a block that crosses reads beside it.

        With `places`, only what stands there comes out (N, D): above attention each position is on its own.
        """
        mixed = self.attention(self._read(hidden), mask, causal, turns, places)
        hidden = at(hidden, places)
        return self._finish(self._cross(self._add(hidden, mixed, self.attention_norm), source))

    def flat(
        self,
        hidden: Tensor,
        flat: Flat,
        mask: Tensor | None,
        causal: bool,
        turns: Turns | None,
        places: Tensor | None = None,
    ) -> Tensor:
        """What `forward` gives in evaluation at real tokens alone: (N, D) in, (N, D) out, or those at `places`."""
        mixed = self.attention.flat(self._read(hidden), flat, mask, causal, turns, places)
        hidden = hidden if places is None else hidden.index_select(0, flat.slots[places])
        return self._finish(self._add(hidden, mixed, self.attention_norm))

    def read(
        self,
        hidden: Tensor,
        mask: Tensor | None,
        causal: bool,
        turns: Turns | None,
        past: Past,
        source: Source | None = None,
    ) -> Tensor:
        """What `forward` gives at new positions, the earlier ones being remembered in `past`."""
        mixed = self.attention.read(self._read(hidden), mask, causal, turns, past)
        return self._finish(self._cross(self._add(hidden, mixed, self.attention_norm), source))

    def watch(
        self,
        hidden: Tensor,
        mask: Tensor | None,
        causal: bool,
        turns: Turns | None,
        source: Source | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What `forward` gives, the attention weights (B, A, T, T), and those over the source (B, A, T, S)."""
        mixed, weights = self.attention.watch(self._read(hidden), mask, causal, turns)
        hidden, crossed = self._add(hidden, mixed, self.attention_norm), None
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            assert source is not None
            read = self.cross_attention_norm(hidden) if self.norm_first else hidden
            mixed, crossed = self.cross_attention.watch(read, *source)
            hidden = self._add(hidden, mixed, self.cross_attention_norm)
        return self._finish(hidden), weights, crossed
