"""Exact parameter counts, block by block, each with its formula in symbols and in numbers.

Symbols: V vocabulary, U the source's own vocabulary, P positions, D hidden size, H = D / attention heads, G heads of keys
and values where they are shared, F feed-forward size, K kernel size, C classes.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headstart.config import ModelConfig
from headstart.constants import GATED_ACTIVATIONS

if TYPE_CHECKING:
    from headstart.models.model import HeadSpec


@dataclass(frozen=True)
class ParameterBlock:
    """Parameters of one kind: how many, by which formula, and how many of them multiply every token."""

    name: str
    symbols: str  # "3D² + 3D"
    numbers: str  # "3·200² + 3·200 = 120,600"
    each: int
    times: int = 1  # how often the block occurs
    matrix: int = 0  # of `each`, those in a matrix that every token is multiplied by
    side: str = ""  # of an encoder-decoder: whether those tokens are the "source" or the "target"

    @property
    def total(self) -> int:
        """Parameters of all such blocks together."""
        return self.each * self.times


@dataclass(frozen=True)
class ParameterTable:
    """All parameters of a model, block by block."""

    backbone: list[ParameterBlock]
    heads: list[ParameterBlock]

    @property
    def blocks(self) -> list[ParameterBlock]:
        """The blocks of the backbone, and those of the heads."""
        return self.backbone + self.heads

    @property
    def total(self) -> int:
        """Parameters of the whole model."""
        return sum(block.total for block in self.blocks)


def parameter_table(model: ModelConfig, vocab_size: int, heads: "Mapping[str, HeadSpec]") -> ParameterTable:
    """The exact parameters of a backbone and these heads; a head without a formula is built on no device and counted."""
    in_heads = [block for name, spec in heads.items() for block in _head(f"head {name}", model, spec)]
    return ParameterTable(*([each for each in part if each.total] for part in (_backbone(model, vocab_size), in_heads)))


def formula(name: str, matrix: str, others: str, values: Mapping[str, int], times: int = 1) -> ParameterBlock:
    """A block from terms such as "3D²" or "VD"; a term's numbers are its symbols replaced by their values.

    The terms of `matrix` count matrices that every token is multiplied by, `others` all other parameters.
    """
    sizes, numbers = [], []
    terms = [term for part in (matrix, others) for term in part.split(" + ") if term]
    for term in terms:
        size, factors = 1, []
        for factor, power in re.findall(r"(\d+|[A-Z])(²?)", term):
            value = int(factor) if factor.isdigit() else values[factor]
            size *= value ** (2 if power else 1)
            factors.append(f"{value:,}{power}")
        sizes.append(size)
        numbers.append("·".join(factors))
    each, words = sum(sizes), " + ".join(numbers)
    shown = f"{each:,}" if words == f"{each:,}" else f"{words} = {each:,}"
    in_matrix = sum(sizes[: len(matrix.split(" + "))]) if matrix else 0
    return ParameterBlock(name, " + ".join(terms), shown, each, times, in_matrix)


def _norms(model: ModelConfig, letter: str = "D", count: int = 1) -> str:
    """The formula of `count` norms."""
    return " + ".join([f"2{letter}" if model.norm == "layer" and model.bias else letter] * count)


# Layers without attention: their matrices and biases. An LSTM both ways, each D / 2 wide, has four gates that read
# D + D / 2 numbers, and two biases each; a convolution over K tokens is twice as wide for its gate.
SIMPLE_LAYERS = {"bi-lstm": ("recurrence", "6D²", "8D"), "cnn": ("convolution", "2KD²", "2D")}


def _backbone(model: ModelConfig, vocab_size: int) -> Iterator[ParameterBlock]:
    """The blocks of a backbone, in the order of its computation."""
    values = {
        "V": vocab_size, "P": model.max_position_embeddings, "D": model.hidden_size, "F": model.intermediate_size,
        "H": model.hidden_size // model.num_heads, "K": model.kernel_size, "U": model.source_vocab_size or vocab_size,
        "G": model.num_kv_heads or model.num_heads,
    }  # fmt: skip

    def block(name: str, matrix: str = "", others: str = "", times: int = 1) -> ParameterBlock:
        return formula(name, matrix, others, values, times)

    def linear(name: str, matrix: str, bias: str, times: int) -> ParameterBlock:
        return block(name, matrix, bias if model.bias else "", times)

    def embedding(table: str) -> Iterator[ParameterBlock]:
        yield block("token embedding", others=table)
        if model.position_embedding == "learned":
            yield block("position embedding", others="PD")
        if model.token_type_embeddings:
            yield block("token type embedding", others="2D")
        if model.embedding_norm:
            yield block("embedding norm", others=_norms(model))

    def attention_layers(layers: int, has_cross: bool = False) -> Iterator[ParameterBlock]:
        is_shared = model.num_kv_heads is not None
        yield linear("attention qkv", *(("D² + 2GHD", "D + 2GH") if is_shared else ("3D²", "3D")), layers)
        yield linear("attention out", "D²", "D", layers)
        if model.qk_norm:
            yield block("qk norms", others=_norms(model, "H", 2), times=layers)
        if has_cross:
            yield linear("cross q", "D²", "D", layers)
            yield replace(linear("cross kv", "2D²", "2D", layers), side="source")
            yield linear("cross out", "D²", "D", layers)
            if model.qk_norm:
                yield block("cross qk norms", others=_norms(model, "H", 2), times=layers)
        gate = "2" if model.activation in GATED_ACTIVATIONS else ""
        yield linear("feed-forward up", f"{gate}DF", f"{gate}F", layers)
        yield linear("feed-forward down", "FD", "D", layers)
        names = ("one norm", "two norms", "three norms")
        norms = 3 if has_cross else 2
        if not model.norm_first_layer:
            yield block(f"{names[norms - 2]} in the first layer", others=_norms(model, count=norms - 1))
        times = layers - (not model.norm_first_layer)
        yield block(names[norms - 1], others=_norms(model, count=norms), times=times)
        if model.norm_first:
            yield block("final norm", others=_norms(model))

    yield from embedding("VD")
    if model.architecture == "encoder-decoder":
        if model.source_vocab_size is not None:
            yield from (replace(each, name=f"source {each.name}") for each in embedding("UD"))
        decoder = attention_layers(model.num_decoder_layers or model.num_layers, has_cross=True)
        sides = (("encoder", "source", attention_layers(model.num_layers)), ("decoder", "target", decoder))
        for name, side, stack in sides:
            yield from (replace(each, name=f"{name} {each.name}", side=each.side or side) for each in stack)
    elif model.architecture in SIMPLE_LAYERS:
        yield block(*SIMPLE_LAYERS[model.architecture], model.num_layers)
        yield block("norm", others=_norms(model), times=model.num_layers)
        yield block("final norm", others=_norms(model))
    else:
        yield from attention_layers(model.num_layers)
    if model.pooler:  # of BERT; it multiplies one token of a text
        yield block("pooler", others="D² + D")


def _head(name: str, model: ModelConfig, spec: "HeadSpec") -> Iterator[ParameterBlock]:
    """The blocks of a head; one that has no formula is built on no device."""
    if spec.kind == "lm":
        values = {"V": spec.size, "D": model.hidden_size}
        if model.mlm_head_transform:
            others = f"D + {_norms(model)}" if model.bias else _norms(model)
            yield formula(f"{name}, transform", "D²", others, values)
        has_bias = model.has_head_bias and spec.settings.get("bias", True)
        yield formula(name, "" if model.tie_embeddings else "VD", "V" if has_bias else "", values)
    elif spec.kind == "class" and spec.settings.get("pooling") != "pair":
        pooled = model.hidden_size * (2 if spec.settings.get("pooling") == "mean+max" else 1)
        values = {"D": pooled, "C": spec.size}
        if is_dense := spec.settings.get("projection") == "dense":
            yield formula(f"{name}, dense", "D²", "D", values)
        yield formula(name, "DC", "C" if model.has_head_bias or is_dense else "", values)
    else:
        import torch

        from headstart.models.model import build_heads

        with torch.device("meta"):
            weights = list(build_heads(model, {"": spec})[""].parameters())
        each = sum(weight.numel() for weight in weights)
        matrix = sum(weight.numel() for weight in weights if weight.ndim >= 2)  # an embedding is none
        yield ParameterBlock(name, "counted", f"{each:,}", each, matrix=matrix)
