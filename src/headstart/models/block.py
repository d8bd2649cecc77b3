"""One block, of which every Transformer body is made: attention, then a feed-forward part."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from headstart.config import BodyConfig
from headstart.errors import pick
from headstart.models.attention import Attention
from headstart.models.dropout import drop
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


class FeedForward(nn.Module):
    """Widen, bend, narrow; gated activations widen twice and multiply (Shazeer, 2020)."""

    def __init__(self, config: BodyConfig):
        super().__init__()
        self.is_gated = config.activation in GATED
        self.activation = pick(ACTIVATIONS, config.activation, "activation")
        inner = config.feed_forward * (2 if self.is_gated else 1)
        self.widen = nn.Linear(config.width, inner, bias=config.biases)
        self.narrow = nn.Linear(config.feed_forward, config.width, bias=config.biases)
        self.dropout = config.dropout

    def forward(self, hidden: Tensor) -> Tensor:
        """The same map at every position."""
        wide = self.widen(hidden)
        if self.is_gated:
            gate, value = wide.chunk(2, dim=-1)
            wide = self.activation(gate) * value
        else:
            wide = self.activation(wide)
        return self.narrow(drop(wide, self.dropout, self.training))


class Block(nn.Module):
    """Attention and feed-forward, each added to what came in, with the norm before or after."""

    def __init__(self, config: BodyConfig):
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = make_norm(config)
        self.feed_forward_norm = make_norm(config)
        self.norm_first = config.norm_first
        self.dropout = config.dropout

    def _drop(self, hidden: Tensor) -> Tensor:
        return drop(hidden, self.dropout, self.training)

    def _finish(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        hidden = hidden + self._drop(mixed)
        if self.norm_first:
            return hidden + self._drop(self.feed_forward(self.feed_forward_norm(hidden)))
        hidden = self.attention_norm(hidden)
        return self.feed_forward_norm(hidden + self._drop(self.feed_forward(hidden)))

    def forward(
        self, hidden: Tensor, mask: Tensor | None, causal: bool, turns: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """(B, T, D) in, (B, T, D) out."""
        read = self.attention_norm(hidden) if self.norm_first else hidden
        return self._finish(hidden, self.attention(read, mask, causal, turns))

    def watch(
        self, hidden: Tensor, mask: Tensor | None, causal: bool, turns: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """What `forward` gives, and the attention weights (B, A, T, T)."""
        read = self.attention_norm(hidden) if self.norm_first else hidden
        mixed, weights = self.attention.watch(read, mask, causal, turns)
        return self._finish(hidden, mixed), weights
