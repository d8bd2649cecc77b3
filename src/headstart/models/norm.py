"""The two norms."""

from torch import nn

from headstart.config import ModelConfig


def make_norm(config: ModelConfig, width: int | None = None) -> nn.Module:
    """The norm that the settings name, over `width` numbers (the body's width unless told)."""
    size = config.hidden_size if width is None else width
    if config.norm == "rms":
        return nn.RMSNorm(size, eps=config.norm_eps)
    return nn.LayerNorm(size, eps=config.norm_eps, bias=config.bias)
