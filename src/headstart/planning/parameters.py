"""Exact parameter counts, block by block, each with its formula in symbols and in numbers.

Symbols: V vocabulary, U the source's own vocabulary, P positions, D hidden size, H = D / attention heads, G heads of keys
and values where they are shared, F feed-forward size, K kernel size, C classes.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headstart.config import ModelConfig
from headstart.constants import GATED_ACTIVATIONS
from headstart.planning.workload import ParameterCounts

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

    blocks: list[ParameterBlock]

    @property
    def total(self) -> int:
        """Parameters of the whole model."""
        return sum(block.total for block in self.blocks)

    @property
    def backbone(self) -> list[ParameterBlock]:
        """The blocks below the heads."""
        return [block for block in self.blocks if not block.name.startswith("head")]

    @property
    def heads(self) -> list[ParameterBlock]:
        """The blocks of the heads."""
        return [block for block in self.blocks if block.name.startswith("head")]

    def matrices(self, side: str = "") -> int:
        """Parameters of the backbone that every token is multiplied by; of an encoder-decoder perhaps one side's."""
        return sum(block.matrix * block.times for block in self.backbone if not side or block.side == side)

    def counts(self, heads: "Mapping[str, HeadSpec]") -> ParameterCounts:
        """What memory and time depend on; `heads` are those of the model."""
        kinds = [(heads[block.name.removeprefix("head ").split(",")[0]].kind, block) for block in self.heads]
        return ParameterCounts(
            total=self.total,
            heads=sum(block.total for block in self.heads),
            matrices=self.matrices(),
            source_matrices=self.matrices("source"),
            head_matrices=[
                (kind, block.matrix) for kind, block in kinds if kind != "lm" or block.name.endswith(", transform")
            ],
        )


def parameter_table(model: ModelConfig, vocab_size: int, heads: "Mapping[str, HeadSpec]") -> ParameterTable:
    """The exact parameters of a backbone and these heads; a head without a formula is built on no device and counted."""
    formulas = _Formulas(model, vocab_size)
    blocks = [*_backbone(formulas)]
    for name, spec in heads.items():
        blocks += HEADS.get(spec.kind, _built_head)(name, model, spec)
    return ParameterTable([block for block in blocks if block.total])


class _Formulas:
    """Blocks of one model from formulas such as "3D² + 3D"."""

    def __init__(self, model: ModelConfig, vocab_size: int):
        self.model = model
        self.values = {
            "V": vocab_size, "P": model.max_position_embeddings, "D": model.hidden_size, "F": model.intermediate_size,
            "H": model.hidden_size // model.num_heads, "K": model.kernel_size, "U": model.source_vocab_size or vocab_size,
            "G": model.num_kv_heads or model.num_heads,
        }  # fmt: skip

    def block(self, name: str, matrix: str = "", others: str = "", times: int = 1) -> ParameterBlock:
        """A block of matrices that every token is multiplied by, and of other parameters."""
        return formula(name, matrix, others, self.values, times)

    def linear(self, name: str, matrix: str, bias: str, times: int) -> ParameterBlock:
        """A linear map, with its bias if the model has biases."""
        return self.block(name, matrix, bias if self.model.bias else "", times)

    def norms(self, letter: str = "D", count: int = 1) -> str:
        """The formula of `count` norms."""
        has_bias = self.model.norm == "layer" and self.model.bias
        return " + ".join([f"2{letter}" if has_bias else letter] * count)

    def embedding(self, table: str = "VD") -> Iterator[ParameterBlock]:
        """The embedding below the layers."""
        yield self.block("token embedding", others=table)
        if self.model.position_embedding == "learned":
            yield self.block("position embedding", others="PD")
        if self.model.token_type_embeddings:
            yield self.block("token type embedding", others="2D")
        if self.model.embedding_norm:
            yield self.block("embedding norm", others=self.norms())


def formula(name: str, matrix: str, others: str, values: Mapping[str, int], times: int = 1) -> ParameterBlock:
    """A block from terms such as "3D²" or "VD"; a term's numbers are its symbols replaced by their values."""
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


def _attention_layers(formulas: _Formulas, layers: int, has_cross: bool = False) -> Iterator[ParameterBlock]:
    """Layers of attention and feed-forward, perhaps with cross-attention between the two."""
    model, block, linear = formulas.model, formulas.block, formulas.linear
    if model.num_kv_heads is None:
        yield linear("attention qkv", "3D²", "3D", layers)
    else:
        yield linear("attention qkv", "D² + 2GHD", "D + 2GH", layers)
    yield linear("attention out", "D²", "D", layers)
    if model.qk_norm:
        yield block("qk norms", others=formulas.norms("H", 2), times=layers)
    if has_cross:
        yield linear("cross q", "D²", "D", layers)
        yield replace(linear("cross kv", "2D²", "2D", layers), side="source")
        yield linear("cross out", "D²", "D", layers)
        if model.qk_norm:
            yield block("cross qk norms", others=formulas.norms("H", 2), times=layers)
    gate = "2" if model.activation in GATED_ACTIVATIONS else ""
    yield linear("feed-forward up", f"{gate}DF", f"{gate}F", layers)
    yield linear("feed-forward down", "FD", "D", layers)
    norms = 3 if has_cross else 2
    names = {1: "one norm", 2: "two norms", 3: "three norms"}
    if not model.norm_first_layer:
        yield block(f"{names[norms - 1]} in the first layer", others=formulas.norms(count=norms - 1))
    yield block(names[norms], others=formulas.norms(count=norms), times=layers - (not model.norm_first_layer))


# Layers without attention: their matrices and biases. An LSTM both ways, each D / 2 wide, has four gates that read
# D + D / 2 numbers, and two biases each; a convolution over K tokens is twice as wide for its gate.
SIMPLE_LAYERS = {"bi-lstm": ("recurrence", "6D²", "8D"), "cnn": ("convolution", "2KD²", "2D")}


def _backbone(formulas: _Formulas) -> Iterator[ParameterBlock]:
    """The blocks of a backbone, in the order of its computation."""
    model, layers = formulas.model, formulas.model.num_layers
    final_norm = [formulas.block("final norm", others=formulas.norms())]
    norm = final_norm if model.norm_first else []
    yield from formulas.embedding()
    if model.architecture == "encoder-decoder":
        if model.source_vocab_size is not None:
            yield from (replace(block, name=f"source {block.name}") for block in formulas.embedding("UD"))
        decoder = _attention_layers(formulas, model.num_decoder_layers or layers, has_cross=True)
        for name, side, stack in (
            ("encoder", "source", _attention_layers(formulas, layers)),
            ("decoder", "target", decoder),
        ):
            yield from (replace(each, name=f"{name} {each.name}", side=each.side or side) for each in (*stack, *norm))
    elif model.architecture in SIMPLE_LAYERS:
        name, matrix, bias = SIMPLE_LAYERS[model.architecture]
        yield formulas.block(name, matrix, bias, layers)
        yield formulas.block("norm", others=formulas.norms(), times=layers)
        yield from final_norm
    else:
        yield from (*_attention_layers(formulas, layers), *norm)
    if model.pooler:  # of BERT; it multiplies one token of a text
        yield formulas.block("pooler", others="D² + D")


def _language_head(name: str, model: ModelConfig, spec: "HeadSpec") -> list[ParameterBlock]:
    formulas, blocks = _Formulas(model, spec.size), []
    if model.mlm_head_transform:
        others = f"D + {formulas.norms()}" if model.bias else formulas.norms()
        blocks.append(formulas.block(f"head {name}, transform", "D²", others))
    has_bias = model.has_head_bias and spec.settings.get("bias", True)
    return [*blocks, formulas.block(f"head {name}", "" if model.tie_embeddings else "VD", "V" if has_bias else "")]


def _class_head(name: str, model: ModelConfig, spec: "HeadSpec") -> list[ParameterBlock]:
    pooled = model.hidden_size * (2 if spec.settings.get("pooling") == "mean+max" else 1)
    values = {"D": pooled, "C": spec.size}
    is_dense = spec.settings.get("projection") == "dense"
    blocks = [formula(f"head {name}, dense", "D²", "D", values)] if is_dense else []
    has_bias = model.has_head_bias or is_dense
    return [*blocks, formula(f"head {name}", "DC", "C" if has_bias else "", values)]


def _built_head(name: str, model: ModelConfig, spec: "HeadSpec") -> list[ParameterBlock]:
    """A head that has no formula, built on no device; an embedding is no matrix that tokens are multiplied by."""
    import torch

    from headstart.models.model import build_heads

    with torch.device("meta"):
        built = build_heads(model, {name: spec})[name]
    each = sum(weight.numel() for weight in built.parameters())
    matrix = sum(weight.numel() for weight in built.parameters() if weight.ndim >= 2)
    return [ParameterBlock(f"head {name}", "counted", f"{each:,}", each, matrix=matrix)]


HEADS: "dict[str, Callable[[str, ModelConfig, HeadSpec], list[ParameterBlock]]]" = {
    "lm": _language_head,
    "class": _class_head,
}
