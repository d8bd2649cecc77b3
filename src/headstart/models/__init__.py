"""The plain neural networks: backbones and heads."""

from torch import nn

from headstart.models.backbones import Backbone, BidirectionalBackbone, CausalBackbone, EncoderDecoderBackbone
from headstart.models.heads import (
    ClassHead,
    GeneratorHead,
    LanguageHead,
    OrdinalHead,
    PairHead,
    RegressionHead,
    ReplacedHead,
    TokenHead,
)
from headstart.models.recurrent import ConvolutionalBackbone, RecurrentBackbone

BACKBONES: dict[str, type[Backbone]] = {
    "causal": CausalBackbone,
    "bidirectional": BidirectionalBackbone,
    "encoder-decoder": EncoderDecoderBackbone,
    "bi-lstm": RecurrentBackbone,
    "cnn": ConvolutionalBackbone,
}
HEADS: dict[str, type[nn.Module]] = {
    "lm": LanguageHead,
    "class": ClassHead,
    "regression": RegressionHead,
    "ordinal": OrdinalHead,
    "token": TokenHead,
    "pair": PairHead,
    "replaced": ReplacedHead,
    "generator": GeneratorHead,
}
