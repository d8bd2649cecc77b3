"""The two norms."""

from torch import nn

from headstart.config import BodyConfig


def make_norm(config: BodyConfig, width: int | None = None) -> nn.Module:
    """The norm that the settings name, over `width` numbers (the body's width unless told)."""
    size = config.width if width is None else width
    if config.norm == "rms":
        return nn.RMSNorm(size, eps=config.norm_epsilon)
    return nn.LayerNorm(size, eps=config.norm_epsilon, bias=config.biases)
